"""Skills, which the agent has learned: `<home>/skills/<name>/SKILL.md`, read when a task needs it.

A skill is a Markdown file its owner may write or edit; YAML front matter (name, description) is optional.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hermes.agent.tools.file_access import explained, locked_folder, read_own, write_own
from hermes.agent.tools.tool import Context, Tool, argument, choice_argument, parameters, text_argument
from hermes.errors import ToolError
from hermes.texts import one_line, shortened

NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
MAX_CHARS: Final = 60_000
DESCRIPTION_CHARS: Final = 200

_FRONT_MATTER: Final = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", re.S)


@dataclass(slots=True, frozen=True)
class Skill:
    """A skill as the system prompt lists it."""

    name: str
    description: str


def skill_list(home: Path) -> list[Skill]:
    """Every skill that can be read, by name."""
    found = []
    try:
        names = sorted(os.listdir(home / "skills"))
    except OSError:
        return []
    for name in names:
        if NAME.fullmatch(name):
            try:
                text = read_own(_file(home, name))
            except ToolError:
                continue
            if text is not None:
                found.append(Skill(name, _description(text)))
    return found


def _file(home: Path, name: str) -> Path:
    """The path of a skill; a name or a link that leads elsewhere is refused."""
    if not NAME.fullmatch(name):
        raise ToolError(
            f"{name[:80]!r} is not a valid skill name: use lower-case letters, digits and dashes, at most 64"
        )
    root = os.path.realpath(home / "skills")
    path = home / "skills" / name / "SKILL.md"
    if os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise ToolError(f"the skill {name} is a link to somewhere outside {home / 'skills'}; it is not followed")
    return path


def _front_matter(text: str) -> dict[str, Any]:
    """The front matter; empty when there is none. ToolError when it is not a mapping in YAML."""
    match = _FRONT_MATTER.match(text)
    if not match:
        return {}
    import yaml

    try:
        values = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or "it can't be read"
        raise ToolError(f"the front matter of the skill is not YAML: {problem}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ToolError("the front matter of the skill must be lines like 'description: …'")
    return {str(key): value for key, value in values.items()}


def _description(text: str) -> str:
    try:
        said = _front_matter(text).get("description")
    except ToolError:
        said = None
    if not isinstance(said, str) or not said.strip():
        body = _FRONT_MATTER.sub("", text, count=1)
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        said = next((line for line in lines if not line.startswith("#")), lines[0].lstrip("# ") if lines else "")
    return shortened(one_line(said), DESCRIPTION_CHARS)


def _run(context: Context, arguments: dict[str, Any]) -> str:
    action = choice_argument(arguments, "action", ("list", "view", "save"))
    if action == "list":
        skills = skill_list(context.home)
        return "\n".join(f"{skill.name}: {skill.description}" for skill in skills) or "There are no skills yet."
    name = text_argument(arguments, "name").strip()
    if action == "view":
        return _view(context.home, name)
    return _save(context.home, name, context.db.masked(text_argument(arguments, "content")))


def _view(home: Path, name: str) -> str:
    path = _file(home, name)
    text = read_own(path)
    if text is None:
        known = ", ".join(skill.name for skill in skill_list(home)) or "none"
        raise ToolError(f"there is no skill {name}; there are: {known}")
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if len(text) > MAX_CHARS:
        text = f"{text[:MAX_CHARS]}\n[{len(text) - MAX_CHARS:,} more characters are not shown]"
    with explained(path):
        others = sorted(entry.name for entry in path.parent.iterdir() if entry.name != path.name)[:20]
    beside = [other for other in others if not other.startswith(".")]
    return text + (f"\n\n[other files in {path.parent}: {', '.join(beside)}]" if beside else "")


def _save(home: Path, name: str, content: str) -> str:
    path = _file(home, name)
    if len(content) > MAX_CHARS:
        raise ToolError(f"a skill may have {MAX_CHARS:,} characters, this one has {len(content):,}; shorten it")
    if "\0" in content:
        raise ToolError("the content of a skill must be text; it has null characters")
    said = _front_matter(content).get("name")
    if said is not None and said != name:
        raise ToolError(f"the front matter names the skill {str(said)[:80]!r}, but it would be saved as {name!r}")
    content = content.encode("utf-8", "replace").decode()
    with locked_folder(home / "skills"):
        with explained(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        _file(home, name)  # again, now that no other process can put a link there
        existed = path.exists()
        write_own(path, content if content.endswith("\n") else content + "\n")
    return f"{'Replaced' if existed else 'Saved'} the skill {name}: {_description(content)}"


skills = Tool(
    name="skills",
    description=(
        "Instructions for tasks that come again. view one before a task it fits; save one when a way of doing something"
        " proved good and will be needed again (Markdown, with front matter 'name' and 'description')."
    ),
    parameters=parameters(
        "action",
        action=argument("string", enum=["list", "view", "save"]),
        name="Small letters, digits and dashes.",
        content="The whole SKILL.md, for save.",
    ),
    run=_run,
)

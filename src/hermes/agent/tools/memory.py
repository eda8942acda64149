"""Memory and skills, which the agent keeps across conversations in files of its home that the owner may edit.

Memory is lines in `<home>/memories/MEMORY.md` and `USER.md`: one entry per line ("- …"), other lines stay unchanged. They
are shown in every system prompt, so their length is limited. A skill is `<home>/skills/<name>/SKILL.md`, Markdown with
optional YAML front matter (name, description), read when a task needs it.
"""

from __future__ import annotations

import os
import re
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from hermes.agent.tools.files import explained, locked_folder, read_own, write_own
from hermes.agent.tools.tool import Context, tool
from hermes.errors import ToolError
from hermes.texts import counted, one_line, shortened

FILES: Final = {"memory": "MEMORY.md", "user": "USER.md"}
LIMITS: Final = {"memory": 8_000, "user": 4_000}  # characters in the file
ENTRY_LIMIT: Final = 1_000


def memory_lines(home: Path) -> dict[str, list[str]]:
    """The entries of both files, for the system prompt; a file that became too long by hand is cut, with a note."""
    found = {}
    for target in FILES:
        try:
            lines = [one_line(entry) for entry in _entries(_read(home, target))]
        except ToolError:
            lines = []
        found[target] = _bounded([line for line in lines if line], target)
    return found


def _bounded(lines: list[str], target: str) -> list[str]:
    count = sum(used <= LIMITS[target] * 2 for used in accumulate(len(line) + 3 for line in lines))
    more = [f"({len(lines) - count} more lines in {FILES[target]} are not shown here)"] if count < len(lines) else []
    return lines[:count] + more


def _path(home: Path, target: str) -> Path:
    return home / "memories" / FILES[target]


def _read(home: Path, target: str) -> str:
    return read_own(_path(home, target)) or ""


def _is_entry(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith(("#", "<!--"))


def _entry(line: str) -> str:
    line = line.strip()
    return line[2:].strip() if line.startswith(("- ", "* ")) else line


def _entries(text: str) -> list[str]:
    return [_entry(line) for line in text.split("\n") if _is_entry(line)]


class _MemoryChange(Struct):
    action: Literal["add", "replace", "remove"]
    target: Annotated[Literal["memory", "user"], Meta(description="Which file; memory if not said.")] = "memory"
    text: Annotated[str, Meta(description="The entry to add, or the new text of the replaced one.")] = ""
    old_text: Annotated[str, Meta(description="A part of the entry to replace or remove.")] = ""


def _run_memory(context: Context, arguments: _MemoryChange) -> str:
    target = arguments.target
    with locked_folder(context.home / "memories"):
        text = _read(context.home, target)
        changed, summary = _changed(context, text, arguments)
        if len(changed) > max(LIMITS[target], len(text)):
            raise ToolError(
                f"{FILES[target]} would have {len(changed):,} characters and may have {LIMITS[target]:,};"
                " remove or shorten something first"
            )
        if changed != text:
            write_own(_path(context.home, target), changed)
    count = len(_entries(changed))
    return f"{summary} ({counted(count, 'entry', 'entries')}, {len(changed):,} of {LIMITS[target]:,} characters)"


def _changed(context: Context, text: str, arguments: _MemoryChange) -> tuple[str, str]:
    """The text of a file after an action, and a summary of it. The searched text is masked, as it was when it was added."""
    name, lines = FILES[arguments.target], text.split("\n")
    at = None if arguments.action == "add" else _found(lines, context.db.masked(_old(arguments)), arguments.target)
    entry = None if arguments.action == "remove" else context.db.masked(_new(arguments.text))
    others = [_entry(line) for number, line in enumerate(lines) if number != at and _is_entry(line)]
    if at is None:
        if entry in others:
            return text, f"{name} already has that"
        return text + ("" if not text or text.endswith("\n") else "\n") + f"- {entry}\n", f"Added to {name}"
    lines[at : at + 1] = [] if entry is None or entry in others else [f"- {entry}"]
    return "\n".join(lines), f"Removed from {name}" if entry is None else f"Replaced in {name}"


def _new(text: str) -> str:
    text = one_line(text)
    if text.startswith(("- ", "* ")):
        text = text[2:].strip()
    if not text:
        raise ToolError("text must not be empty")
    if len(text) > ENTRY_LIMIT:
        raise ToolError(f"an entry may have {ENTRY_LIMIT:,} characters, this one has {len(text):,}; shorten it")
    return text


def _old(arguments: _MemoryChange) -> str:
    old = one_line(arguments.old_text or (arguments.text if arguments.action == "remove" else ""))
    if not old:
        raise ToolError("old_text must name a part of the entry")
    return old.removeprefix("- ")


def _found(lines: list[str], old: str, target: str) -> int:
    """The index of the matching line: the exact entry, or the only one that contains the text."""
    entries = {number: one_line(_entry(line)) for number, line in enumerate(lines) if _is_entry(line)}
    matching = [number for number, entry in entries.items() if entry == old]
    matching = matching[:1] or [number for number, entry in entries.items() if old in entry]
    if len(matching) != 1:
        named = "; ".join(repr(entries[number][:80]) for number in (matching or list(entries))[:10])
        count = len(matching) or "no"
        raise ToolError(f"{count} entries in {FILES[target]} contain {old!r}, name one: {named or 'there are none'}")
    return matching[0]


memory = tool(
    "memory",
    "Remember something across conversations, or change what is remembered. target 'user' is about the person"
    " (preferences, facts), 'memory' about the work (decisions, places, how things are done). One short line an"
    " entry. replace and remove find the entry by a part of it in old_text. Everything saved here is shown to you"
    " at the start of every conversation.",
    _MemoryChange,
    _run_memory,
)


NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
MAX_CHARS: Final = 60_000
DESCRIPTION_CHARS: Final = 200

_FRONT_MATTER: Final = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", re.S)


def skill_list(home: Path) -> dict[str, str]:
    """Every skill that can be read, in the order of their names, with its description."""
    found = {}
    try:
        names = sorted(os.listdir(home / "skills"))
    except OSError:
        return {}
    for name in names:
        if NAME.fullmatch(name):
            try:
                text = read_own(_file(home, name))
            except ToolError:
                continue
            if text is not None:
                found[name] = _description(text)
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
        description = _front_matter(text).get("description")
    except ToolError:
        description = None
    if not isinstance(description, str) or not description.strip():
        body = _FRONT_MATTER.sub("", text, count=1)
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        description = next((line for line in lines if not line.startswith("#")), lines[0].lstrip("# ") if lines else "")
    return shortened(one_line(description), DESCRIPTION_CHARS)


class _SkillCall(Struct):
    action: Literal["list", "view", "save"]
    name: Annotated[str, Meta(description="Small letters, digits and dashes.")] = ""
    content: Annotated[str, Meta(description="The whole SKILL.md, for save.")] = ""


def _run_skills(context: Context, arguments: _SkillCall) -> str:
    if arguments.action == "list":
        known = skill_list(context.home).items()
        return "\n".join(f"{name}: {description}" for name, description in known) or "There are no skills yet."
    name = arguments.name.strip()
    if arguments.action == "view":
        return _view(context.home, name)
    return _save(context.home, name, context.db.masked(arguments.content))


def _view(home: Path, name: str) -> str:
    path = _file(home, name)
    text = read_own(path)
    if text is None:
        known = ", ".join(skill_list(home)) or "none"
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
    if "\0" in content or not content.strip():
        raise ToolError("the content of a skill must be text, without null characters")
    declared = _front_matter(content).get("name")
    if declared is not None and declared != name:
        raise ToolError(f"the front matter names the skill {str(declared)[:80]!r}, but it would be saved as {name!r}")
    content = content.encode("utf-8", "replace").decode()
    with locked_folder(home / "skills"):
        with explained(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        _file(home, name)  # again, now that no other process can put a link there
        existed = path.exists()
        write_own(path, content if content.endswith("\n") else content + "\n")
    return f"{'Replaced' if existed else 'Saved'} the skill {name}: {_description(content)}"


skills = tool(
    "skills",
    "Instructions for tasks that come again. view one before a task it fits; save one when a way of doing something"
    " proved good and will be needed again (Markdown, with front matter 'name' and 'description').",
    _SkillCall,
    _run_skills,
)

"""Project instructions: AGENTS.md of the home, and of every folder from the repository's root down to the working folder.

They stand at the end of the system prompt, so that a changed file changes nothing before them. A folder without AGENTS.md
gives CLAUDE.md, GEMINI.md or .cursorrules instead: the first one it has. The nearest file comes last; long ones are cut.
"""

from __future__ import annotations

from pathlib import Path

from hermes.home import project_folder
from hermes.texts import harmless, without_middle

NAMES = ("AGENTS.md", "CLAUDE.md", "GEMINI.md", ".cursorrules")
MOST = 32_000  # characters of all files together, as in other agents
_MARK = "\n\n# Project instructions\n"
_HOW = (
    "Work by these files. Where two differ, the later one counts, and what the user says in this conversation counts more"
    " than any of them."
)
Stamps = tuple[tuple[str, int, int], ...]  # each file with its time and size


def instruction_files(home: Path, folder: Path) -> list[Path]:
    """The files that count in a folder, the nearest last."""
    top = project_folder(folder)
    between = [one for one in (folder, *folder.parents) if one.is_relative_to(top)]
    named = [next((path for name in NAMES if _is_file(path := one / name)), None) for one in reversed(between)]
    own = home / NAMES[0]
    found = [own] if _is_file(own) else []
    return list(dict.fromkeys([*found, *(path for path in named if path is not None)]))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be entered
        return False


def stamps(files: list[Path]) -> Stamps:
    """Time and size of each file, which show a change without reading it."""
    found = []
    for path in files:
        try:
            about = path.stat()
        except OSError:
            continue
        found.append((str(path), about.st_mtime_ns, about.st_size))
    return tuple(found)


def with_instructions(prompt: str, files: list[Path], room: int = MOST) -> str:
    """A system prompt with these files at its end, in place of those it had; together at most `room` characters."""
    texts: dict[Path, str] = {}
    for path in files:
        try:
            with path.open("rb") as stream:
                texts[path] = harmless(stream.read(1_000_000).decode("utf-8", "replace")).strip()
        except OSError:
            continue
    for left, path in zip(range(len(texts), 0, -1), sorted(texts, key=lambda one: len(texts[one])), strict=True):
        texts[path] = without_middle(texts[path], room // left)  # what short files leave is for the long ones
        room -= len(texts[path])
    parts = [f"[{path}]\n{text}\n[end of {path.name}]" for path, text in texts.items() if text]
    before = prompt.partition(_MARK)[0]
    return before + _MARK + "\n\n".join([_HOW, *parts]) if parts else before


def without_instructions(prompt: str) -> tuple[str, str]:
    """A system prompt and, apart, the project instructions at its end."""
    before, mark, rest = prompt.partition(_MARK)
    return before, mark + rest

"""Memory across conversations: lines in `<home>/memories/MEMORY.md` and `USER.md`.

Both are ordinary files their owner may edit: one entry per line ("- …"), other lines stay unchanged. They are
shown in every system prompt, so their length is limited.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hermes.agent.tools.file_access import locked_folder, read_own, write_own
from hermes.agent.tools.tool import Context, Tool, argument, choice_argument, parameters, text_argument
from hermes.errors import ToolError
from hermes.texts import counted, one_line

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
    used = 0
    for number, line in enumerate(lines):
        used += len(line) + 3
        if used > LIMITS[target] * 2:
            return [*lines[:number], f"({len(lines) - number} more lines in {FILES[target]} are not shown here)"]
    return lines


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


def _run(context: Context, arguments: dict[str, Any]) -> str:
    action = choice_argument(arguments, "action", ("add", "replace", "remove", "list"))
    target = choice_argument(
        arguments, "target", tuple(FILES), None if action == "list" and "target" in arguments else "memory"
    )
    if action == "list":
        return _listed(context.home, list(FILES) if arguments.get("target") is None else [target])
    with locked_folder(context.home / "memories"):
        text = _read(context.home, target)
        old = "" if action == "add" else context.db.masked(_old(arguments))  # masked like when it was added
        if action == "add":
            changed, said = _added(text, context.db.masked(_new(arguments)), target)
        elif action == "replace":
            changed, said = _replaced(text, old, context.db.masked(_new(arguments)), target)
        else:
            changed, said = _removed(text, old, target)
        if changed != text:
            if len(changed) > LIMITS[target] and len(changed) > len(text):
                raise ToolError(
                    f"{FILES[target]} would have {len(changed):,} characters and may have {LIMITS[target]:,};"
                    " remove or shorten something first"
                )
            write_own(_path(context.home, target), changed)
    count = len(_entries(changed))
    return f"{said} ({counted(count, 'entry', 'entries')}, {len(changed):,} of {LIMITS[target]:,} characters)"


def _new(arguments: dict[str, Any]) -> str:
    text = one_line(text_argument(arguments, "text"))
    if text.startswith(("- ", "* ")):
        text = text[2:].strip()
    if not text:
        raise ToolError("text must not be empty")
    if len(text) > ENTRY_LIMIT:
        raise ToolError(f"an entry may have {ENTRY_LIMIT:,} characters, this one has {len(text):,}; shorten it")
    return text


def _old(arguments: dict[str, Any]) -> str:
    name = "old_text" if arguments.get("old_text") is not None else "text"
    old = one_line(text_argument(arguments, name if arguments.get("action") == "remove" else "old_text"))
    if not old:
        raise ToolError("old_text must name a part of the entry")
    return old.removeprefix("- ")


def _added(text: str, entry: str, target: str) -> tuple[str, str]:
    if entry in _entries(text):
        return text, f"{FILES[target]} already has that"
    return text + ("" if not text or text.endswith("\n") else "\n") + f"- {entry}\n", f"Added to {FILES[target]}"


def _replaced(text: str, old: str, entry: str, target: str) -> tuple[str, str]:
    lines, at = _found(text, old, target)
    others = [_entry(line) for number, line in enumerate(lines) if number != at and _is_entry(line)]
    if entry in others:  # the new text exists already: only remove the old one
        del lines[at]
    else:
        lines[at] = f"- {entry}"
    return "\n".join(lines), f"Replaced in {FILES[target]}"


def _removed(text: str, old: str, target: str) -> tuple[str, str]:
    lines, at = _found(text, old, target)
    del lines[at]
    return "\n".join(lines), f"Removed from {FILES[target]}"


def _found(text: str, old: str, target: str) -> tuple[list[str], int]:
    """The lines, and the index of the matching entry: the exact one, or the only one with that part."""
    lines = text.split("\n")
    entries = {number: one_line(_entry(line)) for number, line in enumerate(lines) if _is_entry(line)}
    matching = [number for number, entry in entries.items() if entry == old]
    matching = matching[:1] or [number for number, entry in entries.items() if old in entry]
    if not matching:
        raise ToolError(f"no entry in {FILES[target]} contains {old!r}; list shows the entries")
    if len(matching) > 1:
        candidates = "; ".join(repr(entries[number][:80]) for number in matching[:10])
        raise ToolError(f"{len(matching)} entries in {FILES[target]} contain {old!r}, name one: {candidates}")
    return lines, matching[0]


def _listed(home: Path, targets: list[str]) -> str:
    parts = []
    for target in targets:
        entries = [one_line(entry) for entry in _entries(_read(home, target))]
        head = f"{FILES[target]}:" if entries else f"{FILES[target]} is empty."
        parts.append("\n".join([head, *(f"- {entry}" for entry in entries)]))
    return "\n".join(parts)


memory = Tool(
    name="memory",
    description=(
        "Remember something across conversations, or change what is remembered. target 'user' is about the person"
        " (preferences, facts), 'memory' about the work (decisions, places, how things are done). One short line an"
        " entry. replace and remove find the entry by a part of it in old_text. Everything saved here is shown to you"
        " at the start of every conversation."
    ),
    parameters=parameters(
        "action",
        action=argument("string", enum=["add", "replace", "remove", "list"]),
        target=argument("string", "Which file; memory if not said.", enum=["memory", "user"]),
        text="The entry to add, or the new text of the replaced one.",
        old_text="A part of the entry to replace or remove.",
    ),
    run=_run,
)

"""The file tools: read_file, write_file, edit_file and search_files, with a diff of every change.

They work in the folder the conversation began in; outside it the user is asked (file_access.py). Line numbers in a patch are
only a hint: models count badly, and quote the lines well.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hermes.agent.tools import file_access
from hermes.agent.tools.tool import (
    Context,
    Reported,
    Tool,
    argument,
    flag_argument,
    number_argument,
    parameters,
    text_argument,
)
from hermes.errors import HermesError, ToolError
from hermes.texts import counted, without_middle

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB


_FILE_HEADS = ("--- ", "+++ ", "diff ", "index ")
_HEAD = re.compile(r"^@@(?: -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*| .*|)$")


@dataclass(slots=True)
class _Hunk:
    line: int  # its line number in the patch; 0: none
    old: list[str]
    new: list[str]


def patched(text: str, patch: str) -> str:
    """The text with every hunk applied; ToolError when one does not fit, and then nothing is changed."""
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.split(ending)
    moved = 0
    hunks = _hunks(patch)
    if not hunks:
        raise ToolError("the patch has no hunks; it is a unified diff with lines that begin with @@, space, + and -")
    for number, hunk in enumerate(hunks, 1):
        place = _place(lines, hunk, moved, number)
        lines[place : place + len(hunk.old)] = hunk.new
        moved += len(hunk.new) - len(hunk.old)
    return ending.join(lines)


def _hunks(patch: str) -> list[_Hunk]:
    made: list[_Hunk] = []
    for line in patch.replace("\r\n", "\n").rstrip("\n").split("\n"):
        head = _HEAD.match(line)
        if head is not None:
            made.append(_Hunk(int(head[1] or 0), [], []))
        elif not made:
            if line.strip() and not line.startswith(_FILE_HEADS):
                raise ToolError(f"the patch begins with no hunk (@@) but with {line[:80]!r}")
        elif not line.startswith("\\"):  # "\ No newline at end of file"
            sign, rest = (line[0], line[1:]) if line else (" ", "")
            if sign not in " +-":
                raise ToolError(f"a line of the patch begins with neither space, + nor -: {line[:80]!r}")
            if sign != "+":
                made[-1].old.append(rest)
            if sign != "-":
                made[-1].new.append(rest)
    return [hunk for hunk in made if hunk.old or hunk.new]


def _place(lines: list[str], hunk: _Hunk, moved: int, number: int) -> int:
    """The line where a hunk's old lines begin: the only place, or of several the one nearest to its line number."""
    hinted = max(0, hunk.line - 1 + moved)
    if not hunk.old:
        if not hunk.line:
            raise ToolError(f"hunk {number} only adds lines and does not say where: quote a line around them")
        return min(hinted + 1, len(lines))
    size = len(hunk.old)
    found = [at for at in range(len(lines) - size + 1) if lines[at : at + size] == hunk.old]
    if not found:
        raise ToolError(f"hunk {number} does not fit: its lines are not in the file as they are quoted; read it again")
    if len(found) > 1 and not hunk.line:
        raise ToolError(f"hunk {number} fits in {len(found)} places; quote more lines around it")
    return min(found, key=lambda at: abs(at - hinted))


MOST_CHARS: Final = 40_000  # characters of one result
MOST_HITS: Final = 200
SEARCH_SECONDS: Final = 30.0
_DIFF_CHARS: Final = 500_000  # no diff of larger files: it takes minutes
_SKIPPED: Final = (".git", "node_modules", "__pycache__", ".venv", ".tox", ".mypy_cache")


def _read(context: Context, arguments: dict[str, Any]) -> str:
    target = file_access.target_of(context, text_argument(arguments, "path"))
    target.ask(context, "Read")
    data = file_access.read_bytes(target.path)
    if data is None:
        raise ToolError(f"there is no file {target.path}")
    text = file_access.as_text(data, str(target.path))
    lines = text.splitlines(keepends=True)
    first = int(number_argument(arguments, "offset", 1, 1, 1e9))
    count = int(number_argument(arguments, "limit", 2_000, 1, 1e6))
    if first > max(1, len(lines)):
        raise ToolError(f"{target.path} has {counted(len(lines), 'line')}; there is no line {first}")
    part = lines[first - 1 : first - 1 + count]
    last = first - 1 + len(part)
    which = "" if len(part) == len(lines) else f"; lines {first} to {last}"
    head = f"[{target.path}: {counted(len(lines), 'line')}, {len(text.encode()):,} bytes{which}]"
    return f"{head}\n{without_middle(''.join(part), MOST_CHARS)}"


def _write(context: Context, arguments: dict[str, Any]) -> str:
    target = file_access.target_of(context, text_argument(arguments, "path"), writing=True)
    content = text_argument(arguments, "content", empty=True)
    is_outside = target.outside is not None
    if is_outside:  # the user must agree before the file is even read
        target.ask(context, "Write", detail="\n".join(f"+{line}" for line in content.splitlines()[:200]))
    return _store(context, target, file_access.read_bytes(target.path), content, confirmed=is_outside)


def _edit(context: Context, arguments: dict[str, Any]) -> str:
    target = file_access.target_of(context, text_argument(arguments, "path"), writing=True)
    if target.outside is not None:
        target.ask(context, "Edit", detail=_described(arguments))
    before = file_access.read_bytes(target.path)
    if before is None:
        raise ToolError(f"there is no file {target.path}; write_file makes one")
    text = file_access.as_text(before, str(target.path))
    if arguments.get("patch") is not None:
        after = patched(text, text_argument(arguments, "patch"))
    else:
        after = _replaced(text, arguments)
    return _store(context, target, before, after, confirmed=target.outside is not None)


def _described(arguments: dict[str, Any]) -> str:
    if isinstance(arguments.get("patch"), str):
        return str(arguments["patch"])
    old, new = str(arguments.get("old", "")), str(arguments.get("new", ""))
    return "\n".join([*(f"-{line}" for line in old.split("\n")), *(f"+{line}" for line in new.split("\n"))])


def _replaced(text: str, arguments: dict[str, Any]) -> str:
    old, new = text_argument(arguments, "old"), text_argument(arguments, "new", empty=True)
    found = text.count(old)
    if not found:
        raise ToolError("old does not occur in the file; read it and give the text exactly, white space included")
    if found > 1 and not flag_argument(arguments, "all"):
        raise ToolError(f"old occurs {found} times; give more of the text around it, or set all")
    if old == new:
        raise ToolError("old and new are the same text")
    return text.replace(old, new)


def _store(
    context: Context, target: file_access.Target, before: bytes | None, after: str, *, confirmed: bool = False
) -> str:
    """Write the file, with a snapshot of the old one; the result has the diff."""
    data = after.encode("utf-8", "surrogateescape")
    if before == data:
        return f"{target.path} already has this text; nothing was changed."
    old = before.decode("utf-8", "replace") if before is not None else ""
    diff = diff_of(old, after, target.path.name)
    if not confirmed:
        target.ask(context, "Edit" if before is not None else "Write", detail=diff, always=True)
    if context.cancelled():
        raise ToolError("interrupted before the file was changed")
    note = file_access.note_of(context, target.path, before, data)
    if file_access.read_bytes(target.path) != before:  # while the user was asked
        raise ToolError(f"{target.path} was changed by another program meanwhile; read it again")
    file_access.write_bytes(target.path, data)
    added = sum(line.startswith("+") and not line.startswith("+++") for line in diff.split("\n"))
    removed = sum(line.startswith("-") and not line.startswith("---") for line in diff.split("\n"))
    verb = "Made" if before is None else "Changed"
    text = f"{verb} {target.path} ({len(data):,} bytes; +{added} -{removed} lines).\n{note}"
    return Reported(text, shown=diff)


def diff_of(old: str, new: str, name: str) -> str:
    """A unified diff without its file header; a note where the files are too large for one."""
    if len(old) + len(new) > _DIFF_CHARS:
        return f"({name}: {len(old):,} characters before, {len(new):,} now)"
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2)
    return "\n".join(list(lines)[2:])


def texts_of_call(
    db: SessionDB, name: str, arguments: dict[str, Any], result: Mapping[str, Any]
) -> tuple[file_access.Change, str, str] | None:
    """The change of a finished write_file or edit_file, made again from the kept old text: the text before and after.

    None where that can't be done.
    """
    for change in file_access.changes_in([result]):
        try:
            before = file_access.text_before(db, change)
            if name == "write_file":
                after = text_argument(arguments, "content", "")
            elif arguments.get("patch") is not None:
                after = patched(before, text_argument(arguments, "patch"))
            else:
                after = _replaced(before, arguments)
        except (HermesError, OSError):
            return None
        if file_access.hashed(after.encode("utf-8", "surrogateescape")) == change.after:
            return change, before, after
    return None


def diff_of_call(db: SessionDB, name: str, arguments: dict[str, Any], result: Mapping[str, Any]) -> str | None:
    """The diff of a finished write_file or edit_file; None where it can't be made again."""
    found = texts_of_call(db, name, arguments, result)
    return None if found is None else diff_of(found[1], found[2], found[0].path.name)


def _search(context: Context, arguments: dict[str, Any]) -> str:
    target = file_access.target_of(context, text_argument(arguments, "path", "."))
    target.ask(context, "Search")
    glob = text_argument(arguments, "glob", "*")
    pattern = None if arguments.get("pattern") is None else text_argument(arguments, "pattern")
    path = file_access.unmoved(target.path)
    try:
        if not path.is_dir():
            return _in_file(context, path, glob, pattern)
        if pattern is None:
            return _names(context, path, glob)
    except FileNotFoundError:
        raise ToolError(f"there is no file or folder {path}") from None
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror or error}") from error
    skipped = [f"--exclude-dir={name}" for name in _SKIPPED]
    return _matches(context, ["-r", *skipped, f"--include={glob}", "-e", pattern, "--", "."], cwd=str(path))


def _names(context: Context, folder: Path, glob: str) -> str:
    found: list[str] = []
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            path = os.path.relpath(os.path.join(here, name), folder)
            if fnmatch(name, glob) or fnmatch(path, glob):
                found.append(path)
        if context.cancelled() or len(found) > MOST_HITS:
            break
    more = ["[… more; narrow the search]"] if len(found) > MOST_HITS else []
    return without_middle("\n".join([*found[:MOST_HITS], *more]), MOST_CHARS) or "No files match."


def _in_file(context: Context, path: Path, glob: str, pattern: str | None) -> str:
    """Search in a single file."""
    with file_access.opened(path) as file:
        if pattern is None or not fnmatch(path.name, glob):
            return path.name if pattern is None and fnmatch(path.name, glob) else "No files match."
        return _matches(context, ["-H", f"--label={path.name}", "-e", pattern, "--", "-"], stdin=file.fileno())


def _matches(
    context: Context, words: list[str], *, cwd: str | None = None, stdin: int = subprocess.DEVNULL
) -> str:  # fmt: skip
    """Matching lines by grep: its regular expressions take no time that grows without limit, and it follows no links."""
    with subprocess.Popen(
        ["grep", "-nIE", "-m", "50", *words], cwd=cwd, stdin=stdin, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "GREP_COLORS": "", "LC_ALL": "C.UTF-8"},
    ) as grep:  # fmt: skip
        assert grep.stdout is not None and grep.stderr is not None
        deadline = time.monotonic() + SEARCH_SECONDS
        hits: list[str] = []
        for raw in grep.stdout:
            hits.append(raw.decode("utf-8", "replace").rstrip("\n").removeprefix("./")[:500])
            if len(hits) > MOST_HITS or context.cancelled() or time.monotonic() > deadline:
                grep.kill()
                break
        problem = grep.stderr.read(2_000).decode("utf-8", "replace").strip()
    if not hits and grep.returncode == 2:
        raise ToolError(problem.removeprefix("grep: ") or "the search failed")
    more = ["[… more; narrow the search]"] if len(hits) > MOST_HITS else []
    return without_middle("\n".join([*hits[:MOST_HITS], *more]), MOST_CHARS) or "No lines match."


_PATH = "The file, relative to the conversation's folder or absolute."

read_file = Tool(
    name="read_file",
    description="Read a text file, or a part of it by lines. The user is asked about files outside the project's folder.",
    parameters=parameters(
        "path",
        path=_PATH,
        offset=argument("integer", "The first line; 1 if not said."),
        limit=argument("integer", "How many lines; 2000 if not said."),
    ),
    run=_read,
)

write_file = Tool(
    name="write_file",
    description="Make a file, or replace its whole text. For a part of a file use edit_file.",
    parameters=parameters("path", "content", path=_PATH, content="The whole text."),
    run=_write,
)

edit_file = Tool(
    name="edit_file",
    description=(
        "Change a part of a text file: either old and new (old must occur exactly once, unless all is set), or patch (a"
        " unified diff of this file). The user sees the diff and can undo it."
    ),
    parameters=parameters(
        "path",
        path=_PATH,
        old="The exact text to replace, white space included.",
        new="The text in its place.",
        all=argument("boolean", "Replace every occurrence."),
        patch="A unified diff, in place of old and new.",
    ),
    run=_edit,
)

search_files = Tool(
    name="search_files",
    description="Find lines by a regular expression in the files of a folder, or (without a pattern) files by their names.",
    parameters=parameters(
        pattern="An extended regular expression, as grep -E takes it.",
        path="The folder or file; the conversation's folder if not said.",
        glob="Only files with such names: *.py",
    ),
    run=_search,
)

FILE_TOOLS: Final = (read_file, write_file, edit_file, search_files)

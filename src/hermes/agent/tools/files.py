"""The file tools read_file, write_file and edit_file, and the access to files that they share.

Free is what lies in the folder the conversation began in, after every link and `..` was followed. The home folder, its
parents and the root are too much for that: there, and everywhere else, the user is asked. So are `.git` and the folder of
this program: a file there can change what runs later. Where no user can be asked, the answer is no.

The agent's own files, memory and skills, lie in that folder and are written through their tools alone.

The bytes of a file before a change are an attachment that the last line of the tool's result names, so that the record
keeps them as long as the message. Large files, files with secrets, and more than MOST_IN_ALL a conversation are not kept.

Line numbers in a patch are only a hint: models count badly, and quote the lines well.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from hermes.agent.tools.permission import Question, free_folder, has_rule, permit, rule_folder, visible
from hermes.agent.tools.tool import Context, Reported, read_arguments, tool
from hermes.errors import HermesError, ToolDeclined, ToolError
from hermes.home import LOCK_SECONDS, locked, write_whole
from hermes.store.records.attachments import PREFIX
from hermes.texts import content_text, counted, text_of_bytes, without_middle

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Context
    from hermes.store.api.session_db import SessionDB

MOST_BYTES: Final = 10_000_000
OWN: Final = "it belongs to Hermes itself, or holds its folder"  # only a rule for this very file covers it
FORBIDDEN = "Not done: permissions.deny in config.yaml forbids it. Do not try it another way."
_TOOLS: Final = {"Read": "read_file", "Write": "write_file", "Edit": "edit_file"}
DECLINED = "The user declined: the file was not touched. Do not try it another way; ask what they want instead."


@dataclass(frozen=True, slots=True)
class Target:
    """A file or folder after every link was followed, and why the user has to be asked about it (None: need not)."""

    path: Path
    outside: str | None

    def ask(self, context: Context, verb: str, *, detail: str = "", always: bool = False) -> None:
        """Return if the file may be used in this way; ToolDeclined if not. `always`: ask even inside the folder."""
        words = [_TOOLS[verb], str(self.path)]
        rules, approval, line = context.config.permissions, context.config.terminal.approval, shlex.join(words)
        if has_rule(rules.deny, [context.cwd], line, words):
            raise ToolDeclined(FORBIDDEN)
        reason = self.outside or ("every change is asked about" if always and approval == "all" else None)
        if reason is None or approval == "never":
            return
        if has_rule(rules.allow, [context.cwd], line, None if reason == OWN else words):
            return
        text = visible(f"{verb} {self.path}? ({reason})")
        question = Question(text, rules=[line], folder=rule_folder(context, context.cwd), detail=detail)
        permit(context, question, DECLINED)


def target_of(context: Context, name: str, *, writing: bool = False) -> Target:
    """The file that a tool's argument names, relative to the conversation's folder."""
    if "\0" in name or not name.strip():
        raise ToolError("path must be the name of a file")
    try:
        path = Path(os.path.realpath(context.cwd / Path(name).expanduser()))
    except (OSError, RuntimeError) as error:
        raise ToolError(f"{name}: {error}") from error
    return Target(path, _why_outside(context, path, writing))


def _why_outside(context: Context, path: Path, writing: bool) -> str | None:
    root = free_folder(context.root)
    home = Path(os.path.realpath(context.home))
    if path.is_relative_to(home) or home.is_relative_to(path):  # keys, the record
        return OWN
    if root is None or not path.is_relative_to(root):
        where = f"the folder {visible(str(root))}" if root is not None else "a project folder"
        return f"it is outside {where}"
    if writing and ".git" in path.relative_to(root).parts:
        return "it is part of git's own data"
    return None


def unmoved(path: Path) -> Path:
    """The path, if it still leads where it did when it was checked.

    ToolError if not: while the user was asked, another program may have put a link in place of one of its folders.
    """
    if os.path.realpath(path) != str(path):
        raise ToolError(f"{path}: a part of it became a link meanwhile; nothing was done")
    return path


def opened(path: Path) -> BinaryIO:
    """The regular file at this path for reading; ToolError for anything else, FileNotFoundError when there is none."""
    handle = os.open(unmoved(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise ToolError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'no regular file'}")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """The bytes of a regular file; None when there is none. ToolError for anything else, and for more than `most`."""
    with explained(path):
        try:
            file = opened(path)
        except FileNotFoundError:
            return None
        with file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise ToolError(f"{path} has {size:,} bytes, more than {most:,}; read a part with terminal")
            return file.read(most + 1)


def as_text(data: bytes, name: str) -> str:
    """Bytes as text; ToolError when they are no UTF-8 text."""
    text = text_of_bytes(data)
    if text is None:
        raise ToolError(f"{name} is a binary file ({len(data):,} bytes)")
    return text


def write_bytes(path: Path, data: bytes) -> None:
    """Put a file in place of the old one in one step, with the old one's permissions."""
    with explained(path):
        mode = _mode(unmoved(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
        path.chmod(mode)


def _mode(path: Path) -> int:
    """The permissions of a file that is replaced; of a new one the usual ones."""
    if path.is_file():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a ToolError that names the file."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror or error}") from error


# ------------------------------------------------------------------------------------------------ the agent's own files


@contextmanager
def locked_folder(folder: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """One writer at a time in this folder, across processes; the folder is created if it is missing."""
    with explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(folder / ".lock", seconds):
            yield


def write_own(path: Path, text: str) -> None:
    """Replace a file that only its owner can read, in one step. A link stays a link."""
    with explained(path):
        write_whole(Path(os.path.realpath(path)), text.encode(errors="surrogateescape"))


def read_own(path: Path) -> str | None:
    """The text of a file, bytes that are no UTF-8 preserved; None when there is no such file."""
    with explained(path):
        try:
            return path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return None


MOST_KEPT_BYTES: Final = 2_000_000  # bytes of one file
MOST_IN_ALL: Final = 50_000_000  # bytes of one conversation while it is open
TOOLS: Final = ("write_file", "edit_file")
_LINE: Final = re.compile(r"^\[before: (\{.*\})\]$", re.MULTILINE)


def note_of(context: Context, path: Path, before: bytes | None, after: bytes) -> str:
    """The line for the result: which bytes the file had before, and the hash of those it has now."""
    about: dict[str, Any] = {"path": str(path), "after": hashed(after)}
    if before is None:
        about["made"] = True
    else:
        kept = _stored_digest(context, before)
        if kept is None:
            return "[/undo can't put this file back: it is large, or holds secrets]"
        about["was"] = kept
    return f"[before: {json.dumps(about, ensure_ascii=False)}]"


def _stored_digest(context: Context, data: bytes) -> str | None:
    used = context.state.get("snapshot_bytes", 0) + len(data)
    if len(data) > MOST_KEPT_BYTES or used > MOST_IN_ALL:
        return None
    text = data.decode("utf-8", "replace")
    if context.db.masked(text) != text:
        return None
    context.state["snapshot_bytes"] = used
    return context.db.keep_attachment(data)


@dataclass(frozen=True, slots=True)
class Change:
    """A file that tools changed: what it was (None: it did not exist) and the hash of what they left."""

    path: Path
    was: str | None
    after: str


def changes_in(messages: Iterable[Mapping[str, Any]]) -> list[Change]:
    """The files that the tools of these messages changed, each once: before the first change and after the last one."""
    found: dict[str, Change] = {}
    for message in messages:
        if message["role"] != "tool" or message["tool_name"] not in TOOLS:
            continue
        for line in _LINE.findall(content_text(message["content"]))[-1:]:
            try:
                about = json.loads(line)
                path, after = str(about["path"]), str(about["after"])
                was = None if about.get("made") else str(about["was"]).removeprefix(PREFIX)
            except (ValueError, KeyError, TypeError):
                continue
            first = found.get(path)
            found[path] = Change(Path(path), first.was if first else was, after)
    return list(found.values())


def text_before(db: SessionDB, change: Change) -> str:
    """The text of a file before a change; "" when it did not exist. HermesError or OSError if it is lost."""
    data = b"" if change.was is None else db.read_attachment(change.was)
    return data.decode("utf-8", "replace")


def hashed(data: bytes) -> str:
    """The hash that names a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def without_note(text: str) -> str:
    """A tool's result without the line for /undo."""
    return _LINE.sub("", text)


def put_back(db: SessionDB, change: Change) -> str | None:
    """Restore a file; returns None, or why it was not restored. A file that was changed since stays as it is."""
    try:
        now = read_bytes(change.path)
        if now is None and change.was is None:
            return None
        if now is None or hashed(now) != change.after:
            return "it was changed since"
        if change.was is None:
            unmoved(change.path).unlink()
            return None
        data = db.read_attachment(change.was)
        if hashed(data) != change.was:
            return "its old text is damaged"
        write_bytes(change.path, data)
    except (ToolError, OSError, HermesError) as error:
        return str(error)
    return None


# ------------------------------------------------------------------------------------------------ patches

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
_DIFF_CHARS: Final = 500_000  # no diff of larger files: it takes minutes


_File = Annotated[str, Meta(description="The file, relative to the conversation's folder or absolute.")]


class _Reading(Struct):
    path: _File
    offset: Annotated[int, Meta(description="The first line; 1 if not said.", ge=1)] = 1
    limit: Annotated[int, Meta(description="How many lines; 2000 if not said.", ge=1)] = 2_000


class _Writing(Struct):
    path: _File
    content: Annotated[str, Meta(description="The whole text.")]


class _Editing(Struct):
    path: _File
    old: Annotated[str, Meta(description="The exact text to replace, white space included.")] = ""
    new: Annotated[str | UnsetType, Meta(description="The text in its place.")] = UNSET  # "" takes the old one out
    all: Annotated[bool, Meta(description="Replace every occurrence.")] = False
    patch: Annotated[str, Meta(description="A unified diff, in place of old and new.")] = ""

    def applied(self, text: str) -> str:
        """The text after the edit; ToolError when that does not fit."""
        if self.patch:
            return patched(text, self.patch)
        if not self.old or self.new is UNSET or self.old == self.new:
            raise ToolError("give a patch, or old and new, which must differ")
        found = text.count(self.old)
        if not found:
            raise ToolError("old does not occur in the file; read it and give the text exactly, white space included")
        if found > 1 and not self.all:
            raise ToolError(f"old occurs {found} times; give more of the text around it, or set all")
        return text.replace(self.old, self.new)

    def described(self) -> str:
        """The edit as lines of a diff, without a look at the file."""
        new = "" if self.new is UNSET else self.new
        lines = [*(f"-{line}" for line in self.old.split("\n")), *(f"+{line}" for line in new.split("\n"))]
        return self.patch or "\n".join(lines)


def _read(context: Context, arguments: _Reading) -> str:
    target = target_of(context, arguments.path)
    target.ask(context, "Read")
    data = read_bytes(target.path)
    if data is None:
        raise ToolError(f"there is no file {target.path}")
    text = as_text(data, str(target.path))
    lines = text.splitlines(keepends=True)
    first = arguments.offset
    part = lines[first - 1 : first - 1 + arguments.limit]
    if not part and first > 1:
        raise ToolError(f"{target.path} has {counted(len(lines), 'line')}; there is no line {first}")
    which = "" if len(part) == len(lines) else f"; lines {first} to {first - 1 + len(part)}"
    head = f"[{target.path}: {counted(len(lines), 'line')}, {len(text.encode()):,} bytes{which}]"
    return f"{head}\n{without_middle(''.join(part), MOST_CHARS)}"


def _write(context: Context, arguments: _Writing) -> str:
    target = target_of(context, arguments.path, writing=True)
    is_outside = target.outside is not None
    if is_outside:  # the user must agree before the file is even read
        target.ask(context, "Write", detail="\n".join(f"+{line}" for line in arguments.content.splitlines()[:200]))
    return _store(context, target, read_bytes(target.path), arguments.content, confirmed=is_outside)


def _edit(context: Context, arguments: _Editing) -> str:
    target = target_of(context, arguments.path, writing=True)
    if target.outside is not None:
        target.ask(context, "Edit", detail=arguments.described())
    before = read_bytes(target.path)
    if before is None:
        raise ToolError(f"there is no file {target.path}; write_file makes one")
    after = arguments.applied(as_text(before, str(target.path)))
    return _store(context, target, before, after, confirmed=target.outside is not None)


def _store(context: Context, target: Target, before: bytes | None, after: str, *, confirmed: bool = False) -> str:
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
    note = note_of(context, target.path, before, data)
    if read_bytes(target.path) != before:  # while the user was asked
        raise ToolError(f"{target.path} was changed by another program meanwhile; read it again")
    write_bytes(target.path, data)
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
) -> tuple[Change, str, str] | None:
    """The change of a finished write_file or edit_file, made again from the kept old text: the text before and after.

    None where that can't be done.
    """
    for change in changes_in([result]):
        try:
            before = text_before(db, change)
            if name == "write_file":
                after = read_arguments(arguments, _Writing).content
            else:
                after = read_arguments(arguments, _Editing).applied(before)
        except (HermesError, OSError):
            return None
        if hashed(after.encode("utf-8", "surrogateescape")) == change.after:
            return change, before, after
    return None


def diff_of_call(db: SessionDB, name: str, arguments: dict[str, Any], result: Mapping[str, Any]) -> str | None:
    """The diff of a finished write_file or edit_file; None where it can't be made again."""
    found = texts_of_call(db, name, arguments, result)
    return None if found is None else diff_of(found[1], found[2], found[0].path.name)


FILE_TOOLS: Final = (
    tool(
        "read_file",
        "Read a text file, or a part of it by lines. The user is asked about files outside the project's folder.",
        _Reading,
        _read,
    ),
    tool("write_file", "Make a file, or replace its whole text. For a part of a file use edit_file.", _Writing, _write),
    tool(
        "edit_file",
        "Change a part of a text file: either old and new (old must occur exactly once, unless all is set), or patch (a"
        " unified diff of this file). The user sees the diff and can undo it.",
        _Editing,
        _edit,
    ),
)

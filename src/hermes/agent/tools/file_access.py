"""Which files the file tools may touch without a question, reading and writing them whole, and the old bytes for /undo.

Free is what lies in the folder the conversation began in, after every link and `..` was followed. The home folder, its
parents and the root are too much for that: there, and everywhere else, the user is asked. So are `.git` and the folder of
this program: a file there can change what runs later. Where no user can be asked, the answer is no.

The agent's own files, memory and skills, lie in that folder and are written through their tools alone.

The bytes of a file before a change are an attachment that the last line of the tool's result names, so that the record
keeps them as long as the message. Large files, files with secrets, and more than MOST_IN_ALL a conversation are not kept.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from hermes.agent.tools.permission import Question, free_folder, has_rule, permit, rule_folder, visible
from hermes.errors import HermesError, ToolDeclined, ToolError
from hermes.home import LOCK_SECONDS, locked, write_whole
from hermes.store.records.attachments import PREFIX
from hermes.texts import content_text, text_of_bytes

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Context
    from hermes.store.api.session_db import SessionDB

MOST_BYTES: Final = 10_000_000
OWN: Final = "it belongs to Hermes itself, or holds its folder"  # only a rule for this very file covers it
FORBIDDEN = "Not done: permissions.deny in config.yaml forbids it. Do not try it another way."
_TOOLS: Final = {"Read": "read_file", "Write": "write_file", "Edit": "edit_file", "Search": "search_files"}
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
    if path.is_relative_to(home) or home.is_relative_to(
        path
    ):  # keys, the record; a search of a folder above finds them
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

"""Transcripts: next to the database, one JSON-lines file per session that any tool can read, follow and archive.

The first line names the format and the session; one line per message and a short line per other change follow.
The database is the truth and commits first; a line that is missing after a crash is written when the store is
opened next, and a database can be rebuilt from the files alone. docs/format.md specifies each line.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from msgspec.json import encode

from hermes.home import lock_within, make_private
from hermes.store.records import codec

Entry = dict[str, Any]  # a line: its `type` says which keys it has, see docs/format.md
FORMAT = "hermes-transcript"
VERSION = 1
_PATIENCE = 2.0  # seconds to wait for another process's line
_DUMPS_SEEN = 5.0  # seconds for which the listing of a folder is reused
_NEWEST = 8  # files in which messages that a database lost are searched
_TAIL = 1 << 18  # bytes from the end in which a line that another process wrote for us is searched
_WHOLE_LINE = re.compile(rb'^\{"type":"message","id":(\d{1,18}),.*\}$', re.MULTILINE)
_COMPLETE_TO = re.compile(rb'{"type":"session",[^{]*"complete_to":(\d{1,18}),')
_MESSAGE_ID = re.compile(rb'{"type":"message","id":\d{1,18},')
_TIMESTAMP = re.compile(rb'"timestamp":[-+.\dEe]+')
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_ESCAPE = codec.ESCAPE.encode()  # of characters that JSON can not have: lone surrogates
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.@:+=, ")


def file_name(session_id: str) -> str:
    """The file of a session's transcript; characters that a file name can't have are written %XX."""
    safe = "".join(c if c in _SAFE or c.isalnum() else "".join(f"%{b:02X}" for b in c.encode()) for c in session_id)
    if safe.startswith("."):
        safe = "%2E" + safe[1:]
    if len(safe.encode()) > 200:
        import hashlib

        safe = f"{safe.encode()[:120].decode('utf-8', 'ignore')}~{hashlib.sha256(session_id.encode()).hexdigest()[:32]}"
    return safe + ".jsonl"


# ------------------------------------------------------------------------------------------- lines


def line(entry: Entry) -> bytes:
    """One line of a transcript."""
    try:
        data = encode(entry)
    except (TypeError, ValueError, OverflowError):  # lone surrogates, numbers beyond 64 bits
        data = _ESCAPE
    if _ESCAPE in data:
        data = codec.fit(json.dumps(entry, ensure_ascii=False, separators=(",", ":"))).encode()
    return data + b"\n"


def read(raw: bytes) -> Entry | None:
    """The entry of a line; None for one that is no object, ValueError for no JSON."""
    entry = json.loads(codec.unfit(raw.decode()) if _ESCAPE in raw else raw)
    return entry if isinstance(entry, dict) else None


def entries(path: Path, unread: list[bytes]) -> Iterator[Entry]:
    """The lines of a transcript that can be read; one that is no JSON is added to `unread`."""
    with path.open("rb") as file:
        for raw in filter(bytes.strip, file):
            try:
                entry = read(raw)
            except (TypeError, ValueError, RecursionError):
                unread.append(raw)
                continue
            if entry is not None:
                yield entry


def event(kind: str, **values: Any) -> Entry:
    """A short line for a change that is not a message."""
    return {"type": "event", "event": kind, "at": time.time(), **values}


def highest_id(data: bytes) -> int:
    """The highest message id in these lines; a torn line is no message."""
    return max(map(int, _WHOLE_LINE.findall(data)), default=0)


def _has_line(lines: bytes, data: bytes) -> bool:
    """Whether these lines have the message in `data`: one with its id and its time."""
    found, stamp = _MESSAGE_ID.match(data), _TIMESTAMP.search(data)
    if found is None or stamp is None:
        return False
    return any(raw.startswith(found[0]) and stamp[0] in raw for raw in lines.splitlines())


# ------------------------------------------------------------------------------------------- files


class TranscriptFile:
    """A transcript, open and locked: no other process writes to it until it is closed."""

    def __init__(self, path: Path) -> None:
        try:
            self.handle = os.open(path, _FLAGS, 0o600)
        except FileNotFoundError:
            make_private(path.parent)
            self.handle = os.open(path, _FLAGS, 0o600)
        # Unless the holder of the lock hangs: then writing the line matters more than the order of lines.
        self.is_locked = lock_within(self.handle, _PATIENCE)
        self.size = os.fstat(self.handle).st_size

    def append(self, data: bytes) -> None:
        """Append whole lines in one write; a torn last line stays a separate line."""
        if self.size and os.pread(self.handle, 1, self.size - 1) != b"\n":
            data = b"\n" + data
        self.size += len(data)
        while data:
            data = data[os.write(self.handle, data) :]

    def clear(self) -> None:
        """Empty the file; other processes go on in it."""
        os.ftruncate(self.handle, 0)
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_locked:
            fcntl.flock(self.handle, fcntl.LOCK_UN)  # a forked child that has the file open would keep it locked
        os.close(self.handle)


class TranscriptFolder:
    """The transcripts of one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes: dict[str, int] = {}  # the size of each file after this process's last write
        self.shared: set[str] = set()  # sessions whose file other processes write to, too
        self._dumps: dict[Path, tuple[float, list[str]]] = {}  # when a folder was listed, and what it held

    def path(self, session_id: str) -> Path:
        """The path of a session's transcript."""
        return self.folder / file_name(session_id)

    def exists(self, session_id: str) -> bool:
        """Whether the session has a transcript (known without a file access once this process wrote to it)."""
        return session_id in self.sizes or self.path(session_id).exists()

    def append(self, session_id: str, data: bytes, *more: bytes) -> None:
        """Append lines in one write; `data` is left out if another process wrote the line of that message meanwhile."""
        known = self.sizes.pop(session_id, None)
        with TranscriptFile(self.path(session_id)) as file:
            if known not in (None, file.size):
                self.shared.add(session_id)
            if known != file.size and _has_line(tail(self.path(session_id)), data):
                data = b""
            file.append(b"".join((data, *more)))
        self.sizes[session_id] = file.size

    def all(self) -> list[Path]:
        """The files of all transcripts, in the order of their names."""
        return sorted(path for path in self.folder.glob("*.jsonl") if path.is_file())

    def newest(self) -> list[Path]:
        """The transcripts that were written last."""
        times = dict[Path, float]()
        for path in self.all():
            with suppress(OSError):  # removed meanwhile
                times[path] = path.stat().st_mtime
        return sorted(times, key=times.__getitem__)[-_NEWEST:]

    def forget(self, session_id: str, also_in: Path | None = None) -> None:
        """Remove a session's transcript, here and in another folder, and other programs' request dumps of it."""
        self.sizes.pop(session_id, None)
        name = file_name(session_id)
        for folder in (one for one in (self.folder, also_in) if one is not None):
            for one in (name, name.removesuffix("l"), *self._dumps_of(folder, session_id)):
                with suppress(OSError):
                    (folder / one).unlink(missing_ok=True)

    def _dumps_of(self, folder: Path, session_id: str) -> list[str]:
        """Names like request_dump_<id>_<time>.json. Pruning asks for many sessions in a row: a listing is reused."""
        seen, names = self._dumps.get(folder, (0.0, []))
        if time.monotonic() - seen >= _DUMPS_SEEN:
            with suppress(OSError):
                names = [name for name in os.listdir(folder) if name.startswith("request_dump_")]
            self._dumps[folder] = (time.monotonic(), names)
        of_session = re.compile(rf"request_dump_{re.escape(session_id)}_[0-9TZ_.:-]+\.json")
        return [name for name in names if of_session.fullmatch(name)]


def highest_known(paths: Iterable[Path]) -> int:
    """The highest id that the database had given when these transcripts were written, as far as they show."""
    known = ((highest_id(end), _COMPLETE_TO.match(end)) for end in map(tail, paths))
    return max((max(newest, int(begun[1]) if begun else 0) for newest, begun in known), default=0)


def tail(path: Path) -> bytes:
    """The end of a transcript; empty where it is missing or can't be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read()
    except OSError:
        return b""

"""Transcripts: next to the database, one JSON-lines file per session that any tool can read, follow and archive.

The first line names the format and the session; one line per message and a short line per other change follow.
The database is the truth and commits first; a line that is missing after a crash is written when the store is
opened next, and a database can be rebuilt from the files alone. docs/format.md specifies each line.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from hermes.home import make_private
from hermes.store.prompt_files import PromptFiles

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

Entry = dict[str, Any]  # a line: its `type` says which keys it has, see docs/format.md
FORMAT = "hermes-transcript"
VERSION = 1
_PATIENCE = 2.0  # seconds to wait for another process's line
_TAIL = 1 << 18  # bytes from the end in which a line that another process wrote for us is searched
_DUMPS_SEEN = 5.0  # seconds for which the listing of a folder is reused
_MESSAGE_ID = re.compile(rb'{"type":"message","id":(\d{1,18}),')
_EDIT = b'{"type":"event","event":"edit",'
_WITH_IDS = (b'{"type":"message","id":', _EDIT)
_ID_ENDS = 44  # bytes: what follows is the message itself
_COMPLETE_TO = re.compile(rb'{"type":"session",[^{]*"complete_to":(\d{1,18}),')
_TIMESTAMP = re.compile(rb'"timestamp":[-+.\dEe]+')
_LONE = re.compile("[\ud800-\udfff]")
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


def _decode(raw: bytes) -> Any:
    """The value of a line; Python's own parser accepts what the fast one rejects (lone surrogates, huge numbers)."""
    from msgspec import DecodeError
    from msgspec.json import decode

    try:
        return decode(raw)
    except DecodeError:
        return json.loads(raw)


def line(entry: Entry) -> bytes:
    """One line of a transcript."""
    from msgspec.json import encode  # slow to import for callers that only list

    try:
        return encode(entry) + b"\n"
    except (TypeError, ValueError, OverflowError):  # lone surrogates, numbers beyond 64 bits
        import msgspec

        bare = {
            key: json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else value for key, value in entry.items()
        }
        return json.dumps(_readable(bare), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _readable(entry: Entry) -> Entry:
    """An entry that any JSON parser accepts: fields with lone surrogates have U+FFFD instead, and `exact` has them as
    they are, for this program."""
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in entry.items()}
    lone = [key for key, text in texts.items() if _LONE.search(text)]
    if not lone:
        return entry
    exact = json.dumps({key: entry[key] for key in lone}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    shown = {key: json.loads(_LONE.sub("\ufffd", texts[key])) if key in lone else entry[key] for key in entry}
    return {**shown, "exact": base64.b64encode(exact).decode()}


def _exact(entry: Entry) -> Entry:
    """The inverse of _readable()."""
    try:
        exact = json.loads(base64.b64decode(entry["exact"], validate=True).decode("utf-8", "surrogatepass"))
    except (ValueError, TypeError):
        return entry
    rest = {key: value for key, value in entry.items() if key != "exact"}
    return {**rest, **exact} if isinstance(exact, dict) else rest


def header(session: Mapping[str, Any], complete_to: int) -> bytes:
    """The first line of a transcript: a message of the session up to the id `complete_to` that has no line was removed."""
    head = {"type": "session", "format": FORMAT, "version": VERSION, "complete_to": complete_to}
    return line({**head, "session": session})


def entries(path: Path, unread: list[bytes] | None = None) -> Iterator[Entry]:
    """The lines of a transcript that can be read; one that is no JSON is skipped, and added to `unread`."""
    with path.open("rb") as file:
        for raw in file:
            try:
                entry = _decode(raw)
            except (ValueError, RecursionError):
                if unread is not None and raw.strip():
                    unread.append(raw)
                continue
            if isinstance(entry, dict):
                yield _exact(entry) if "exact" in entry else entry


def event(kind: str, **values: Any) -> Entry:
    """A short line for a change that is not a message."""
    return {"type": "event", "event": kind, "at": time.time(), **values}


def highest_id(data: bytes) -> int:
    """The highest message id in these lines (an edit tells the earlier version under its own); a torn line is no message."""
    lines = [raw for raw in data.splitlines() if raw.startswith(_WITH_IDS) and raw.endswith(b"}")]
    ends = (len(raw) if raw.startswith(_EDIT) else _ID_ENDS for raw in lines)
    found = (_MESSAGE_ID.findall(raw, 0, end) for raw, end in zip(lines, ends, strict=True))
    return max((int(one) for some in found for one in some), default=0)


def highest_known(data: bytes) -> int:
    """The highest id that the database had given when these lines were written, as far as they tell."""
    begun = _COMPLETE_TO.match(data)
    return max(highest_id(data), int(begun[1]) if begun is not None else 0)


class TranscriptFile:
    """A transcript, open and locked: no other process writes to it until it is closed."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            self._handle = os.open(path, flags, 0o600)
        except FileNotFoundError:
            make_private(path.parent)
            self._handle = os.open(path, flags, 0o600)
        try:
            self._is_locked = lock_file(self._handle)
            self.size = os.fstat(self._handle).st_size
        except BaseException:
            os.close(self._handle)
            raise

    def require_lock(self) -> None:
        """BlockingIOError while another process hangs that has the file locked."""
        if not self._is_locked and fcntl is not None:
            raise BlockingIOError("another process is still writing this transcript")

    def tail(self) -> bytes:
        """The end of the file: some hundred lines."""
        at = max(0, self.size - _TAIL)
        return os.pread(self._handle, self.size - at, at)

    def append(self, data: bytes) -> None:
        """Append whole lines in one write; a torn last line stays a separate line."""
        if self.size and os.pread(self._handle, 1, self.size - 1) != b"\n":
            data = b"\n" + data
        written = os.write(self._handle, data)
        while written < len(data):
            written += os.write(self._handle, memoryview(data)[written:])
        self.size += len(data)

    def clear(self) -> None:
        """Empty the file; other processes go on in it."""
        os.ftruncate(self._handle, 0)
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_locked:
            fcntl.flock(self._handle, fcntl.LOCK_UN)  # a forked child that has the file open would keep it locked
        os.close(self._handle)


class TranscriptFolder:
    """The transcripts of one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prompts = PromptFiles(folder, lock_file)
        self._sizes: dict[str, int] = {}  # the size of each file after this process's last write
        self.shared: set[str] = set()  # sessions whose file other processes write to, too
        self._dumps: dict[Path, tuple[float, list[str]]] = {}  # when a folder was listed, and what it held

    def path(self, session_id: str) -> Path:
        """The path of a session's transcript."""
        return self.folder / file_name(session_id)

    def exists(self, session_id: str) -> bool:
        """Whether the session has a transcript (known without a file access once this process wrote to it)."""
        return session_id in self._sizes or self.path(session_id).exists()

    def open(self, session_id: str) -> TranscriptFile:
        """A session's transcript, made if there is none. OSError or StoreError when it can't be written."""
        self._sizes.pop(session_id, None)
        return TranscriptFile(self.path(session_id))

    def append(self, session_id: str, data: bytes, more: bytes = b"") -> None:
        """Append lines in one write; `data` is left out if another process wrote the line of that message meanwhile."""
        known = self._sizes.get(session_id)
        with self.open(session_id) as file:
            if known not in (None, file.size):
                self.shared.add(session_id)
            if known != file.size and _is_told(file.tail(), data):
                data = b""
            if data or more:
                file.append(data + more)
        self.wrote(session_id, file)

    def wrote(self, session_id: str, file: TranscriptFile) -> None:
        """This process has just written to a session's file: whatever is added to it comes from another one."""
        self._sizes[session_id] = file.size

    def tail(self, session_id: str) -> bytes:
        """The end of a session's transcript, empty where there is none."""
        return tail(self.path(session_id))

    def highest_known(self) -> int:
        """The highest message id that any transcript knows of."""
        return max((highest_known(tail(path)) for path in self.folder.glob("*.jsonl")), default=0)

    def is_first(self, session_id: str) -> bool:
        """Whether this process has not written to the session's transcript yet."""
        return session_id not in self._sizes

    def forget(self, session_id: str, *folders: Path | None) -> None:
        """Remove a session's transcript, here and in other folders given, and other programs' request dumps of it."""
        self._sizes.pop(session_id, None)
        name = file_name(session_id)
        for folder in (Path(one) for one in (self.folder, *folders) if one is not None):
            for one in (name, name.removesuffix("l"), *self._dumps_of(folder, session_id)):
                with suppress(OSError):
                    (folder / one).unlink(missing_ok=True)

    def _dumps_of(self, folder: Path, session_id: str) -> list[str]:
        """Names like request_dump_<id>_<time>.json. Pruning asks for many sessions in a row."""
        seen, names = self._dumps.get(folder, (0.0, []))
        if time.monotonic() - seen >= _DUMPS_SEEN:
            with suppress(OSError):
                names = [name for name in os.listdir(folder) if name.startswith("request_dump_")]
            self._dumps[folder] = (time.monotonic(), names)
        of_session = re.compile(rf"request_dump_{re.escape(session_id)}_[0-9TZ_.:-]+\.json")
        return [name for name in names if of_session.fullmatch(name)]


def tail(path: Path) -> bytes:
    """The end of a transcript; empty where it is missing or can't be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read()
    except OSError:
        return b""


def _is_told(tail: bytes, data: bytes) -> bool:
    """Whether the message in this line has one already: a line with its id and its time."""
    found = _MESSAGE_ID.match(data)
    stamp = _TIMESTAMP.search(data)
    if found is None or stamp is None:
        return False
    return any(raw.startswith(found[0]) and stamp[0] in raw for raw in tail.splitlines())


def lock_file(handle: int) -> bool:
    """Lock a transcript, unless its holder hangs: then writing the line matters more than the order of lines."""
    if fcntl is None:
        return False
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(0.001)

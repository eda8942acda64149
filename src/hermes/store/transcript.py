"""Transcripts: next to the database, one JSON-lines file per session that any tool can read, follow and archive.

The first line names the format and the session; one line per message and a short line per other change follow.
The database is authoritative and commits first; a line that is missing after a crash is written when the store is
opened next, and a database can be rebuilt from the files alone. docs/format.md specifies each line.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import StoreError
from hermes.home import make_private
from hermes.store import sealed_files
from hermes.store.prompt_files import PromptFiles

if TYPE_CHECKING:
    from hermes.store.encryption_keys import DataKey

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

Entry = dict[str, Any]  # a line: its `type` says which keys it has, see docs/format.md
FORMAT = "hermes-transcript"
VERSION = 2
_OPEN_FILES = 64
_PATIENCE = 2.0  # seconds to wait for another process's line
_LOOK_BACK = 1 << 18  # bytes from the end in which a line that another process wrote for us is searched
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


def _encode(entry: Entry) -> bytes:
    """Loads the JSON library when it is first needed and replaces itself by it."""
    global _encode
    import msgspec

    _encode = msgspec.json.Encoder().encode  # type: ignore[assignment]
    return _encode(entry)


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
    try:
        return sealed(_encode(entry))
    except (TypeError, ValueError, OverflowError):  # lone surrogates, numbers beyond 64 bits
        import msgspec

        bare = {
            key: json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else value for key, value in entry.items()
        }
        return sealed(json.dumps(_readable(bare), ensure_ascii=False, separators=(",", ":")).encode())


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


SEAL = b',"crc":"'
_SEAL_BYTES = len(SEAL) + 8 + 2  # eight hex digits, the quote and the brace


def sealed(data: bytes) -> bytes:
    """A JSON object as a line that ends in its own checksum: `crc`, the CRC-32 of everything before it."""
    body = data[:-1]
    return b"".join((body, SEAL, b"%08x" % zlib.crc32(body), b'"}\n'))


def is_intact(raw: bytes) -> bool | None:
    """Whether a line matches its checksum; None where it has none (older files, other programs)."""
    raw = raw.rstrip(b"\r\n")
    start = len(raw) - _SEAL_BYTES
    if start < 1 or not raw.startswith(SEAL, start) or not raw.endswith(b'"}'):
        return None
    return raw[-10:-2] == b"%08x" % zlib.crc32(raw[:start])


def header(session: Mapping[str, Any]) -> bytes:
    """The first line of a transcript."""
    return line({"type": "session", "format": FORMAT, "version": VERSION, "session": session})


def entries(path: Path, torn: list[bytes] | None = None) -> Iterator[Entry]:
    """The lines of a transcript that can be read; one that is no JSON object (a crash can tear one) is skipped.

    `crc` is True in a line that matches its checksum, False in one that does not, and absent in one without a checksum.
    Lines that were skipped are added to `torn`.
    """
    for raw in sealed_files.lines(path):
        entry = decoded(raw)
        if entry is not None:
            yield entry
        elif torn is not None and raw.strip():
            torn.append(raw)


def decoded(raw: bytes) -> Entry | None:
    """One line as `entries` gives it; None for one that can't be read."""
    try:
        entry = _decode(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    intact = is_intact(raw)
    entry.pop("crc", None)
    if intact is not None:
        entry["crc"] = intact
    return _exact(entry) if "exact" in entry else entry


DUMPS_SEEN = 5.0  # seconds for which the listing of a folder is reused


class Journal:
    """Appends to the transcripts of one store. Never raises after the commit of the change that a line records."""

    def __init__(self, folder: Path, key: DataKey | None = None) -> None:
        self.folder = folder
        self._key = key  # what new files are encrypted with
        self._formats: dict[str, sealed_files.Appending] = {}
        self.prompts = PromptFiles(folder, _lock_file, key)
        self.behind: set[str] = set()  # sessions whose file could not be written
        self._dumps: dict[Path, tuple[float, list[str]]] = {}  # when a folder was listed, and what it held
        self._files: OrderedDict[str, int] = OrderedDict()
        self._sizes: dict[str, int] = {}  # the size of each file after this process's last write
        self.touched: set[str] = set()
        self._lock = threading.Lock()
        self._marker: int | None = None
        self._marker_path: Path | None = None

    def path(self, session_id: str) -> Path:
        """The path of a session's transcript."""
        return self.folder / file_name(session_id)

    def write(self, session_id: str, data: bytes, message_id: int | None = None, more: bytes = b"") -> bool:
        """Append whole lines; False when that failed (it is retried when the store is opened next).

        A message that another process has written meanwhile is not written twice; the lines `more` are written in any case.
        """
        return self._locked(
            session_id, lambda handle, size: self._append(session_id, handle, size, data, message_id, more)
        )

    def revise(self, session_id: str, produce: Callable[[Path], bytes], *, rewrite: bool = False) -> bool:
        """Append what `produce` makes from the current file while no other process writes to it; `rewrite` empties it first."""

        def work(handle: int, size: int) -> None:
            if rewrite:
                os.ftruncate(handle, 0)
                size = 0
            self._append(session_id, handle, size, produce(self.path(session_id)), None)

        return self._locked(session_id, work, alone=True)

    def _locked(self, session_id: str, work: Callable[[int, int], None], *, alone: bool = False) -> bool:
        """Do `work` with the file (its descriptor and its size) while no other process writes to it."""
        with self._lock:
            try:
                handle = self._handle(session_id)
                held = _lock_file(handle)
                found = os.fstat(handle)
                if found.st_nlink == 0:  # the file was deleted: the lock ends with the descriptor
                    self._drop_handle(session_id)
                    handle = self._open(session_id)
                    held = _lock_file(handle)
                    found = os.fstat(handle)
                if alone and not held and fcntl is not None:
                    raise BlockingIOError("another process is still writing this transcript")
                try:
                    work(handle, found.st_size)
                finally:
                    if held:
                        fcntl.flock(handle, fcntl.LOCK_UN)
                return True
            except (OSError, StoreError):
                self.behind.add(session_id)
                self._sizes.pop(session_id, None)
                return False

    def _append(
        self, session_id: str, handle: int, size: int, data: bytes, message_id: int | None, more: bytes = b""
    ) -> None:
        form = self._formats.get(session_id)
        if form is None:
            form = self._formats[session_id] = sealed_files.Appending(self.path(session_id), self._key)
        start = form.at_start(handle, size)
        if size != self._sizes.get(session_id):  # the first time, or another process wrote
            known = min(self._sizes.get(session_id, max(0, size - _LOOK_BACK)), size)
            news = form.news(os.pread(handle, size - known, known), known)
            if message_id is not None and b'"type":"message","id":%d,' % message_id in news:
                data = b""
                if not more:
                    self._sizes[session_id] = size
                    return
            if news and not news.endswith(b"\n") and not form.is_sealed:
                data = b"\n" + data  # a torn last line stays a separate line
        data = start + form.made(data + more)
        self._sizes.pop(session_id, None)
        written = os.write(handle, data)
        while written < len(data):
            written += os.write(handle, memoryview(data)[written:])
        self._sizes[session_id] = len(data) if start else size + len(data)

    def _handle(self, session_id: str) -> int:
        handle = self._files.get(session_id)
        if handle is None:
            return self._open(session_id)
        self._files.move_to_end(session_id)
        return handle

    def _drop_handle(self, session_id: str) -> None:
        os.close(self._files.pop(session_id))
        self._sizes.pop(session_id, None)
        self._formats.pop(session_id, None)

    def is_busy(self) -> bool:
        """Whether a running process (this one included) has been writing transcripts: a line may be about to be written."""
        if self.touched:
            return True
        try:
            return any(not entry.name.startswith(".") for entry in os.scandir(self._open_folder))
        except OSError:
            return False

    def exists(self, session_id: str) -> bool:
        """Whether the session has a transcript (known without a file access once this process wrote to it)."""
        return session_id in self._files or self.path(session_id).exists()

    def forget(self, session_id: str, *folders: Path | None) -> None:
        """Remove a session's transcript, here and in other folders given."""
        with self._lock:
            handle = self._files.pop(session_id, None)
            if handle is not None:
                os.close(handle)
            self._sizes.pop(session_id, None)
            self._formats.pop(session_id, None)
            self.behind.discard(session_id)
        for folder in (self.folder, *folders):
            if folder is not None:
                for name in (file_name(session_id), file_name(session_id).removesuffix("l")):
                    try:
                        (Path(folder) / name).unlink(missing_ok=True)
                    except OSError:
                        pass
                for dump in self._dumps_of(Path(folder), session_id):
                    dump.unlink(missing_ok=True)

    def _dumps_of(self, folder: Path, session_id: str) -> list[Path]:
        """Request dumps of other programs: request_dump_<id>_<time>.json. Pruning calls this for many sessions in a row."""
        now = time.monotonic()
        seen, names = self._dumps.get(folder, (-DUMPS_SEEN, []))
        if now - seen >= DUMPS_SEEN:
            try:
                names = [name for name in os.listdir(folder) if name.startswith("request_dump_")]
            except OSError:
                names = []
            self._dumps[folder] = (now, names)
        of_session = re.compile(rf"request_dump_{re.escape(session_id)}_[0-9TZ_.:-]+\.json")
        return [folder / name for name in names if of_session.fullmatch(name)]

    def close(self, unfinished: Iterable[str] = ()) -> None:
        """Close all files; a mark stays for the sessions whose lines could not be written, or are not written yet."""
        with self._lock:
            for handle in self._files.values():
                os.close(handle)
            self._files.clear()
            if self._marker is not None and self._marker_path is not None:
                if self._leave_mark(self.behind.union(unfinished)):
                    self._marker_path.unlink(missing_ok=True)
                os.close(self._marker)
                self._marker = None

    def _leave_mark(self, sessions: set[str]) -> bool:
        """Have the next opening complete the transcripts of these sessions alone; False if that can't be written."""
        if not sessions:
            return True
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        try:
            hidden = self._open_folder / f".{name}"
            handle = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as file:
                file.writelines(json.dumps(one).encode() + b"\n" for one in sorted(sessions))
            hidden.rename(self._open_folder / name)
        except OSError:
            return False
        return True

    def _open(self, session_id: str) -> int:
        self._mark_or_raise(session_id)
        make_private(self.folder)
        handle = os.open(self.path(session_id), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._files[session_id] = handle
        if len(self._files) > _OPEN_FILES:
            oldest, closing = self._files.popitem(last=False)
            os.close(closing)
            self._sizes.pop(oldest, None)
            self._formats.pop(oldest, None)
        return handle

    # ------------------------------------------------------------------ what a crash leaves behind

    @property
    def _open_folder(self) -> Path:
        return self.folder / ".open"

    def mark(self, session_id: str) -> None:
        """Record, in a file this process holds locked, that it is writing this session's transcript; never raises."""
        with self._lock:
            try:
                self._mark_or_raise(session_id)
            except (OSError, StoreError):
                pass  # the write that follows fails as well, and is recorded then

    def _mark_or_raise(self, session_id: str) -> None:
        if session_id in self.touched:
            return
        if self._marker is None:
            make_private(self.folder)
            make_private(self._open_folder)
            name = f"{os.getpid()}-{os.urandom(4).hex()}"
            hidden = self._open_folder / f".{name}"  # no other process takes it for abandoned before it is locked
            self._marker = os.open(hidden, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if fcntl is not None:
                fcntl.flock(self._marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._marker_path = self._open_folder / name
            hidden.rename(self._marker_path)
        os.write(self._marker, json.dumps(session_id).encode() + b"\n")
        self.touched.add(session_id)

    def left_behind(self) -> list[tuple[Path, list[str]]]:
        """Marks of ended processes, with the sessions they were writing; the caller repairs and removes them."""
        found: list[tuple[Path, list[str]]] = []
        try:
            marks = [Path(entry.path) for entry in os.scandir(self._open_folder)]
        except OSError:
            return found
        for mark in marks:
            if mark == self._marker_path or mark.name.startswith(".") or fcntl is None:
                continue
            try:
                with mark.open("r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    ids = [json.loads(raw) for raw in file if raw.endswith(b"\n")]
                found.append((mark, ids))
            except (OSError, ValueError):
                continue  # its process is running, or another one is repairing it
        return found


def _lock_file(handle: int) -> bool:
    """Lock a transcript, unless its holder hangs: then writing the line matters more than the order of lines."""
    if fcntl is None:
        return False
    deadline = None
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            deadline = deadline or time.monotonic() + _PATIENCE
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)


def event(kind: str, **values: Any) -> Entry:
    """A short line for a change that is not a message."""
    return {"type": "event", "event": kind, "at": time.time(), **values}

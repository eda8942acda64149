"""The results of a batch: a file that grows by whole lines, each on the disk before the next is written.

A process that was killed leaves at most one torn line at the end; the next one drops it (the record still has the reply).
Rewriting the file (without failed lines on `--resume`, in the order of the input at the end) replaces it in one step. One
process writes it at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes.errors import InvalidInput
from hermes.whole_files import sync_folder


class Results:
    """The file of results, locked for this process until `close`."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """InvalidInput when it is in use, is no file of results, or has results and `resume` is not asked for."""
        self.path = path
        self.done: dict[str, tuple[int, int]] = {}  # session → where its result stands: offset and length
        self.failed = 0  # results that tell of a failure; dropped
        if path.exists() and not path.is_file():
            raise InvalidInput(f"{path} is not a regular file, so results can't be kept there")
        self._file = _locked(path)
        try:
            if os.fstat(self._file).st_size and not resume:
                raise InvalidInput(f"{path} has results already: --resume continues it, another --out leaves it alone")
            self._take_stock()
        except BaseException:
            self.close()
            raise

    def _take_stock(self) -> None:
        """Find what is done. Failed results and a torn line at the end are dropped."""
        kept: list[tuple[str, int, int]] = []
        offset = 0
        torn = False
        with open(self.path, "rb") as stream:
            for number, raw in enumerate(stream, 1):
                start, offset = offset, offset + len(raw)
                if not raw.endswith(b"\n"):
                    torn = True
                    break
                session_id, failed = _read(raw, self.path, number)
                if failed:
                    self.failed += 1
                else:
                    kept.append((session_id, start, len(raw)))
        if torn or self.failed:
            self._rewrite((start, length) for _, start, length in kept)
        start = 0
        for session_id, _, length in kept:
            self.done[session_id] = (start, length)
            start += length

    @property
    def run(self) -> str | None:
        """The name of the batch that the results are of: the sessions' ids begin with it. None without results."""
        last = next(reversed(self.done), None)
        return None if last is None else last.rpartition("_")[0]

    def append(self, session_id: str, row: Mapping[str, Any]) -> None:
        """Write one result; it is on the disk when this returns. After an error the file is as before."""
        data = _encoded(row)
        start = os.fstat(self._file).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, start)
            error.filename = str(self.path)
            raise
        self.done[session_id] = (start, len(data))

    def put_in_order(self, session_ids: Iterable[str]) -> None:
        """Have the results in this order; those of other sessions stay, after them. What failed is written by `append`."""
        order = list(dict.fromkeys([*(one for one in session_ids if one in self.done), *self.done]))
        if order == list(self.done):
            return
        self._rewrite(self.done[one] for one in order)
        start = 0
        for one in order:
            length = self.done.pop(one)[1]
            self.done[one] = (start, length)
            start += length

    def _rewrite(self, parts: Iterable[tuple[int, int]]) -> None:
        """Replace the file by these parts of it, whole or not at all."""
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        new = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with open(self.path, "rb") as old, open(new, "ab", closefd=False) as stream:
                for start, length in parts:
                    old.seek(start)
                    stream.write(old.read(length))
            os.fchmod(new, stat.S_IMODE(os.fstat(self._file).st_mode))
            os.fsync(new)
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(beside, self.path)
        except BaseException:
            os.close(new)
            with suppress(OSError):
                os.unlink(beside)
            raise
        os.close(self._file)
        self._file = new
        _sync_folder(self.path)

    def close(self) -> None:
        """Let another process have the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _locked(path: Path) -> int:
    """The file, made if there is none, and locked. The one that has this name: it may be replaced in the same moment."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                _sync_folder(path)
                return file
        except BlockingIOError:
            os.close(file)
            raise InvalidInput(f"another process writes {path}: wait for its end, or name another --out") from None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _sync_folder(path: Path) -> None:
    """So that the name of a new file outlives a power cut."""
    with suppress(OSError):
        sync_folder(path.parent)


def _read(raw: bytes, path: Path, number: int) -> tuple[str, bool]:
    """The session of a result, and whether it tells of a failure."""
    try:
        row = json.loads(raw)
        session_id = row["session_id"] if "session_id" in row else row["id"]
        if isinstance(session_id, str) and "_" in session_id:
            return session_id, bool(row.get("error"))
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise InvalidInput(f"line {number} of {path} is not a result of a batch; name another --out, or remove that line")


def _encoded(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(row).encode() + b"\n"

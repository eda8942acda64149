"""Following the histories of other programs: what they write is in the record a moment later.

A file's size and time when it was last read are kept in the record, so that a start after a stop reads only what has changed
since. Reading is an import, and an import is repeat-safe: a kill between the two costs nothing but reading a file again.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError
from hermes.interop import formats
from hermes.interop.formats import Format, Problem
from hermes.interop.histories.conversation import masked
from hermes.store.session_exports import IMPORTED_FILE

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

_SETTLE = 0.2  # seconds in which several writes are one change
_LOOK_AGAIN = 60.0  # seconds after which folders that did not exist are looked for again
Report = Callable[[Format, Path, dict[str, int]], None]


class HistoryWatcher:
    """Brings in what other programs write below some folders (the usual places, if none are named)."""

    def __init__(self, db: SessionDB, folders: Iterable[Path] = (), report: Report | None = None) -> None:
        self._db, self._report = db, report
        self._folders = [folder.resolve() for folder in folders]
        self.problems: list[Problem] = []

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Follow until `stopped` says so."""
        while not stopped():
            events = FileEvents(self._watched())
            try:
                self.catch_up(self.found())
                until = time.monotonic() + _LOOK_AGAIN
                while not stopped() and time.monotonic() < until:
                    changed = events.wait(1.0)
                    if changed:
                        time.sleep(_SETTLE)
                        changed |= events.wait(0)
                        self.catch_up(self._touched(changed))
            finally:
                events.close()

    def _watched(self) -> list[Path]:
        if self._folders:
            return self._folders
        places = [place for one in formats.histories() for place in one.load().usual_places()]
        return [place if place.is_dir() else place.parent for place in places if place.exists()]

    def found(self) -> Iterator[tuple[Format, Path]]:
        if not self._folders:
            return formats.found_here()
        return (one for folder in self._folders for one in formats.found_in(folder))

    def _touched(self, changed: set[Path]) -> Iterator[tuple[Format, Path]]:
        """The histories that changed files belong to: themselves, a database beside its journal, the session of a
        sub-agent, the tree of a file in it."""
        if any(folder in changed for folder in self._watched()):
            yield from self.found()
            return
        candidates: dict[Path, None] = {}
        for path in sorted(changed):
            candidates[path.with_name(path.name.removesuffix("-wal").removesuffix("-shm").removesuffix("-journal"))] = (
                None
            )
            if path.parent.name == "subagents":
                candidates[path.parent.parent.with_suffix(".jsonl")] = None
            if "storage" in path.parts:
                candidates.update((parent, None) for parent in path.parents if parent.name == "storage")
        for path in candidates:
            found = next((one for one in formats.histories() if path.exists() and one.load().sniff(path)), None)
            if found is not None:
                yield found, path

    def catch_up(self, sources: Iterable[tuple[Format, Path]]) -> int:
        """Import the files that have changed since they were last read; how many messages that brought."""
        brought = 0
        for chosen, path in sources:
            now = _state(path)
            key = f"{IMPORTED_FILE}{path}"
            if now is None or self._db.get_meta(key) == now:
                continue
            try:
                counts = self._db.import_sessions(
                    self._sessions(chosen, path), update=True, again=False, refused=lambda session, error: None
                )
            except HermesError as error:
                self.problems.append(Problem(0, str(error), path))
                continue
            self._db.set_meta(key, now)
            brought += counts["messages"]
            if self._report is not None and (counts["messages"] or counts["updated"]):
                self._report(chosen, path, counts)
        return brought

    def _sessions(self, chosen: Format, path: Path) -> Iterator[Mapping[str, Any]]:
        for found in chosen.load().read(path, None, self.problems):
            yield masked(found.session, self._db.masked)


def _state(path: Path) -> str | None:
    """What tells whether a history has changed: sizes and times of the file, its journal, and what lies in its folder."""
    beside = (path, path.with_name(path.name + "-wal"), path.with_suffix("") / "subagents")
    told = []
    for one in beside:
        try:
            seen = os.stat(one)
        except OSError:
            continue
        told.append(f"{seen.st_size}/{seen.st_mtime_ns}")
        if one.is_dir():
            told += [
                f"{e.stat().st_size}/{e.stat().st_mtime_ns}" for e in sorted(os.scandir(one), key=lambda e: e.name)
            ]
    if path.is_dir():
        newest = max((f.stat().st_mtime_ns for f in path.rglob("*") if f.is_file()), default=0)
        told.append(str(newest))
    return " ".join(told) or None


# ----------------------------------------------------------------------------------------------------
# Which folders had a file written: by inotify where the system has it, else by looking at the times of their files.
#
# Nothing here opens the files, so the programs that write them notice nothing.

_MODIFY, _CLOSE_WRITE, _MOVED_TO, _CREATE, _DELETE_SELF = 0x2, 0x8, 0x80, 0x100, 0x400
_MASK = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE | _DELETE_SELF
_IS_FOLDER, _OVERFLOW = 0x40000000, 0x4000
_EVENT = struct.Struct("iIII")
_POLL_SECONDS = 1.0


class FileEvents:
    """Watches folders and everything below them."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._roots = list(folders)
        self._descriptor = -1
        self._folders: dict[int, Path] = {}
        self._times: dict[Path, tuple[int, int]] = {}
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for root in self._roots:
            if self._descriptor >= 0:
                self._watch(root)
        if self._descriptor < 0:
            self._times = self._looked()

    def _watch(self, folder: Path) -> None:
        """Watch a folder and those below it; where the system allows no more of them, look at the times instead."""
        for path, _, _ in os.walk(folder):
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _MASK)
            if number >= 0:
                self._folders[number] = Path(path)
            elif os.path.isdir(path):
                self.close()
                return

    def wait(self, seconds: float) -> set[Path]:
        """The files (or folders) that were written to; empty when nothing happened for so long."""
        if self._descriptor >= 0:
            return self._read(seconds)
        until = time.monotonic() + seconds
        while True:
            now = self._looked()
            changed = {path for path, stamp in now.items() if self._times.get(path) != stamp}
            self._times = now
            left = until - time.monotonic()
            if changed or left <= 0:
                return changed
            time.sleep(min(_POLL_SECONDS, left))

    def _read(self, seconds: float) -> set[Path]:
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return set()
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return set()
        changed: set[Path] = set()
        at = 0
        while at + _EVENT.size <= len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
            at += _EVENT.size + length
            if mask & _OVERFLOW:
                return set(self._roots)  # events were lost: everything may have changed
            folder = self._folders.get(number)
            if folder is None:
                continue
            path = folder / os.fsdecode(name) if name else folder
            if mask & _IS_FOLDER and mask & (_CREATE | _MOVED_TO) and self._descriptor >= 0:
                self._watch(path)
            changed.add(path)
        return changed

    def _looked(self) -> dict[Path, tuple[int, int]]:
        found: dict[Path, tuple[int, int]] = {}
        for root in self._roots:
            for path, _, names in os.walk(root):
                for name in names:
                    try:
                        seen = os.stat(os.path.join(path, name))
                    except OSError:
                        continue
                    found[Path(path, name)] = (seen.st_mtime_ns, seen.st_size)
        return found

    def close(self) -> None:
        """Stop watching by inotify."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._folders.clear()

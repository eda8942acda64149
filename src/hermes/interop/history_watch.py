"""Following the histories of other programs: what they write is in the record a moment later.

A file's size and time when it was last read are kept in the record, so that a start after a stop reads only what has changed
since. Reading is an import, and an import is repeat-safe: a kill between the two costs nothing but reading a file again.
A file that can't be read costs that file until it changes; a store that fails ends `run` with its error.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hermes.errors import HermesError, InvalidInput, StoreError
from hermes.interop import formats
from hermes.interop.arrivals import alone, arriving
from hermes.interop.formats import Format, Problem
from hermes.interop.windows import Windows, mark_in
from hermes.store.exchange.ingest import IMPORTED_FILE
from hermes.texts import one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

_SETTLE = 0.2  # seconds in which several writes are one change
_BEAT = 0.5  # seconds after which a stop is noticed
_LOOK_AGAIN = (
    60.0  # seconds after which everything is looked at again: a network mount has no events for others' writes
)
_LOOK_SHARE = 200  # a look at everything is followed by at least this many times its own duration without one
_LOOK_OFTEN, _LOOK_OFTEN_SHARE = 1.0, 100  # where the system tells of no events: 1 % of a core
_LOOK_AT_LAST = 600.0  # but not more than this: the first look also imports
_WEEK = 7 * 86400.0
_MOST_TOLD = 1000  # problems that are remembered, so that each is reported once
Report = Callable[[Format, Path, dict[str, int]], None]


def usual_places() -> list[Path]:
    """The folders in which the programs of this machine keep their histories, installed or not."""
    return [place for one in formats.histories() for place in one.load().usual_places()]


def expiring(db: SessionDB) -> Iterator[tuple[str, int]]:
    """The programs that will delete sessions of theirs within a week, and how many of those are here. Each comes once a week."""
    now = time.time()
    for one in formats.histories():
        if (found := getattr(one.load(), "expiring", None)) is None:
            continue
        key = f"{IMPORTED_FILE}expiring:{one.name}"
        if float(db.get_meta(key) or 0) < now - _WEEK and (
            number := sum(db.get_session(name) is not None for name in found(now + _WEEK))
        ):
            db.set_meta(key, str(now))
            yield one.program, number


class HistoryWatcher:
    """Brings in what other programs write below some folders (the usual places, if none are named)."""

    def __init__(
        self, db: SessionDB, folders: Iterable[Path] = (), report: Report | None = None,
        trouble: Callable[[Problem], None] | None = None,
    ) -> None:  # fmt: skip
        """`report` is called for each file that brought something, `trouble` once for each problem with a file."""
        self._db, self._report, self._trouble = db, report, trouble
        self._folders = [folder.resolve() for folder in folders]
        self._looked: dict[tuple[str, Path], str] = {}  # how a file was when it was last imported, refused or not ours
        self._told: dict[tuple[Path | None, str], None] = {}
        self._stopped: Callable[[], bool] = lambda: False
        # Machines that share a store may have different files at the same path.
        self._key = f"{IMPORTED_FILE}{socket.gethostname()}:" if db.is_shared else IMPORTED_FILE

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Follow until `stopped` says so."""
        self._stopped = stopped
        while not stopped():
            roots, missing = self._watched()
            alone = {place.parent for place in self._places() if place.is_file()}
            with FileEvents(roots, alone) as events:
                began = time.monotonic()
                self.catch_up(self.found())
                now = time.monotonic()
                least, share = (_LOOK_AGAIN, _LOOK_SHARE) if events.are_told else (_LOOK_OFTEN, _LOOK_OFTEN_SHARE)
                until = now + min(max(least, (now - began) * share), _LOOK_AT_LAST)
                while not stopped() and time.monotonic() < until and not any(place.exists() for place in missing):
                    changed = events.wait(min(_BEAT, max(0.0, until - time.monotonic())))
                    if changed:
                        time.sleep(_SETTLE)
                        changed |= events.wait(0)
                        self.catch_up(self._touched(changed, roots))

    def _watched(self) -> tuple[list[Path], list[Path]]:
        """The folders to watch, and the places that don't exist yet."""
        places = self._places()
        roots = [place if place.is_dir() else place.parent for place in places if place.exists()]
        return list(dict.fromkeys(roots)), [place for place in places if not place.exists()]

    def _places(self) -> list[Path]:
        return self._folders or usual_places()

    def found(self) -> Iterator[tuple[Format, Path]]:
        """Every history, except files that are as they were when this watcher last looked at them."""
        for one in formats.histories():
            module = one.load()
            for place in self._folders or module.usual_places():
                files = module.files(place) if place.is_dir() else [place] if place.is_file() else []
                for path in files:
                    now = _state(path)
                    if now is not None and self._looked.get((one.name, path)) != now:
                        if self._is_ours(one, path):
                            yield one, path
                        else:
                            self._looked[one.name, path] = now

    def _touched(self, changed: set[Path], roots: list[Path]) -> Iterator[tuple[Format, Path]]:
        """The histories that changed files belong to: themselves, a database beside its journal, the session of a
        sub-agent, the tree of a file in it."""
        if any(folder in changed for folder in roots):
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
            found = next((one for one in formats.histories() if path.exists() and self._is_ours(one, path)), None)
            if found is not None:
                yield found, path

    def _is_ours(self, chosen: Format, path: Path) -> bool:
        try:
            return bool(chosen.load().sniff(path))
        except Exception as error:  # one file of another program stops no other
            self._problem(Problem(0, f"{type(error).__name__}: {error}", path))
            return False

    def catch_up(self, sources: Iterable[tuple[Format, Path]]) -> int:
        """Import the files that have changed since they were last read; how many messages that brought."""
        brought = 0
        for chosen, path in sources:
            if self._stopped():
                break
            try:
                brought += self._take(chosen, path)
            except StoreError:  # the record failed, not this file
                raise
            except Exception as error:  # one file of another program stops no other
                text = str(error) if isinstance(error, (HermesError, OSError)) else f"{type(error).__name__}: {error}"
                self._problem(Problem(0, text, path))
        return brought

    def _take(self, chosen: Format, path: Path) -> int:
        key = f"{self._key}{path}"
        with alone(path):
            now = _state(path)
            if now is None:
                return 0
            known, _, told = (self._db.get_meta(key) or "").partition("\n")
            if known == now:
                self._looked[chosen.name, path] = now
                return 0
            problems: list[Problem] = []
            is_alone = known.split()[1:] == now.split()[1:]  # nothing that lies beside the file has changed
            windows = Windows(chosen.load(), path, None, problems, mark_in(told, path) if is_alone else None)
            cut_short = False

            def sessions() -> Iterator[Mapping[str, Any]]:
                nonlocal cut_short
                for found in windows.sessions():
                    if self._stopped():
                        cut_short = True
                        return
                    yield found.session

            def refused(session: Mapping[str, Any], error: Exception) -> None:
                if windows.misplaced(error):
                    return
                reason = str(error) if isinstance(error, InvalidInput) else f"{type(error).__name__}: {error}"
                problems.append(Problem(0, f"session {session['id']}: {reason}", path))

            counts: Counter[str] = Counter()
            self._looked[chosen.name, path] = now  # also if it fails: it is read again when it changes
            try:
                arrived = arriving(self._db, sessions(), counts)
                counts.update(self._db.import_sessions(arrived, update=True, again=False, refused=refused))
            except StoreError:
                del self._looked[chosen.name, path]
                raise
            if not cut_short:
                self._db.set_meta(key, f"{now}\n{windows.mark_text()}".strip())
        for one in problems:
            if one.unknown is None:
                self._problem(one)
        if self._report is not None and (counts["messages"] or counts["updated"]):
            self._report(chosen, path, counts)
        return counts["messages"]

    def _problem(self, one: Problem) -> None:
        """Report a problem once; the same one comes again with every reading of its file."""
        told = (one.path, f"{one.line} {one.reason}")
        if self._trouble is None or told in self._told:
            return
        while len(self._told) >= _MOST_TOLD:
            del self._told[next(iter(self._told))]
        self._told[told] = None
        self._trouble(Problem(one.line, one_line(one.reason), one.path))


def _state(path: Path) -> str | None:
    """The marks of a change in a history: sizes and times of the file, its journal, and what lies in its folder."""
    beside = (path, path.with_name(path.name + "-wal"), path.with_suffix("") / "subagents")
    told = []
    for one in beside:
        seen = _stat(one)
        if seen is None:
            continue
        told.append(f"{seen.st_size}/{seen.st_mtime_ns}")
        if one.is_dir():
            told += [
                f"{found.st_size}/{found.st_mtime_ns}" for name in sorted(_names(one)) if (found := _stat(one / name))
            ]
    if path.is_dir():
        times = [seen.st_mtime_ns for file in _files_below(path) if (seen := _stat(file))]
        told.append(f"{len(times)}/{max(times, default=0)}")
    return " ".join(told) or None


def _stat(path: Path) -> os.stat_result | None:
    """The program may remove its files at any time."""
    try:
        return os.stat(path)
    except OSError:
        return None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _files_below(folder: Path) -> set[Path]:
    return {Path(path, name) for path, _, names in os.walk(folder) for name in names}


# ----------------------------------------------------------------------------------------------------
# Which folders had a file written, by inotify where the system has it.
#
# Nothing here opens the files, so the programs that write them notice nothing.

_MODIFY, _CLOSE_WRITE, _MOVED_TO, _CREATE, _DELETE_SELF = 0x2, 0x8, 0x80, 0x100, 0x400
_MASK = _MODIFY | _CLOSE_WRITE | _MOVED_TO | _CREATE | _DELETE_SELF
_IS_FOLDER, _OVERFLOW = 0x40000000, 0x4000
_EVENT = struct.Struct("iIII")


class FileEvents:
    """Watches folders and everything below them.

    Of a folder in `alone` only its own files are watched: a history that is one file may lie in a home or a project.
    """

    def __init__(self, folders: Iterable[Path], alone: Iterable[Path] = ()) -> None:
        self._roots, self._alone = list(folders), frozenset(alone)
        self._descriptor = -1
        self._folders: dict[int, Path] = {}
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for root in self._roots:
            self._watch(root)

    @property
    def are_told(self) -> bool:
        """Whether the system tells of events: not all do, and the number of folders is limited."""
        return self._descriptor >= 0

    def _watch(self, folder: Path) -> None:
        """Watch a folder and those below it, as long as the system allows more of them."""
        waiting = [folder]
        while waiting and self.are_told:
            path = waiting.pop()
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _MASK)
            if number >= 0:
                self._folders[number] = path
            elif path.is_dir():
                self.close()
            # Listed when it is watched already: a folder that is made meanwhile is listed, or has an event, or both.
            waiting += _subfolders(path) if path not in self._alone else ()

    def wait(self, seconds: float) -> set[Path]:
        """The files (or folders) that were written to; empty when nothing happened for so long, or none are told."""
        if not self.are_told:
            time.sleep(seconds)
            return set()
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        try:
            data = os.read(self._descriptor, 1 << 16) if ready else b""
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
            if mask & _IS_FOLDER and mask & (_CREATE | _MOVED_TO) and folder not in self._alone:
                self._watch(path)
                changed |= _files_below(path)  # those that were written before the watch began
            changed.add(path)
        return changed

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._folders.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

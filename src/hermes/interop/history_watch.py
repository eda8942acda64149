"""Follow the histories of other programs: what they write is in the record a moment later.

A file's size and time when it was last read are kept in the record, so that a start after a stop reads only what has changed
since. Reading is an import, and an import is repeat-safe: a kill between the two costs nothing but reading a file again.
A file that can't be read is skipped until it changes; a store that fails ends `run` with its error.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, InvalidInput, StoreError
from hermes.interop import formats
from hermes.interop.arrivals import alone, arriving
from hermes.interop.formats import Format, Problem
from hermes.interop.windows import Windows, mark_in
from hermes.store.exchange.ingest import IMPORTED_FILE
from hermes.texts import one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

_PAUSE = 2.0  # seconds between two looks at sizes and times
_PAUSE_SHARE = 50  # a pause is this many times as long as the look before it: at most 2 % of a core
_LONGEST_PAUSE = 30.0  # the first look also imports
_BEAT = 0.5  # seconds after which a stop is noticed
_WEEK = 7 * 86400.0
Report = Callable[[Format, Path, dict[str, int]], None]


def usual_places() -> list[Path]:
    """The folders in which the programs of this machine keep their histories, installed or not."""
    return [place for history in formats.histories() for place in history.load().usual_places()]


def expiring(db: SessionDB) -> Iterator[tuple[str, int]]:
    """The programs that will delete sessions of theirs within a week, and how many of those are here. Each comes once a week."""
    now = time.time()
    for history in formats.histories():
        if (found := getattr(history.load(), "expiring", None)) is None:
            continue
        key = f"{IMPORTED_FILE}expiring:{history.name}"
        if float(db.get_meta(key) or 0) < now - _WEEK and (
            number := sum(db.get_session(name) is not None for name in found(now + _WEEK))
        ):
            db.set_meta(key, str(now))
            yield history.program, number


class HistoryWatcher:
    """Imports what other programs write below some folders (the usual places, if none are named)."""

    def __init__(
        self, db: SessionDB, folders: Iterable[Path] = (), report: Report | None = None,
        trouble: Callable[[Problem], None] | None = None,
    ) -> None:  # fmt: skip
        """`report` is called for each file with new messages, `trouble` once for each problem with a file."""
        self._db, self._report, self._trouble = db, report, trouble
        self._folders = [folder.resolve() for folder in folders]
        self._states: dict[tuple[str, Path], str] = {}  # how a file was when it was last imported, refused or not ours
        self._reported: set[tuple[Path | None, str]] = set()
        self._stopped: Callable[[], bool] = lambda: False
        # Machines that share a store may have different files at the same path.
        self._key = f"{IMPORTED_FILE}{socket.gethostname()}:" if db.is_shared else IMPORTED_FILE

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Follow until `stopped` says so."""
        self._stopped = stopped
        while not stopped():
            began = time.monotonic()
            self.catch_up(self.found())
            now = time.monotonic()
            until = now + min(max(_PAUSE, (now - began) * _PAUSE_SHARE), _LONGEST_PAUSE)
            while not stopped() and time.monotonic() < until:
                time.sleep(_BEAT)

    def found(self) -> Iterator[tuple[Format, Path]]:
        """Every history, except files that are as they were when this watcher last looked at them."""
        for history in formats.histories():
            module = history.load()
            for path in formats.files_at(module, self._folders or module.usual_places()):
                now = _state(path)
                if now is not None and self._states.get((history.name, path)) != now:
                    if self._is_ours(history, path):
                        yield history, path
                    else:
                        self._states[history.name, path] = now

    def _is_ours(self, chosen: Format, path: Path) -> bool:
        try:
            return bool(chosen.load().sniff(path))
        except Exception as error:  # one file of another program stops no other
            self._problem(Problem(0, f"{type(error).__name__}: {error}", path))
            return False

    def catch_up(self, sources: Iterable[tuple[Format, Path]]) -> int:
        """Import the files that have changed since they were last read; returns the number of new messages."""
        imported = 0
        for chosen, path in sources:
            if self._stopped():
                break
            try:
                imported += self._take(chosen, path)
            except StoreError:  # the record failed, not this file
                raise
            except Exception as error:  # one file of another program stops no other
                text = str(error) if isinstance(error, (HermesError, OSError)) else f"{type(error).__name__}: {error}"
                self._problem(Problem(0, text, path))
        return imported

    def _take(self, chosen: Format, path: Path) -> int:
        key = f"{self._key}{path}"
        with alone(path):
            now = _state(path)
            if now is None:
                return 0
            known, _, mark = (self._db.get_meta(key) or "").partition("\n")
            if known == now:
                self._states[chosen.name, path] = now
                return 0
            problems: list[Problem] = []
            is_alone = known.split()[1:] == now.split()[1:]  # nothing that lies beside the file has changed
            windows = Windows(chosen.load(), path, None, problems, mark_in(mark, path) if is_alone else None)
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
            self._states[chosen.name, path] = now  # also if it fails: it is read again when it changes
            try:
                arrived = arriving(self._db, sessions(), counts)
                counts.update(self._db.import_sessions(arrived, update=True, again=False, refused=refused))
            except StoreError:
                del self._states[chosen.name, path]
                raise
            if not cut_short:
                self._db.set_meta(key, f"{now}\n{windows.mark_text()}".strip())
        for problem in problems:
            if problem.unknown is None:
                self._problem(problem)
        if self._report is not None and (counts["messages"] or counts["updated"]):
            self._report(chosen, path, counts)
        return counts["messages"]

    def _problem(self, problem: Problem) -> None:
        """Report a problem once, although every reading of its file finds it again."""
        key = (problem.path, f"{problem.line} {problem.reason}")
        if self._trouble is not None and key not in self._reported:
            self._reported.add(key)
            self._trouble(Problem(problem.line, one_line(problem.reason), problem.path))


def _state(path: Path) -> str | None:
    """The sizes and times by which a change shows: of the file, and of its journal, its sub-agents or the files of its tree."""
    beside = path.rglob("*") if path.is_dir() else path.with_suffix("").glob("subagents/*")
    others = " ".join(map(_mark, sorted((path.with_name(path.name + "-wal"), *beside)))).strip()
    digest = hashlib.sha256(others.encode()).hexdigest()[:16] if others else ""
    return f"{_mark(path)} {digest}".strip() or None


def _mark(path: Path) -> str:
    """A file's size and time; empty where it is gone: the program may remove its files at any time."""
    try:
        seen = path.stat()
    except OSError:
        return ""
    return f"{seen.st_size}/{seen.st_mtime_ns}"

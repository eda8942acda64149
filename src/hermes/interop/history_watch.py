"""Following the histories of other programs: what they write is in the record a moment later.

A file's size and time when it was last read are kept in the record, so that a start after a stop reads only what has changed
since. Reading is an import, and an import is repeat-safe: a kill between the two costs nothing but reading a file again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError
from hermes.interop import formats
from hermes.interop.file_events import FileEvents
from hermes.interop.formats import Format, ImportProblem
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
        self.problems: list[ImportProblem] = []

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
                    self._sessions(chosen, path), update=True, refused=lambda session, error: None
                )
            except HermesError as error:
                self.problems.append(ImportProblem(0, str(error), path))
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

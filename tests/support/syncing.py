"""Synchronising stores in a test, also in a process that is killed at its nth step."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

from hermes.interop.sync import FolderPlace, StorePlace, sync
from tests.support.stores import opener

# The processes that are killed come from one without threads and open stores.
_CLEAN = multiprocessing.get_context("forkserver")
_CLEAN.set_forkserver_preload(["hermes.store.api.session_db", "hermes.interop.sync", __name__])


def opened(engine: str, folder: Path) -> Any:
    """The store of a folder."""
    return opener(engine)(folder, transcripts="off", durability="normal")


def synchronised(db: Any, there: Any, dies_at: int | None = None) -> None:
    """Synchronise a store with a folder, or with another store."""
    place: Any = FolderPlace(there, db) if isinstance(there, Path) else StorePlace(there)
    result = sync(db, place if dies_at is None else Dying(place, dies_at))
    assert not result.problems, result.problems


def synchronised_and_killed(here: tuple[str, Path], there: Any, dies_at: int) -> None:
    """Synchronise in a process of its own that dies at its nth step, or ends before."""
    child = _CLEAN.Process(target=_dying, args=(here, there, dies_at))
    child.start()
    child.join(60)
    assert child.exitcode in (0, -signal.SIGKILL), child.exitcode


def _dying(here: tuple[str, Path], there: Any, dies_at: int) -> None:
    """Run a sync in a process that is killed at its nth step."""
    synchronised(opened(*here), there if isinstance(there, Path) else opened(*there), dies_at)


class Dying:
    """A place at whose nth call the process is killed: before the call, or after it."""

    def __init__(self, place: Any, calls: int) -> None:
        self._place, self._left = place, calls

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._place, name)

        def counted(*words: Any) -> Any:
            self._die(1)
            answer = call(*words)
            self._die(1)
            return answer

        return counted

    def _die(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

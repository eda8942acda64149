"""The one background thread of a SQLite store: it indexes new messages, moves the WAL into the database, empties it.

It works in pieces so small that the next append waits little, and only once no append has come for a moment. While messages
come without a pause, the appending callers index them: a thread would compete with them for Python's interpreter lock.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from hermes.errors import StoreError
from hermes.store.engines.sqlite.fulltext import BATCH, PIECE

if TYPE_CHECKING:
    from hermes.store.engines.sqlite.engine import SqliteEngine

EVERY = 50  # commits, after which the WAL is moved into the database
_MOMENT = 0.01  # seconds without a commit, after which waiting messages are indexed
_IDLE = 0.4  # seconds without a commit, after which the WAL is emptied if it holds deleted text


class Maintenance:
    """The thread, which starts when it is first needed, and what it has to do."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._commits = 0
        self._unindexed = self._long = self._deleted = False
        self._wanted = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def committed(self) -> None:
        """Count a commit."""
        self._commits += 1
        if self._commits % EVERY == 0:
            self._long = True
            self._wake()

    def index_soon(self) -> None:
        """Messages wait to be indexed."""
        if not self._unindexed:
            self._unindexed = True
            self._wake()

    def empty_later(self) -> None:
        """Rows were deleted: their text is still in the WAL."""
        if not self._deleted:
            self._deleted = True
            self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, daemon=True, name="hermes-maintenance")
            with suppress(
                RuntimeError
            ):  # no more threads, or the interpreter ends: the change is committed all the same
                thread.start()
                self._thread = thread
        self._wanted.set()

    def stop(self) -> None:
        """Finish the current piece and end the thread; the WAL is emptied if it holds deleted text."""
        self._stopped = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
        if self._deleted:
            self._try_emptying()

    def _run(self) -> None:
        while not self._stopped:
            before = self._commits
            woken = self._wanted.wait(_IDLE if self._deleted else None)
            self._wanted.clear()
            try:
                if self._long and not self._stopped:
                    self._long = False
                    self._engine.checkpoint()
                if self._unindexed:
                    self._unindexed = self._index()
                if self._deleted and not woken and self._commits == before:
                    self._try_emptying()
            except (StoreError, OSError):
                time.sleep(_MOMENT)  # another process does it, or the disk is full: it can wait

    def _try_emptying(self) -> None:
        with suppress(StoreError, OSError):
            self._deleted = not self._engine.checkpoint(truncate=True)

    def _index(self) -> bool:
        """Index what waits, once no append has come for a moment; whether it has to be looked at again."""
        before = -1
        while self._commits != before and not self._stopped and not self._long:
            before = self._commits
            time.sleep(_MOMENT)
        size = PIECE
        while not self._stopped and self._commits == before:
            if not self._engine.index_batch(size):
                return False
            before += 1  # its own commit
            if self._long:
                self._long = False
                self._engine.checkpoint()
            size = BATCH if self._commits == before else PIECE
        if not self._stopped:
            self._wanted.set()
        return True

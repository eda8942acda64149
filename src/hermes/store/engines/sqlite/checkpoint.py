"""Syncs commits to the disk, and moves the WAL into the database, concurrently with writers.

A commit is safe once the WAL is synced up to it. SQLite would sync while it holds the write lock; syncing right after
the lock is released, and before the call returns, gives the same guarantee and lets the next writer write meanwhile.
A passive checkpoint neither waits nor blocks others, but it writes and syncs a few megabytes: a thread with a
connection of its own does that, so that no append has to. While others keep writing it never finishes, so a
WAL that has grown long is finished in the queue, where only the last few pages are left; then the WAL starts over.
The same thread puts messages into the full-text index a moment after they were stored, and merges it while no process writes.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from hermes.errors import StoreError
from hermes.store.engines.sqlite import locks
from hermes.store.engines.sqlite.fulltext import Tidying
from hermes.store.engines.sqlite.transaction import SqliteTx
from hermes.store.engines.sqlite.write_queue import WriteQueue

EVERY = 50  # commits
LONG_WAL = 1500  # pages
FAR_TOO_LONG = 10 * LONG_WAL
_PATIENCE = 1.0
_BUSY_MS = 1000
_MOMENT = 0.01  # seconds without a write, after which waiting messages are indexed
T = TypeVar("T")
_IDLE = 0.4  # seconds without a write


def _system_call() -> Callable[[int, int, int, int], int] | None:
    """Linux's sync_file_range, where it exists."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


_SYNC_FILE_RANGE_WRITE = 2
_begin_writing = _system_call()


class WalSync:
    """Syncs a database's WAL. (Its locks are on other files, so opening and closing it here is harmless.)"""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + "-wal")
        self._file = -1

    def begin(self) -> None:
        """Let the system begin to write without waiting; only the sync itself is a guarantee."""
        if _begin_writing is not None:
            _begin_writing(self._opened(), 0, 0, _SYNC_FILE_RANGE_WRITE)

    def __call__(self) -> None:
        """Wait until everything is on the disk."""
        os.fdatasync(self._opened())

    def _opened(self) -> int:
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        return self._file

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class MaintenanceThread:
    """Makes checkpoints, indexes, and tidies while no process writes. Its thread starts when it is first needed.

    `work` provides the tidying: prepared without a lock, then written in a transaction of its own.
    """

    def __init__(self, path: Path, gate: WriteQueue, work: Tidying) -> None:
        self._path = path
        self._gate = gate  # its own: a WriteQueue serves one thread
        self._work = work
        self._indexing = WriteQueue(path.with_name(path.name + "-indexing"))  # one process is enough
        self._untidy = False
        self._deleted = False  # the WAL may still hold deleted text
        self._unindexed = False
        self._long = False  # the WAL must be moved into the database
        self._commits = 0
        self._wanted = threading.Event()
        self._stopped = False
        self._busy = False
        self._thread: threading.Thread | None = None

    def watch(self, connection: apsw.Connection) -> None:
        """Watch the size of the WAL that this connection writes."""
        connection.set_wal_hook(self._grown)

    def _grown(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._commits += 1
        if (pages >= LONG_WAL or self._commits % EVERY == 0) and not self._busy:
            if pages >= FAR_TOO_LONG and pages % LONG_WAL < 8:  # the thread can't keep up
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._long = True
            self._start()
            self._wanted.set()
        return apsw.SQLITE_OK

    def index_soon(self) -> None:
        """Signal that there are messages to index."""
        if not self._unindexed:
            self._unindexed = True
            self._start()
            self._wanted.set()

    def tidy_later(self) -> None:
        """Signal that there is something to tidy."""
        if not self._untidy:
            self._untidy = self._long = True
            self._start()
            self._wanted.set()

    def empty_later(self) -> None:
        """Signal that rows were deleted: when no process writes, the WAL is emptied as well."""
        if not self._deleted:
            self._deleted = True
            self._start()
            self._wanted.set()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="hermes-keeper")
            self._thread.start()

    def stop(self) -> None:
        """Finish the current work and end the thread."""
        self._stopped = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            connection = locks.connect(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)
            connection.set_busy_timeout(_BUSY_MS)
            # Index entries can be made again, and moving the WAL syncs it first: no commit here needs a sync.
            connection.execute("PRAGMA synchronous=NORMAL; PRAGMA cache_size=-8000; PRAGMA temp_store=MEMORY")
            connection.pragma("secure_delete", 1)
            connection.wal_autocheckpoint(0)
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # only a reader sees the WAL
        except apsw.Error:
            return  # the last connection to close moves the WAL
        try:
            while not self._stopped:
                before = self._commits
                woken = self._wanted.wait(_IDLE if self._untidy or self._deleted else None)
                self._wanted.clear()
                if self._stopped:
                    return
                try:
                    if self._unindexed:
                        self._index(connection)
                    quiet = not woken and self._commits == before
                    if quiet and self._deleted:
                        self._empty(connection)
                    if quiet and self._untidy:
                        self._untidy = self._tidied(connection)
                    elif self._long:
                        self._long = False
                        self._checkpoint(connection)
                except (apsw.Error, OSError, StoreError, UnicodeDecodeError):
                    pass  # another process does it, the disk is full or a text is damaged: it can wait
        finally:
            if self._deleted:
                with suppress(apsw.Error, OSError):
                    self._empty(connection)
            self._gate.close()
            self._indexing.close()
            connection.close()

    def _checkpoint(self, connection: apsw.Connection) -> None:
        self._busy = True
        try:
            pages, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if pages >= LONG_WAL:
                self._finish(connection)
        finally:
            self._busy = False

    def _finish(self, connection: apsw.Connection) -> None:
        """Move the last pages while no process adds any. Pages already moved are synced before."""
        os.fdatasync(_descriptor(self._path))
        if self._gate.enter(_PATIENCE):
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            finally:
                self._gate.leave()

    def _empty(self, connection: apsw.Connection) -> None:
        """Move everything into the database, where deleted text is overwritten, and empty the WAL."""
        if self._gate.enter(_PATIENCE):
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # BusyError while others read
                self._deleted = False
            finally:
                self._gate.leave()

    def _index(self, connection: apsw.Connection) -> None:
        """Index waiting messages once no process appends for a moment, in pieces so small that the next append waits little.

        While messages come without a pause, the appending callers index them: a parallel thread would take longer, and
        each of their steps would wait for Python's GIL.
        """
        tx = SqliteTx(connection)
        before = -1
        while self._commits != before and not self._stopped:
            before = self._commits
            time.sleep(_MOMENT)
        self._unindexed = False
        if not self._indexing.enter():
            return
        try:
            while not self._stopped and self._commits == before:
                connection.execute("BEGIN")
                try:
                    batch = self._work.next_batch(tx)
                finally:
                    connection.execute("COMMIT")
                if batch is None:
                    return
                self._write(connection, partial(self._work.index, tx, batch))
                self._untidy = True
                if self._work.is_behind(tx):  # messages come without a pause
                    self._tidy(connection, tx)
        finally:
            self._indexing.leave()

    def _write(self, connection: apsw.Connection, work: Callable[[], T]) -> T:
        """A write transaction, when the queue admits this thread."""
        if not self._gate.enter(_PATIENCE):
            raise BlockingIOError("other processes are still writing")
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = work()
            connection.execute("COMMIT")
            return result
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._gate.leave()

    def _tidied(self, connection: apsw.Connection) -> bool:
        """Tidy until a process writes; returns whether there is more to do."""
        before, steps, tx = self._commits, 0, SqliteTx(connection)
        while self._commits == before and not self._stopped:
            more = self._tidy(connection, tx)
            if not more:
                return False
            steps += 1
            if steps % EVERY == 0:
                self._checkpoint(connection)
            self._wanted.wait(0.002)  # let waiting writers take the lock first
        return True

    def _tidy(self, connection: apsw.Connection, tx: SqliteTx) -> bool:
        """Do one piece of deferred work; returns whether there may be more."""
        piece = self._work.prepare(tx)
        more = self._write(connection, partial(self._work.write, tx, piece))
        self._work.written(piece)
        return more


_descriptors: dict[tuple[int, int], int] = {}


def _descriptor(path: Path) -> int:
    """A descriptor of a database file. It is never closed: that would drop the locks SQLite holds in this process."""
    found = path.stat()
    key = (found.st_dev, found.st_ino)
    if key not in _descriptors:
        _descriptors[key] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return _descriptors[key]

"""One SQLite file, several threads and processes.

One connection writes (and reads, while no thread writes); further ones are opened when a reader would have to wait.
Every write is a BEGIN IMMEDIATE behind a queue (connection.WriteQueue), and so is every checkpoint. SQLite commits
without waiting for the disk; a durable write then syncs the WAL with the lock released, while the next process writes.
"""

from __future__ import annotations

import atexit
import os
import random
import shlex
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from hermes.errors import HermesError, NotADatabase, StoreBusy, StoreClosed, StoreError, StoreGone, StoreReadOnly
from hermes.home import make_private, settled
from hermes.store.engines.base import StoreMissing, from_os
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite import migrate, upkeep
from hermes.store.engines.sqlite.connection import (
    Connection,
    SqliteTx,
    WalGuard,
    WriteQueue,
    as_ours,
    codes,
    identity,
    is_busy,
    pragma,
)
from hermes.store.engines.sqlite.fulltext import BULK, SqliteFullText, adopt
from hermes.store.records import titles
from hermes.store.records.rows import Finding

PAGE = 2048  # bytes of a page of a new file: a message changes five pages, and each is written and checksummed whole
QUEUE_SECONDS = 2.0  # a writer that waits longer skips the queue and uses SQLite's own lock
RETRIES = 15
RETRY_SECONDS = (0.020, 0.150)  # between two tries to get SQLite's lock, where the queue in front of it does not help
FORK_SECONDS = 10.0  # that transactions of other threads are waited for before a fork
OPENING_SECONDS = 10.0  # to wait for a process that creates the file
SETTLE = 2_000  # messages that are indexed at once, when a store is closed


class SqliteEngine:
    """The engine of `SessionDB(db_path=…)`."""

    name = "sqlite"
    shared = False

    def __init__(self, path: Path, *, read_only: bool = False, durability: str = "full") -> None:
        self.path = path = settled(path)
        self.where = str(path)
        self.read_only = read_only
        self.notice: str | None = None
        self._durability = durability
        self._mutex = threading.RLock()
        self._spare: list[Connection] = []
        self._spare_lock = threading.Condition()
        self._lent = 0  # spare connections in use
        self._forking = False  # a thread is about to fork: no further connection is lent
        self.on_behind: Callable[[Iterable[str]], None] = lambda sessions: None
        self._closed = ""  # why it can't be used any more
        self._followed_to: tuple[Connection, int] | None = None  # the data version at which nothing was left to follow
        self._queue = WriteQueue(path.with_name(path.name + "-queue"))
        self._wal = -1  # a descriptor of the WAL, if commits are synced
        self._files: dict[str, tuple[int, int]] = {}  # by name: which file it was when it was opened
        self._lost: str | None = None  # the error, once one of them was taken away
        self.fulltext = SqliteFullText()
        self._maintenance = upkeep.Maintenance(self)
        try:
            with self._translated():
                self.overlay = self._open()
        except BaseException:
            if (connection := getattr(self, "_main", None)) is not None:
                connection.close()  # left to the garbage collector it would go on blocking writers
            self._queue.close()
            raise
        _opened.add(self)

    # ------------------------------------------------------------------ opening

    def _open(self) -> bool:
        """Open the writing connection on a file that is ready; returns whether it is read through stand-in views.

        Processes that create a new file at once block each other, so they queue up, and a reader of an empty file waits
        for the process that is creating it. A file that another process replaces meanwhile is opened again.
        """
        if not self.read_only and not driver.file_size(self.path):
            make_private(self.path.parent)
            self._queue.enter(OPENING_SECONDS)
        try:
            for left in (2, 1, 0):
                before = identity(self.path)
                try:
                    overlay = self._prepare()
                    if before in (None, identity(self.path)):
                        break
                    raise StoreBusy(f"another process has just replaced {self.path}; try again")
                except (NotADatabase, StoreMissing, StoreBusy, *driver.Error) as error:  # type: ignore[misc]
                    is_new = isinstance(error, StoreMissing) and self._queue.path.exists()
                    if not left or not (is_new or is_busy(error) or before != identity(self.path)):
                        raise
                self._main.close()
                if self._queue.path.exists():
                    self._queue.enter(OPENING_SECONDS)
        finally:
            self._queue.leave()
        self._guard = WalGuard(self.path)
        names = [f"{self.path}{end}" for end in ("", "-wal", "-shm")]
        self._files = {name: known for name in names if (known := identity(name)) is not None}
        return overlay

    def _prepare(self) -> bool:
        """Open, and migrate or create the file; returns whether it is read through stand-in views (it has another version)."""
        if not self.read_only:
            _require_file(self.path)
        # Another program's file must not even be touched by closing it: it is looked at through a connection that only reads.
        try:
            self._main = _open_file(self.path, read_only=True)
        except StoreReadOnly:  # a crash left a WAL that must be recovered first
            if self.read_only:
                raise
            self._main = _open_file(self.path, read_only=False)
        state = migrate.inspect(self._main)
        if state.kind == "foreign-application":
            raise NotADatabase(f"{self.path} is a database of some other program, not a session store")
        if state.kind == "newer" and not self.read_only:
            self.read_only = True
            if state.foreign:
                self.notice = (
                    f"{self.path} belongs to Hermes Agent (schema {state.version}) and is only read here;"
                    f" `hermes sessions import {shlex.quote(str(self.path))}` brings its sessions into a record of your own"
                )
            else:
                self.notice = (
                    f"{self.path} was written by a newer Hermes Sessions (version {state.version}); it is opened for reading"
                    " only. Upgrade this program to write to it."
                )
            warnings.warn(self.notice, stacklevel=6)
        if not self.read_only:
            self._main.close()
            self._main = _open_file(self.path, read_only=False)
            self._set_up_writer(state)
            return False
        if state.kind == "empty":
            raise StoreMissing(
                f"{self.path} is empty: there is nothing to read; if it held sessions, `hermes sessions rebuild` restores them"
                " from their transcripts"
            )
        overlay = state.kind != "current" or not state.readable
        if overlay:
            migrate.stand_in(self._main)
        self.fulltext.indexed = not overlay
        return overlay

    def _set_up_writer(self, state: migrate.State) -> None:
        main = self._main
        if state.kind == "empty":
            if not driver.is_encrypted(self.path):  # SQLCipher's pages have a size of their own
                main.execute(f"PRAGMA page_size={PAGE}")
            main.execute("PRAGMA auto_vacuum=INCREMENTAL")
        in_wal = main.execute("PRAGMA journal_mode=wal").fetchone()[0] == "wal"
        if not in_wal:
            warnings.warn(
                f"{self.path} is on a file system without shared memory: using a rollback journal (slower)",
                stacklevel=6,
            )
        synchronous = "NORMAL" if in_wal or self._durability == "normal" else "FULL"
        # Deleted rows are overwritten, not left in free pages.
        for setting in (f"synchronous={synchronous}", "journal_size_limit=67108864", "secure_delete=ON"):
            main.execute(f"PRAGMA {setting}")
        if state.kind != "current" or state.foreign_triggers or state.incomplete:
            with self.write() as tx:
                migrate.upgrade(tx.connection)
        if in_wal and self._durability == "full":
            pragma(main, "schema_version")  # SQLite creates the WAL when the file is first read
            self._wal = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)

    # ------------------------------------------------------------------ transactions

    @contextmanager
    def read(self) -> Iterator[SqliteTx]:
        """A read transaction: on the writing connection while that is free, else on a spare one."""
        self._require_open()
        is_free = self._mutex.acquire(blocking=False)
        try:
            with nullcontext(self._main) if is_free else self._borrowed() as connection:
                begun = not connection.in_transaction  # False: a read inside this thread's own write
                try:
                    if begun:
                        connection.execute("BEGIN")
                    yield SqliteTx(connection)
                finally:
                    if begun:
                        connection.commit()
        except driver.Failure as error:
            raise as_ours(error, self.path) from error
        finally:
            if is_free:
                self._mutex.release()

    def searching(self) -> AbstractContextManager[SqliteTx]:
        self.adopt_foreign_rows()
        return self.read()

    @contextmanager
    def _borrowed(self) -> Iterator[Connection]:
        """A spare connection, opened if there is none, that only reads."""
        with self._spare_lock:
            self._spare_lock.wait_for(lambda: not self._forking, FORK_SECONDS)
            self._lent += 1
            connection = self._spare.pop() if self._spare else None
        try:
            if connection is None:
                connection = _open_file(self.path, read_only=True)
                if self.overlay:
                    migrate.stand_in(connection)
            yield connection
        finally:
            with self._spare_lock:
                self._lent -= 1
                if connection is not None:
                    self._spare.append(connection)
                self._spare_lock.notify_all()

    @contextmanager
    def write(
        self, *, lock: Sequence[str] = (), exclusive: bool = True, storing: bool = False, durable: bool = True
    ) -> Iterator[SqliteTx]:
        """One writer at a time. If `durable`, the change is on the disk when the block is left."""
        with self._exclusively() as connection:
            self._begin(connection)
            try:
                yield SqliteTx(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise
        self._committed(lock, durable)

    def _begin(self, connection: Connection) -> None:
        """Begin to write. SQLite itself waits for a second only, so that Ctrl-C is heard in between."""
        for left in range(RETRIES, -1, -1):
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except driver.Error as error:
                if not left or not is_busy(error):
                    raise
            time.sleep(random.uniform(*RETRY_SECONDS))

    @contextmanager
    def _exclusively(self) -> Iterator[Connection]:
        """The writing connection outside a transaction, while no other process of ours writes or checkpoints."""
        self._require_writable()
        with self._translated(), self._mutex:
            self._require_open()
            self._queue.enter(QUEUE_SECONDS)
            try:
                yield self._main
            finally:
                self._queue.leave()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path} {self._closed}")

    def _require_writable(self) -> None:
        self._require_open()
        if self.read_only:
            raise StoreReadOnly(self.notice or f"{self.path} is opened for reading only")
        if self._lost is not None:
            raise StoreGone(self._lost)

    def _committed(self, sessions: Sequence[str], durable: bool) -> None:
        """After a commit, with the lock released. An error here says that the change is stored nevertheless."""
        self._maintenance.committed()
        if not durable or self._closed:
            return  # closing syncs all of it
        try:
            # With PRAGMA synchronous=FULL, SQLite would sync while it holds the lock: eight processes stored 611 messages
            # a second instead of 695, and the slowest of a hundred took 112 ms instead of 90 (one process: no difference).
            if self._wal >= 0:
                os.fdatasync(self._wal)
        except OSError as error:
            if self._closed:
                return
            self.on_behind(sessions)
            mapped = as_ours(error, self.path)
            raise (type(mapped) if isinstance(mapped, StoreError) else StoreError)(
                f"{mapped}; this change was stored, but may not survive a power failure: check before you repeat it",
                maybe_stored=True,
            ) from error
        for name, known in self._files.items():
            if identity(name) != known and not self._closed:
                raise self._file_lost(name)

    def _file_lost(self, lost: str) -> StoreGone:
        """The error for a file of this store that was taken away: no process would ever read what is written to it."""
        self._lost = (
            f"{lost} was deleted, moved or replaced while it was open; nothing more is stored there."
            " Put the file back or restore a backup, then open the store again"
        )
        is_here = all(
            (now := identity(name)) == known or (now is None and name != self.where)
            for name, known in self._files.items()
        )
        if is_here:  # content that only the lost -wal had is moved into the database
            with suppress(*driver.Error), self._mutex:
                self._main.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return StoreGone(self._lost, maybe_stored=is_here)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except driver.Failure as error:
            raise as_ours(error, self.path) from error

    def checkpoint(self, *, truncate: bool = False) -> bool:
        """Move the WAL into the database, as far as no reader needs it, or (`truncate`) empty it; whether that was done."""
        with self._exclusively() as connection:
            row = connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if truncate else 'PASSIVE'})").fetchone()
            return row is not None and int(row[0]) == 0

    def make_tables(self, statements: Sequence[str]) -> None:
        with self.write() as tx:
            for statement in statements:
                tx.run(statement)

    def size(self) -> int:
        return sum(driver.file_size(f"{self.path}{end}") for end in ("", "-wal"))

    # ------------------------------------------------------------------ housekeeping

    index_batch = upkeep.index_batch
    catch_up = upkeep.catch_up
    rebuild_index = upkeep.rebuild_index
    reclaim = upkeep.reclaim
    scrub = upkeep.scrub
    backup = upkeep.backup

    def adopt_foreign_rows(self) -> None:
        """Adopt rows that another program wrote and reindex those it changed, if any connection but ours committed something.

        If that fails (another process holds the lock, the disk is full) it has to wait: search finds the old words.
        """
        if self.read_only:
            return
        with self.read() as tx:
            version = tx.connection, pragma(tx.connection, "data_version")
            if version == self._followed_to:
                return
            retitled = tx.row("SELECT 1 FROM sessions WHERE title IS NOT title_seen LIMIT 1") is not None
            has_changes = retitled or self.fulltext.has_changes(tx)
            foreign = self.fulltext.foreign_sessions(tx)
        if not has_changes and not foreign:
            self._followed_to = version
            return
        with suppress(StoreError):
            with self.write() as tx:
                self.fulltext.follow_changes(tx)
                titles.adopt_foreign_titles(tx)
                for session_id in foreign:
                    adopt(tx, session_id)
            self.on_behind(foreign)

    def start_background(self) -> None:
        """After an upgrade there is much to index: the maintenance thread does it."""
        if not self.read_only:
            with self.read() as tx:
                if self.fulltext.pending(tx) > SETTLE or migrate.has_old_index(tx.connection):
                    self._maintenance.index_soon()

    def query(self, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
        self._require_open()
        with self._translated(), self._borrowed() as connection:
            return driver.read_only_rows(connection, sql, params)

    def appended(self, message_id: int, size: int) -> None:
        if not self.fulltext.due(message_id, size):
            return
        self._maintenance.index_soon()
        if self.fulltext.is_far_behind(message_id):  # the thread can't keep up
            with suppress(StoreError):  # the message is stored and can be found; indexing can wait
                self.index_batch(BULK)

    def problems(self) -> list[Finding]:
        """Find damage in the file itself, in its values or in its index."""
        from hermes.store.engines.sqlite import check

        self._require_open()
        with self._translated(), self._mutex:
            found = check.corruption(self._main)
        if found or self.overlay:  # another program's file: its values and its index are not checked
            return found
        with self._translated(), self.read() as tx:
            return [*check.drift(tx.connection, self.fulltext.mark(tx))]

    def close(self) -> None:
        if self._closed:
            return
        with suppress(StoreError):  # the next process does it
            with self.read() as tx:
                waiting = self.fulltext.pending(tx)
            if waiting <= SETTLE and not self.read_only:
                self.catch_up()
        self._maintenance.stop()
        with self._mutex:
            if self._closed:
                return
            self._closed = "was closed"
            with self._spare_lock:
                self._spare_lock.wait_for(lambda: not self._lent, timeout=QUEUE_SECONDS)
                for connection in self._spare:
                    connection.close()
                self._spare.clear()
            if not self.read_only:
                self._queue.enter(QUEUE_SECONDS)
            if all(identity(name) == known for name, known in self._files.items()):
                self._guard.release()  # the last connection to close moves the WAL into the database
            with suppress(*driver.Error):
                self._main.close()
            self._guard.close()  # only now, where another file is in its place: SQLite would remove that one's WAL
            self._queue.close()
            if self._wal >= 0:
                os.close(self._wal)


# ---------------------------------------------------------------------------------------- the file

_NO_SHM = (codes.SQLITE_CANTOPEN, codes.SQLITE_READONLY, codes.SQLITE_FULL, codes.SQLITE_IOERR)


def _require_file(path: Path) -> None:
    """Make sure that there is a file to write to, creating an empty one; an error that says why there is none."""
    if path.is_dir():
        raise NotADatabase(f"{path} is a folder, not a database file")
    make_private(path.parent)
    if not path.exists():
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise from_os(error, path) from error
    elif 0 < path.stat().st_size < 512:  # SQLite treats a file of a few bytes as empty
        raise NotADatabase(f"{path} is not a database; move it away, or choose another file")
    elif not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise StoreReadOnly(f"{path} can't be written; check its permissions and its folder's")


def _open_file(path: Path, *, read_only: bool) -> Connection:
    """A connection with our settings. Read-only, where nothing can be created beside the file, it is read alone."""
    if read_only and not path.exists():
        raise StoreError(f"{path} does not exist; there is nothing to read")
    key = driver.key_of(path)
    try:
        opened = driver.connect(path, key=key, read_only=read_only)
        pragma(opened, "application_id")  # the first actual read of the file
    except driver.Error as error:
        if not read_only or driver.code(error) not in _NO_SHM:
            raise
        if driver.file_size(f"{path}-wal"):
            if driver.code(error) in (codes.SQLITE_FULL, codes.SQLITE_IOERR):
                raise
            raise StoreReadOnly(
                f"{path} has changes in its -wal file that can only be read where its folder can be written"
            ) from None
        # Not even the shared-memory file can be created there, so no other process has the database open.
        opened = driver.connect(path, key=key, read_only=True, immutable=True)
    for setting in ("cache_size=-24000", "temp_store=MEMORY", "foreign_keys=OFF"):
        opened.execute(f"PRAGMA {setting}")
    migrate.add_functions(opened)
    return opened


# ---------------------------------------------------------------------------------------- forks, and the end

_opened: weakref.WeakSet[SqliteEngine] = weakref.WeakSet()
_paused: list[SqliteEngine] = []
_left_behind: list[SqliteEngine] = []  # of the parent: closing one here would be harmless and useless


def _before_fork() -> None:
    """Wait for a quiet moment: a thread inside SQLite would leave its locks taken in the child for ever."""
    for engine in list(_opened):
        if not engine._closed and engine._mutex.acquire(timeout=FORK_SECONDS):
            _paused.append(engine)
            engine._spare_lock.acquire()
            engine._forking = True
            engine._spare_lock.wait_for(lambda e=engine: not e._lent, FORK_SECONDS)  # type: ignore[misc]


def _in_parent() -> None:
    while _paused:
        engine = _paused.pop()
        engine._forking = False
        engine._spare_lock.notify_all()
        engine._spare_lock.release()
        engine._mutex.release()


def _in_child() -> None:
    """A connection must not be used on both sides: the child's are closed to its callers, and it opens its own."""
    _paused.clear()
    for engine in list(_opened):
        engine._closed = "was opened before this process was forked; open it again in this process"
        engine._mutex, engine._spare_lock = threading.RLock(), threading.Condition()
        _left_behind.append(engine)


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


@atexit.register
def _at_exit() -> None:
    """Close what a program has left open."""
    for engine in list(_opened):
        with suppress(HermesError, *driver.Failure):
            engine.close()

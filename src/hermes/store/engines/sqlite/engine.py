"""One SQLite file, several threads and processes.

One connection writes (and reads, while no thread writes); further ones are opened when a reader would have to wait.
Every write is a BEGIN IMMEDIATE behind the queue of write_queue.py, and so is every checkpoint. SQLite commits
without waiting for the disk; a lasting write then syncs the WAL with the lock released, while the next process writes.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, NotADatabase, StoreBusy, StoreClosed, StoreError, StoreGone, StoreReadOnly
from hermes.home import make_private, settled
from hermes.store.engines.base import NothingThere, Progress
from hermes.store.engines.sqlite import cipher, migrate
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite.connection import Connection, WalGuard, is_busy, pragma
from hermes.store.engines.sqlite.error_mapping import as_ours
from hermes.store.engines.sqlite.file_connection import has_content, holder_of, identity, open_file, require_file
from hermes.store.engines.sqlite.fulltext import BATCH, BULK, Bounds, SqliteFullText, adopt, merge
from hermes.store.engines.sqlite.maintenance import Maintenance
from hermes.store.engines.sqlite.transaction import Reading, Searching, SqliteTx, Writing
from hermes.store.engines.sqlite.write_queue import QUEUE_SECONDS, WriteQueue
from hermes.store.titles import take_in

if TYPE_CHECKING:
    from hermes.store.rows import Finding

PAGE = 2048  # bytes of a page of a new file: a message changes five pages, and each is written and checksummed whole
RETRIES = 15
RETRY_SECONDS = (0.020, 0.150)  # between two tries to get SQLite's lock
FORK_SECONDS = 10.0  # that transactions of other threads are waited for before a fork
OPENING_SECONDS = 10.0  # to wait for a process that creates the file
SETTLE = 2_000  # messages that are indexed at once, when a store is closed
MANY_WORDS = 100_000  # each is looked up when unused ones are removed: a second or two
FORGET_PAGES = 500  # of the index, merged in one transaction
_NOTHING_MORE: AbstractContextManager[None] = nullcontext()


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
        self.on_adopted: Callable[[Iterable[str]], None] = lambda sessions: None  # called after rows were adopted
        self.on_unsure: Callable[[Iterable[str]], None] = lambda sessions: None  # for commits that may be lost
        self.on_parts: Callable[[Sequence[int]], None] = lambda message_ids: None
        self._closed = False
        self._forked = False
        self._taken_in: tuple[int, int] | None = None  # the data version at which all other programs' rows were adopted
        self._queue = WriteQueue(path.with_name(path.name + "-queue"))
        self._wal = -1  # a descriptor of the WAL, if commits are synced
        self._files: dict[str, tuple[int, int] | None] = {}
        self._lost: str | None = None  # one of them that was taken away
        self._guard: WalGuard | None = None
        self.fulltext = SqliteFullText()
        self._maintenance = Maintenance(self)
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
        if not self.read_only and not self.path.is_dir() and not has_content(self.path):
            make_private(self.path.parent)
            self._queue.enter(OPENING_SECONDS)
        waited = False
        try:
            for left in range(RETRIES, -1, -1):
                before = identity(self.path)
                try:
                    overlay = self._prepare()
                    if before is None or before == identity(self.path) or not left:
                        break
                except NothingThere:
                    if waited or not self._queue.path.exists():
                        raise
                    waited = self._queue.enter(OPENING_SECONDS)
                except (NotADatabase, *driver.Error) as error:  # type: ignore[misc]
                    if not left or not (is_busy(error) or before != identity(self.path)):
                        raise
                self._main.close()
                time.sleep(random.uniform(*RETRY_SECONDS))
        finally:
            self._queue.leave()
        self._guard = WalGuard(self.path)
        self._files = {name: identity(name) for name in (f"{self.path}{end}" for end in ("", "-wal", "-shm"))}
        return overlay

    def _prepare(self) -> bool:
        """Open, and migrate or create the file; returns whether it is read through stand-in views (it has another version)."""
        if not self.read_only:
            require_file(self.path)
        # Another program's file must not even be touched by closing it: it is looked at through a connection that only reads.
        try:
            self._main = open_file(self.path, read_only=True)
        except StoreReadOnly:  # a crash left a WAL that must be recovered first
            if self.read_only:
                raise
            self._main = open_file(self.path, read_only=False)
        state = migrate.inspect(self._main)
        if state.kind == "foreign-application":
            raise NotADatabase(f"{self.path} is a database of some other program, not a session store")
        if state.kind == "newer" and not self.read_only:
            self.read_only = True
            if state.foreign:
                who, advice = "another or newer program", "Import it into your own store to continue its sessions."
            else:
                who, advice = "a newer Hermes Sessions", "Upgrade this program to write to it."
            self.notice = (
                f"{self.path} was written by {who} (version {state.version}); it is opened for reading only. {advice}"
            )
            warnings.warn(self.notice, stacklevel=6)
        if not self.read_only:
            self._main.close()
            self._main = open_file(self.path, read_only=False)
            self._set_up_writer(state)
            return False
        if state.kind == "empty":
            raise NothingThere(
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
            if not cipher.is_encrypted(self.path):  # SQLCipher's pages have a size of their own
                main.execute(f"PRAGMA page_size={PAGE}")
            main.execute("PRAGMA auto_vacuum=INCREMENTAL")
        if state.journal != "wal":
            self._use_wal()
        in_wal = pragma(main, "journal_mode") == "wal"
        main.execute(f"PRAGMA synchronous={'NORMAL' if in_wal or self._durability == 'normal' else 'FULL'}")
        main.execute("PRAGMA journal_size_limit=67108864")
        main.execute("PRAGMA secure_delete=ON")  # deleted rows are overwritten, not left in free pages
        if state.kind != "current" or state.foreign_triggers or state.incomplete:
            with self.write() as tx:
                migrate.upgrade(tx.connection)
        if in_wal and self._durability == "full":
            main.execute(
                "SELECT count(*) FROM sqlite_master"
            ).fetchone()  # SQLite creates the WAL when it is first read
            self._wal = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)

    def _use_wal(self) -> None:
        try:
            mode = self._main.execute("PRAGMA journal_mode=wal").fetchone()[0]
        except driver.Error as error:
            mode = pragma(self._main, "journal_mode")
            if not is_busy(error) or mode != "wal":  # another process did not do the same
                raise
        if mode not in ("wal", "memory"):
            warnings.warn(
                f"{self.path} is on a file system without shared memory: using a rollback journal (slower)",
                stacklevel=7,
            )

    # ------------------------------------------------------------------ transactions

    def read(self) -> AbstractContextManager[SqliteTx]:
        return Reading(self)

    def _borrow(self) -> Connection:
        with self._spare_lock:
            self._spare_lock.wait_for(lambda: not self._forking, FORK_SECONDS)
            self._lent += 1
            if self._spare:
                return self._spare.pop()
        try:
            connection = open_file(self.path, read_only=True)
            if self.overlay:
                migrate.stand_in(connection)
            return connection
        except BaseException:
            self._return(None)
            raise

    def _return(self, connection: Connection | None) -> None:
        with self._spare_lock:
            self._lent -= 1
            if connection is not None:
                self._spare.append(connection)
            self._spare_lock.notify_all()

    def write(
        self, *, holding: Sequence[str] = (), alone: bool = True, storing: bool = False, lasting: bool = True
    ) -> AbstractContextManager[SqliteTx]:
        """One writer at a time. If `lasting`, the change is on the disk when the block is left."""
        return Writing(self, holding, lasting)

    def _require_writable(self) -> None:
        self._require_open()
        if self.read_only:
            raise StoreReadOnly(self.notice or f"{self.path} is opened for reading only")
        if self._lost is not None:
            raise self._files_lost()

    def _committed(self, sessions: Sequence[str], lasting: bool) -> None:
        """After a commit, with the lock released. An error here says that the change is stored nevertheless."""
        self._maintenance.committed()
        if self.fulltext.dropped:
            self.fulltext.dropped = False
            self._maintenance.empty_later()
        if not lasting or self._closed:
            return  # closing syncs all of it
        try:
            if self._wal >= 0:
                os.fdatasync(self._wal)
        except OSError as error:
            if self._closed:
                return
            self.on_unsure(sessions)
            mapped = self._as_ours(error)
            raise (type(mapped) if isinstance(mapped, StoreError) else StoreError)(
                f"{mapped}; this change was stored, but may not survive a power failure: check before you repeat it",
                maybe_stored=True,
            ) from error
        for name, known in self._files.items():
            if known is not None and identity(name) != known and not self._closed:
                self._lost = name
                raise self._files_lost(committed=True)

    def _files_lost(self, *, committed: bool = False) -> StoreGone:
        """The error for a file of this store that was taken away: no process would ever read what is written to it."""
        database, *others = self._files.items()
        here = identity(database[0]) == database[1] and all(identity(name) in (None, known) for name, known in others)
        if here:  # content that only the lost -wal had is moved into the database
            with suppress(*driver.Error), self._mutex:
                self._main.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return StoreGone(
            f"{self._lost} was deleted, moved or replaced while it was open; nothing more is stored there."
            " Put the file back or restore a backup, then open the store again",
            maybe_stored=committed and here,
        )

    def _begin(self, connection: Connection) -> None:
        self._queue.enter(QUEUE_SECONDS)
        for left in range(RETRIES, -1, -1):
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except driver.Error as error:
                if not is_busy(error):
                    raise
                if not left:
                    raise StoreBusy(
                        f"{self.path} is held by another process{holder_of(self.path)}; try again"
                    ) from error
            time.sleep(random.uniform(*RETRY_SECONDS))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except driver.Failure as error:
            raise self._as_ours(error) from error

    def _as_ours(self, error: BaseException) -> Exception:
        return as_ours(error, self.path)

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        """The writing connection outside a transaction, while no other process of ours writes or checkpoints."""
        self._require_writable()
        with self._translated(), self._mutex:
            self._queue.enter(QUEUE_SECONDS)
            try:
                yield self._main
            finally:
                self._queue.leave()

    def checkpoint(self, *, truncate: bool = False) -> bool:
        """Move the WAL into the database, as far as no reader needs it, or (`truncate`) empty it; whether that was done."""
        with self._alone() as connection:
            row = connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if truncate else 'PASSIVE'})").fetchone()
            return row is not None and int(row[0]) == 0

    def make_tables(self, statements: Sequence[str]) -> None:
        with self.write() as tx:
            for statement in statements:
                tx.run(statement)

    def size(self) -> int:
        files = (self.path.with_name(self.path.name + end) for end in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    # ------------------------------------------------------------------ housekeeping

    def taking_in(self) -> AbstractContextManager[None]:
        """Adopt rows that another program wrote before they are listed."""
        if not self.read_only:
            version = self._version()
            if version is None or version != self._taken_in:
                self._take_in(version)
        return _NOTHING_MORE

    def _version(self) -> tuple[int, int] | None:
        """Two equal results mean that no process committed anything in between; None: unknown at the moment."""
        if self._closed or not self._mutex.acquire(blocking=False):
            return None
        try:
            if self._main.in_transaction:
                return None
            with self._translated():
                return int(pragma(self._main, "data_version")), self._main.total_changes
        finally:
            self._mutex.release()

    def _take_in(self, version: tuple[int, int] | None) -> None:
        with self.read() as tx:
            retitled = tx.row("SELECT 1 FROM sessions WHERE title IS NOT title_seen LIMIT 1") is not None
            foreign = self.fulltext.foreign_sessions(tx)
            parts = self.fulltext.foreign_parts(tx) if foreign else []
        if parts:
            self.on_parts(parts)
        if not retitled and not foreign:
            self._taken_in = version
            return
        with self.write() as tx:
            take_in(tx)
            for session_id in foreign:
                adopt(tx, session_id)
        self.on_adopted(foreign)

    def start_background(self) -> None:
        """After an upgrade there is much to index: the maintenance thread does it."""
        if not self.read_only:
            with self.read() as tx:
                if self.fulltext.pending(tx) > SETTLE or migrate.has_old_index(tx.connection):
                    self._maintenance.index_soon()

    def query(self, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
        from hermes.store.engines.sqlite import readonly_sql

        self._require_open()
        with self._translated():
            connection = self._borrow()
            try:
                return readonly_sql.rows(connection, sql, params)
            finally:
                self._return(connection)

    def searching(self) -> AbstractContextManager[SqliteTx]:
        return Reading(self) if self.read_only else Searching(self)  # unindexed messages are searched directly

    def appended(self, message_id: int, size: int) -> None:
        if not self.fulltext.due(message_id, size):
            return
        self._maintenance.index_soon()
        if self.fulltext.is_far_behind(message_id):  # the thread can't keep up
            with suppress(StoreError):  # the message is stored and can be found; indexing can wait
                self.index_batch(BULK)

    def index_batch(self, most: Bounds) -> int:
        """Index the next few messages, and remove a piece of an old index; how many pieces of work were done."""
        parts: list[int] = []
        for again in (False, True):
            foreign: set[str] = set()
            with self.write(lasting=False) as tx:  # index entries can always be made again
                swept = migrate.has_old_index(tx.connection) and migrate.sweep(tx.connection)
                self.fulltext.follow_changes(tx)
                rows = self.fulltext.next_rows(tx, most)
                parts = [row.id for row in rows if row.holds_foreign_parts]
                if rows and (again or not parts):
                    foreign = self.fulltext.index_rows(tx, rows)
            if not parts or again:
                break
            self.on_parts(parts)
        if foreign:
            self.on_adopted(foreign)
        return len(rows) + swept

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        done = 0
        while count := self.index_batch(BATCH):
            done += count
            if progress is not None:
                with self.read() as tx:
                    progress(done, done + self.fulltext.pending(tx))
        return done

    def problems(self, progress: Progress | None = None) -> list[Finding]:
        """What is wrong with the file itself, with its values or with its index."""
        from hermes.store.engines.sqlite import inspection

        self._require_open()
        with self._translated(), self._mutex:
            found = inspection.corruption(self._main, progress)
        if found or self.overlay:  # another program's file: its values and its index are not checked
            return found
        with self._translated(), self.read() as tx:
            return [*inspection.drift(tx.connection, self.fulltext.mark(tx), progress)]

    def _require_open(self) -> None:
        if self._forked:
            raise StoreClosed(f"{self.path} was opened before this process was forked; open it again in this process")
        if self._closed:
            raise StoreClosed(f"{self.path} was closed")

    def rebuild_index(self) -> None:
        """Rebuild the full-text index from the messages."""
        with self.write() as tx:
            migrate.reset_index(tx.connection)
        self.fulltext.words.forget()
        self.catch_up()

    def forget_words(self, *, whole: bool) -> None:
        """Remove words that only deleted messages had from the word list, and (`whole`) from the pages of the index."""
        fulltext, last = self.fulltext, ""
        with self.read() as tx:
            if not whole and tx.row("SELECT 1 FROM words LIMIT 1 OFFSET ?", (MANY_WORDS,)) is not None:
                return  # that takes seconds: it is left to `optimize`
        while True:
            with self.read() as tx:
                some = fulltext.words.listed_after(tx, last)
                unused = fulltext.unused(tx, some)
            if not some:
                break
            last = some[-1][1]
            if unused:
                with self.write() as tx:
                    if gone := fulltext.unused(tx, unused):
                        fulltext.words.take_out(tx, gone)
        for table in ("messages_fts", "messages_fts_trigram") if whole else ():
            pages = -FORGET_PAGES  # a negative number starts a full merge, then step by step: others write in between
            more = True
            while more:
                with self.write() as tx:
                    more = merge(tx, table, pages)
                pages = FORGET_PAGES

    def reclaim(self, *, full: bool = False) -> bool:
        from hermes.store.engines.sqlite import file_upkeep

        return file_upkeep.reclaim(self, full=full)

    def scrub(self) -> list[str]:
        from hermes.store.engines.sqlite import file_upkeep

        return file_upkeep.scrub(self)

    def backup(self, target: Path) -> None:
        from hermes.store.engines.sqlite import file_upkeep

        file_upkeep.backup(self, target)

    def close(self) -> None:
        if self._closed:
            return
        with suppress(StoreError):  # the next process does it
            if not self.read_only:
                with self.read() as tx:
                    few = self.fulltext.pending(tx) <= SETTLE
                if few:
                    self.catch_up()
        self._maintenance.stop()
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            with self._spare_lock:
                self._spare_lock.wait_for(lambda: not self._lent, timeout=QUEUE_SECONDS)
                for connection in self._spare:
                    connection.close()
                self._spare.clear()
            if not self.read_only:
                self._queue.enter(QUEUE_SECONDS)
            if self._guard is not None and all(identity(name) == known for name, known in self._files.items()):
                self._guard.release()  # the last connection to close moves the WAL into the database
            with suppress(*driver.Error):
                self._main.close()
            if self._guard is not None:
                self._guard.close()  # only now, where another file is in its place: SQLite would remove that one's WAL
            self._queue.close()
            if self._wal >= 0:
                os.close(self._wal)


_opened: weakref.WeakSet[SqliteEngine] = weakref.WeakSet()
_paused: list[SqliteEngine] = []
_left_behind: list[SqliteEngine] = []  # of the parent: closing one here would disturb nothing but also help nobody


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
        engine._closed = engine._forked = True
        engine._mutex, engine._spare_lock = threading.RLock(), threading.Condition()
        _left_behind.append(engine)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


@atexit.register
def _at_exit() -> None:
    """Close what a program has left open."""
    for engine in list(_opened):
        with suppress(HermesError, *driver.Failure):
            engine.close()

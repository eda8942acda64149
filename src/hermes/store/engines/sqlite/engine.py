"""One SQLite file, several threads and processes.

One connection writes (and reads, while no thread writes); further ones are opened when a reader would have to wait.
Every write is a BEGIN IMMEDIATE behind the queue of write_queue.py. Deferrable work (indexing, checkpoints) is
done after a commit, in bounded pieces, by the process that has just written.
"""

from __future__ import annotations

import atexit
import errno
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

import apsw

from hermes.errors import (
    HermesError,
    NotADatabase,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreGone,
    StoreReadOnly,
)
from hermes.home import make_private, settled
from hermes.store.engines.base import NothingThere, Progress, Tx, Visit
from hermes.store.engines.sqlite import locks, migrate, shared_columns
from hermes.store.engines.sqlite.checkpoint import MaintenanceThread, WalSync
from hermes.store.engines.sqlite.error_mapping import as_ours
from hermes.store.engines.sqlite.file_connection import connect, has_content, open_file
from hermes.store.engines.sqlite.file_identity import Presence, holder_of, identity, stopped_holder
from hermes.store.engines.sqlite.fulltext import SqliteFullText, Tidying, adopt
from hermes.store.engines.sqlite.index_upkeep import IndexUpkeep
from hermes.store.engines.sqlite.transaction import Reading, Searching, SqliteTx, Writing
from hermes.store.engines.sqlite.write_queue import QUEUE_SECONDS, RETRY_SECONDS, WriteQueue
from hermes.store.titles import take_in

if TYPE_CHECKING:
    from hermes.store.rows import Finding

PAGE = 2048  # bytes of a page of a new file: a message changes five pages, and each is written and checksummed whole
RETRIES = 15
OPENING_SECONDS = 10.0  # to wait for a process that creates the file
EMPTY_LOOKS = 5  # at an empty file that another process may be creating, before it counts as empty
STOPPED_AFTER = 1  # tries after which the lock's holder is inspected: a stopped process never releases it
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
        self._spare: list[apsw.Connection] = []
        self._spare_lock = threading.Lock()
        self.on_adopted: Callable[[Iterable[str]], None] = lambda sessions: None  # called after rows were adopted
        self.on_unsure: Callable[[Iterable[str]], None] = lambda sessions: None  # for commits that may be lost
        self.on_differing: Callable[[Sequence[str]], None] = lambda sessions: None
        self._shared_columns = False  # another program has columns of its own in this file, see shared_columns.py
        self.on_parts: Callable[[Sequence[int]], None] = lambda message_ids: None
        self._closed = False
        self._forked = False
        self._taken_in: tuple[int, int] | None = None  # the data version at which all other programs' rows were adopted
        self._gate = WriteQueue(path.with_name(path.name + "-queue"))
        self._sync: WalSync | None = None
        self._doubtful = False  # a sync has failed: committed data may be missing on the disk
        self._presence = Presence(path)
        self.fulltext = SqliteFullText()
        self._upkeep = IndexUpkeep(self)
        self._keeper = MaintenanceThread(path, WriteQueue(self._gate.path), Tidying(self.fulltext))
        try:
            with self._translated():
                self._main, self.overlay = self._opened()
        except BaseException:
            self._give_up()
            raise
        self._presence.remember()
        _opened.add(self)

    # ------------------------------------------------------------------ opening

    def _give_up(self) -> None:
        """Close what a failed opening has opened: a connection left to the garbage collector would go on blocking writers."""
        if (connection := getattr(self, "_main", None)) is not None:
            connection.close()
        self._gate.close()
        locks.tidy()

    def _opened(self) -> tuple[apsw.Connection, bool]:
        """The writing connection on a file that is ready, and the result of `_prepare`.

        Processes that create a new file at once block each other (each waits for the others' read locks to switch to WAL
        mode), so they queue up; remaining conflicts are retried. A reader of an empty file waits for the process that
        is creating it.
        """
        if not self.read_only and not self.path.is_dir() and not has_content(self.path):
            make_private(self.path.parent)
            self._gate.enter(OPENING_SECONDS)
        try:
            left = RETRIES
            looks = EMPTY_LOOKS
            while True:
                connection: apsw.Connection | None = None
                before = identity(self.path)
                try:
                    self._main = connection = open_file(self.path, read_only=self.read_only)
                    overlay = self._prepare()
                    if before is None or before == identity(self.path) or left == 0:
                        return connection, overlay
                    connection.close()  # another file was put in its place meanwhile: an encrypted or a decrypted one
                    locks.tidy()
                except NothingThere:
                    looks -= 1
                    if looks == 0 or not self._gate.path.exists():
                        raise
                    assert connection is not None
                    connection.close()
                    locks.tidy()
                    # The process that creates the file is in the queue, except for moments in which it tries again.
                    self._gate.enter(OPENING_SECONDS)
                    self._gate.leave()
                except (apsw.BusyError, apsw.LockedError, apsw.NotADBError, NotADatabase) as error:
                    if connection is not None:
                        connection.close()
                        locks.tidy()
                    replaced = before is not None and before != identity(self.path)
                    if left == 0 or (isinstance(error, (apsw.NotADBError, NotADatabase)) and not replaced):
                        raise
                left -= 1
                time.sleep(random.uniform(*RETRY_SECONDS))
        finally:
            self._gate.leave()

    def _prepare(self) -> bool:
        """Migrate or create the file; returns whether it is read through stand-in views (it has another version)."""
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
            self._main.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            self._set_up_writer(state)
            locks.watch_shared_memory(self.path)
            self.fulltext.prepare(self._main)
            return False
        if state.kind == "empty":
            raise NothingThere(
                f"{self.path} is empty: there is nothing to read; if it held sessions, `hermes sessions repair` restores them"
                " from their transcripts"
            )
        overlay = state.kind != "current" or not state.readable
        if overlay:
            migrate.stand_in(self._main)
        self.fulltext.prepare(self._main, indexed=not overlay)
        return overlay

    def _set_up_writer(self, state: migrate.State) -> None:
        if state.kind == "empty":
            self._main.execute(f"PRAGMA page_size={PAGE}; PRAGMA auto_vacuum=INCREMENTAL")
        if state.journal != "wal":
            self._use_wal()
        in_wal = self._main.pragma("journal_mode") == "wal"
        self._main.execute(f"PRAGMA synchronous={'NORMAL' if in_wal or self._durability == 'normal' else 'FULL'}")
        if in_wal and self._durability == "full":
            self._sync = WalSync(self.path)
        self._main.execute("PRAGMA journal_size_limit=67108864")
        self._main.pragma("secure_delete", 1)  # deleted rows are overwritten, not left in free pages
        self._keeper.watch(self._main)
        if state.kind != "current" or state.foreign_triggers or state.incomplete or state.shared:
            with self.write() as tx:
                migrate.upgrade(tx.connection)
        self._shared_columns = migrate.in_step(self._main)

    def _use_wal(self) -> None:
        try:
            mode = self._main.pragma("journal_mode", "wal")
        except (apsw.BusyError, apsw.LockedError):
            mode = self._main.pragma("journal_mode")
            if mode != "wal":  # another process did not do the same: it reads the file, and the switch is tried again
                raise
        if mode not in ("wal", "memory"):
            warnings.warn(
                f"{self.path} is on a file system without shared memory: using a rollback journal (slower)",
                stacklevel=7,
            )

    # ------------------------------------------------------------------ transactions

    def read(self) -> AbstractContextManager[SqliteTx]:
        return Reading(self)

    def _borrow(self) -> apsw.Connection:
        with self._spare_lock:
            if self._spare:
                return self._spare.pop()
        connection = connect(self.path, apsw.SQLITE_OPEN_READONLY, read_only=self.read_only)
        if self.overlay:
            migrate.stand_in(connection)
        self.fulltext.prepare(connection, indexed=not self.overlay)
        return connection

    def write(
        self, *, holding: Sequence[str] = (), alone: bool = True, storing: bool = False, lasting: bool = True
    ) -> AbstractContextManager[SqliteTx]:
        """One writer at a time. If `lasting`, the change is on the disk when the block is left."""
        return Writing(self, holding, lasting)

    def _require_writable(self) -> None:
        if self._closed:
            self._require_open()
        if self.read_only:
            raise StoreReadOnly(self.notice or f"{self.path} is opened for reading only")
        if self._presence.lost is not None:
            raise self._files_lost()

    def _committed(self, holding: Sequence[str], lasting: bool, work: Callable[[], None] | None) -> None:
        """After a commit, with the lock released."""
        if self.fulltext.dropped:
            self.fulltext.dropped = False
            self._keeper.empty_later()
        if lasting:
            if self._sync is not None:
                self._make_lasting(self._sync, holding, work)
            if not self._presence.holds() and not self._closed:  # the last connection to close removes files itself
                raise self._files_lost(committed=True)

    def _make_lasting(self, sync: WalSync, sessions: Sequence[str], work: Callable[[], None] | None) -> None:
        """Sync the commit to the disk; an error after the commit says that the change is stored nevertheless."""
        try:
            if work is not None:
                sync.begin()
                with suppress(Exception):  # it is only done early: a caller that needs it repeats it
                    work()
            sync()
            if self._doubtful:  # the system may have dropped pages it failed to write: move the whole WAL
                with self._mutex:
                    pages, done = self._main.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
                if done < pages:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                self._doubtful = False
        except (OSError, apsw.Error) as error:
            self._doubtful = True
            self.on_unsure(sessions)
            mapped = self._as_ours(error)
            raise (type(mapped) if isinstance(mapped, StoreError) else StoreError)(
                f"{mapped}; this change was stored, but may not survive a power failure: check before you repeat it",
                maybe_stored=True,
            ) from error

    def _files_lost(self, *, committed: bool = False) -> StoreGone:
        """The error for a missing file of this store: no process would ever read what is written to it."""
        saved = self._presence.database_is_here()
        if saved:  # content that only a lost -wal had is moved into the database
            with suppress(apsw.Error), self._mutex:
                self._main.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return StoreGone(
            f"{self._presence.lost} was deleted, moved or replaced while it was open; nothing more is stored there."
            " Put the file back or restore a backup, then open the store again",
            maybe_stored=committed and saved,
        )

    def _begin(self, connection: apsw.Connection) -> None:
        self._gate.enter(QUEUE_SECONDS)
        for attempt in range(RETRIES + 1):
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except (apsw.BusyError, apsw.LockedError) as error:
                if attempt == STOPPED_AFTER and (stopped := stopped_holder(self.path)) is not None:
                    raise StoreBusy(
                        f"{self.path} is held by process {stopped}, which was stopped in the middle of writing"
                        f" (Ctrl-Z?); let it continue (fg, or kill -CONT {stopped}) or end it, then try again"
                    ) from error
                if attempt == RETRIES:
                    raise StoreBusy(
                        f"{self.path} is held by another process{holder_of(self.path)}; try again"
                    ) from error
                time.sleep(random.uniform(*RETRY_SECONDS))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            raise self._as_ours(error) from error

    def _as_ours(self, error: apsw.Error | OSError | UnicodeDecodeError) -> Exception:
        return as_ours(error, self.path, getattr(self, "_main", None))

    def has_table(self, tx: Tx, name: str) -> bool:
        return tx.has_table(name)

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
                others = self._main.execute("PRAGMA data_version").fetchone()
                return (int(others[0]), self._main.total_changes()) if others else None
        finally:
            self._mutex.release()

    def _take_in(self, version: tuple[int, int] | None) -> None:
        with self.read() as tx:
            retitled = tx.row("SELECT 1 FROM sessions WHERE title IS NOT title_seen LIMIT 1") is not None
            strangers = self.fulltext.strangers(tx)
            parts = self.fulltext.foreign_parts(tx) if strangers else []
        if parts:
            self.on_parts(parts)
        self._follow()
        if not retitled and not strangers:
            self._taken_in = version
            return
        with self.write() as tx:
            take_in(tx)
            for session_id in strangers:
                adopt(tx, session_id)
        self.on_adopted(strangers)

    def _follow(self) -> None:
        """Apply another program's hiding, showing and archiving, where the file has that program's columns."""
        if not self._shared_columns:
            return
        with self.read() as tx:
            sessions = shared_columns.differing(tx)
        if sessions:
            self.on_differing(sessions)

    def start_background(self) -> None:
        """Apply what another program did; after an upgrade there is much to index: a thread does it in the background."""
        if not self.read_only:
            self._follow()
            self._upkeep.start()

    def query(self, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
        from hermes.store.engines.sqlite import readonly_sql

        self._require_open()
        with self._translated():
            connection = self._borrow()
        try:
            with self._translated():
                return readonly_sql.rows(connection, sql, params)
        finally:
            with self._spare_lock:
                self._spare.append(connection)

    def searching(self) -> AbstractContextManager[SqliteTx]:
        return Reading(self) if self.read_only else Searching(self)  # unindexed messages are searched directly

    def appended(self, message_id: int, size: int) -> None:
        if self.fulltext.due(message_id, size):
            self._upkeep.appended(message_id)

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        return self._upkeep.catch_up(progress=progress)

    def problems(self, progress: Progress | None = None, visit: Visit | None = None) -> list[Finding]:
        """What is wrong with the file itself, with its values or with its index."""
        from hermes.store.engines.sqlite import inspection, message_check

        self._require_open()
        with self._translated(), self._mutex:
            found = inspection.corruption(self._main, progress)
        if found or self.overlay:  # another program's file: its values and its index are not checked
            return found
        with self._translated():
            with self.read() as tx:
                found += inspection.drift(tx.connection, self.fulltext, tx)
            return [*found, *message_check.check(self, progress, visit)]

    def put_values_right(self, known: Callable[[str, Any, str], Any]) -> int:
        from hermes.store.engines.sqlite import value_check

        with self.write() as tx:
            wrong = [*value_check.damaged(tx.connection), *value_check.damaged_messages(tx.connection)]
            return value_check.put_right(tx, wrong, known)

    def _require_open(self) -> None:
        if self._forked:
            raise StoreClosed(f"{self.path} was opened before this process was forked; open it again in this process")
        if self._closed:
            raise StoreClosed(f"{self.path} was closed")

    def rebuild_index(self) -> None:
        """Rebuild the full-text index from the messages."""
        from hermes.store.engines.sqlite import inspection

        with self.write() as tx:
            inspection.reset_index(tx.connection)
        self.fulltext.words.unlearn()
        self.catch_up()

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
        self._upkeep.stop()
        with self._mutex:
            if self._closed:
                return
            if not self.read_only:
                self._upkeep.settle()
            self._closed = True
            self._keeper.stop()
            with self._spare_lock:
                for connection in (*self._spare, self._main):
                    connection.close()
                self._spare.clear()
            locks.tidy()
            self._gate.close()
            self._upkeep.close()
            self._presence.close()
            if self._sync is not None:
                self._sync.close()


_opened: weakref.WeakSet[SqliteEngine] = weakref.WeakSet()


def _in_child() -> None:
    """After a fork: a connection must not be used on both sides."""
    for engine in list(_opened):
        engine._closed = engine._forked = True
        engine._mutex = threading.RLock()  # a thread that the child does not have may hold the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@atexit.register
def _at_exit() -> None:
    """Close what a program has left open: a connection that the interpreter's last collection frees crashes the process."""
    for engine in list(_opened):
        with suppress(HermesError, apsw.Error, OSError):
            engine.close()

"""One PostgreSQL database (or a schema of it), many threads, processes and hosts.

Readers see a snapshot (REPEATABLE READ). Writers that must be alone, as all of them are on SQLite, queue up on one
advisory lock; appends and other short ones go side by side, and where they meet on a row its lock puts them in order. Every
writing transaction knows its number, by which the server can say later whether it was committed: a lost connection neither
loses nor doubles anything.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.types.numeric import Int8Dumper

from hermes.errors import InvalidInput, StoreBusy, StoreClosed, StoreError, StoreReadOnly, StoreUnreachable
from hermes.store.engines.base import NothingThere, Tx
from hermes.store.engines.postgres import faults, migrate, schema
from hermes.store.engines.postgres.fulltext import BATCH, SET_OUT, PostgresFullText
from hermes.store.engines.postgres.keeper import Keeper
from hermes.store.engines.postgres.pool import Link, Pool
from hermes.store.engines.postgres.transaction import NUMBER, PostgresTx

PATIENCE = 15.0  # seconds to wait for a lock, a connection or a server that is being restarted
CONNECTIONS = 16
PAUSED = 10  # seconds after which the server ends a writing transaction that says nothing: its process was stopped
PATIENCE_FOR_OTHERS = 1.0  # seconds in which they index what they have stored
PAUSED_READER = 60  # it is in nobody's way
_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 10,
    "application_name": "hermes",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_READ = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    f" SET LOCAL idle_in_transaction_session_timeout = '{PAUSED_READER}s'"
).encode()
_SEARCH = _READ + b"; " + SET_OUT.encode()
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT"
_TOGETHER = f"{_WRITE} {NUMBER}".encode()
_STORING = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_UNINDEXED = b"SELECT array_agg(message_id ORDER BY message_id) FROM unindexed"
_SERVER = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,"
    " pg_postmaster_start_time()::text, current_setting('synchronous_standby_names') <> '',"
    " extract(epoch FROM clock_timestamp())::float8"
)
# Waits until the replicas that have to confirm commits have everything up to here.
_CONFIRM = (
    b"SELECT CASE WHEN current_setting('synchronous_standby_names') <> ''"
    b" THEN pg_logical_emit_message(true, 'hermes', '') END"
)

_UNWRITABLE = (  # why a server that can be read takes nothing
    psycopg.errors.DiskFull,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.ReadOnlySqlTransaction,
)

logging.getLogger("psycopg").addHandler(
    logging.NullHandler()
)  # what it warns of we tell ourselves, and not on the screen


class PostgresEngine:
    """The engine of `SessionDB(url="postgresql://…")`."""

    name = "postgres"
    shared = True

    def __init__(self, url: str, *, read_only: bool = False, durability: str = "full") -> None:
        self.where = faults.shown(url)
        self.read_only = read_only
        self.notice: str | None = None
        self.on_adopted: Callable[[Iterable[str]], None] = lambda sessions: None
        self.on_unsure: Callable[[Iterable[str]], None] = lambda sessions: None
        self.on_differing: Callable[[Sequence[str]], None] = lambda sessions: None
        self.on_parts: Callable[[Sequence[int]], None] = lambda message_ids: None
        self.fulltext = PostgresFullText()
        self._keeper = Keeper(self._link, self.fulltext)
        self._left: set[int] = set()  # messages nobody indexes, as far as a store opened for reading can tell
        self._durability = durability
        self._local = threading.local()  # the transaction this thread is in
        self._closed = False
        self._ahead = 0.0  # how many seconds the server's clock is ahead of ours
        self._conninfo = _complete(url, read_only)
        with self._translated(), self._connect() as connection:
            self._prepare(connection)
        self._pool = Pool(self._connect, CONNECTIONS, self.where)

    # ------------------------------------------------------------------ opening

    def _connect(self) -> Link:
        try:
            connection = Link.connect(self._conninfo, autocommit=True)
        except psycopg.Error as error:
            raise faults.unreachable(error, self.where) from error
        try:
            self._configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _configure(self, connection: Link) -> None:
        connection.adapters.register_dumper(int, Int8Dumper)  # one type of number: one prepared statement
        connection.prepare_threshold = 2
        settings = {
            "client_encoding": "UTF8",
            "jit": "off",
            "lock_timeout": f"{PATIENCE:g}s",
            "idle_in_transaction_session_timeout": f"{PAUSED}s",
            "default_transaction_read_only": "on" if self.read_only else "off",
        }
        if self._durability == "normal":
            settings["synchronous_commit"] = "off"
        said = [*(f"SET {name} = '{value}'" for name, value in settings.items()), _SERVER]
        cursor = connection.execute("; ".join(said).encode())
        while cursor.nextset():
            pass
        said_of_it = cursor.fetchone() or ("", "", True, time.time())
        connection.timeline, connection.started_at, connection.watched, now = said_of_it
        self._ahead = now - time.time()

        def told(notice: psycopg.errors.Diagnostic) -> None:
            if notice.source_function == "SyncRepWaitForLSN":
                connection.unconfirmed = True

        connection.add_notice_handler(told)

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Make the database ready."""
        state = migrate.inspect(connection)
        if state.encoding != "UTF8":
            raise StoreError(f"{self.where} is encoded in {state.encoding}; create the database with ENCODING 'UTF8'")
        if not state.schema:
            raise StoreError(f"{self.where}: the schema to work in does not exist; look at search_path")
        if state.version > len(migrate.MIGRATIONS) and not self.read_only:
            self.notice = (
                f"{self.where} was written by a newer program (version {state.version}); it is opened for reading only"
            )
        elif state.replica and not self.read_only:
            self.notice = f"{self.where} is a replica; it is opened for reading only"
        if self.notice is not None:
            self.read_only = True
            warnings.warn(self.notice, stacklevel=5)
        self._key = int.from_bytes(hashlib.sha256(f"hermes {state.schema}".encode()).digest()[:8], "big", signed=True)
        if self.read_only:
            if state.version == 0:
                raise NothingThere(f"{self.where} holds no record of sessions; there is nothing to read")
            self.fulltext.has_names = state.version >= migrate.WITH_NAMES
        elif state.version < len(migrate.MIGRATIONS):
            migrate.upgrade(connection, self._key, self.where)
            self._secure(connection.execute)
        self._alone = f"{_WRITE} pg_advisory_xact_lock({self._key}), {NUMBER}".encode()

    # ------------------------------------------------------------------ transactions

    def _borrow(self, begin: bytes) -> tuple[Link, Any]:
        """A connection on which a transaction has begun; a server that is being restarted is waited for."""
        end = time.monotonic() + PATIENCE
        while True:
            if self._closed:
                raise StoreClosed(f"{self.where} was closed")
            try:
                connection = self._pool.take(end - time.monotonic())
            except (StoreUnreachable, StoreBusy):
                if time.monotonic() > end - 0.2:
                    raise
                time.sleep(0.1)
                continue
            try:
                if begin is _STORING:
                    _told(connection, begin)
                    return connection, None
                cursor = connection.execute(begin)
                while cursor.nextset():
                    pass
                return connection, cursor.fetchone() if cursor.description else None
            except BaseException as error:
                lost = faults.is_lost(error, connection)
                self._pool.give_back(connection)
                if not lost or time.monotonic() > end:
                    raise
                self._pool.forget()

    @contextmanager
    def read(self) -> Iterator[PostgresTx]:
        outer: PostgresTx | None = getattr(self._local, "tx", None)
        if outer is not None:
            yield outer
            return
        with self._reading(_READ) as (tx, _):
            yield tx

    def query(self, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
        with self._reading(_READ) as (tx, _):
            return tx.asked(sql, params)

    @contextmanager
    def _reading(self, begin: bytes) -> Iterator[tuple[PostgresTx, Any]]:
        """A transaction that reads, and what the server said to its beginning."""
        with self._translated():
            connection, said = self._borrow(begin)
            self._local.tx = tx = PostgresTx(connection, self.fulltext, ahead=self._ahead)
            try:
                with self._translated(connection):
                    yield tx, said
                    connection.execute(b"COMMIT")
            except BaseException:
                _abandon(connection)
                raise
            finally:
                self._local.tx = None
                self._pool.give_back(connection)

    @contextmanager
    def searching(self) -> Iterator[PostgresTx]:
        """What waits to be indexed is asked for as the view begins; if something does, it is indexed, and there is a new view."""
        if getattr(self._local, "tx", None) is not None or not self.fulltext.has_names:
            with self.read() as tx:
                yield tx
            return
        with self._reading(_SEARCH) as (tx, said):
            waiting, *tx.extent = said
            if waiting is None or self._left.issuperset(waiting):
                yield tx
                return
        self._have_indexed(waiting)
        with self._reading(_SEARCH) as (tx, said):
            _, *tx.extent = said
            yield tx

    @contextmanager
    def write(
        self, *, holding: Sequence[str] = (), alone: bool = True, storing: bool = False, lasting: bool = True
    ) -> Iterator[PostgresTx]:  # everything lasts here: those who hold leases live on when the server fails over
        if self._closed:
            raise StoreClosed(f"{self.where} was closed")
        if self.read_only:
            raise StoreReadOnly(self.notice or f"{self.where} is opened for reading only")
        with self._translated():
            begin = self._alone if alone else _STORING if storing else _TOGETHER
            connection, said = self._borrow(begin)
            self._local.tx = tx = PostgresTx(connection, self.fulltext, ahead=self._ahead)
            if said is not None:
                tx.numbered(*said[-2:])
            try:
                with self._translated(connection):
                    if alone:
                        for session_id in sorted(set(holding)):
                            tx.hold(session_id)
                    yield tx
                    self._commit(tx)
                self._ahead = tx.ahead
                self.fulltext.learn(tx.learned)
            except BaseException:
                _abandon(connection)
                raise
            finally:
                self._local.tx = None
                self._pool.give_back(connection)
            if tx.waiting:
                self._keeper.take(tx.waiting)

    def _commit(self, tx: PostgresTx) -> None:
        """Index what was stored and is not indexed yet, and commit, in one go to the server and back."""
        connection = tx.connection
        if tx.xid is None:  # nothing was stored after all
            tx.numbered(*tx.ask(f"SELECT {NUMBER}").fetchone())
        try:
            if tx.stored:
                with connection.pipeline():
                    tx.learned |= self.fulltext.write_stored(tx)
                    done = connection.execute(b"COMMIT")
                told = done.statusmessage
            elif connection.watched:  # who waits for a replica can be interrupted
                told = connection.execute(b"COMMIT").statusmessage
            else:
                told = _told(connection, b"COMMIT")
        except psycopg.Error as error:
            if not faults.is_lost(error, connection):
                raise
            self._settle(tx, error)
            return
        if told != "COMMIT":  # a statement had failed, and whoever asked for it went on all the same
            raise StoreError(f"{self.where} took back what was to be stored, as a part of it had failed")
        if connection.unconfirmed:
            connection.unconfirmed = False
            raise StoreUnreachable(
                f"{self.where} has stored it, but no replica has confirmed it: a failover would lose it",
                maybe_stored=True,
            )

    def _settle(self, tx: PostgresTx, error: psycopg.Error) -> None:
        """The connection was lost while a transaction was being committed: find out what became of it."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            stored = None
            with suppress(psycopg.Error, StoreError), self._connect() as connection:
                stored = self._was_stored(connection, tx)
            if stored:
                return
            if stored is False:
                raise faults.translate(error, self.where, tx.connection) from error
            time.sleep(0.1)
        raise StoreUnreachable(
            f"the connection to {self.where} was lost at the last moment, and whether it was stored can't be found out;"
            " look before you repeat it",
            maybe_stored=True,
        ) from error

    def _was_stored(self, connection: Link, tx: PostgresTx) -> bool | None:
        """Whether a transaction was committed; None as long as that can't be said.

        After a crash or a failover the server may have given its number to another one, so what it stored is looked for.
        """
        if not connection.timeline:
            return None  # a replica; perhaps it is about to take over
        try:
            row = connection.execute(b"SELECT pg_xact_status(%s::xid8)", (tx.xid,)).fetchone()
        except psycopg.errors.InvalidParameterValue:
            return False  # this server has not come to that number yet
        status = None if row is None else row[0]
        if status == "aborted":
            return False
        if status != "committed":
            return None  # the server does not know yet that we are gone
        if tx.evidence is not None:
            sql = b"SELECT 1 FROM messages WHERE id = %s AND timestamp = %s"
            if connection.execute(sql, tx.evidence).fetchone() is None:
                return False
        elif (connection.timeline, connection.started_at) != (tx.connection.timeline, tx.connection.started_at):
            return None
        connection.execute(_CONFIRM)
        return None if connection.unconfirmed else True

    @contextmanager
    def _translated(self, connection: psycopg.Connection[Any] | None = None) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if self._closed:
                raise StoreClosed(f"{self.where} was closed") from error
            raise faults.translate(error, self.where, connection) from error

    # ------------------------------------------------------------------ tables

    def has_table(self, tx: Tx, name: str) -> bool:
        return tx.value("SELECT to_regclass(?) IS NOT NULL", (name,)) is True

    def make_tables(self, statements: Sequence[str]) -> None:
        with self.write() as tx:
            for statement in statements:
                tx.run(schema.translated(statement))
            self._secure(tx.connection.execute)

    def _secure(self, run: Callable[..., Any]) -> None:
        """If rows are kept apart by role, new tables are closed to tenants, too."""
        if run(b"SELECT to_regclass('hermes_tenants') IS NOT NULL").fetchone()[0]:
            from hermes.store.engines.postgres import security

            security.cover(run)

    def size(self) -> int:
        with self.read() as tx:
            return int(
                tx.value(
                    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n"
                    " ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'"
                )
            )

    # ------------------------------------------------------------------ housekeeping

    @contextmanager
    def taking_in(self) -> Iterator[None]:
        yield  # other programs don't write here

    def start_background(self) -> None:
        """Nothing to begin: what is put off is done when someone writes or searches."""

    def appended(self, message_id: int, size: int) -> None:
        """Nothing to do: the keeper was told at the commit."""

    def _have_indexed(self, waiting: list[int]) -> None:
        if self.read_only:
            self._wait_for_others(waiting)
        else:
            with self._translated(), suppress(*_UNWRITABLE):  # what is indexed can be found all the same
                self._index(waiting)

    def _unindexed(self) -> list[int]:
        with self._translated():
            connection, row = self._borrow(_UNINDEXED)
            self._pool.give_back(connection)
        return [] if row is None or row[0] is None else list(row[0])

    def _index(self, waiting: list[int]) -> None:
        try:
            self._keeper.index(waiting)
        except psycopg.OperationalError:  # the server was restarted since this connection was made, say
            self._pool.forget()
            self._keeper.index(waiting)

    @contextmanager
    def _link(self) -> Iterator[Link]:
        """A connection without a transaction."""
        connection = self._pool.take(PATIENCE)
        try:
            yield connection
        except BaseException:
            _abandon(connection)
            raise
        finally:
            self._pool.give_back(connection)

    def _wait_for_others(self, waiting: list[int]) -> None:
        """A store opened for reading can't index. Whoever stored the messages is about to."""
        end = time.monotonic() + PATIENCE_FOR_OTHERS
        left = set(waiting) - self._left
        while left and time.monotonic() < end:
            time.sleep(0.02)
            left &= set(self._unindexed())
        self._left |= left

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Index what waits for it, and messages that another program wrote."""
        done = 0
        if not self.read_only:
            with self._translated():
                waiting = self._unindexed()
                self._index(waiting)
            done = len(waiting)
        while True:
            with self.read() as tx:
                some = self.fulltext.unindexed(tx)
                left = self.fulltext.pending(tx) if some and progress is not None else 0
            if not some:
                return done
            with self.write() as tx:
                self.fulltext.reindex(tx, some)
            done += len(some)
            if progress is not None:
                progress(done, done + left - len(some))

    def put_values_right(self, known: Callable[[str, Any, str], Any]) -> int:
        """Nothing to do: the server keeps text text and numbers numbers."""
        return 0

    def problems(self, progress: Callable[[str, int, int], None] | None = None) -> list[dict[str, Any]]:
        """What is wrong with the index or with stored texts; the server looks after its files itself."""
        from hermes.store.engines.postgres import inspection

        with self.searching() as tx:
            return list(inspection.drift(tx, self.fulltext))

    def rebuild_index(self) -> None:
        """Make the index of each message anew, a few at a time; searches find everything meanwhile."""
        with self.write() as tx:
            tx.run(
                "DELETE FROM message_words WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.id = message_words.message_id)"
            )
        last = 0
        while True:
            with self.read() as tx:
                rows = tx.rows("SELECT id FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH))
            if not rows:
                break
            last = rows[-1][0]
            with self.write() as tx:
                there = tx.rows(
                    "SELECT id FROM messages WHERE id >= ? AND id <= ? FOR UPDATE", (rows[0][0], last)
                )  # none of them is deleted meanwhile
                self.fulltext.reindex(tx, [row[0] for row in there])
        with self.write() as tx:
            self.fulltext.names_are_complete(tx)

    def reclaim(self, *, full: bool = False) -> bool:
        if self._closed:
            raise StoreClosed(f"{self.where} was closed")
        if self.read_only:
            raise StoreReadOnly(self.notice or f"{self.where} is opened for reading only")
        with self._translated(), self._connect() as connection:
            for table in ("sessions", "messages", "message_words", "unindexed", "words", "names", "attachment_data"):
                connection.execute(f"VACUUM (ANALYZE) {table}".encode())
        return True

    def backup(self, target: Path) -> None:
        raise StoreError(f"{self.where} is backed up with PostgreSQL's own tools: pg_dump, pg_basebackup")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._keeper.stop()
            self._pool.close()


def _complete(url: str, read_only: bool) -> str:
    """What libpq is to be told: the URL, and what it leaves open."""
    given = faults.parts(url)
    if given is None:  # what libpq says of it may quote the password
        raise InvalidInput(
            "the URL of the store can't be read; in names and passwords write : / @ % and the like as %3A %2F %40 %25"
        )
    defaults = dict(_DEFAULTS)
    if "," in str(given.get("host") or given.get("hostaddr") or "") and not read_only:
        defaults["target_session_attrs"] = "read-write"  # of several servers the one that is no replica
    return make_conninfo(url, **{key: value for key, value in defaults.items() if key not in given})


def _told(connection: Link, statement: bytes) -> str:
    """Say the beginning or the end of a transaction the shortest way, of which an append is largely made; what was answered."""
    result = connection.pgconn.exec_(statement)
    if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)
    return (result.command_status or b"").decode()


def _abandon(connection: psycopg.Connection[Any]) -> None:
    """Undo what was done in a transaction, if there is still one."""
    if not connection.closed and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        with suppress(psycopg.Error):
            connection.rollback()

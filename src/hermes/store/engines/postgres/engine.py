"""One PostgreSQL database (or a schema of it), many threads, processes and hosts.

Readers see a snapshot (REPEATABLE READ). Exclusive writers, as all of them are on SQLite, queue up on the lock of
one table; appends and other short ones run concurrently, and the lock of a row orders those that change it. Every
writing transaction stores a key, by which its outcome is known later: a lost connection neither loses nor doubles anything.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from hermes.errors import HermesError, StoreBusy, StoreClosed, StoreError, StoreReadOnly, StoreUnreachable
from hermes.store.engines.base import StoreMissing, remove_unused_words
from hermes.store.engines.postgres import connection as link
from hermes.store.engines.postgres import migrate, upkeep
from hermes.store.engines.postgres.connection import (
    NO_OPTIONS,
    OWNERS_ONLY,
    VERSION,
    PooledConnection,
    PostgresTx,
    conninfo,
    is_lost,
    search_path,
    shown,
    translate,
    unreachable,
)
from hermes.store.engines.postgres.fulltext import BATCH, PostgresFullText
from hermes.store.records.rows import Finding

PATIENCE = 15.0  # seconds to wait for a lock, a connection or a server that is being restarted
TIMEOUT = 30.0  # seconds for the answer to a BEGIN or COMMIT
CONNECTIONS = 16
AT_ONCE = 0.2  # seconds after which a connection that could not be made is tried again
PREPARED_AFTER = 2  # executions
_UNINDEXED = "SELECT array_agg(message_id ORDER BY message_id) FROM unindexed"
_SERVER = b"SELECT extract(epoch FROM clock_timestamp())::float8, pg_backend_pid(), current_setting('search_path')"
_VACUUMED = "sessions messages message_words unindexed write_keys words attachment_data"
# This program reports these problems itself, and not on the screen.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class PostgresEngine:
    """The engine of `SessionDB(url="postgresql://…")`."""

    name = "postgres"
    shared = True

    def __init__(
        self, url: str, *, read_only: bool = False, durability: str = "full",
        timeout: float = TIMEOUT, patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self.where = shown(url)
        self.read_only = read_only
        self._patience = patience
        self.notice: str | None = None
        self.on_behind: Callable[[Iterable[str]], None] = lambda sessions: None
        self.fulltext = PostgresFullText()
        self._indexer = upkeep.Indexer(self._begun, self.fulltext)
        self._durability = durability
        self._views: str | None = None  # the schema with a tenant's views
        self._beginnings = link.beginnings(durability, self._views, self._patience)
        self._local = threading.local()  # the transaction this thread is in
        self._closed = False
        self._ahead = 0.0  # how many seconds the server's clock is ahead of ours
        self._conninfo = conninfo(url, read_only)
        self._timeout = timeout
        self._keys = itertools.count(secrets.randbits(62))
        self._unsettled: set[PostgresTx] = set()  # with unknown outcome
        self._failure: HermesError | None = None  # why the last connection could not be made
        self._first: PooledConnection | None = self._connect()
        try:
            with self._translated():
                self._prepare(self._first)
        except BaseException:
            self._first.close()
            raise
        self._pool = ConnectionPool(
            self._conninfo, connection_class=PooledConnection, kwargs={"opener": self._opened}, min_size=0,
            max_size=CONNECTIONS, num_workers=1, reconnect_timeout=0, max_idle=300, open=True,
        )  # fmt: skip

    # ------------------------------------------------------------------ opening

    def _opened(self) -> PooledConnection:
        """A connection for the pool: the one that this store was opened with, else a new one."""
        first, self._first = self._first, None
        return first if first is not None else self._connect()

    def _connect(self) -> PooledConnection:
        self._failure = unreachable(TimeoutError("no answer yet"), self.where)
        try:
            connection = PooledConnection.connect(self._conninfo, autocommit=True)
            try:
                self._configure(connection)
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            self._failure = unreachable(error, self.where)
            raise self._failure from error
        except HermesError as error:
            self._failure = error
            raise
        self._failure = None
        return connection

    def _configure(self, connection: PooledConnection) -> None:
        connection.timeout = self._timeout
        connection.adapters.register_dumper(int, Int8Dumper)  # one integer type, so one prepared statement
        connection.where = self.where
        connection.prepare_threshold = None
        connection.begin(_SERVER, self._timeout)
        connection.since, connection.process, path = connection.begin_row or (0.0, 0, "")
        self._ahead = connection.since - time.time()
        connection.beginning = self._beginnings.indexing
        prepares = connection.process == connection.info.backend_pid  # a pooler gives each client a made-up number
        if not prepares:
            connection.process = 0
            requested = search_path(self._conninfo)
            if requested is not None and requested != path.replace(" ", ""):
                raise StoreError(f"{self.where} {NO_OPTIONS}")
        connection.prepare_threshold = PREPARED_AFTER if prepares else None

        def on_notice(notice: psycopg.errors.Diagnostic) -> None:
            if notice.source_function == "SyncRepWaitForLSN":
                connection.unconfirmed = True

        connection.add_notice_handler(on_notice)

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Check the database, and make the tables if it is empty."""
        state = migrate.inspect(connection)
        if state.encoding != "UTF8":
            raise StoreError(f"{self.where} is encoded in {state.encoding}; create the database with ENCODING 'UTF8'")
        if not state.schema:
            raise StoreError(f"{self.where}: the schema to work in does not exist; check search_path")
        if state.version > VERSION and not self.read_only:
            self.notice = (
                f"{self.where} was written by a newer program (version {state.version}); it is opened for reading only"
            )
        elif state.replica and not self.read_only:
            self.notice = f"{self.where} is a replica; it is opened for reading only"
        if self.notice is not None:
            self.read_only = True
            warnings.warn(self.notice, stacklevel=5)
        if state.tenant:
            self._views = state.schema
            self._beginnings = link.beginnings(self._durability, self._views, self._patience)
        if self.read_only and state.version == 0:
            raise StoreMissing(f"{self.where} holds no session store; there is nothing to read")
        if not self.read_only and state.version == 0:
            migrate.make_store(connection, self.where)

    # ------------------------------------------------------------------ transactions

    def _checkout(self, end: float) -> PooledConnection:
        """A connection of the pool; waits until `end` for one, or for a server that is being restarted."""
        while True:
            try:
                return self._pool.getconn(max(0.01, min(AT_ONCE, end - time.monotonic())))
            except PoolClosed as error:
                raise StoreClosed(f"{self.where} was closed") from error
            except PoolTimeout as error:
                failure = self._failure or StoreBusy(
                    f"all {CONNECTIONS} connections to {self.where} are in use; try again"
                )
                if time.monotonic() >= end or not isinstance(failure, (StoreBusy, StoreUnreachable)):
                    raise failure from error

    @contextmanager
    def _begun(self, begin: bytes | None = None) -> Iterator[PooledConnection]:
        """A connection on which a transaction has begun, if one is to; if it is lost meanwhile, it begins on another one."""
        end = time.monotonic() + self._patience
        self._await_earlier_commits(end)
        while True:
            connection = self._checkout(end)
            try:
                if begin is not None:
                    connection.begin(begin, self._timeout + self._patience)
                break
            except BaseException as error:
                lost = is_lost(error, connection)
                connection.abandon()
                self._pool.putconn(connection)
                if not lost or time.monotonic() > end:
                    raise
                self._pool.drain()
        try:
            yield connection
        except BaseException:
            connection.abandon()
            raise
        finally:
            self._pool.putconn(connection)

    @contextmanager
    def read(self) -> Iterator[PostgresTx]:
        outer: PostgresTx | None = getattr(self._local, "tx", None)
        if outer is not None:
            yield outer
            return
        with self._translated(), self._begun(self._beginnings.read) as connection:
            self._local.tx = tx = PostgresTx(connection, ahead=self._ahead)
            try:
                yield tx
                with suppress(psycopg.OperationalError):  # it was read, although the connection was lost
                    connection.command(b"COMMIT")
            finally:
                self._local.tx = None

    def query(self, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
        with self.read() as tx:
            return tx.select(sql, params)

    @contextmanager
    def searching(self) -> Iterator[PostgresTx]:
        """Waiting messages are searched directly (engines/unindexed.py); nothing is written."""
        with self.read() as tx:
            if self.fulltext.begin(tx) and not self.read_only:
                self._indexer.wake()
            yield tx

    @contextmanager
    def write(
        self, *, lock: Sequence[str] = (), exclusive: bool = True, storing: bool = False, durable: bool = True
    ) -> Iterator[PostgresTx]:  # every write is `durable` here: lease holders survive a failover of the server
        self._require_writable()
        key = next(self._keys) if self._views is None else None
        begin = self._beginnings.exclusive if exclusive else self._beginnings.writing
        if exclusive or not storing:
            begin = begin + b"; " + link.noting(key)
        with self._translated(), self._begun(begin) as connection:
            self._local.tx = tx = PostgresTx(connection, ahead=self._ahead, key=key)
            try:
                if connection.begin_row is not None:
                    tx.begun(*connection.begin_row)  # refuses: a newer program has upgraded the store
                with self._translated(connection):
                    if exclusive:
                        for session_id in sorted(set(lock)):
                            tx.hold(session_id)
                    yield tx
                    self._commit(tx)
                self._ahead = tx.ahead
            finally:
                self._local.tx = None
        if tx.waiting:
            self._indexer.take(tx.waiting)

    def _require_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnly(self.notice or f"{self.where} is opened for reading only")

    def _commit(self, tx: PostgresTx) -> None:
        """Commit, and find out what became of that if the connection is lost."""
        connection = tx.connection
        if not tx.keyed:  # nothing was stored
            tx.begun(*tx.ask(link.noting(tx.key)).fetchone())
        try:
            status = connection.command(b"COMMIT")
        except psycopg.Error as error:
            if not is_lost(error, connection):
                raise
            self._resolve_commit(tx, error)
            return
        if status != "COMMIT":  # a statement had failed, and its caller continued nevertheless
            raise StoreError(f"{self.where} rolled the transaction back, as a part had failed; nothing was stored")
        if connection.unconfirmed:
            connection.unconfirmed = False
            raise StoreUnreachable(
                f"{self.where} has stored this change, but no replica has confirmed it: a failover would lose it",
                maybe_stored=True,
            )

    def _resolve_commit(self, tx: PostgresTx, error: psycopg.Error) -> None:
        """The connection was lost while a transaction was being committed: find out its outcome."""
        stored = self._outcome(tx, time.monotonic() + self._patience)
        if stored is False:
            raise translate(error, self.where, tx.connection) from error
        if stored is None:
            if tx.key is not None:
                self._unsettled.add(tx)
            raise StoreUnreachable(
                f"the connection to {self.where} was lost during the commit, and it is unknown whether the change was stored;"
                " check before you repeat it",
                maybe_stored=True,
            ) from error

    def _outcome(self, tx: PostgresTx, end: float) -> bool | None:
        """Whether a transaction was committed; None if that is not known by `end`."""
        while tx.key is not None and time.monotonic() < end:
            with suppress(psycopg.Error, HermesError), self._connect() as connection:
                stored = link.was_stored(connection, tx, self._beginnings.writing)
                if stored is not None:
                    return stored
            time.sleep(0.1)
        return None

    def _await_earlier_commits(self, end: float) -> None:
        """Wait until the server has decided on earlier commits with unknown outcome: a program that looks whether something was
        stored, and stores it again if not, must not be overtaken by a commit that was still in progress."""
        for tx in list(self._unsettled):
            if self._outcome(tx, end) is None:
                raise StoreUnreachable(
                    f"{self.where} has not decided yet on something that was to be stored before; nothing was stored, try again"
                )
            self._unsettled.discard(tx)

    @contextmanager
    def _translated(self, connection: psycopg.Connection[Any] | None = None) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if self._closed:
                raise StoreClosed(f"{self.where} was closed") from error
            if self._views is not None and error.sqlstate in OWNERS_ONLY:
                raise StoreReadOnly(
                    f"{self.where} lets this user read, pin, archive and trash their own sessions; only the owner can do more"
                ) from error
            raise translate(error, self.where, connection) from error

    # ------------------------------------------------------------------ tables

    def make_tables(self, statements: Sequence[str]) -> None:
        from hermes.store.engines.postgres import tenants

        with self.write() as tx:
            for statement in statements:
                tx.run(migrate.translated(statement))
            if tenants.is_on(tx.connection.execute):  # close them to tenants as well
                tenants.cover(tx.connection.execute)

    def size(self) -> int:
        ours = "pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"
        with self.read() as tx:
            return int(tx.value(f"SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM {ours}"))

    # ------------------------------------------------------------------ housekeeping

    def adopt_foreign_rows(self) -> None:
        """Nothing to do: other programs don't write here."""

    def start_background(self) -> None:
        """Nothing to begin: the indexer starts with the first append, or with a search that sees waiting messages."""

    def appended(self, message_id: int, size: int) -> None:
        """Nothing to do: the indexer was notified at the commit."""

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Index waiting messages, and messages that another program wrote."""
        with self.read() as tx:
            if not self.fulltext.pending(tx):
                return 0
        with self.write() as tx:
            self.fulltext.queue_foreign(tx)
        with self.read() as tx:
            waiting = tx.value(_UNINDEXED) or []
        with self._translated():
            for start in range(0, len(waiting), BATCH):
                self._indexer.index(waiting[start : start + BATCH])
                if progress is not None:
                    progress(min(start + BATCH, len(waiting)), len(waiting))
        return len(waiting)

    def problems(self) -> list[Finding]:
        """Find damage in the index or in stored texts; the server checks its files itself."""
        with self.searching() as tx:
            return [*upkeep.drift(tx, self.fulltext)]

    def rebuild_index(self) -> None:
        """Rebuild the index of each message, a few at a time; searches find everything meanwhile."""
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
                # None of them is deleted meanwhile.
                there = tx.rows("SELECT id FROM messages WHERE id >= ? AND id <= ? FOR UPDATE", (rows[0][0], last))
                self.fulltext.reindex(tx, [row[0] for row in there])

    def reclaim(self, *, full: bool = False) -> bool:
        self._require_writable()
        remove_unused_words(self)
        with self._translated(), self._connect() as connection:
            connection.limit = None
            connection.execute(link.REMOVE_OLD_KEYS)
            for table in _VACUUMED.split():
                connection.execute(f"VACUUM (ANALYZE) {table}".encode())
        return True

    def scrub(self) -> list[str]:
        self.catch_up()
        remove_unused_words(self)
        with self._translated(), self._connect() as connection:
            connection.limit = None
            return upkeep.rewrite_tables(connection, self.where)

    def backup(self, target: Path) -> None:
        raise StoreError(f"{self.where} is backed up with PostgreSQL's own tools: pg_dump, pg_basebackup")

    def close(self) -> None:
        if not self._closed:
            self._indexer.stop()
            self._closed = True
            self._pool.close()
            if self._first is not None:
                self._first.close()

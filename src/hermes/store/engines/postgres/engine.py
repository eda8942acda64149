"""One PostgreSQL database (or a schema of it), many threads, processes and hosts.

Readers see a snapshot (REPEATABLE READ). Exclusive writers, as all of them are on SQLite, queue up on the lock of
one table; appends and other short ones run concurrently, and the lock of a row orders those that change it. Every
writing transaction has a number, by which the server can report later whether it was committed: a lost connection neither
loses nor doubles anything.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.numeric import Int8Dumper

from hermes.errors import StoreBusy, StoreClosed, StoreError, StoreReadOnly, StoreUnreachable
from hermes.store.engines.base import NothingThere, Progress, Tx, Visit
from hermes.store.engines.postgres import error_mapping, migrate, schema
from hermes.store.engines.postgres.fulltext import BATCH, SET_OUT, PostgresFullText
from hermes.store.engines.postgres.indexer import Indexer
from hermes.store.engines.postgres.pool import SERVER, Pool, PooledConnection, conninfo
from hermes.store.engines.postgres.transaction import NUMBER, PostgresTx, beginnings, wait_for_outcomes, was_stored
from hermes.store.engines.postgres.wait_limits import WaitLimit, is_there
from hermes.store.engines.postgres.word_lists import LISTS, take_out_unused

if TYPE_CHECKING:
    from hermes.store.rows import Finding

PATIENCE = 15.0  # seconds to wait for a lock, a connection or a server that is being restarted
TIMEOUT = 30.0  # seconds after which a silent server is probed
CONNECTIONS = 16
PREPARED_AFTER = 2  # executions
_UNINDEXED = b"SELECT array_agg(message_id ORDER BY message_id) FROM unindexed"
_ACTIVE_FIRST = "s.active_minute DESC, "
logging.getLogger("psycopg").addHandler(
    logging.NullHandler()
)  # this program reports these problems itself, and not on the screen


class PostgresEngine:
    """The engine of `SessionDB(url="postgresql://…")`."""

    name = "postgres"
    shared = True

    def __init__(
        self, url: str, *, read_only: bool = False, durability: str = "full", prepared_statements: str = "auto",
        timeout: float = TIMEOUT, patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self.where = error_mapping.shown(url)
        self.read_only = read_only
        self._patience = patience
        self.notice: str | None = None
        self.on_adopted: Callable[[Iterable[str]], None] = lambda sessions: None
        self.on_unsure: Callable[[Iterable[str]], None] = lambda sessions: None
        self.on_differing: Callable[[Sequence[str]], None] = lambda sessions: None
        self.on_parts: Callable[[Sequence[int]], None] = lambda message_ids: None
        self.fulltext = PostgresFullText()
        self._keeper = Indexer(self._link, self.fulltext)
        self._active_first = _ACTIVE_FIRST
        self._prepares = prepared_statements != "off"
        self._prepares_anyway = prepared_statements == "on"
        self._durability = durability
        self._views: str | None = None  # the schema with a tenant's views
        self._beginnings = beginnings(durability, self._views, self._patience, SET_OUT)
        self._local = threading.local()  # the transaction this thread is in
        self._closed = False
        self._ahead = 0.0  # how many seconds the server's clock is ahead of ours
        self._conninfo = conninfo(url, read_only)
        self._watch = WaitLimit(timeout, lambda: is_there(self._conninfo))
        self._unsettled: list[PostgresTx] = []  # with unknown outcome
        self._pool = Pool(self._connect, CONNECTIONS, self.where)
        try:
            with self._translated(), self._link() as connection:
                self._prepare(connection)
        except BaseException:
            self._pool.close()
            raise

    # ------------------------------------------------------------------ opening

    def _connect(self) -> PooledConnection:
        try:
            connection = PooledConnection.connect(self._conninfo, autocommit=True)
        except psycopg.Error as error:
            raise error_mapping.unreachable(error, self.where) from error
        self._watch.add(connection)
        try:
            self._configure(connection)
        except BaseException as error:
            lost = isinstance(error, psycopg.Error) and error_mapping.is_lost(error, connection)
            connection.close()
            if lost:
                raise error_mapping.unreachable(error, self.where) from error
            raise
        return connection

    def _configure(self, connection: PooledConnection) -> None:
        connection.adapters.register_dumper(int, Int8Dumper)  # one integer type, so one prepared statement
        connection.where = self.where
        connection.prepare_threshold = None
        row = connection.execute(SERVER.encode()).fetchone() or ("", "", True, time.time(), 0, "")
        connection.timeline, connection.started_at, connection.watched, now, process, path = row
        connection.process = process
        self._ahead = now - time.time()
        connection.beginning = self._beginnings.indexing
        pooled = process != connection.info.backend_pid  # a pooler gives each client a made-up number
        if pooled:
            self._prepares = self._prepares and self._prepares_anyway
            asked = error_mapping.search_path(self._conninfo)
            if asked is not None and asked != path.replace(" ", ""):
                raise StoreError(f"{self.where} {error_mapping.NO_OPTIONS}")
        connection.prepare_threshold = PREPARED_AFTER if self._prepares else None

        def on_notice(notice: psycopg.errors.Diagnostic) -> None:
            if notice.source_function == "SyncRepWaitForLSN":
                connection.unconfirmed = True

        connection.add_notice_handler(on_notice)

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Check and migrate the database."""
        state = migrate.inspect(connection)
        if state.encoding != "UTF8":
            raise StoreError(f"{self.where} is encoded in {state.encoding}; create the database with ENCODING 'UTF8'")
        if not state.schema:
            raise StoreError(f"{self.where}: the schema to work in does not exist; check search_path")
        if state.version > len(migrate.MIGRATIONS) and not self.read_only:
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
            self._beginnings = beginnings(self._durability, self._views, self._patience, SET_OUT)
            self.read_only = self.read_only or state.version < len(migrate.MIGRATIONS)  # the owner upgrades it
        if self.read_only:
            if state.version == 0:
                raise NothingThere(f"{self.where} holds no session store; there is nothing to read")
            self.fulltext.has_names = state.version >= migrate.WITH_NAMES
            self.fulltext.has_groups = state.version >= migrate.WITH_GROUPS
            self._active_first = _ACTIVE_FIRST if state.version >= migrate.WITH_MINUTES else ""
        elif state.version < len(migrate.MIGRATIONS):
            migrate.upgrade(connection, self.where)

    # ------------------------------------------------------------------ transactions

    def _borrow(self, begin: bytes) -> tuple[PooledConnection, Any]:
        """A connection on which a transaction has begun; waits for a server that is being restarted."""
        end = time.monotonic() + self._patience
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
            if not self._prepares:
                connection.prepare_threshold = None
            try:
                if self._unsettled:
                    wait_for_outcomes(self._unsettled, connection, end, self.where)
                if begin is self._beginnings.storing:
                    connection.tell(begin)
                    return connection, None
                cursor = connection.execute(begin)
                while cursor.nextset():
                    pass
                return connection, cursor.fetchone() if cursor.description else None
            except BaseException as error:
                lost = error_mapping.is_lost(error, connection)
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
        with self._reading(self._beginnings.read) as (tx, _):
            yield tx

    def query(self, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
        with self._reading(self._beginnings.read) as (tx, _):
            return tx.asked(sql, params)

    @contextmanager
    def _reading(self, begin: bytes) -> Iterator[tuple[PostgresTx, Any]]:
        """A transaction that reads, and the server's answer to its BEGIN.

        If its connection is lost, it continues on another one, provided that what it read so far is still the same.
        """
        with self._translated():
            connection, said = self._borrow(begin)
            held: PooledConnection | None = connection
            self._local.tx = tx = PostgresTx(
                connection, self.fulltext, ahead=self._ahead, active_first=self._active_first
            )

            def renewed(error: psycopg.Error) -> PooledConnection:
                nonlocal held
                self._look_for_a_pooler(error)
                if held is not None:
                    held.abandon()
                    self._pool.give_back(held)
                    held = None
                self._pool.forget()
                held = self._borrow(begin)[0]
                return held

            tx.renew = renewed
            try:
                yield tx, said
                if held is not None:
                    _end_reading(held)
            except BaseException:
                if held is not None:
                    held.abandon()
                raise
            finally:
                self._local.tx = None
                if held is not None:
                    self._pool.give_back(held)

    @contextmanager
    def searching(self) -> Iterator[PostgresTx]:
        """What waits to be indexed is asked for as the view begins: it is searched as it is
        (unindexed_tail.py), and nothing is written."""
        if getattr(self._local, "tx", None) is not None or not self.fulltext.has_names:
            with self.read() as tx:
                yield tx
            return
        with self._reading(self._beginnings.search) as (tx, said):
            waiting, *tx.extent = said
            tx.tail = self.fulltext.tail.view(tx, waiting)
            if waiting is not None and not self.read_only:
                self._keeper.wake()
            yield tx

    @contextmanager
    def write(
        self, *, holding: Sequence[str] = (), alone: bool = True, storing: bool = False, lasting: bool = True
    ) -> Iterator[PostgresTx]:  # every write is `lasting` here: lease holders survive a failover of the server
        if self._closed:
            raise StoreClosed(f"{self.where} was closed")
        if self.read_only:
            raise StoreReadOnly(self.notice or f"{self.where} is opened for reading only")
        with self._translated():
            begin = (
                self._beginnings.alone if alone else self._beginnings.storing if storing else self._beginnings.together
            )
            connection, said = self._borrow(begin)
            self._local.tx = tx = PostgresTx(
                connection, self.fulltext, ahead=self._ahead, active_first=self._active_first
            )
            try:
                if said is not None:
                    tx.numbered(*said)  # refuses: a newer program has upgraded the store
                with self._translated(connection):
                    if alone:
                        for session_id in sorted(set(holding)):
                            tx.hold(session_id)
                    yield tx
                    self._commit(tx)
                self._ahead = tx.ahead
                self.fulltext.learn(tx)
            except BaseException:
                connection.abandon()
                raise
            finally:
                self._local.tx = None
                self._pool.give_back(connection)
            if tx.waiting:
                self._keeper.take(tx.waiting)

    def _commit(self, tx: PostgresTx) -> None:
        """Index the stored messages that are not indexed yet, and commit, in one round trip."""
        connection = tx.connection
        if tx.xid is None:  # nothing was stored
            tx.numbered(*tx.ask(f"SELECT {NUMBER}").fetchone())
        connection.committing = True
        stored = len(tx.stored)
        try:
            if tx.stored:
                self.fulltext.begin_lists(tx)
                with connection.pipeline():
                    tx.learned |= self.fulltext.write_stored(tx)
                    done = connection.execute(b"COMMIT")
                status = done.statusmessage
            elif connection.watched:  # a wait for a replica can be interrupted
                status = connection.execute(b"COMMIT").statusmessage
            else:
                status = connection.tell(b"COMMIT")
        except psycopg.Error as error:
            if not error_mapping.is_lost(error, connection):
                raise
            self._settle(tx, error)
            return
        finally:
            connection.committing = False
        if status != "COMMIT":  # a statement had failed, and its caller continued nevertheless
            raise StoreError(f"{self.where} rolled the transaction back, as a part had failed; nothing was stored")
        if connection.unconfirmed:
            connection.unconfirmed = False
            raise StoreUnreachable(
                f"{self.where} has stored this change, but no replica has confirmed it: a failover would lose it",
                maybe_stored=True,
            )
        if stored:
            self._keeper.imported(stored)

    def _settle(self, tx: PostgresTx, error: psycopg.Error) -> None:
        """The connection was lost while a transaction was being committed: find out its outcome."""
        end = time.monotonic() + self._patience
        while time.monotonic() < end:
            stored = None
            with suppress(psycopg.Error, StoreError), self._connect() as connection:
                stored = was_stored(connection, tx)
            if stored:
                return
            if stored is False:
                raise error_mapping.translate(error, self.where, tx.connection) from error
            time.sleep(0.1)
        self._unsettled.append(tx)
        raise StoreUnreachable(
            f"the connection to {self.where} was lost during the commit, and it is unknown whether the change was stored;"
            " check before you repeat it",
            maybe_stored=True,
        ) from error

    @contextmanager
    def _translated(self, connection: psycopg.Connection[Any] | None = None) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if self._closed:
                raise StoreClosed(f"{self.where} was closed") from error
            if self._views is not None and isinstance(error, error_mapping.OWNERS_ONLY):
                raise StoreReadOnly(
                    f"{self.where} lets this user read, pin, archive and trash their own sessions; only the owner can do more"
                ) from error
            self._look_for_a_pooler(error)
            raise error_mapping.translate(error, self.where, connection) from error

    def _look_for_a_pooler(self, error: BaseException) -> None:
        """If the server does not know a prepared statement, a pooler mixes up connections."""
        if isinstance(error, error_mapping.MIXED_UP) and self._prepares:
            self._prepares = False
            self._pool.forget()

    # ------------------------------------------------------------------ tables

    def has_table(self, tx: Tx, name: str) -> bool:
        return tx.has_table(name)

    def make_tables(self, statements: Sequence[str]) -> None:
        try:
            self._make_tables(statements)
        except StoreError:  # another process created them at the same moment
            self._make_tables(statements)

    def _make_tables(self, statements: Sequence[str]) -> None:
        with self.write() as tx:
            for statement in statements:
                tx.run(schema.translated(statement))
            self._secure(tx.connection.execute)

    def _secure(self, run: Callable[..., Any]) -> None:
        """If rows are separated by role, close new tables to tenants as well."""
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
        """Nothing to begin: the indexer starts with the first append, or with a search that sees waiting messages."""

    def appended(self, message_id: int, size: int) -> None:
        """Nothing to do: the indexer was notified at the commit."""

    def _unindexed(self) -> list[int]:
        with self._translated():
            connection, row = self._borrow(_UNINDEXED)
            self._pool.give_back(connection)
        return [] if row is None or row[0] is None else list(row[0])

    def _index(self, waiting: list[int]) -> None:
        try:
            self._keeper.index(waiting)
        except (psycopg.OperationalError, *error_mapping.MIXED_UP):  # e.g. the server was restarted
            self._pool.forget()
            self._keeper.index(waiting)

    @contextmanager
    def _link(self) -> Iterator[PooledConnection]:
        """A connection without a transaction."""
        connection = self._pool.take(self._patience)
        if not self._prepares:
            connection.prepare_threshold = None
        try:
            yield connection
        except BaseException as error:
            self._look_for_a_pooler(error)
            connection.abandon()
            raise
        finally:
            self._pool.give_back(connection)

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Index waiting messages, and messages that another program wrote."""
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
        """Nothing to do: the server enforces column types."""
        return 0

    def problems(self, progress: Progress | None = None, visit: Visit | None = None) -> list[Finding]:
        """What is wrong with the index or with stored texts; the server checks its files itself."""
        from hermes.store.engines.postgres import inspection

        with self.searching() as tx:
            return [*inspection.drift(tx, self.fulltext), *inspection.waiting_for_long(tx)]

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
        take_out_unused(self.read, self.write)
        with self._translated(), self._connect() as connection:
            for table in ("sessions", "messages", "message_words", "unindexed", *LISTS, "attachment_data"):
                connection.execute(f"VACUUM (ANALYZE) {table}".encode())
        return True

    def scrub(self) -> list[str]:
        if self._closed:
            raise StoreClosed(f"{self.where} was closed")
        from hermes.store.engines.postgres import scrubbing

        self.catch_up()
        take_out_unused(self.read, self.write)
        with self._translated(), self._connect() as connection:
            return scrubbing.rewrite_tables(connection, self.where)

    def backup(self, target: Path) -> None:
        raise StoreError(f"{self.where} is backed up with PostgreSQL's own tools: pg_dump, pg_basebackup")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._keeper.stop()
            self._watch.stop()
            self._pool.close()


def _end_reading(connection: PooledConnection) -> None:
    try:
        connection.execute(b"COMMIT")
    except psycopg.Error as error:
        if not error_mapping.is_lost(error, connection):  # else: it was read, although the connection was lost
            raise

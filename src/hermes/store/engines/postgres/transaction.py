"""A transaction on one PostgreSQL connection, as the modules above the engine use it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from hermes.errors import InvalidInput, StoreReadOnly, StoreUnreachable
from hermes.store.engines.base import HELD, Document, Params, Row
from hermes.store.engines.postgres import error_mapping, text_encoding
from hermes.store.engines.postgres.migrate import ALONE, MIGRATIONS
from hermes.store.engines.postgres.pool import PooledConnection

if TYPE_CHECKING:
    from hermes.store.engines.postgres.fulltext import PostgresFullText
    from hermes.store.engines.postgres.unindexed_tail import View

# The transaction's number, the time, and the store's version: reading it blocks an upgrade until the transaction ends.
NUMBER = (
    "pg_current_xact_id()::text, extract(epoch FROM clock_timestamp())::float8,"
    " (SELECT max(version) FROM hermes_migrations)"
)
ANSWERS = 2_000  # rows that a reading transaction remembers, to continue after its connection was lost
REPEATS = 3  # of one query
_QUOTED = re.compile(r"('(?:[^']|'')*')|(\?)|(%)")


@lru_cache(maxsize=4096)
def translated(sql: str) -> bytes:
    """Portable SQL for psycopg: `?` becomes `%s` (not inside quotes), and a percent sign stays one."""

    def replace(found: re.Match[str]) -> str:
        if found[1]:
            return found[1].replace("%", "%%")
        return "%s" if found[2] else "%%"

    return _QUOTED.sub(replace, sql).encode()


class PostgresTx:
    """A transaction on one connection."""

    __slots__ = (
        "_answers",
        "_cursor",
        "_fulltext",
        "_remembered",
        "active_first",
        "ahead",
        "connection",
        "evidence",
        "extent",
        "learned",
        "removals",
        "renew",
        "stored",
        "tail",
        "waiting",
        "xid",
    )

    def __init__(
        self, connection: PooledConnection, fulltext: PostgresFullText, *, ahead: float = 0.0, active_first: str = ""
    ) -> None:
        """`ahead` is how many seconds the server's clock is ahead of ours; for `active_first` see Tx."""
        self.active_first = active_first
        self.connection = connection
        self._fulltext = fulltext
        self.ahead = ahead
        self.xid: str | None = None  # its number, by which its outcome can be queried after the connection is lost
        self.learned: set[bytes] = set()  # words that are in the list once it is committed
        self.removals = ""  # the count of removals from the lists, once it was read
        self._cursor = connection.cursor(binary=True)
        self.evidence: tuple[int, float] | None = None  # a message (id and time) that exists if it was committed
        self.extent: Sequence[Any] | None = None  # of the index, once it was read: see fulltext.candidates
        self.tail: View | None = None  # messages that wait to be indexed, once they were read
        self.stored: list[tuple[Any, ...]] = []  # messages that were stored, to index with the commit
        self.waiting: list[tuple[int, Document]] = []  # those to index after it
        self.renew: Callable[[psycopg.Error], PooledConnection] | None = (
            None  # another connection, for one that only reads
        )
        self._answers: list[tuple[bytes, Sequence[Any], bool, list[Any]]] | None = []  # what was read so far
        self._remembered = 0  # rows of it

    def numbered(self, number: str, now: float, version: int) -> None:
        """Called with the server's answer: the transaction's number, the time, and the store's version."""
        if version > len(MIGRATIONS):
            raise StoreReadOnly(
                f"{self.connection.where} was upgraded by a newer program (version {version}); nothing was stored, upgrade this"
                " program and start it again"
            )
        self.xid, self.ahead = number, now - time.time()

    def ask(self, sql: str | bytes, params: Params = ()) -> Any:
        """Run PostgreSQL's own SQL (`%s`, any type of parameter); returns the cursor."""
        return self._cursor.execute(sql if isinstance(sql, bytes) else sql.encode(), params)

    def _execute(self, sql: str, params: Params) -> Any:
        return self._cursor.execute(translated(sql), text_encoding.values(params))

    def _answer(self, sql: str, params: Params, *, one: bool = False, prepare: bool | None = None) -> list[Any]:
        """The rows of a query, or the first one; if the connection is lost, from another one (see `renew`)."""
        statement, values = translated(sql), text_encoding.values(params)
        if self.renew is None or self._answers is None:
            return self._asked(statement, values, one, prepare)
        try:
            rows = self._asked(statement, values, one, prepare)
        except psycopg.Error as error:
            rows = self._asked_again(error, statement, values, one, prepare)
        self._remembered += len(rows)
        if self._remembered > ANSWERS:  # too much to compare: from here on a lost connection is an error
            self._answers = None
        else:
            self._answers.append((statement, values, one, rows))
        return rows

    def _asked(self, statement: bytes, values: Sequence[Any], one: bool, prepare: bool | None) -> list[Any]:
        cursor = self._cursor.execute(statement, values, prepare=prepare)
        if cursor.pgresult is None or not cursor.pgresult.nfields:  # (`description` makes an object a column)
            return []
        first = cursor.fetchone() if one else None
        return cursor.fetchall() if not one else [] if first is None else [first]

    def _asked_again(
        self, error: psycopg.Error, statement: bytes, values: Sequence[Any], one: bool, prepare: bool | None
    ) -> list[Any]:
        """Repeat on another connection, where earlier reads must give the same rows: else raise the error."""
        assert self.renew is not None
        trouble: psycopg.Error = error
        for _ in range(REPEATS):
            if not error_mapping.is_repeated(trouble, self.connection):
                break
            self.connection = self.renew(trouble)
            self._cursor = self.connection.cursor(binary=True)
            try:
                for before, given, first, rows in self._answers or ():
                    if self._asked(before, given, first, None) != rows:
                        raise error
                return self._asked(statement, values, one, prepare)
            except psycopg.Error as another:
                if another is error:
                    break
                trouble = another
        raise trouble

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return text_encoding.rows(self._answer(sql, params))

    def planned(self, sql: str, params: Params = ()) -> list[Row]:
        """All rows of a query that is planned for its parameters each time: the frequency of a word decides the plan."""
        return text_encoding.rows(self._answer(sql, params, prepare=False))

    def row(self, sql: str, params: Params = ()) -> Row | None:
        found = self._answer(sql, params, one=True)
        return text_encoding.rows(found)[0] if found else None

    def value(self, sql: str, params: Params = ()) -> Any:
        row = self.row(sql, params)
        return None if row is None else row[0]

    def dicts(self, sql: str, params: Params = ()) -> list[Any]:
        rows = text_encoding.rows(self._answer(sql, params))
        names = [column.name for column in self._cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def asked(self, sql: str, params: Params) -> list[dict[str, Any]]:
        """All rows of a caller's own query; one statement, since it is prepared. InvalidInput when the server rejects it."""
        try:
            rows = self._answer(sql, params, prepare=True)
            if self._cursor.description is None:
                raise InvalidInput(
                    "sql() only reads: it takes one SELECT; use the methods of SessionDB to change something"
                )
            names = [column.name for column in self._cursor.description]
            return [dict(zip(names, row, strict=True)) for row in text_encoding.rows(rows)]
        except (errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege) as error:
            raise InvalidInput(f"sql() only reads ({error.diag.message_primary})") from error
        except (
            psycopg.ProgrammingError,
            psycopg.DataError,
            psycopg.NotSupportedError,
            errors.InvalidTransactionState,
            errors.ActiveSqlTransaction,
        ) as error:
            raise InvalidInput(f"sql(): {error.diag.message_primary or error}") from error

    def run(self, sql: str, params: Params = ()) -> int:
        return int(self._execute(sql, params).rowcount)

    def run_many(self, sql: str, many: Sequence[Params]) -> None:
        self._cursor.executemany(translated(sql), [text_encoding.values(params) for params in many])

    def insert(self, sql: str, params: Params = ()) -> int:
        return int(self._execute(f"{sql} RETURNING id", params).fetchone()[0])

    def has_table(self, name: str) -> bool:
        return self.value("SELECT to_regclass(?) IS NOT NULL", (name,)) is True

    def among(self, column: str, values: Sequence[int] | Sequence[str]) -> tuple[str, list[Any]]:
        """As one parameter: the driver takes a millisecond to read a statement with hundreds, and the server plans it again."""
        kind = "bigint" if values and isinstance(values[0], int) else "text"
        return f"{column} = ANY(?::{kind}[])", [text_encoding.array(values)]

    def spans(self, spans: Sequence[tuple[str, int, int]]) -> tuple[str, list[Any]]:
        ids, firsts, lasts = zip(*spans, strict=True) if spans else ((), (), ())
        given = "unnest(?::text[], ?::bigint[], ?::bigint[]) AS a(session_id, first, last)"
        return given, [text_encoding.array(column) for column in (ids, firsts, lasts)]

    def hold(self, session_id: str) -> None:
        self._execute("SELECT 1 FROM sessions WHERE id = ? FOR UPDATE", (session_id,))

    def holds(self, lease: str, token: int) -> bool:
        return self.row(f"{HELD} FOR SHARE", (lease, token)) is not None

    def now(self) -> float:
        return time.time() + self.ahead  # by the server's clock: those of several hosts differ

    def reserve(self, highest: int, table: str = "messages") -> None:
        if highest > self.last_number(table):
            self.ask(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")  # no id is generated meanwhile
            if highest > self.last_number(table):
                self.ask("SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", (table, highest))

    def last_number(self, table: str) -> int:
        row = self.ask(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {table}_id_seq").fetchone()
        return int(row[0])

    def changed_by_us(self, message_ids: Sequence[int]) -> None:
        """Nothing to do: on a server, changes with SQL are not recorded."""

    def store_message(
        self, count: tuple[str, Params], insert: tuple[str, Params], at: float, document: Document
    ) -> int | None:
        message_id = self._fulltext.store(self, count, insert, document)
        if message_id is not None:
            self.evidence = (message_id, at)
        return message_id

    def message_stored(
        self, message_id: int, at: float, content: Any, form: Any, tool_name: Any, tool_calls: Any
    ) -> None:
        self.evidence = (message_id, at)
        self.stored.append((message_id, content, form, tool_name, tool_calls))

    def meanwhile(self, work: Callable[[], None]) -> None:
        """Nothing is done: the server's disk is busy during the commit itself."""


# ----------------------------------------------------------------------------------------------------
# How transactions begin: each says all its settings itself.
#
# Settings hold for one transaction and are said with its beginning. A pooler in front of the server gives each transaction
# another connection: what a SET left there would hold for whichever client comes next.

PAUSED = 10  # seconds after which the server ends an idle writing transaction: its process was stopped
PAUSED_READER = 60  # it blocks no one
_READ = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    f" SET LOCAL idle_in_transaction_session_timeout = '{PAUSED_READER}s';"
    " SET LOCAL jit = off"
)
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


@dataclass(frozen=True, slots=True)
class Beginnings:
    """The first statements of a transaction, by its purpose."""

    storing: bytes  # a message
    together: bytes  # writing concurrently with others
    alone: bytes
    read: bytes
    search: bytes
    indexing: tuple[bytes, ...]  # statement by statement


def beginnings(durability: str, views: str | None, patience: float, before_search: str) -> Beginnings:
    """For a store of that durability; `views` is the schema with what a tenant is shown. Locks are waited for with `patience`;
    `before_search` is what a search asks for first."""
    locks = f"SET LOCAL lock_timeout = '{patience:g}s'"
    settings = {"idle_in_transaction_session_timeout": f"{PAUSED}s"}
    if durability == "normal":
        settings["synchronous_commit"] = "off"
    place = [] if views is None else [f'SET LOCAL search_path = "{views.replace(chr(34), chr(34) * 2)}"']
    said = [_BEGIN, locks, *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items()), *place]
    storing = "; ".join(said)
    together = f"{storing}; SELECT {NUMBER}"
    return Beginnings(
        storing=storing.encode(),
        together=together.encode(),
        # A tenant only marks one of its sessions.
        alone=(f"{storing}; {ALONE}; SELECT {NUMBER}" if views is None else together).encode(),
        read="; ".join([_READ, locks, *place]).encode(),
        search="; ".join([_READ, locks, *place, before_search]).encode(),
        # An index can be made again: it waits for no disk and no replica. (After a crash they still wait in `unindexed`.)
        indexing=tuple(one.encode() for one in (*said, "SET LOCAL synchronous_commit = off")),
    )


# ----------------------------------------------------------------------------------------------------
# What became of a commit whose answer was lost: the server knows each transaction by its number.

# Waits until the replicas that have to confirm commits have everything up to here.
_CONFIRM = (
    b"SELECT CASE WHEN current_setting('synchronous_standby_names') <> ''"
    b" THEN pg_logical_emit_message(true, 'hermes', '') END"
)
_STATUS = b"SELECT pg_xact_status(%s::xid8)"
_END = b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_xid::text = %s"


def was_stored(connection: PooledConnection, tx: PostgresTx) -> bool | None:
    """Whether a transaction was committed; None as long as that is unknown.

    After a crash or a failover the server may have given its number to another one, so its stored message is checked.
    """
    if not connection.timeline:
        return None  # a replica; perhaps it is about to take over
    try:
        row = connection.execute(_STATUS, (tx.xid,)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return False  # this server has not reached that number yet
    status = None if row is None else row[0]
    if status == "aborted":
        return False
    if status != "committed":
        return None  # the server has not noticed the lost connection yet
    if tx.evidence is not None:
        sql = b"SELECT 1 FROM messages WHERE id = %s AND timestamp = %s"
        if connection.execute(sql, tx.evidence).fetchone() is None:
            return False
    elif (connection.timeline, connection.started_at) != (tx.connection.timeline, tx.connection.started_at):
        return None
    connection.committing = True  # it waits for replicas as a commit does
    try:
        connection.execute(_CONFIRM)
    finally:
        connection.committing = False
    return None if connection.unconfirmed else True


def wait_for_outcomes(unsettled: list[PostgresTx], connection: PooledConnection, end: float, where: str) -> None:
    """Wait until the server has decided on commits with unknown outcome; they are removed from the list.

    Until then nothing is read or stored: a program that checks whether something was stored, and stores it again if not,
    must not be overtaken by a commit that was still in progress. StoreUnreachable when it takes until `end`.
    """
    for tx in list(unsettled):
        while _is_open(connection, tx):
            if time.monotonic() > end:
                raise StoreUnreachable(
                    f"{where} has not decided yet on something that was to be stored before; nothing was stored, try again"
                )
            with suppress(psycopg.errors.InsufficientPrivilege):  # it waits for words that will not come any more
                connection.execute(_END, (tx.connection.process, str(int(tx.xid or 0) % (1 << 32))))
            time.sleep(0.05)
        with suppress(ValueError):  # another thread removed it first
            unsettled.remove(tx)


def _is_open(connection: PooledConnection, tx: PostgresTx) -> bool:
    try:
        row = connection.execute(_STATUS, (tx.xid,)).fetchone()
    except psycopg.errors.InvalidParameterValue:
        return False  # after a failover: this server does not have it
    return row is not None and row[0] == "in progress"


# ----------------------------------------------------------------------------------------------------
# Storing a message in one statement: it is counted on its session, put in, and put down as one whose words are to
# be indexed.
#
# Each thing told to the server and answered costs about as much as the storing itself, so an append is three: the beginning
# of a transaction, this, and the commit. With the id comes the transaction's number, by which the server can be asked
# later what became of it.


@lru_cache(maxsize=64)
def _statement(count: str, insert: str) -> bytes:
    """`count` changes the session, or no row if there is none; `insert` is an INSERT … VALUES(…) of one row."""
    chosen = insert.replace(" VALUES(", " SELECT ", 1).removesuffix(")")
    return (
        f"WITH counted AS ({translated(count).decode()} RETURNING 1),"
        f" said AS ({translated(chosen).decode()} FROM counted RETURNING id),"
        " noted AS (INSERT INTO unindexed(message_id) SELECT id FROM said)"
        f" SELECT id, {NUMBER} FROM said"
    ).encode()


def store_message(tx: PostgresTx, count: tuple[str, Params], insert: tuple[str, Params]) -> int | None:
    """Store a message; returns its id, or None when there is no such session."""
    row = tx.ask(_statement(count[0], insert[0]), text_encoding.values([*count[1], *insert[1]])).fetchone()
    if row is None:
        return None
    message_id, *told = row
    tx.numbered(*told)
    return int(message_id)

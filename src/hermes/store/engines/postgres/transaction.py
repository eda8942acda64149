"""A transaction on one PostgreSQL connection, as the modules above the engine use it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors

from hermes.errors import InvalidInput, StoreReadOnly
from hermes.store.engines.base import HELD, Document, Params, Row
from hermes.store.engines.postgres import error_mapping, text_encoding
from hermes.store.engines.postgres.migrate import MIGRATIONS

if TYPE_CHECKING:
    from hermes.store.engines.postgres.fulltext import PostgresFullText
    from hermes.store.engines.postgres.pool import PooledConnection
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
        if cursor.description is None:
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

    def dicts(self, sql: str, params: Params = ()) -> list[dict[str, Any]]:
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

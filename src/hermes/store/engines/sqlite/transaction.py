"""A transaction on one SQLite connection, as the modules above the engine use it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hermes.errors import InvalidInput
from hermes.store.engines.base import HELD, Params, Row
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite.connection import Connection, code, codes
from hermes.store.engines.unindexed import WaitingMessages
from hermes.store.records.codec import storable


class SqliteTx:
    """A transaction on one connection."""

    __slots__ = ("_execute", "connection", "waiting")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._execute = connection.execute
        self.waiting: WaitingMessages | None = None  # messages above the mark, once a search has asked for them

    def cursor(self, sql: str, params: Params) -> Any:
        """The rows one by one; for results that are too large to be held."""
        try:
            return self._execute(sql, params)
        except UnicodeEncodeError:  # lone surrogates are stored, and compared, as bytes
            return self._execute(sql, [storable(value) if isinstance(value, str) else value for value in params])
        except OverflowError as error:
            raise InvalidInput(f"a value can't be stored: {_too_large(error)}") from error

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        found: list[Row] = self.cursor(sql, params).fetchall()
        return found

    def row(self, sql: str, params: Params = ()) -> Row | None:
        found: Row | None = self.cursor(sql, params).fetchone()
        return found

    def value(self, sql: str, params: Params = ()) -> Any:
        row = self.cursor(sql, params).fetchone()
        return None if row is None else row[0]

    def column(self, sql: str, params: Params = ()) -> list[Any]:
        return [row[0] for row in self.cursor(sql, params)]

    def dicts(self, sql: str, params: Params = ()) -> list[Any]:
        cursor = self.cursor(sql, params)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def run(self, sql: str, params: Params = ()) -> int:
        count = self.cursor(sql, params).rowcount
        return int(count if count >= 0 else self.value("SELECT changes()"))

    def run_many(self, sql: str, many: Sequence[Params]) -> None:
        for params in many:
            self.cursor(sql, params)

    def insert(self, sql: str, params: Params = ()) -> int:
        return int(self.cursor(sql, params).lastrowid)

    def has_table(self, name: str) -> bool:
        return self.row("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)) is not None

    def among(self, column: str, values: Sequence[int] | Sequence[str]) -> tuple[str, list[Any]]:
        return f"{column} IN ({', '.join('?' * len(values))})", [*values]

    def spans(self, spans: Sequence[tuple[str, int, int]]) -> tuple[str, list[Any]]:
        rows = ", ".join(["(?, ?, ?)"] * len(spans)) or "(NULL, NULL, NULL)"
        source = f"(SELECT column1 AS session_id, column2 AS first, column3 AS last FROM (VALUES {rows})) AS a"
        return source, [one for span in spans for one in span]

    def hold(self, session_id: str) -> None:
        """Nothing to do: there is one writer at a time."""

    def holds(self, lease: str, token: int) -> bool:
        return self.row(HELD, (lease, token)) is not None

    def now(self) -> float:
        return time.time()

    def reserve(self, highest: int, table: str = "messages") -> None:
        """AUTOINCREMENT continues from the highest id ever used."""
        if highest > self.last_number(table):
            self.run("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            self.run("INSERT INTO sqlite_sequence(name, seq) VALUES(?, ?)", (table, highest))

    def last_number(self, table: str) -> int:
        return int(self.value("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)) or 0)

    def store_message(self, count: tuple[str, Params], insert: tuple[str, Params]) -> int | None:
        return self.insert(*insert) if self.run(*count) else None


def _too_large(error: OverflowError) -> str:
    return "a number has more than 64 bits" if "int" in str(error) else "it is larger than the database can hold (1 GB)"


# -------------------------------------------------------- a caller's own SQL, allowed to read and nothing else

_READING = frozenset((codes.SQLITE_SELECT, codes.SQLITE_READ, codes.SQLITE_FUNCTION, codes.SQLITE_RECURSIVE))
# Those that would change something with an argument can't: the connection is opened for reading only.
_ABOUT = frozenset(
    "application_id collation_list compile_options data_version database_list encoding foreign_key_list freelist_count"
    " function_list index_info index_list index_xinfo integrity_check module_list page_count page_size pragma_list quick_check"
    " schema_version table_info table_list table_xinfo user_version".split()
)
_OTHERS_FAULT = (codes.SQLITE_CORRUPT, codes.SQLITE_BUSY, codes.SQLITE_IOERR, codes.SQLITE_NOTADB)


def read_only_rows(connection: Connection, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
    """All rows of a query; InvalidInput when the statement would write, or SQLite rejects it."""
    connection.execute("PRAGMA table_list").fetchall()  # virtual tables are set up by statements that would be refused
    connection.set_authorizer(_judge)
    try:
        cursor = connection.execute(sql, params)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]
    except (Warning, TypeError, ValueError, OverflowError, *driver.Error) as error:  # type: ignore[misc]
        if code(error) in _OTHERS_FAULT:
            raise
        if code(error) == codes.SQLITE_AUTH or "one statement" in str(error):
            raise InvalidInput(
                "sql() only reads: it takes one SELECT; use the methods of SessionDB to change something"
            ) from error
        raise InvalidInput(f"sql(): {error}") from error
    finally:
        connection.set_authorizer(None)


def _judge(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    is_allowed = action in _READING or (action == codes.SQLITE_PRAGMA and first in _ABOUT)
    return codes.SQLITE_OK if is_allowed else codes.SQLITE_DENY

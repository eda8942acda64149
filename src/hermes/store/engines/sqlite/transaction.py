"""A transaction on one SQLite connection, as the modules above the engine use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from hermes.store.codec import storable
from hermes.store.engines.base import HELD, Document, Params, Row


class SqliteTx:
    """A transaction on one connection."""

    __slots__ = ("_execute", "connection", "extent", "work")
    active_first = ""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self._execute = connection.execute
        self.work: Callable[[], None] | None = None
        self.extent: tuple[int, int] | None = None  # of the index, once a search has read it

    def _cursor(self, sql: str, params: Params) -> apsw.Cursor:
        try:
            return self._execute(sql, params)
        except UnicodeEncodeError:  # lone surrogates are stored, and compared, as bytes
            return self._execute(sql, [storable(value) if isinstance(value, str) else value for value in params])

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return self._cursor(sql, params).fetchall()

    def row(self, sql: str, params: Params = ()) -> Row | None:
        return self._cursor(sql, params).fetchone()

    def value(self, sql: str, params: Params = ()) -> Any:
        row = self._cursor(sql, params).fetchone()
        return None if row is None else row[0]

    def dicts(self, sql: str, params: Params = ()) -> list[dict[str, Any]]:
        cursor = self._cursor(sql, params)
        first = cursor.fetchone()
        if first is None:
            return []
        names = [column[0] for column in cursor.get_description()]
        return [dict(zip(names, row, strict=True)) for row in (first, *cursor.fetchall())]

    def run(self, sql: str, params: Params = ()) -> int:
        self._cursor(sql, params)
        return self.connection.changes()

    def run_many(self, sql: str, many: Sequence[Params]) -> None:
        for params in many:
            self._cursor(sql, params)

    def insert(self, sql: str, params: Params = ()) -> int:
        self._cursor(sql, params)
        return self.connection.last_insert_rowid()

    def has_table(self, name: str) -> bool:
        return self.row("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)) is not None

    def hold(self, session_id: str) -> None:
        """Nothing to do: there is one writer at a time."""

    def holds(self, lease: str, token: int) -> bool:
        return self.row(HELD, (lease, token)) is not None

    def now(self) -> float:
        return time.time()

    def reserve(self, highest: int, table: str = "messages") -> None:
        """Nothing to do: AUTOINCREMENT continues from the highest id ever used."""
        if highest > self.last_number(table):
            self.run("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            self.run("INSERT INTO sqlite_sequence(name, seq) VALUES(?, ?)", (table, highest))

    def last_number(self, table: str) -> int:
        return int(self.value("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)) or 0)

    def changed_by_us(self, message_ids: Sequence[int]) -> None:
        self.connection.executemany("DELETE FROM changed_messages WHERE id = ?", ((one,) for one in message_ids))

    def store_message(
        self, count: tuple[str, Params], insert: tuple[str, Params], at: float, document: Document
    ) -> int | None:
        execute, connection = self._execute, self.connection
        try:
            execute(*count)
        except UnicodeEncodeError:
            self._cursor(*count)
        if not connection.changes():
            return None
        try:
            execute(*insert)
        except UnicodeEncodeError:
            self._cursor(*insert)
        return connection.last_insert_rowid()

    def message_stored(
        self, message_id: int, at: float, content: Any, form: Any, tool_name: Any, tool_calls: Any
    ) -> None:
        """Nothing to do: messages above the mark are indexed later."""

    def meanwhile(self, work: Callable[[], None]) -> None:
        self.work = work

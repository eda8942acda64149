"""A transaction on one SQLite connection, as the modules above the engine use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import apsw

from hermes.errors import InvalidInput, StoreBusy
from hermes.store.codec import storable
from hermes.store.engines.base import HELD, Document, Params, Row

if TYPE_CHECKING:
    from hermes.store.engines.sqlite.engine import SqliteEngine


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
        except OverflowError as error:
            raise InvalidInput("a value can't be stored: a number has more than 64 bits") from error

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return self._cursor(sql, params).fetchall()

    def row(self, sql: str, params: Params = ()) -> Row | None:
        return self._cursor(sql, params).fetchone()

    def value(self, sql: str, params: Params = ()) -> Any:
        row = self._cursor(sql, params).fetchone()
        return None if row is None else row[0]

    def dicts(self, sql: str, params: Params = ()) -> list[Any]:
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

    def among(self, column: str, values: Sequence[int] | Sequence[str]) -> tuple[str, list[Any]]:
        return f"{column} IN ({', '.join('?' * len(values))})", [*values]

    def spans(self, spans: Sequence[tuple[str, int, int]]) -> tuple[str, list[Any]]:
        rows = ", ".join(["(?, ?, ?)"] * len(spans)) or "(NULL, NULL, NULL)"
        given = f"(SELECT column1 AS session_id, column2 AS first, column3 AS last FROM (VALUES {rows})) AS a"
        return given, [one for span in spans for one in span]

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


# ----------------------------------------------------------------------------------------------------
# What `with engine.read()` and `with engine.write()` enter and leave.
#
# Classes, since a generator for each of their steps would take longer than most of what is read.


class Reading:
    """A read transaction: on the main connection while it is free, else on a spare one."""

    __slots__ = ("_begun", "_connection", "_engine", "_spare")

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine

    def __enter__(self) -> SqliteTx:
        engine = self._engine
        if engine._closed:
            engine._require_open()
        self._spare = not engine._mutex.acquire(blocking=False)
        try:
            self._connection = connection = engine._borrow() if self._spare else engine._main
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            raise engine._as_ours(error) from error
        try:
            self._begun = not connection.in_transaction  # False: a read inside this thread's own write
            if self._begun:
                connection.execute("BEGIN")
        except BaseException as error:
            self._give_back()
            if isinstance(error, (apsw.Error, OSError)):
                raise engine._as_ours(error) from error
            raise
        return SqliteTx(connection)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._begun and self._connection.in_transaction:
                self._connection.execute("COMMIT")
        except (apsw.Error, OSError) as failure:
            if error is None:
                raise self._engine._as_ours(failure) from failure
        finally:
            self._give_back()
        if isinstance(error, (apsw.Error, OSError, UnicodeDecodeError)):
            raise self._engine._as_ours(error) from error

    def _give_back(self) -> None:
        engine = self._engine
        if not self._spare:
            engine._mutex.release()
            return
        with engine._spare_lock:
            engine._spare.append(self._connection)


class Searching(Reading):
    """A read transaction for a search. If another program changed messages with SQL, they are indexed first."""

    __slots__ = ()

    def __enter__(self) -> SqliteTx:
        tx, upkeep = super().__enter__(), self._engine._upkeep
        try:
            if not upkeep.has_changes(tx):
                return tx
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        self.__exit__(None, None, None)
        try:
            upkeep.note_changes()
        except StoreBusy:
            pass  # another process holds the lock: the old words are found until the next search
        return super().__enter__()


class Writing:
    """A write transaction, committed when its block is left and rolled back when that fails."""

    __slots__ = ("_connection", "_engine", "_holding", "_lasting", "_tx")

    def __init__(self, engine: SqliteEngine, holding: Sequence[str], lasting: bool) -> None:
        self._engine, self._holding, self._lasting = engine, holding, lasting

    def __enter__(self) -> SqliteTx:
        engine = self._engine
        engine._require_writable()
        engine._mutex.acquire()
        try:
            self._connection = connection = engine._main
            engine._begin(connection)
        except BaseException as error:
            self._let_go()
            if isinstance(error, (apsw.Error, OSError)):
                raise engine._as_ours(error) from error
            raise
        self._tx = SqliteTx(connection)
        return self._tx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine, connection = self._engine, self._connection
        try:
            if error is None:
                connection.execute("COMMIT")
        except (apsw.Error, OSError) as failure:
            raise engine._as_ours(failure) from failure
        finally:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            finally:
                self._let_go()
        if error is None:
            engine._committed(self._holding, self._lasting, self._tx.work)
        elif isinstance(error, (apsw.Error, OSError, UnicodeDecodeError)):
            raise engine._as_ours(error) from error

    def _let_go(self) -> None:
        self._engine._gate.leave()
        self._engine._mutex.release()

"""The context managers of `with engine.read()` and `with engine.write()`.

Classes, since generators would take longer than most reads themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import apsw

from hermes.errors import StoreBusy
from hermes.store.engines.sqlite.transaction import SqliteTx

if TYPE_CHECKING:
    from hermes.store.engines.sqlite.engine import SqliteEngine


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

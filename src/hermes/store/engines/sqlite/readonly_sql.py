"""A caller's own SQL, allowed to read and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from hermes.errors import InvalidInput

_READING = frozenset((apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE))
_ABOUT = frozenset(
    "application_id collation_list compile_options data_version database_list encoding freelist_count function_list"
    " integrity_check module_list page_count page_size pragma_list quick_check schema_version table_list user_version".split()
)
_ABOUT_ONE = frozenset(
    "foreign_key_list index_info index_list index_xinfo integrity_check quick_check table_info table_list"
    " table_xinfo".split()
)


def rows(connection: apsw.Connection, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
    """All rows; InvalidInput when the statement would write, or SQLite rejects it."""
    connection.authorizer = _judge
    try:
        return _rows(connection, sql, params)
    except (apsw.AuthError, apsw.ExecTraceAbort) as error:
        raise InvalidInput(
            "sql() only reads: it takes one SELECT; use the methods of SessionDB to change something"
        ) from error
    except (apsw.SQLError, apsw.BindingsError, apsw.MismatchError, TypeError) as error:
        raise InvalidInput(f"sql(): {error}") from error
    finally:
        connection.authorizer = None


def _rows(connection: apsw.Connection, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
    cursor = connection.cursor()
    cursor.exec_trace = _OneStatement()
    cursor.execute(sql, params, can_cache=False)
    try:
        names = [column[0] for column in cursor.get_description()]
    except apsw.ExecutionCompleteError:  # it has no rows
        return []
    return [dict(zip(names, row, strict=True)) for row in cursor]


class _OneStatement:
    """Allows the first statement only."""

    def __init__(self) -> None:
        self._seen = False

    def __call__(self, cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        first, self._seen = not self._seen, True
        return first


def _judge(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action in _READING:
        return apsw.SQLITE_OK
    if action == apsw.SQLITE_PRAGMA and first in (_ABOUT if second is None else _ABOUT_ONE):
        return apsw.SQLITE_OK
    return apsw.SQLITE_DENY

"""A caller's own SQL, allowed to read and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes.errors import InvalidInput
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite.connection import Connection, code, codes

_READING = frozenset((codes.SQLITE_SELECT, codes.SQLITE_READ, codes.SQLITE_FUNCTION, codes.SQLITE_RECURSIVE))
# Those that would change something with an argument can't: the connection is opened for reading only.
_ABOUT = frozenset(
    "application_id collation_list compile_options data_version database_list encoding foreign_key_list freelist_count"
    " function_list index_info index_list index_xinfo integrity_check module_list page_count page_size pragma_list quick_check"
    " schema_version table_info table_list table_xinfo user_version".split()
)
_OTHERS_FAULT = (codes.SQLITE_CORRUPT, codes.SQLITE_BUSY, codes.SQLITE_IOERR, codes.SQLITE_NOTADB)


def rows(connection: Connection, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
    """All rows; InvalidInput when the statement would write, or SQLite rejects it."""
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

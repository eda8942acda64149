"""Tables and indexes written again without what was deleted.

VACUUM FULL copies the rows of a table into a new file and builds its indexes from them, which is the only way a GIN index
loses the words of deleted rows. It locks the table meanwhile. A role without the right gets a warning, not an error, so
whether a table was rewritten is told by its file: a rewritten one has another.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors

LOCK_SECONDS = 3  # that a table in use is waited for
# The lock that keeps writers apart: it holds no text.
_OURS = (
    "SELECT c.relname::text, pg_relation_filenode(c.oid) FROM pg_class c WHERE c.relkind = 'r'"
    " AND c.relnamespace = current_schema()::regnamespace AND c.relname <> 'hermes_migrations' ORDER BY c.relname"
)


def rewrite_tables(connection: psycopg.Connection[Any], where: str) -> list[str]:
    """Rewrite every table of the record; a line when some could not be."""
    before = dict(connection.execute(_OURS).fetchall())
    busy = []
    connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'".encode())
    for table in before:
        try:
            # ANALYZE: the planner's statistics hold samples of the columns, also of the deleted rows.
            connection.execute(f'VACUUM (FULL, ANALYZE) "{table}"'.encode())
        except (errors.LockNotAvailable, errors.QueryCanceled):
            busy.append(table)
    after = dict(connection.execute(_OURS).fetchall())
    same = [table for table, file in before.items() if after.get(table) == file and table not in busy]
    told = []
    if busy:
        told.append(f"{', '.join(busy)} in {where} can't be rewritten while others use them; try again")
    if same:
        told.append(f"{', '.join(same)} in {where} are not this role's to rewrite; their owner must run VACUUM FULL")
    return told

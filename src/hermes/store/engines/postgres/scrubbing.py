"""Tables and indexes written again without what was deleted.

VACUUM FULL copies the rows of a table into a new file and builds its indexes from them, which is the only way a GIN index
loses the words of deleted rows. It locks the table meanwhile. A role without the right gets a warning, not an error; that
a table was rewritten is seen from its file, which is another one then. Deleted rows that an open transaction of
another session may still see are copied as well; the server says how many, and the table is written again a moment later.
"""

from __future__ import annotations

import re
import time
from typing import Any

import psycopg
from psycopg import errors

LOCK_SECONDS = 3  # that a table in use is waited for
TRIES, PAUSE = 4, 0.5  # for rows that others may still see; seconds
# The lock that keeps writers apart: it holds no text.
_OURS = (
    "SELECT c.relname::text, pg_relation_filenode(c.oid) FROM pg_class c WHERE c.relkind = 'r'"
    " AND c.relnamespace = current_schema()::regnamespace AND c.relname <> 'hermes_migrations' ORDER BY c.relname"
)


def rewrite_tables(connection: psycopg.Connection[Any], where: str) -> list[str]:
    """Rewrite every table of the record; a line when some could not be."""
    before = dict(connection.execute(_OURS).fetchall())
    busy, seen, kept = [], [], list[int]()

    def on_notice(said: errors.Diagnostic) -> None:
        # "3 dead row versions cannot be removed yet", in the server's language
        kept.extend(int(count) for count in re.findall(r"\A\D*(\d+)", said.message_detail or ""))

    connection.add_notice_handler(on_notice)
    connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'".encode())
    for table in before:
        try:
            for _ in range(TRIES):
                kept.clear()
                # ANALYZE: the planner's statistics hold samples of the columns, also of the deleted rows.
                connection.execute(f'VACUUM (FULL, ANALYZE, VERBOSE) "{table}"'.encode())
                if not sum(kept):
                    break
                time.sleep(PAUSE)
            else:
                seen.append(table)
        except (errors.LockNotAvailable, errors.QueryCanceled):
            busy.append(table)
    after = dict(connection.execute(_OURS).fetchall())
    same = [table for table, file in before.items() if after.get(table) == file and table not in busy]
    told = (
        (busy, "can't be rewritten while others use them; try again"),
        (seen, "still hold deleted rows that an open transaction of another session may see; end it, and try again"),
        (same, "are not this role's to rewrite; their owner must run VACUUM FULL"),
    )
    return [f"{', '.join(tables)} in {where} {why}" for tables, why in told if tables]

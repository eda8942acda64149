"""Checks that the index agrees with the messages and that their texts can be read.

Each message is tokenized again; the server compares the result with the index.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import errors

from hermes.store.engines.base import finding
from hermes.store.engines.postgres.fulltext import BATCH, PostgresFullText
from hermes.store.engines.postgres.lexemes import entries
from hermes.store.records import codec
from hermes.store.records.rows import Finding


def drift(tx: Any, fulltext: PostgresFullText) -> Iterator[Finding]:
    """Messages the index lacks, entries without a message, entries of another text, damaged texts."""
    for (message_id,) in tx.rows(
        "SELECT DISTINCT w.message_id FROM message_words w LEFT JOIN messages m ON m.id = w.message_id WHERE m.id IS NULL"
    ):
        yield finding("fts-extra", f"message {message_id}", "is in the full-text index but not in the store")
    last = 0
    waiting = set(tx.column("SELECT message_id FROM unindexed"))
    while rows := tx.rows("SELECT id, content_rest FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH)):
        last = rows[-1][0]
        for message_id, rest in rows:
            if (damage := codec.text_damage("", rest, None)) is not None:
                yield finding("damaged-text", f"message {message_id}", damage)
        yield from _differing(tx, fulltext, [row[0] for row in rows if row[0] not in waiting])


def _differing(tx: Any, fulltext: PostgresFullText, message_ids: list[int]) -> Iterator[Finding]:
    wanted = []
    for message_id, columns in fulltext.documents(tx, message_ids):
        texts = [words for _, _, _, _, words in entries(message_id, columns)]
        wanted += [(message_id, number, text) for number, text in enumerate(texts)]
    rows = tx.ask(
        "SELECT DISTINCT coalesce(w.message_id, given.id), w.message_id IS NULL FROM unnest(%s::bigint[], %s::int[],"
        " %s::text[]) AS given(id, part, words) FULL JOIN (SELECT * FROM message_words WHERE message_id ="
        " ANY(%s)) w ON w.message_id = given.id AND w.part = given.part WHERE w.words IS DISTINCT FROM given.words::tsvector"
        " ORDER BY 1",
        (*([list(column) for column in zip(*wanted, strict=True)] or [[], [], []]), message_ids),
    ).fetchall()
    for message_id, absent in rows:
        if absent:
            yield finding("fts-missing", f"message {message_id}", "is not in the full-text index")
        else:
            yield finding("fts-stale", f"message {message_id}", "the full-text index has another text")


# ---------------------------------------------------------------------------------------------- rewriting
#
# Tables and indexes written again without what was deleted.
#
# VACUUM FULL copies the rows of a table into a new file and builds its indexes from them, which is the only way a GIN index
# loses the words of deleted rows. It locks the table meanwhile. A role without the right gets a warning, not an error; that a
# table was rewritten is seen from its file, which is another one then. Deleted rows that an open transaction of another
# session may still see are copied as well; the server says how many, and the table is written again a moment later.

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
    busy, seen, remaining = [], [], list[int]()

    def on_notice(notice: errors.Diagnostic) -> None:
        # "3 dead row versions cannot be removed yet", in the server's language
        remaining.extend(int(count) for count in re.findall(r"\A\D*(\d+)", notice.message_detail or ""))

    connection.add_notice_handler(on_notice)
    connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'".encode())
    for table in before:
        try:
            for _ in range(TRIES):
                remaining.clear()
                # ANALYZE: the planner's statistics hold samples of the columns, also of the deleted rows.
                connection.execute(f'VACUUM (FULL, ANALYZE, VERBOSE) "{table}"'.encode())
                if not sum(remaining):
                    break
                time.sleep(PAUSE)
            else:
                seen.append(table)
        except (errors.LockNotAvailable, errors.QueryCanceled):
            busy.append(table)
    after = dict(connection.execute(_OURS).fetchall())
    same = [table for table, file in before.items() if after.get(table) == file and table not in busy]
    causes = (
        (busy, "can't be rewritten while others use them; try again"),
        (seen, "still hold deleted rows that an open transaction of another session may see; end it, and try again"),
        (same, "are not this role's to rewrite; their owner must run VACUUM FULL"),
    )
    return [f"{', '.join(tables)} in {where} {why}" for tables, why in causes if tables]

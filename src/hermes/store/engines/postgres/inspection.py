"""Checks that the index agrees with the messages and that their texts can be read.

Each message is tokenized again; the server compares the result with the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hermes.store import codec
from hermes.store.engines.base import finding
from hermes.store.engines.postgres.fulltext import BATCH, PostgresFullText
from hermes.store.engines.postgres.lexemes import entries

if TYPE_CHECKING:
    from hermes.store.rows import Finding

LONG = 60  # seconds: a running indexer needs a few


def drift(tx: Any, fulltext: PostgresFullText) -> Iterator[Finding]:
    """Messages the index lacks, entries without a message, entries of another text, damaged texts."""
    for (message_id,) in tx.rows(
        "SELECT DISTINCT w.message_id FROM message_words w LEFT JOIN messages m ON m.id = w.message_id WHERE m.id IS NULL"
    ):
        yield finding("fts-extra", f"message {message_id}", "is in the full-text index but not in the store")
    last = 0
    waiting = {row[0] for row in tx.rows("SELECT message_id FROM unindexed")}
    while rows := tx.rows("SELECT id, content_rest FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH)):
        last = rows[-1][0]
        for message_id, rest in rows:
            if not codec.is_whole(rest):
                yield finding("damaged-text", f"message {message_id}", "the rest of its text can't be unpacked")
        yield from _differing(tx, fulltext, [row[0] for row in rows if row[0] not in waiting])


def waiting_for_long(tx: Any) -> Iterator[Finding]:
    """Messages that no process indexes. Search finds them, but has to read them each time."""
    rows = tx.rows(
        "SELECT message_id, extract(epoch FROM clock_timestamp() - since)::bigint FROM unindexed"
        f" WHERE since < clock_timestamp() - interval '{LONG} seconds' ORDER BY message_id"
    )
    for message_id, seconds in rows:
        detail = f"has waited {seconds} s to be indexed; `hermes sessions optimize` does it now"
        yield finding("fts-waiting", f"message {message_id}", detail)


def _differing(tx: Any, fulltext: PostgresFullText, message_ids: list[int]) -> Iterator[Finding]:
    wanted = []
    for given, columns in fulltext.documents(tx, message_ids):
        texts = [words for _, _, _, _, words in entries(given, columns)]
        wanted += [(given, number, text) for number, text in enumerate(texts)]
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

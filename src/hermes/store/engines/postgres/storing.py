"""Storing a message in one statement: it is counted on its session, put in, and its words are indexed.

Each thing told to the server and answered costs about as much as the storing itself, so an append is three: the beginning
of a transaction, this, and the commit. With the id comes the transaction's number, by which the server can be asked
later what became of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hermes.store.engines.base import Params
from hermes.store.engines.postgres import texts
from hermes.store.engines.postgres.stretches import names_of
from hermes.store.engines.postgres.transaction import NUMBER, PostgresTx, translated

_ADD_WORDS = (
    "INSERT INTO words(word) SELECT word FROM {} unnest(%s::text[]) AS given(word)"
    " WHERE NOT EXISTS (SELECT 1 FROM words w WHERE w.word = given.word)"
)
ADD_WORDS = _ADD_WORDS.format("")
_WHOLE = f"SELECT id, 0, true, %s, (%s || {names_of('id')})::tsvector FROM said"
_PARTS = (
    f"SELECT id, place - 1, false, size, (words || {names_of('id')})::tsvector"
    " FROM said, unnest(%s::int[], %s::text[]) WITH ORDINALITY AS given(size, words, place)"
)


@lru_cache(maxsize=64)
def _statement(count: str, insert: str, whole: bool, new_words: bool) -> bytes:
    """`count` changes the session, or no row if there is none; `insert` is an INSERT … VALUES(…) of one row."""
    chosen = insert.replace(" VALUES(", " SELECT ", 1).removesuffix(")")
    steps = [
        f"WITH counted AS ({translated(count).decode()} RETURNING 1)",
        f"said AS ({translated(chosen).decode()} FROM counted RETURNING id)",
        f"indexed AS (INSERT INTO message_words {_WHOLE if whole else _PARTS})",
    ]
    if new_words:
        steps.append(f"learned AS ({_ADD_WORDS.format('counted,')})")
    return f"{', '.join(steps)} SELECT id, {NUMBER} FROM said".encode()


def store(
    tx: PostgresTx,
    count: tuple[str, Params],
    insert: tuple[str, Params],
    parts: Sequence[tuple[int, str]],
    new_words: Sequence[str],
) -> int | None:
    """Store a message with its words; its id, or None when there is no such session. See lexemes.parts."""
    values: list[Any] = texts.values([*count[1], *insert[1]])
    if len(parts) == 1:
        values += parts[0]
    else:
        values += [[size for size, _ in parts], [words for _, words in parts]]
    if new_words:
        values.append(new_words)
    row = tx.ask(_statement(count[0], insert[0], len(parts) == 1, bool(new_words)), values).fetchone()
    if row is None:
        return None
    message_id, number, now = row
    tx.numbered(number, now)
    return int(message_id)

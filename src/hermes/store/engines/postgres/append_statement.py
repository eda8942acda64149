"""Stores a message in one statement: counts it on its session, inserts it, and queues it for indexing.

Each round trip to the server costs about as much as the storing itself, so an append is three: the beginning
of a transaction, this, and the commit. The statement also returns the transaction's number, by which the server can be asked
later whether it was committed.
"""

from __future__ import annotations

from functools import lru_cache

from hermes.store.engines.base import Params
from hermes.store.engines.postgres import text_encoding
from hermes.store.engines.postgres.transaction import NUMBER, PostgresTx, translated


@lru_cache(maxsize=64)
def _statement(count: str, insert: str) -> bytes:
    """`count` changes the session, or no row if there is none; `insert` is an INSERT … VALUES(…) of one row."""
    chosen = insert.replace(" VALUES(", " SELECT ", 1).removesuffix(")")
    return (
        f"WITH counted AS ({translated(count).decode()} RETURNING 1),"
        f" said AS ({translated(chosen).decode()} FROM counted RETURNING id),"
        " noted AS (INSERT INTO unindexed(message_id) SELECT id FROM said)"
        f" SELECT id, {NUMBER} FROM said"
    ).encode()


def store(tx: PostgresTx, count: tuple[str, Params], insert: tuple[str, Params]) -> int | None:
    """Store a message; returns its id, or None when there is no such session."""
    row = tx.ask(_statement(count[0], insert[0]), text_encoding.values([*count[1], *insert[1]])).fetchone()
    if row is None:
        return None
    message_id, *told = row
    tx.numbered(*told)
    return int(message_id)

"""The tables in which a store keeps what it has sent and received: a document for each session, and the names of its messages.

The tables are made with the first synchronisation. No text of a message is in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes.store.engines.base import Engine, Tx, get_meta, note_meta, rows_among
from hermes.store.exchange.sync import document as documents
from hermes.store.exchange.sync.document import Document
from hermes.store.records import codec
from hermes.store.records.lineage import StoredRow

STORE = "sync_store"  # the key of state_meta with this store's permanent id
TABLES = (
    """CREATE TABLE IF NOT EXISTS sync_trees (
        tree TEXT PRIMARY KEY, state TEXT NOT NULL, version TEXT NOT NULL, fingerprint TEXT NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS sync_forks (session_id TEXT PRIMARY KEY, tree TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS sync_messages (
        origin TEXT PRIMARY KEY, tree TEXT NOT NULL, message_id INTEGER NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS idx_sync_messages ON sync_messages(message_id)",
    "CREATE TABLE IF NOT EXISTS sync_seen (name TEXT PRIMARY KEY)",
)


@dataclass(slots=True)
class TreeState:
    """The document of a session and its forks, and what this store had when it last compared them."""

    document: Document
    local: dict[str, Any] = field(default_factory=dict)  # by session, its values here when they were last compared
    version: str = ""
    fingerprint: str = ""
    known: bool = True  # it has been saved before

    @property
    def tree(self) -> str:
        return str(self.document["id"])


def prepare(engine: Engine) -> str:
    """Create the tables, if they do not exist; returns the permanent id of this store. Not inside a transaction."""
    with engine.read() as tx:
        there = tx.has_table("sync_seen")
        known = get_meta(tx, STORE) if there else None
    if known is not None:
        return str(known)
    engine.make_tables(TABLES)
    with engine.write() as tx:
        note_meta(tx, STORE, os.urandom(8).hex())
        return str(get_meta(tx, STORE))


def load(tx: Tx, tree: str) -> TreeState:
    """The state of a session; an empty one when it is not known."""
    row = tx.row("SELECT state, version, fingerprint FROM sync_trees WHERE tree = ?", (tree,))
    if row is None:
        return TreeState(documents.new(tree), known=False)
    kept = codec.from_json(row[0])
    return TreeState(kept["document"], kept["local"], row[1], row[2])


def save(tx: Tx, state: TreeState) -> None:
    """Store the state of a session."""
    text = documents.canonical({"document": state.document, "local": state.local})
    tx.run(
        "INSERT INTO sync_trees(tree, state, version, fingerprint) VALUES(?, ?, ?, ?) ON CONFLICT(tree) DO UPDATE SET"
        " state = excluded.state, version = excluded.version, fingerprint = excluded.fingerprint",
        (state.tree, text, state.version, state.fingerprint),
    )
    for fork in state.document["sessions"].keys() - {state.tree}:
        tx.run("INSERT INTO sync_forks(session_id, tree) VALUES(?, ?) ON CONFLICT DO NOTHING", (fork, state.tree))


def tree_of(tx: Tx, session_id: str) -> str:
    """The session whose document contains this one: itself, unless it is a fork."""
    found = tx.value("SELECT tree FROM sync_forks WHERE session_id = ?", (session_id,))
    return session_id if found is None else str(found)


def forks(tx: Tx) -> dict[str, str]:
    """By fork, its tree."""
    return {row[0]: row[1] for row in tx.rows("SELECT session_id, tree FROM sync_forks")}


def forks_of(tx: Tx, tree: str) -> list[str]:
    """The forks of a session."""
    return tx.column("SELECT session_id FROM sync_forks WHERE tree = ? ORDER BY session_id", (tree,))


def versions(tx: Tx) -> dict[str, tuple[str, str]]:
    """By session, the version of its document here, and how it looked when it was last compared."""
    return {row[0]: (row[1], row[2]) for row in tx.rows("SELECT tree, version, fingerprint FROM sync_trees")}


# ------------------------------------------------------------------------------------------ messages


def remember(tx: Tx, tree: str, origin: str, message_id: int) -> None:
    """Record the name that a message has among stores."""
    tx.run(
        "INSERT INTO sync_messages(origin, tree, message_id) VALUES(?, ?, ?) ON CONFLICT(origin) DO UPDATE SET"
        " message_id = excluded.message_id, tree = excluded.tree",
        (origin, tree, message_id),
    )


def origins(tx: Tx, ids: Sequence[int]) -> dict[int, str]:
    """By id, the names of these messages, as far as they have one."""
    return dict(rows_among(tx, "SELECT message_id, origin FROM sync_messages WHERE {these}", ids, "message_id"))


def rows_of(tx: Tx, names: Iterable[str]) -> dict[str, StoredRow]:
    """By name, the rows of these messages that are here."""
    sql = "SELECT y.origin, m.id, m.session_id, m.hidden FROM sync_messages y JOIN messages m ON m.id = y.message_id"
    rows = rows_among(tx, f"{sql} WHERE {{these}}", list(names), "y.origin")
    return {origin: StoredRow(*row) for origin, *row in rows}


def forget_missing(tx: Tx, tree: str) -> None:
    """Forget the names of messages of a session that are no longer stored."""
    sql = "DELETE FROM sync_messages WHERE tree = ? AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.id = message_id)"
    tx.run(sql, (tree,))


# ------------------------------------------------------------------------------------------ what was seen


def merged_versions(tx: Tx) -> set[str]:
    """The versions of documents that were merged here."""
    return set(tx.column("SELECT name FROM sync_seen"))


def mark_merged(tx: Tx, name: str) -> None:
    """Record that this version of a document was merged here."""
    tx.run("INSERT INTO sync_seen(name) VALUES(?) ON CONFLICT DO NOTHING", (name,))


def shredded(tx: Tx, session_ids: Iterable[str]) -> None:
    """Forget everything about shredded sessions but that they were shredded."""
    if not tx.has_table("sync_seen"):
        return
    for session_id in session_ids:
        tree = tree_of(tx, session_id)
        own = "SELECT id FROM messages WHERE session_id = ?"
        tx.run(f"DELETE FROM sync_messages WHERE message_id IN ({own})", (session_id,))
        state = load(tx, tree)
        if not state.known:
            continue
        state.document["sessions"][session_id] = {**documents.new_session(), "shred": True}
        state.document = documents.normal(state.document)
        state.local.pop(session_id, None)
        state.fingerprint = ""
        save(tx, state)

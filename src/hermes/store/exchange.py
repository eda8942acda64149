"""Sessions in and out: one dict a session with everything in it, and back without loss.

An export shows a session as the API shows it (carried messages in their places); what is needed to put the references
together again lies beside it. Importing keeps ids, is all or nothing a session, and a second time changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes.errors import InvalidInput
from hermes.store import messages, recovery, sessions
from hermes.store.engines.base import Engine, Tx
from hermes.store.visibility import User, session_clause

_BESIDE = ("tags", "members", "refs", "rewinds")


def export(tx: Tx, session_id: str, visible_to: User | None) -> dict[str, Any] | None:
    """A session with its messages; None when there is none to be seen."""
    session = sessions.get(tx, session_id, visible_to)
    if session is None:
        return None
    session["messages"] = [messages.decode(row) for row in messages.shown_rows(tx, session_id)]
    state = recovery.session_state(tx, session_id)
    session.update({key: state[key] for key in _BESIDE if state[key]})
    if state["hidden"]:
        hidden = {row[0]: row[1] for row in state["hidden"] if row[1] > 0}
        session["rewound_messages"] = [
            {**message, "hidden": hidden[message["id"]]} for message in recovery.own_messages(tx, session_id) if message["id"] in hidden
        ]
    return session


def export_ids(tx: Tx, source: str | None, visible_to: User | None) -> list[str]:
    """The sessions an export of all holds, oldest first (so that a parent comes before its children)."""
    where, params = session_clause(visible_to)
    if source is not None:
        where, params = f"{where} AND s.source = ?", [*params, source]
    return [row[0] for row in tx.rows(f"SELECT s.id FROM sessions s WHERE {where} ORDER BY s.started_at, s.id", params)]


def bring_in(engine: Engine, tx: Tx, data: dict[str, Any]) -> int | None:
    """Store an exported session; the number of messages, or None when its id is there already."""
    if not isinstance(data, dict) or not isinstance(data.get("id"), str):
        raise InvalidInput("an exported session is an object with an id")
    session_id = sessions.checked_id(data["id"])
    shown = data.get("messages") or []
    if not isinstance(shown, list) or not all(isinstance(m, dict) and m.get("role") for m in shown):
        raise InvalidInput(f"session {session_id}: messages is not a list of messages")
    if tx.row("SELECT 1 FROM sessions WHERE id = ?", (session_id,)) is not None:
        return None
    recovery.insert_session(tx, {key: value for key, value in data.items() if key not in ("messages", *_BESIDE)})
    session = recovery.Replayed(session_id)
    session.columns["id"] = session_id
    whole = _refs_hold(tx, data, shown, session_id)
    for message in [*shown, *(data.get("rewound_messages") or [])]:
        owner = message.get("session_id", session_id)
        if owner != session_id and whole:
            continue  # carried, and the session that owns it is here
        if isinstance(message.get("id"), int):
            session.messages.setdefault(message["id"], message)
        else:
            session.loose.append(message)
    count = recovery.insert_messages(engine, tx, session)
    state = {key: data[key] for key in _BESIDE if key in data}
    if not whole:
        state.pop("refs", None)
        state.pop("rewinds", None)
    else:
        state["hidden"] = [[m["id"], m["hidden"]] for m in data.get("rewound_messages") or []]
    recovery.set_state(tx, session_id, state)
    messages.recount(tx, session_id)
    if data.get("last_active") is not None:
        tx.run("UPDATE sessions SET last_active = coalesce(last_active, ?) WHERE id = ? AND message_count > 0",
               (data["last_active"], session_id))  # fmt: skip
    return count


def _refs_hold(tx: Tx, data: dict[str, Any], shown: list[dict[str, Any]], session_id: str) -> bool:
    """Whether every carried message is here under the same id and owner (else they become the session's own)."""
    if not data.get("refs"):
        return not any(message.get("session_id", session_id) != session_id for message in shown)
    for message in shown:
        owner = message.get("session_id", session_id)
        if owner != session_id and tx.value("SELECT session_id FROM messages WHERE id = ?", (message.get("id"),)) != owner:
            return False
    return True


def iterate(engine: Engine, source: str | None, visible_to: User | None) -> Iterator[dict[str, Any]]:
    """Exported sessions one by one, in constant memory."""
    with engine.read() as tx:
        ids = export_ids(tx, source, visible_to)
    for session_id in ids:
        with engine.read() as tx:
            data = export(tx, session_id, visible_to)
        if data is not None:
            yield data


def cut_loose_parents(tx: Tx) -> int:
    """After an import: a parent that did not come along is no parent."""
    return tx.run(
        "UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM sessions p WHERE p.id = sessions.parent_session_id)"
    )


def is_database(path: Path) -> bool:
    """Whether a file begins like a SQLite database."""
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


__all__ = ["bring_in", "cut_loose_parents", "export", "export_ids", "is_database", "iterate"]

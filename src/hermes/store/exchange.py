"""Sessions in and out: one dict a session with everything in it, and back without loss.

An export shows a session as the API shows it (carried messages in their places); what is needed to put the references
together again lies beside it. Importing keeps ids, is all or nothing a session, and a second time changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hermes.errors import InvalidInput
from hermes.store import codec, messages, recovery, sessions
from hermes.store.engines.base import KEPT, Engine, Tx
from hermes.store.retention import META_LAST_PRUNE
from hermes.store.visibility import User, session_clause

OWN_KEYS = ("fts_indexed_to", "words_noted_to", "adopted_to")  # what an engine notes about its own index
_BESIDE = ("tags", "members", "refs", "rewinds")
KINDS = "attachment_kinds"  # by hash, what a message said of the bytes: their type and how many there are


def export(tx: Tx, session_id: str, visible_to: User | None) -> dict[str, Any] | None:
    """A session with its messages; None when there is none to be seen."""
    session = sessions.get(tx, session_id, visible_to)
    if session is None:
        return None
    session["messages"] = [messages.decode(row) for row in messages.shown_rows(tx, session_id)]
    state = recovery.session_state(tx, session_id)
    session.update({key: state[key] for key in _BESIDE if state[key]})
    if kinds := messages.attachment_kinds(tx, session_id):
        session[KINDS] = kinds
    if state["hidden"]:
        hidden = {row[0]: row[1] for row in state["hidden"] if row[1] != KEPT}
        session["rewound_messages"] = [
            {**message, "hidden": hidden[message["id"]]}
            for message in recovery.own_messages(tx, session_id)
            if message["id"] in hidden
        ]
    return session


def export_ids(tx: Tx, source: str | None, visible_to: User | None) -> list[str]:
    """The sessions an export of all holds, oldest first (so that a parent comes before its children)."""
    where, params = session_clause(visible_to)
    if source is not None:
        where, params = f"{where} AND s.source = ?", [*params, source]
    return [row[0] for row in tx.rows(f"SELECT s.id FROM sessions s WHERE {where} ORDER BY s.started_at, s.id", params)]


def bring_in(engine: Engine, tx: Tx, data: dict[str, Any], ids: dict[int, int]) -> bool:
    """Store an exported session; False when its id is there already.

    A message keeps its id unless another message has it; `ids` tells the new one to sessions that come later and refer to it.
    """
    if not isinstance(data, dict) or not isinstance(data.get("id"), str):
        raise InvalidInput("an exported session is an object with an id")
    session_id = sessions.checked_id(data["id"])
    shown = data.get("messages") or []
    if not isinstance(shown, list) or not all(isinstance(m, dict) and m.get("role") for m in shown):
        raise InvalidInput(f"session {session_id}: messages is not a list of messages")
    if tx.row("SELECT 1 FROM sessions WHERE id = ?", (session_id,)) is not None:
        return False
    beside = ("messages", "rewound_messages", KINDS, *_BESIDE)
    recovery.insert_session(tx, {key: value for key, value in data.items() if key not in beside})
    session = recovery.Replayed(session_id)
    rewound = data.get("rewound_messages") or []
    whole = _refs_hold(tx, data, shown, session_id, ids)
    for message in [*shown, *rewound]:
        if message.get("session_id", session_id) != session_id and whole:
            continue  # carried, and the session that owns it is here
        if isinstance(message.get("id"), int):
            session.messages.setdefault(message["id"], message)
        else:
            session.loose.append(message)
    ids.update(recovery.insert_messages(engine, tx, session))
    recovery.set_state(tx, session_id, _state(data, rewound, ids, whole))
    messages.set_attachment_kinds(tx, session_id, data.get(KINDS) or {})
    messages.recount(tx, session_id)
    return True


def _refs_hold(tx: Tx, data: dict[str, Any], shown: list[dict[str, Any]], session_id: str, ids: dict[int, int]) -> bool:
    """Whether every carried message is here and belongs to the same session (else they become the session's own)."""
    for message in shown:
        owner = message.get("session_id", session_id)
        if owner == session_id:
            continue
        old = message.get("id")
        if not data.get("refs") or not isinstance(old, int):
            return False
        row = tx.row("SELECT session_id, timestamp FROM messages WHERE id = ?", (ids.get(old, old),))
        if row is None or tuple(row) != (owner, message.get("timestamp")):
            return False
    return True


def _state(data: dict[str, Any], rewound: list[dict[str, Any]], ids: dict[int, int], whole: bool) -> dict[str, Any]:
    """Tags, members and references of an export, with the ids messages have here."""
    state: dict[str, Any] = {key: data[key] for key in ("tags", "members") if key in data}

    def new(old: int) -> int:
        return ids.get(old, old)

    if whole:
        state["refs"] = [
            [ord_, owner, new(first), new(last), new(after), hidden, born]
            for ord_, owner, first, last, after, hidden, born in data.get("refs") or []
        ]
        state["rewinds"] = [[batch, new(cut)] for batch, cut in data.get("rewinds") or []]
        state["hidden"] = [[new(message["id"]), message["hidden"]] for message in rewound]
    return state


def iterate(engine: Engine, source: str | None, visible_to: User | None) -> Iterator[dict[str, Any]]:
    """Exported sessions one by one, in constant memory."""
    with engine.read() as tx:
        ids = export_ids(tx, source, visible_to)
    for session_id in ids:
        with engine.read() as tx:
            data = export(tx, session_id, visible_to)
        if data is not None:
            yield data


def meta_of(tx: Tx) -> list[tuple[Any, ...]]:
    """What programs have set with set_meta, without the store's own notes."""
    return [
        (key, value)
        for key, value in tx.rows("SELECT key, value FROM state_meta ORDER BY key")
        if codec.restored(key) not in (*OWN_KEYS, META_LAST_PRUNE)
    ]


def bring_meta(tx: Tx, values: list[tuple[Any, ...]]) -> None:
    """Set what is not set here yet."""
    for key, value in values:
        tx.run("INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT DO NOTHING", (key, value))


__all__ = ["bring_in", "bring_meta", "export", "export_ids", "iterate", "meta_of"]

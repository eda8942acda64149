"""Export of sessions: one complete dict per session, which `ingest.py` brings back without loss.

An export shows a session as the API shows it (carried messages in their places); separate keys hold what is needed
to restore the references.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from hermes.store import codec, lineage, message_reading, session_events, sessions, transcript_replay
from hermes.store.attachments import ABSENT
from hermes.store.engines.base import KEPT, REDACTED, REPLACED, Engine, Tx
from hermes.store.retention import META_LAST_PRUNE, SHREDDING
from hermes.store.session_copies import BACKUP
from hermes.store.transcript_replay import SessionState
from hermes.store.visibility import User, session_clause

if TYPE_CHECKING:
    from hermes.store.rows import ExportedSession, HiddenMessage, MessageRow, RedactedMessage

# Keys in which a store records its own index, changes and tables.
OWN_KEYS = (
    "fts_indexed_to", "fts_form", "words_removed", "adopted_to", "session_events", "sync_store",
    "meaning",
)  # fmt: skip
_SYNCED = "sync_shred:"  # prefix of the keys in which a store records what it still has to shred
IMPORTED_FILE = "history:"  # prefix of the keys that record which file of another program was read, and when


def export(tx: Tx, session_id: str, visible_to: User | None) -> ExportedSession | None:
    """A session with its messages; None when there is none visible."""
    row = sessions.get(tx, session_id, visible_to)
    if row is None:
        return None
    shown = [message_reading.decode(one) for one in message_reading.shown_rows(tx, session_id)]
    state = transcript_replay.session_state(tx, session_id)
    rewound: list[Any] = _rewound(tx, session_id, shown, state)
    if visible_to is not None:
        rewound = [one for one in map(_for_others, rewound) if one is not None]
    beside: dict[str, Any] = {key: state[key] for key in ("tags", "members", "refs", "rewinds")}
    beside |= {"events": session_events.of_session(tx, session_id), "rewound_messages": rewound}
    session = {**row, "messages": shown, **{key: value for key, value in beside.items() if value}}
    attached = message_reading.attached(tx, session_id)
    every = [*shown, *rewound]
    listed = {str(one["id"]): attached[one["id"]] for one in every if one["id"] in attached}
    if listed or any(message_reading.mentions(one["content"]) for one in every):
        session["attached"] = listed  # {}: they only read like it
    return cast("ExportedSession", session)


def _rewound(tx: Tx, session_id: str, shown: Sequence[MessageRow], state: SessionState) -> list[HiddenMessage]:
    """Messages a session no longer shows, its own and carried ones, each with `hidden`: the batch of the rewind that hid it,
    or the code of a redaction or edit."""
    hidden = {message_id: kind for message_id, kind in state["hidden"] if kind != KEPT}
    found = {m["id"]: m for m in transcript_replay.own_messages(tx, session_id) if m["id"] in hidden} if hidden else {}
    told = {message["id"] for message in shown}
    for _, owner, first, last, _, rewound, _ in state["refs"]:
        sql = f"SELECT {message_reading.ROW}, m.hidden FROM messages m WHERE m.session_id = ? AND m.id BETWEEN ? AND ?"
        if rewound is None:
            sql += f" AND m.hidden = {REDACTED}"
        for *row, kind in tx.rows(f"{sql} ORDER BY m.id", (owner, first, last)):
            message_id = row[0]
            if message_id not in told and kind != REPLACED:
                found[message_id] = message_reading.decode(tuple(row))
                hidden.setdefault(message_id, REDACTED if kind == REDACTED else rewound)
    return [{**message, "hidden": hidden[number]} for number, message in sorted(found.items())]


def _for_others(message: HiddenMessage) -> HiddenMessage | RedactedMessage | None:
    """A hidden message in an export for a user who is not the owner: a redacted one's place, no earlier version."""
    if message["hidden"] == REPLACED:
        return None
    if message["hidden"] != REDACTED:
        return message
    place: Any = {name: message.get(name) for name in ("id", "session_id", "role", "timestamp", "hidden")}
    return cast("RedactedMessage", {**place, "content": None})


def iterate(engine: Engine, source: str | None, visible_to: User | None) -> Iterator[ExportedSession]:
    """Exported sessions one by one, in constant memory: oldest first, so that a parent comes before its children."""
    where, params = session_clause(visible_to)
    if source is not None:
        where, params = f"{where} AND s.source = ?", [*params, source]
    with engine.read() as tx:
        ids = tx.rows(f"SELECT s.id FROM sessions s WHERE {where} ORDER BY s.started_at, s.id", params)
    for (session_id,) in ids:
        with engine.read() as tx:
            data = export(tx, session_id, visible_to)
        if data is not None:
            yield data


def meta_of(tx: Tx) -> list[tuple[Any, ...]]:
    """Values that programs have set with set_meta, without the store's own keys."""
    own = (lineage.AWAITED, ABSENT, BACKUP, IMPORTED_FILE, SHREDDING, _SYNCED)
    rows = ((codec.restored(key), value) for key, value in tx.rows("SELECT key, value FROM state_meta ORDER BY key"))
    named = (row for row in rows if row[0] not in (*OWN_KEYS, META_LAST_PRUNE))
    return [(codec.storable(key), value) for key, value in named if not str(key).startswith(own)]


def bring_meta(tx: Tx, values: list[tuple[Any, ...]]) -> None:
    """Set the values that are not set here yet."""
    for key, value in values:
        stored = codec.storable(value) if isinstance(value, str) else value
        tx.run("INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT DO NOTHING", (key, stored))

"""Export and import of sessions: one complete dict per session, and back without loss.

An export shows a session as the API shows it (carried messages in their places); separate keys hold what is needed
to restore the references. Importing keeps ids, is atomic per session, and changes nothing the second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hermes.errors import InvalidInput
from hermes.store import (
    carried_messages,
    codec,
    lineage,
    message_attachments,
    message_reading,
    messages,
    session_events,
    sessions,
    transcript_replay,
)
from hermes.store.attachments import ABSENT, HAD
from hermes.store.carried_messages import HIGHEST, Touched, usable_id
from hermes.store.engines.base import KEPT, REDACTED, REPLACED, Engine, Tx
from hermes.store.lineage import Place
from hermes.store.retention import META_LAST_PRUNE, SHREDDING
from hermes.store.session_copies import BACKUP
from hermes.store.transcript_replay import SessionState, ToldState
from hermes.store.visibility import User, session_clause

if TYPE_CHECKING:
    from hermes.store.rows import ExportedSession, HiddenMessage, MessageRow, RedactedMessage

# Keys in which a store records its own index, changes and tables.
OWN_KEYS = (
    "fts_indexed_to", "words_noted_to", "words_removed", "adopted_to", "changes_noted_after", "session_events", "sync_store",
    "meaning",
)  # fmt: skip
_SYNCED = "sync_shred:"  # prefix of the keys in which a store records what it still has to shred
IMPORTED_FILE = "history:"  # prefix of the keys that record which file of another program was read, and when
_BESIDE = ("tags", "members", "refs", "rewinds")  # keys of SessionState
_EVENTS = "events"
FILES = "attachments"  # by hash, the bytes of attachments (or their base64), where an export carries them
ATTACHED = "attached"  # by message id, its attachments; where this key is, no other message has any
KINDS = "attachment_kinds"  # of earlier exports: by hash, type and size


def export(tx: Tx, session_id: str, visible_to: User | None) -> ExportedSession | None:
    """A session with its messages; None when there is none visible."""
    row = sessions.get(tx, session_id, visible_to)
    if row is None:
        return None
    shown = [message_reading.decode(one) for one in message_reading.shown_rows(tx, session_id)]
    session = cast("ExportedSession", {**row, "messages": shown})  # the other keys are put in where there is something
    state = transcript_replay.session_state(tx, session_id)
    if state["tags"]:
        session["tags"] = state["tags"]
    if state["members"]:
        session["members"] = state["members"]
    if state["refs"]:
        session["refs"] = state["refs"]
    if state["rewinds"]:
        session["rewinds"] = state["rewinds"]
    if happened := session_events.of_session(tx, session_id):
        session["events"] = happened
    rewound: list[HiddenMessage | RedactedMessage] = []
    if hidden := _rewound(tx, session_id, shown, state):
        rewound += hidden if visible_to is None else [one for one in map(_for_others, hidden) if one is not None]
        session["rewound_messages"] = rewound
    told = message_attachments.attached(tx, session_id)
    every = [*shown, *rewound]
    if listed := {message["id"]: told[message["id"]] for message in every if message["id"] in told}:
        session["attached"] = {str(number): one for number, one in listed.items()}
    elif any(message_attachments.mentions(message["content"]) for message in every):
        session["attached"] = {}  # they only read like it
    return session


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
    """What sessions other than the owner export of a hidden message: a redacted one's place, no earlier version."""
    if message["hidden"] == REPLACED:
        return None
    if message["hidden"] != REDACTED:
        return message
    return {
        "id": message["id"],
        "session_id": message["session_id"],
        "role": message["role"],
        "timestamp": message["timestamp"],
        "hidden": REDACTED,
        "content": None,
    }


def export_ids(tx: Tx, source: str | None, visible_to: User | None) -> list[str]:
    """The sessions in an export of all, oldest first (so that a parent comes before its children)."""
    where, params = session_clause(visible_to)
    if source is not None:
        where, params = f"{where} AND s.source = ?", [*params, source]
    return [row[0] for row in tx.rows(f"SELECT s.id FROM sessions s WHERE {where} ORDER BY s.started_at, s.id", params)]


def bring_in(engine: Engine, tx: Tx, data: Mapping[str, Any], ids: dict[int, int]) -> Touched | None:
    """Store an exported session; None when its id exists, else the other sessions that changed.

    A message keeps its id unless another message has it; `ids` maps it to the new one for later sessions that refer to it.
    Messages carried from other sessions stay theirs; if those are not here, they belong to a shell (carried_messages.py).
    """
    if not isinstance(data, dict) or not isinstance(data.get("id"), str):
        raise InvalidInput("an exported session is an object with an id")
    session_id = sessions.checked_id(data["id"])
    shown, rewound = _told(data, "messages"), _told(data, "rewound_messages")
    if tx.row("SELECT 1 FROM sessions WHERE id = ?", (session_id,)) is not None:
        return None
    beside = ("messages", "rewound_messages", _EVENTS, FILES, ATTACHED, KINDS, *_BESIDE)
    transcript_replay.insert_session(tx, {key: value for key, value in data.items() if key not in beside})
    touched = Touched()
    carried_messages.await_parent(tx, session_id)
    refs = data.get("refs") or []
    own, others = _parted(session_id, shown, rewound, refs)
    given = carried_messages.bring_own(engine, tx, session_id, own, touched)
    here: dict[int, int] = {m["id"]: new for m, new in zip(own, given, strict=True) if usable_id(m.get("id"))}
    ids.update(here)
    places: dict[int, Place] = {}
    for owner, entries in others.items():
        places.update(carried_messages.keep(engine, tx, owner, entries, ids, touched))
    state: ToldState = {key: data[key] for key in ("tags", "members") if key in data}
    new = {**here, **{old: place[0] for old, place in places.items()}}
    state["rewinds"] = [[batch, new.get(cut, 0)] for batch, cut in data.get("rewinds") or [] if not cut or cut in new]
    state["hidden"] = [[here[m["id"]], m["hidden"]] for m in rewound if m.get("id") in here and m.get("hidden")]
    transcript_replay.set_state(tx, session_id, state)
    carried_messages.state(tx, session_id, _ranges(tx, refs, others, places, here))
    shown_here = {id(m): new_id for m, new_id in zip(own, given, strict=True)}
    expected = [shown_here[id(m)] if id(m) in shown_here else places[m["id"]][0] for m in shown]
    gone = f"SELECT 1 FROM messages WHERE id = ? AND hidden = {REDACTED}"  # redacted here since the export was made
    expected = [one for one in expected if not others or tx.row(gone, (one,)) is None]
    if [place[0] for place in lineage.shown_places(tx, session_id)] != expected:
        _lay_out(tx, session_id, expected, {place[0]: place for place in places.values()})
    if has_events(data):
        session_events.bring_in(tx, session_id, data[_EVENTS], new)
    message_attachments.set_attachment_kinds(tx, session_id, data.get(KINDS) or {})
    messages.recount(tx, session_id)
    carried_messages.find_children(tx, session_id, touched)
    return touched


def has_events(data: Any) -> bool:
    """Whether an exported session has events, for which `events.prepare` creates the table."""
    return isinstance(data, dict) and isinstance(data.get(_EVENTS), list) and bool(data[_EVENTS])


def _told(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    told = data.get(key) or []
    if not isinstance(told, list) or not all(isinstance(m, dict) and m.get("role") for m in told):
        raise InvalidInput(f"session {data['id']}: {key} is not a list of messages")
    attached = data.get(ATTACHED)
    if not isinstance(attached, dict):
        return told
    return [{**message, "attachments": attached.get(str(message.get("id")), [])} for message in told]


def with_attachments(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """An exported session whose messages list their attachments, as append_message would."""
    return {**data, **{key: _told(data, key) for key in ("messages", "rewound_messages")}}


def _parted(
    session_id: str, shown: list[Mapping[str, Any]], rewound: list[Mapping[str, Any]], refs: list[list[Any]]
) -> tuple[list[Mapping[str, Any]], dict[str, list[Mapping[str, Any]]]]:
    """A session's own messages in their order, and by owner those that it refers to."""
    own: list[Mapping[str, Any]] = []
    others: dict[str, list[Mapping[str, Any]]] = {}
    shown_own = 0
    for number, message in enumerate((*shown, *rewound), 1):
        owner, old = message.get("session_id", session_id), message.get("id")
        refers = (whose == owner and first <= old <= last for _, whose, first, last, *_ in refs)
        if owner != session_id and usable_id(old) and any(refers):
            others.setdefault(owner, []).append(message)
        else:
            own.append(message)
        if number == len(shown):
            shown_own = len(own)
    if not shown or all(map(usable_id, (m.get("id") for m in own))):
        numbers = [m["id"] for m in own[:shown_own]]
        if numbers == sorted(set(numbers)):  # sorted: insert rewound messages at their place
            own.sort(key=_number)
    for entries in others.values():
        entries.sort(key=lambda message: message["id"])
    return own, others


def _number(message: Mapping[str, Any]) -> int:
    return message["id"] if usable_id(message.get("id")) else HIGHEST


def _ranges(
    tx: Tx,
    refs: list[list[Any]],
    others: dict[str, list[Mapping[str, Any]]],
    places: dict[int, Place],
    here: dict[int, int],
) -> list[tuple[Any, ...]]:
    """The ranges of an export, with the owners and ids of the messages here."""
    out: list[tuple[Any, ...]] = []
    for _, owner, first, last, after, rewound, born in refs:
        named = [places[m["id"]] for m in others.get(owner, ()) if first <= m["id"] <= last]
        anchor = here.get(after, -1) if after else 0  # a missing anchor: they are placed at the end, as before
        out += [(*one, anchor, rewound, born) for one in lineage.ranges(tx, named)]
    return out


def _lay_out(tx: Tx, session_id: str, expected: list[int], places: dict[int, Place]) -> None:
    """An export whose ranges don't give the messages it shows: the messages count, and its rewinds can't be undone here."""
    tx.run("DELETE FROM session_rewinds WHERE session_id = ?", (session_id,))
    refs: list[tuple[Any, ...]] = []
    after, run = 0, list[Place]()
    for number in [*expected, 0]:
        if number in places:
            run.append(places[number])
            continue
        refs += [(*one, after, None, None) for one in lineage.ranges(tx, run)]
        after, run = number, []
    carried_messages.state(tx, session_id, refs)


def iterate(engine: Engine, source: str | None, visible_to: User | None) -> Iterator[ExportedSession]:
    """Exported sessions one by one, in constant memory."""
    with engine.read() as tx:
        ids = export_ids(tx, source, visible_to)
    for session_id in ids:
        with engine.read() as tx:
            data = export(tx, session_id, visible_to)
        if data is not None:
            yield data


def meta_of(tx: Tx) -> list[tuple[Any, ...]]:
    """Values that programs have set with set_meta, without the store's own keys."""
    return [
        (key, value)
        for key, value in tx.rows("SELECT key, value FROM state_meta ORDER BY key")
        if codec.restored(key) not in (*OWN_KEYS, META_LAST_PRUNE)
        and not str(codec.restored(key)).startswith(
            (carried_messages.AWAITED, ABSENT, BACKUP, HAD, IMPORTED_FILE, SHREDDING, _SYNCED)
        )
    ]


def bring_meta(tx: Tx, values: list[tuple[Any, ...]]) -> None:
    """Set the values that are not set here yet."""
    for key, value in values:
        tx.run("INSERT INTO state_meta(key, value) VALUES(?, ?) ON CONFLICT DO NOTHING", (key, value))


__all__ = ["bring_in", "bring_meta", "export", "export_ids", "has_events", "iterate", "meta_of", "with_attachments"]

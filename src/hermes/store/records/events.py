"""Session events: what happened in a session that is no message; that the model failed to answer, or what it recalled.

An event lies between messages: it is never sent to a model, counted or searched. It is copied with the messages: to
transcripts, exports, another store.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from hermes.store.engines.base import Tx
from hermes.store.records import codec
from hermes.store.records.rows import SessionEvent

MODEL_ERROR = "model_error"
RECALLED = "recalled"  # its text: the ids of the messages that the model got beside the question
MOST_CHARACTERS = 2_000  # of a text


def record(tx: Tx, session_id: str, kind: str, text: str) -> SessionEvent:
    """Record an event after the newest message of a session; returns the event."""
    after = tx.value(
        "SELECT max(id) FROM (SELECT max(id) AS id FROM messages WHERE session_id = ? AND hidden IS NULL UNION ALL"
        " SELECT max(last_id) FROM session_refs WHERE session_id = ? AND rewound IS NULL) AS shown",
        (session_id, session_id),
    )
    event: SessionEvent = {"at": time.time(), "after": int(after or 0), "kind": kind, "text": text[:MOST_CHARACTERS]}
    _insert(tx, session_id, [event])
    return event


def of_session(tx: Tx, session_id: str) -> list[SessionEvent]:
    """The events of a session, oldest first."""
    sql = "SELECT at, after_id, kind, text FROM session_events WHERE session_id = ? ORDER BY ord"
    rows = tx.rows(sql, (session_id,))
    return [{"at": at, "after": after, "kind": codec.restored(kind), "text": codec.restored(text)}
            for at, after, kind, text in rows]  # fmt: skip


def add_missing(tx: Tx, session_id: str, entries: Iterable[Any], ids: Mapping[int, int]) -> None:
    """Add events of a transcript or an export that are missing here; `ids` has the new ids of messages."""
    known = {event["at"] for event in of_session(tx, session_id)}
    fresh = [event for event in map(_checked, entries) if event is not None and event["at"] not in known]
    _insert(tx, session_id, [{**event, "after": ids.get(event["after"], event["after"])} for event in fresh])


def forget(tx: Tx, session_id: str) -> None:
    """Remove the events of a session."""
    tx.run("DELETE FROM session_events WHERE session_id = ?", (session_id,))


def from_entry(entry: Mapping[str, Any]) -> SessionEvent | None:
    """The event in a line of a transcript, if the line is one: a line about a change of the session has no text."""
    return _checked({**entry, "kind": entry.get("event")}) if entry.get("type") == "event" else None


def line_of(event: SessionEvent) -> dict[str, Any]:
    """An event as a line of a transcript."""
    return {"type": "event", "event": event["kind"], "at": event["at"], "after": event["after"], "text": event["text"]}


def interleaved(messages: Sequence[Any], events: Sequence[SessionEvent]) -> Iterator[tuple[bool, Any]]:
    """(False, message) and (True, event) in chronological order.

    An event follows the message it came after; where that message is not shown, it is placed by its time.
    """
    places = {message["id"]: number for number, message in enumerate(messages) if "id" in message}
    placed = [((number, 0), (False, message)) for number, message in enumerate(messages)]
    for event in events:
        place = places.get(event["after"])
        if place is None:
            later = (n for n, message in enumerate(messages) if (message.get("timestamp") or 0) > event["at"])
            place = next(later, len(messages)) - 1
        placed.append(((place, 1), (True, event)))
    placed.sort(key=itemgetter(0))
    return (one for _, one in placed)


def described(event: SessionEvent) -> str:
    """An event in one line for people."""
    text = " ".join(str(event["text"]).split())
    if event["kind"] == RECALLED:
        return f"recalled from earlier conversations: {', '.join(f'#{one}' for one in text.split())}"
    return f"the model did not answer: {text}" if event["kind"] == MODEL_ERROR else f"{event['kind']}: {text}"


def _insert(tx: Tx, session_id: str, events: Sequence[SessionEvent]) -> None:
    first = 1 + int(tx.value("SELECT coalesce(max(ord), 0) FROM session_events WHERE session_id = ?", (session_id,)))
    sql = "INSERT INTO session_events(session_id, ord, at, after_id, kind, text) VALUES(?, ?, ?, ?, ?, ?)"
    tx.run_many(sql, [(session_id, number, *event.values()) for number, event in enumerate(events, first)])


def _checked(event: Any) -> SessionEvent | None:
    """An event from a file, if it is valid."""
    if not isinstance(event, Mapping):
        return None
    at, after, kind, text = (event.get(name) for name in ("at", "after", "kind", "text"))
    when = codec.number(at, "REAL")
    if when is None or not isinstance(after, int) or not isinstance(kind, str) or not isinstance(text, str):
        return None
    return {"at": when, "after": after, "kind": kind, "text": text[:MOST_CHARACTERS]}

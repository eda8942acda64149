"""The gateway's inbox: events stay until they are answered, so that a kill loses and doubles none.

An event is in the inbox before its receipt is confirmed to its platform. It is begun when a turn takes it, linked to
the message it became (in the same transaction), and finished together with the parts of its reply entering the outbox
(gateway_outbox.py). Its text is deleted then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hermes.errors import StoreError
from hermes.store import leases
from hermes.store.engines.base import REDACTED, Tx

_EARLY = "early:"  # prefix of the id of an event that was edited before it arrived
_INBOX = "id, platform, event_id, key, event, received_at, begun_at, session_id, message_id, shown"


@dataclass(slots=True)
class Received:
    """An event that waits to be answered."""

    id: int
    platform: str
    event_id: str
    key: str
    event: str  # JSON
    received_at: float
    begun_at: float | None  # set: a process has begun it
    session_id: str | None
    message_id: int | None  # its message in that session
    shown: str | None  # the platform's ids of the messages that show its growing reply, one a line; "": perhaps one


class Revised(StoreError):
    """The event was edited or deleted: the text to store is out of date."""


@dataclass(slots=True)
class KnownEvent:
    """The state of an event."""

    inbox_id: int | None  # it waits there, or is being answered
    event: str | None  # JSON, as long as it does
    message_ids: list[int]  # its messages in the store


def receive(tx: Tx, platform: str, event_id: str, key: str, event: str, now: float) -> tuple[int | None, bool]:
    """Store an event; returns its number, also when it is already stored and waits, and whether it is new.

    The number is None when it was already answered.
    """
    event = _as_edited(tx, platform, event_id, event)
    made = tx.rows(
        "INSERT INTO gateway_inbox(platform, event_id, key, event, received_at) VALUES(?, ?, ?, ?, ?)"
        " ON CONFLICT(platform, event_id) DO NOTHING RETURNING id",
        (platform, event_id, key, event, now),
    )
    if made:
        return int(made[0][0]), True
    sql = "SELECT id FROM gateway_inbox WHERE platform = ? AND event_id = ? AND finished_at IS NULL"
    known = tx.value(sql, (platform, event_id))
    return None if known is None else int(known), False


def waiting_before(tx: Tx, key: str, inbox_id: int, least: int = 0) -> list[int]:
    """The numbers, from this least one on, of events that wait in a chat and arrived before an event there."""
    rows = tx.rows(
        "SELECT id FROM gateway_inbox WHERE key = ? AND finished_at IS NULL AND id >= ? AND id < ?",
        (key, least, inbox_id),
    )
    return [int(row[0]) for row in rows]


def _as_edited(tx: Tx, platform: str, event_id: str, event: str) -> str:
    """An event with the text of its newest edit, where that arrived before it and is by the same sender."""
    sql = "SELECT event FROM gateway_inbox WHERE platform = ? AND event_id = ?"
    early = tx.value(sql, (platform, _EARLY + event_id))
    if early is None:
        return event
    first, edited = json.loads(event), json.loads(early)
    senders = [one.get("sender", {}) for one in (first, edited)]
    one, other = (sender.get("stable_id") or sender.get("user_id") for sender in senders)
    return json.dumps({**first, "text": edited.get("text", "")}) if one == other else event


def keep_early(tx: Tx, platform: str, event_id: str, edited: str | None, now: float) -> None:
    """Record an edit (to this event) or a deletion (None) of an event that has not arrived yet: `receive` applies it."""
    if edited is None:
        note(tx, platform, event_id, None, now)  # as if it were answered
        return
    tx.run(
        "INSERT INTO gateway_inbox(platform, event_id, key, event, received_at, finished_at) VALUES(?, ?, '', ?, ?, ?)"
        " ON CONFLICT(platform, event_id) DO UPDATE SET event = excluded.event",
        (platform, _EARLY + event_id, edited, now, now),
    )


def unanswered(tx: Tx) -> list[Received]:
    """Events that wait to be answered, in the order of arrival."""
    return [
        Received(*row) for row in tx.rows(f"SELECT {_INBOX} FROM gateway_inbox WHERE finished_at IS NULL ORDER BY id")
    ]


def some(tx: Tx, inbox_ids: Sequence[int]) -> list[Received]:
    """Those of these events that wait to be answered, in the order of arrival."""
    return [
        Received(*row)
        for row in tx.rows(
            f"SELECT {_INBOX} FROM gateway_inbox WHERE finished_at IS NULL AND id IN ({marks(inbox_ids)}) ORDER BY id",
            inbox_ids,
        )
    ]


def marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values)) or "NULL"


def still(tx: Tx, inbox_id: int) -> Received | None:
    """An event as stored, if it still waits to be answered."""
    row = tx.row(f"SELECT {_INBOX} FROM gateway_inbox WHERE id = ? AND finished_at IS NULL", (inbox_id,))
    return None if row is None else Received(*row)


def progress(tx: Tx, platform: str, event_id: str) -> tuple[bool, int, str | None] | None:
    """The progress of an event: whether it is finished, how many parts of its reply are not sent, and which error they had.

    None when it was never stored.
    """
    row = tx.row("SELECT id, finished_at FROM gateway_inbox WHERE platform = ? AND event_id = ?", (platform, event_id))
    if row is None:
        return None
    if row[1] is None:
        return False, 0, None  # its reply enters the outbox when it is finished
    unsent = tx.value(
        "SELECT count(*) FROM gateway_outbox WHERE inbox_id = ? AND sent_at IS NULL AND error IS NULL", (row[0],)
    )
    error = tx.value("SELECT error FROM gateway_outbox WHERE inbox_id = ? AND error IS NOT NULL", (row[0],))
    return True, int(unsent), None if error is None else str(error)


def begin(tx: Tx, inbox_id: int, now: float, session_id: str | None = None) -> None:
    """Record that a process works on it (by a turn in that session)."""
    tx.run("UPDATE gateway_inbox SET begun_at = ?, session_id = ? WHERE id = ?", (now, session_id, inbox_id))


def link(tx: Tx, inbox_id: int, session_id: str, message_id: int, now: float) -> None:
    """Record the message that an event became."""
    tx.run(
        "UPDATE gateway_inbox SET session_id = ?, message_id = ?, begun_at = coalesce(begun_at, ?) WHERE id = ?",
        (session_id, message_id, now, inbox_id),
    )


def check_unrevised(tx: Tx, inbox_id: int, texts: Sequence[str]) -> None:
    """Raise Revised, unless an event still waits with one of these texts: the text it was taken with, unmasked or masked."""
    event = tx.value("SELECT event FROM gateway_inbox WHERE id = ? AND finished_at IS NULL", (inbox_id,))
    if event is None or json.loads(event).get("text", "") not in texts:
        raise Revised(f"event {inbox_id} was edited or deleted before a turn took it")


def find_said(tx: Tx, platform: str, event_id: str) -> KnownEvent | None:
    """The state of an event of any age: where it waits, and its messages that can still be shown."""
    row = tx.row(
        "SELECT id, event, message_id, finished_at FROM gateway_inbox WHERE platform = ? AND event_id = ?",
        (platform, event_id),
    )
    inbox_id, event, message_id, finished_at = row or (None, None, None, None)
    known = "platform_message_id = ?" if message_id is None else "(platform_message_id = ? OR id = ?)"
    stored = tx.rows(
        f"SELECT id FROM messages WHERE {known} AND role = 'user' AND (hidden IS NULL OR hidden > {REDACTED}) ORDER BY id",
        (event_id,) if message_id is None else (event_id, message_id),
    )
    ids = [int(one[0]) for one in stored]
    if inbox_id is not None and finished_at is None:
        return KnownEvent(int(inbox_id), event, ids)
    return KnownEvent(None, None, ids) if ids else None


def revise(tx: Tx, inbox_id: int, event: str | None, now: float) -> bool:
    """Replace the text of a waiting event (None: delete and finish it); False when it became a message, or is answered."""
    waits = "id = ? AND finished_at IS NULL AND message_id IS NULL"
    if event is None:
        sql = f"UPDATE gateway_inbox SET finished_at = ?, event = NULL, shown = NULL WHERE {waits}"
        return bool(tx.run(sql, (now, inbox_id)))
    return bool(tx.run(f"UPDATE gateway_inbox SET event = ? WHERE {waits}", (event, inbox_id)))


def is_noted(tx: Tx, platform: str, event_id: str) -> bool:
    """Whether an event of this id was handled."""
    sql = "SELECT 1 FROM gateway_inbox WHERE platform = ? AND event_id = ?"
    return tx.row(sql, (platform, event_id)) is not None


def note(tx: Tx, platform: str, event_id: str, message_id: int | None, now: float) -> None:
    """Record that an event without an answer was handled (on this message): a redelivery is recognised."""
    tx.run(
        "INSERT INTO gateway_inbox(platform, event_id, key, message_id, received_at, finished_at)"
        " VALUES(?, ?, '', ?, ?, ?) ON CONFLICT(platform, event_id) DO NOTHING",
        (platform, event_id, message_id, now, now),
    )


def show(tx: Tx, inbox_id: int, message_ids: Sequence[str], nonce: str, fence: tuple[str, int]) -> None:
    """Record the platform's messages that show its growing reply; the last has this nonce. An empty id: it may already exist.

    If the reply is finished meanwhile, the part of that nonce replaces the message. Raises Fenced unless the lease the reply is
    written under still holds: the instance that took it over shows it in another message.
    """
    leases.check(tx, [fence])
    growing = tx.run(
        "UPDATE gateway_inbox SET shown = ? WHERE id = ? AND finished_at IS NULL", ("\n".join(message_ids), inbox_id)
    )
    if not growing and message_ids[-1]:
        tx.run(
            "UPDATE gateway_outbox SET edits = ?, begun_at = NULL WHERE inbox_id = ? AND nonce = ? AND sent_at IS NULL"
            " AND error IS NULL",
            (message_ids[-1], inbox_id, nonce),
        )


def finish(tx: Tx, inbox_id: int, now: float) -> list[str] | None:
    """Finish an event; returns the messages that show its reply so far. None when it was already finished.

    Its text is not needed any more.
    """
    row = tx.row("SELECT shown FROM gateway_inbox WHERE id = ? AND finished_at IS NULL", (inbox_id,))
    if row is None:
        return None
    tx.run("UPDATE gateway_inbox SET finished_at = ?, event = NULL, shown = NULL WHERE id = ?", (now, inbox_id))
    return [] if row[0] is None else str(row[0]).split("\n")

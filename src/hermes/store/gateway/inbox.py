"""The gateway's inbox: events stay until they are answered, so that killing a process loses and doubles none.

An event is in the inbox before its receipt is confirmed to its platform. It is begun when a turn takes it, linked to
the message it became (in the same transaction), and finished together with the parts of its reply entering the outbox
(outbox.py). Its text is deleted then. Secrets are masked in both queues: the process that received a message uses the
unmasked text and sends its reply unmasked; a process after a crash, or another gateway, has only the masked text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from hermes.errors import StoreError
from hermes.store import leases
from hermes.store.engines.base import REDACTED, Tx
from hermes.store.gateway.routes import Route, insert, update

WAITS = "finished_at IS NULL"


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


_COLUMNS = ", ".join(field.name for field in fields(Received))


class IncomingEvent(NamedTuple):
    """An event to store, and the description of its chat for its route (`chat_type` None: the route stays unchanged)."""

    key: str
    platform: str  # or one of its accounts: "telegram/work"
    event_id: str
    event: str  # JSON, masked
    chat: str = ""  # JSON
    chat_type: str | None = None
    display_name: str | None = None
    user_id: str | None = None  # the owner of the conversation if it has none
    shared: bool = False
    beside: Callable[[str | None], str] | None = None  # of a one-to-one conversation: its key, given the route's owner

    def is_shown_by(self, route: Route) -> bool:
        """Whether a route already has all this."""
        owned = route.shared or self.user_id is None or route.user_id is not None
        return owned and (route.chat, route.display_name) == (self.chat, self.display_name or route.display_name)


class ReceiveResult(NamedTuple):
    """The route and the number under which an event is stored."""

    key: str
    id: int | None  # None: it was already answered


class SourceEvent(NamedTuple):
    """The event a message comes from: its id on the platform, and what is needed when it is edited or deleted there."""

    event_id: str
    texts: tuple[str, str]  # its text when taken, unmasked and masked: if the inbox has another, it is not stored
    words: int | None = None  # how much of the content the user wrote, where the rest describes attachments


class KnownEvent(NamedTuple):
    """The state of an event."""

    inbox_id: int | None  # it waits there, or is being answered
    event: str | None  # JSON, as long as it does
    message_ids: list[int]  # its messages in the store


class Revised(StoreError):
    """The event was edited or deleted: the text to store is out of date."""


def receive(tx: Tx, now: float, platform: str, event_id: str, key: str, event: str) -> int | None:
    """Store an event; returns its number, also when it is already stored and waits. None when it was already answered."""
    made = insert(
        tx, "gateway_inbox", "ON CONFLICT(platform, event_id) DO NOTHING RETURNING id", platform=platform,
        event_id=event_id, key=key, event=event, received_at=now,
    )  # fmt: skip
    if made:
        return int(made[0][0])
    known = waiting(tx, "platform = ? AND event_id = ?", (platform, event_id))
    return known[0].id if known else None


def keep_deletion(tx: Tx, now: float, platform: str, event_id: str) -> bool:
    """Record that an event that has not arrived yet was deleted: it counts as answered. False when it has arrived meanwhile."""
    if find_event(tx, platform, event_id) is not None:
        return False
    note(tx, now, platform, event_id)
    return True


def waiting(tx: Tx, which: str = "TRUE", values: Sequence[object] = ()) -> list[Received]:
    """Events that wait to be answered, in the order of arrival."""
    rows = tx.rows(f"SELECT {_COLUMNS} FROM gateway_inbox WHERE {WAITS} AND {which} ORDER BY id", values)
    return [Received(*row) for row in rows]


def progress(tx: Tx, platform: str, event_id: str) -> tuple[bool, int, str | None] | None:
    """The progress of an event: whether it is finished, how many parts of its reply are not sent, and which error they had.

    None when it was never stored.
    """
    row = tx.row(
        "SELECT finished_at IS NOT NULL, (SELECT count(*) FROM gateway_outbox o WHERE o.inbox_id = i.id AND sent_at IS NULL"
        " AND error IS NULL), (SELECT error FROM gateway_outbox o WHERE o.inbox_id = i.id AND error IS NOT NULL LIMIT 1)"
        " FROM gateway_inbox i WHERE platform = ? AND event_id = ?",
        (platform, event_id),
    )
    return None if row is None else (bool(row[0]), int(row[1]), row[2])


def begin(
    tx: Tx, now: float, inbox_id: int, session_id: str | None = None, message_id: int | None = None
) -> None:  # fmt: skip
    """Record that a process works on an event (by a turn in that session, where it has become this message)."""
    update(tx, "gateway_inbox", "id = ?", (inbox_id,), begun_at=now, session_id=session_id, message_id=message_id)


def check_unrevised(tx: Tx, inbox_id: int, texts: Sequence[str]) -> None:
    """Raise Revised, unless an event still waits with one of these texts: the text it was taken with, unmasked or masked."""
    event = tx.value(f"SELECT event FROM gateway_inbox WHERE id = ? AND {WAITS}", (inbox_id,))
    if event is None or json.loads(event).get("text", "") not in texts:
        raise Revised(f"event {inbox_id} was edited or deleted before a turn took it")


def find_event(tx: Tx, platform: str, event_id: str) -> KnownEvent | None:
    """The state of an event of any age: where it waits, and its messages that can still be shown."""
    row = tx.row(
        "SELECT id, event, message_id, finished_at FROM gateway_inbox WHERE platform = ? AND event_id = ?",
        (platform, event_id),
    )
    inbox_id, event, message_id, finished_at = row or (None, None, None, None)
    known = "platform_message_id = ?" if message_id is None else "(platform_message_id = ? OR id = ?)"
    ids = tx.column(
        f"SELECT id FROM messages WHERE {known} AND role = 'user' AND (hidden IS NULL OR hidden > {REDACTED}) ORDER BY id",
        (event_id,) if message_id is None else (event_id, message_id),
    )
    if inbox_id is not None and finished_at is None:
        return KnownEvent(int(inbox_id), event, ids)
    return KnownEvent(None, None, ids) if ids else None


def revise(tx: Tx, now: float, inbox_id: int, event: str | None) -> bool:
    """Replace the text of a waiting event (None: delete and finish it); False when it became a message, or is answered."""
    which, at = f"id = ? AND {WAITS} AND message_id IS NULL", now if event is None else None
    return bool(update(tx, "gateway_inbox", which, (inbox_id,), event=event, finished_at=at))


def is_noted(tx: Tx, platform: str, event_id: str) -> bool:
    """Whether an event of this id was handled."""
    sql = "SELECT 1 FROM gateway_inbox WHERE platform = ? AND event_id = ?"
    return tx.row(sql, (platform, event_id)) is not None


def note(tx: Tx, now: float, platform: str, event_id: str, message_id: int | None = None) -> None:
    """Record that an event without an answer was handled (on this message): a redelivery is recognised."""
    insert(
        tx, "gateway_inbox", "ON CONFLICT(platform, event_id) DO NOTHING",
        platform=platform, event_id=event_id, key="", message_id=message_id, received_at=now, finished_at=now,
    )  # fmt: skip


def show(tx: Tx, now: float, inbox_id: int, message_ids: Sequence[str], nonce: str, fence: tuple[str, int]) -> None:
    """Record the platform's messages that show its growing reply; the last has this nonce. An empty id: it may already exist.

    If the reply is finished meanwhile, the part of that nonce replaces the message. Raises Fenced unless the lease the reply is
    written under still holds: the gateway that took it over shows it in another message.
    """
    leases.check(tx, [fence])
    growing = update(tx, "gateway_inbox", f"id = ? AND {WAITS}", (inbox_id,), shown="\n".join(message_ids))
    if not growing and message_ids[-1]:
        part = "inbox_id = ? AND nonce = ? AND sent_at IS NULL AND error IS NULL"
        update(tx, "gateway_outbox", part, (inbox_id, nonce), edits=message_ids[-1], begun_at=None)


def finish(tx: Tx, now: float, inbox_id: int) -> list[str] | None:
    """Finish an event; returns the messages that show its reply so far. None when it was already finished.

    Its text is not needed any more.
    """
    row = tx.row(f"SELECT shown FROM gateway_inbox WHERE id = ? AND {WAITS}", (inbox_id,))
    if row is None:
        return None
    update(tx, "gateway_inbox", "id = ?", (inbox_id,), finished_at=now, event=None, shown=None)
    return [] if row[0] is None else str(row[0]).split("\n")

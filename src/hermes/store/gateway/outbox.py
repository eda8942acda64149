"""The gateway's outbox: parts of replies and other messages stay until they are sent.

A part is begun before it is sent (where the platform can't recognise a repetition) and sent when the platform has
returned its id. Its text is deleted then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, NotRequired, TypedDict

from hermes.store import leases
from hermes.store.engines.base import Tx
from hermes.store.gateway.routes import insert, update

OWN_ID = "handoff:"  # how the ids of the gateway's own events begin
CONTEXT = "reply_context"  # in the JSON of an event, and of an outgoing message's chat
FILE, CHOICES = "file", "choices"  # in the latter: the file that is sent, the buttons
SESSION = "session"  # in the latter: the session whose words it holds, if it is not part of a reply
_PASSING = (CONTEXT, FILE, CHOICES, SESSION)  # not needed once it is sent
QUESTION = "-q"  # contained in the nonces of questions only
WAITS = "sent_at IS NULL AND error IS NULL"


@dataclass(slots=True)
class Outgoing:
    """A part that waits to be sent."""

    id: int
    inbox_id: int | None
    platform: str
    chat: str  # JSON; with the reply context of the event it answers, until it is sent
    text: str
    nonce: str
    reply_to: str | None
    edits: str | None  # the message it replaces
    begun_at: float | None  # set: it may already have been sent


_COLUMNS = ", ".join(field.name for field in fields(Outgoing))


class ReplyPart(TypedDict):
    """A part of a reply, sent as one message."""

    text: str
    nonce: str
    reply_to: NotRequired[str | None]


class PendingNotice(NamedTuple):
    """A notice to send in addition to a reply."""

    platform: str
    chat: str  # JSON
    text: str
    nonce: str


def post(
    tx: Tx, platform: str, chat: str, text: str, nonce: str, now: float, *,
    mask: Callable[[str], str], inbox_id: int | None = None, reply_to: str | None = None, edits: str | None = None,
    begun_at: float | None = None,
) -> Outgoing:  # fmt: skip
    """Queue a message: this process sends it unmasked, a later one sends the result of `mask`."""
    ((number,),) = insert(
        tx, "gateway_outbox", "RETURNING id", inbox_id=inbox_id, platform=platform, chat=chat, text=mask(text), nonce=nonce,
        reply_to=reply_to, edits=edits, created_at=now, begun_at=begun_at,
    )  # fmt: skip
    return Outgoing(number, inbox_id, platform, chat, text, nonce, reply_to, edits, begun_at)


def unsent(tx: Tx, which: str = "TRUE", values: Sequence[object] = ()) -> list[Outgoing]:
    """The parts that wait to be sent, in order."""
    rows = tx.rows(f"SELECT {_COLUMNS} FROM gateway_outbox WHERE {WAITS} AND {which} ORDER BY id", values)
    return [Outgoing(*row) for row in rows]


def is_waiting(tx: Tx, outbox_id: int) -> bool:
    """Whether a part still waits to be sent: it does not after its conversation was shredded."""
    return bool(unsent(tx, "id = ?", (outbox_id,)))


def waiting_for(tx: Tx, platforms: Sequence[str], before: float) -> list[int]:
    """The numbers of parts for these platforms that wait since before this time, in order."""
    which, values = tx.among("platform", platforms)
    sql = f"SELECT id FROM gateway_outbox WHERE {WAITS} AND created_at < ? AND {which} ORDER BY id"
    return tx.column(sql, (before, *values))


def sending(tx: Tx, now: float, outbox_id: int, fence: tuple[str, int] | None = None) -> None:
    """Record that a part is about to be sent: after a crash now, it may have been.

    Raises Fenced unless the lease it is sent under still holds.
    """
    leases.check(tx, [] if fence is None else [fence])
    update(tx, "gateway_outbox", "id = ?", (outbox_id,), begun_at=now)


def not_sent(tx: Tx, now: float, outbox_id: int) -> None:
    """Record that a part was certainly not sent, so that a later process need not suspect a duplicate."""
    update(tx, "gateway_outbox", "id = ?", (outbox_id,), begun_at=None)


def sent(tx: Tx, now: float, outbox_id: int, message_id: str, chat: str) -> None:
    """Record that a part was sent to this chat, and its id on the platform."""
    place = without_context(chat)
    update(tx, "gateway_outbox", "id = ?", (outbox_id,), sent_at=now, message_id=message_id, text=None, chat=place)


def without_context(chat: str, names: Sequence[str] = _PASSING) -> str:
    """An outgoing message's chat without reply context, file and buttons, which are not needed any more."""
    if not any(f'"{name}"' in chat for name in names):
        return chat
    return json.dumps({name: value for name, value in json.loads(chat).items() if name not in names})


def unsendable(tx: Tx, now: float, outbox_id: int, error: str) -> None:
    """Record that a part can't be sent, and why.

    The text stays for inspection, and the session it belongs to, with which it is shredded.
    """
    chat = tx.value("SELECT chat FROM gateway_outbox WHERE id = ?", (outbox_id,)) or ""
    place = without_context(chat, [CONTEXT])
    update(tx, "gateway_outbox", "id = ?", (outbox_id,), error=error, begun_at=now, chat=place)


def cancel_questions(tx: Tx, now: float, platform: str) -> None:
    """Cancel the questions for a platform that were not sent: the turns that asked them have ended."""
    for part in unsent(tx, "platform = ? AND instr(nonce, ?) > 0", (platform, QUESTION)):
        unsendable(tx, now, part.id, "the turn that asked this has ended")


def shred(tx: Tx, session_ids: Sequence[str]) -> None:
    """Remove the queued messages and replies of these sessions from both queues: none is answered or sent any more."""
    if not tx.has_table("gateway_inbox"):
        return
    which, ids = tx.among("session_id", session_ids)
    events = f"inbox_id IN (SELECT id FROM gateway_inbox WHERE {which})"
    for number, chat, answers in tx.rows(
        f"SELECT id, chat, {events} FROM gateway_outbox WHERE {events} OR instr(chat, ?) > 0",
        (*ids, *ids, f'"{SESSION}"'),
    ):
        if answers or json.loads(chat).get(SESSION) in session_ids:
            tx.run(
                "UPDATE gateway_outbox SET text = NULL, chat = ?,"
                " error = CASE WHEN sent_at IS NULL THEN coalesce(error, 'its conversation was deleted') END WHERE id = ?",
                (without_context(chat), number),
            )
    tx.run(
        f"UPDATE gateway_inbox SET event = NULL, finished_at = coalesce(finished_at, ?) WHERE {which}",
        (tx.now(), *ids),
    )
    tx.run(f"DELETE FROM gateway_aliases WHERE {which}", ids)
    tx.run(f"UPDATE gateway_routes SET pending_title = NULL WHERE {which}", ids)

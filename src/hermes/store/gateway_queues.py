"""The gateway's inbox and outbox: rows stay until they are answered or sent, so that a kill loses and doubles nothing.

An event is in the inbox before its receipt is confirmed to its platform. It is begun when a turn takes it, linked to
the message it became (in the same transaction), and finished together with the parts of its reply entering the outbox.
A part is begun before it is sent (where the platform can't recognise a repetition) and sent when the platform has given
its id. Texts are deleted as soon as they are not needed.

Secrets are masked in both queues. The process that received a message uses the unmasked text and sends its reply unmasked;
a process after a crash, or another gateway of the same store, has only the masked text.

Waiting rows of a file are found by reading the queue from the oldest row that may wait (`Oldest`): an index would have to be
written twice for each message. A server, where rows may appear out of order, has such indexes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hermes.errors import StoreError
from hermes.store import leases
from hermes.store.engines.base import REDACTED, Tx

CONTEXT = "reply_context"  # in the JSON of an event, and of an outgoing message's chat
FILE, CHOICES = "file", "choices"  # in the latter: the file that is sent, the buttons
SESSION = "session"  # in the latter: the session whose words it holds, if it is not part of a reply
_PASSING = (CONTEXT, FILE, CHOICES, SESSION)  # not needed once it is sent
_SENT_FILE = "sent_file:"  # prefix of keys of state_meta, followed by a session and a hash: a file made of that session
_EARLY = "early:"  # prefix of the id of an event that was edited before it arrived
_INBOX = "id, platform, event_id, key, event, received_at, begun_at, session_id, message_id, shown"
_OUTBOX = "id, inbox_id, platform, chat, text, nonce, reply_to, edits, begun_at"


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
    read_at: float = field(default_factory=time.monotonic, compare=False)  # when it was queued, or read from the store


@dataclass(slots=True, frozen=True)
class Oldest:
    """The lowest numbers that may wait in the queues of a file. Rows below them are finished, since numbers only grow."""

    event: int = 0
    part: int = 0


def oldest_event(tx: Tx, known: Oldest) -> Oldest:
    """The same with the current event number: each finished row is passed once."""
    return Oldest(_first(tx, "gateway_inbox", "finished_at IS NULL", known.event), known.part)


def oldest(tx: Tx, known: Oldest) -> Oldest:
    """The same with both current numbers."""
    part = _first(tx, "gateway_outbox", "sent_at IS NULL AND error IS NULL", known.part)
    return Oldest(oldest_event(tx, known).event, part)


def _first(tx: Tx, box: str, waits: str, least: int) -> int:
    found = tx.value(f"SELECT id FROM {box} WHERE id >= ? AND {waits} ORDER BY id LIMIT 1", (least,))
    return int(tx.value(f"SELECT max(id) + 1 FROM {box}") or 0) if found is None else int(found)


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
            f"SELECT {_INBOX} FROM gateway_inbox WHERE finished_at IS NULL AND id IN ({_marks(inbox_ids)}) ORDER BY id",
            inbox_ids,
        )
    ]


def _marks(values: Sequence[object]) -> str:
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


def post(
    tx: Tx, platform: str, chat: str, text: str, nonce: str, now: float, *,
    mask: Callable[[str], str], inbox_id: int | None = None, reply_to: str | None = None, edits: str | None = None,
    begun_at: float | None = None,
) -> Outgoing:  # fmt: skip
    """Queue a message: this process sends it unmasked, a later one sends the result of `mask`."""
    number = tx.insert(
        "INSERT INTO gateway_outbox(inbox_id, platform, chat, text, nonce, reply_to, edits, created_at, begun_at)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (inbox_id, platform, chat, mask(text), nonce, reply_to, edits, now, begun_at),
    )
    return Outgoing(number, inbox_id, platform, chat, text, nonce, reply_to, edits, begun_at)


def is_posted(tx: Tx, nonce: str) -> bool:
    """Whether a message with this nonce was queued."""
    return tx.row("SELECT 1 FROM gateway_outbox WHERE nonce = ?", (nonce,)) is not None


def is_waiting(tx: Tx, outbox_id: int) -> bool:
    """Whether a part still waits to be sent: it does not after its conversation was shredded."""
    sql = "SELECT 1 FROM gateway_outbox WHERE id = ? AND sent_at IS NULL AND error IS NULL"
    return tx.row(sql, (outbox_id,)) is not None


def note_file(tx: Tx, session_id: str, digest: str) -> None:
    """Record that a file holds words of a session: it is shredded with it, although no message refers to it."""
    key = f"{_SENT_FILE}{session_id}:{digest}"
    tx.run("INSERT INTO state_meta(key, value) VALUES(?, '1') ON CONFLICT DO NOTHING", (key,))


def sent_files(tx: Tx, session_id: str) -> list[str]:
    """The hashes that `note_file` recorded for a session."""
    prefix = f"{_SENT_FILE}{session_id}:"
    rows = tx.rows("SELECT key FROM state_meta WHERE instr(key, ?) = 1", (prefix,))
    return [str(row[0]).removeprefix(prefix) for row in rows]


def forget_files(tx: Tx, session_id: str) -> list[str]:
    """A session is deleted: forget the files that were made of it. Returns their hashes."""
    found = sent_files(tx, session_id)
    for digest in found:
        tx.run("DELETE FROM state_meta WHERE key = ?", (f"{_SENT_FILE}{session_id}:{digest}",))
    return found


def is_sent_file(tx: Tx, digest: str) -> bool:
    """Whether a file with these bytes was made of a session that is there."""
    found = tx.row("SELECT 1 FROM state_meta WHERE key LIKE ? LIMIT 1", (f"{_SENT_FILE}%:{digest}",))
    return found is not None


def unsent(tx: Tx, inbox_id: int | None = None) -> list[Outgoing]:
    """The parts that wait to be sent, in order (of the reply to one event, if given)."""
    which, values = ("", ()) if inbox_id is None else (" AND inbox_id = ?", (inbox_id,))
    rows = tx.rows(
        f"SELECT {_OUTBOX} FROM gateway_outbox WHERE sent_at IS NULL AND error IS NULL{which} ORDER BY id", values
    )
    return [Outgoing(*row) for row in rows]


def waiting_for(tx: Tx, platforms: Sequence[str], least: int = 0) -> list[tuple[int, str]]:
    """All parts, from this least number on, that wait to be sent to these platforms, in order: number and platform."""
    rows = tx.rows(
        "SELECT id, platform FROM gateway_outbox WHERE sent_at IS NULL AND error IS NULL AND id >= ?"
        f" AND platform IN ({_marks(platforms)}) ORDER BY id",
        (least, *platforms),
    )
    return [(int(number), str(platform)) for number, platform in rows]


def parts(tx: Tx, outbox_ids: Sequence[int]) -> list[Outgoing]:
    """Those of these parts that wait to be sent, in order."""
    rows = tx.rows(
        f"SELECT {_OUTBOX} FROM gateway_outbox WHERE sent_at IS NULL AND error IS NULL AND id IN ({_marks(outbox_ids)})"
        " ORDER BY id",
        outbox_ids,
    )
    return [Outgoing(*row) for row in rows]


def sending(tx: Tx, outbox_id: int, at: float | None, fence: tuple[str, int] | None = None) -> None:
    """Record that a part is about to be sent: after a crash now, it may have been. None: it was not sent.

    Raises Fenced unless the lease it is sent under still holds.
    """
    leases.check(tx, [] if fence is None else [fence])
    tx.run("UPDATE gateway_outbox SET begun_at = ? WHERE id = ?", (at, outbox_id))


def sent(tx: Tx, outbox_id: int, message_id: str, now: float, chat: str | None = None) -> None:
    """Record that a part was sent, and its id on the platform. `chat`: its chat from now on, without a reply context."""
    tx.run(
        "UPDATE gateway_outbox SET sent_at = ?, message_id = ?, text = NULL WHERE id = ?", (now, message_id, outbox_id)
    )
    if chat is not None:
        tx.run("UPDATE gateway_outbox SET chat = ? WHERE id = ?", (chat, outbox_id))


def without_context(chat: str) -> str | None:
    """An outgoing message's chat without reply context, file and buttons, which are not needed any more; None without any."""
    if not any(f'"{name}"' in chat for name in _PASSING):
        return None
    return json.dumps({name: value for name, value in json.loads(chat).items() if name not in _PASSING})


def unsendable(tx: Tx, outbox_id: int, error: str, now: float) -> None:
    """Record that a part can't be sent, and why. The text stays for inspection."""
    tx.run("UPDATE gateway_outbox SET error = ?, begun_at = ? WHERE id = ?", (error, now, outbox_id))
    _drop_contexts(tx, "id = ?", (outbox_id,))


def _drop_contexts(tx: Tx, which: str, values: Sequence[object]) -> None:
    sql = f"SELECT id, chat FROM gateway_outbox WHERE instr(chat, ?) > 0 AND {which}"
    for number, chat in tx.rows(sql, (f'"{CONTEXT}"', *values)):
        tx.run("UPDATE gateway_outbox SET chat = ? WHERE id = ?", (without_context(chat) or chat, number))


QUESTION = "-q"  # contained in the nonces of questions only


def is_question(tx: Tx, platform: str, chat_id: str, message_id: str, since: float) -> bool:
    """Whether a platform's message of a chat is a question that was asked since then."""
    rows = tx.rows(
        "SELECT chat FROM gateway_outbox WHERE platform = ? AND message_id = ? AND created_at >= ? AND instr(nonce, ?) > 0",
        (platform, message_id, since, QUESTION),
    )
    return any(json.loads(row[0]).get("chat_id") == chat_id for row in rows)


def leave_questions(tx: Tx, marks: Sequence[str]) -> None:
    """Cancel questions without one of these marks in their nonces."""
    sql = "SELECT id, nonce FROM gateway_outbox WHERE sent_at IS NULL AND error IS NULL AND instr(nonce, ?) > 0"
    for number, nonce in tx.rows(sql, (QUESTION,)):
        if not any(mark in nonce for mark in marks):
            unsendable(tx, number, "the turn that asked this has ended", tx.now())


def counts(tx: Tx) -> dict[str, dict[str, int]]:
    """The numbers of waiting and failed rows, by platform."""
    found: dict[str, dict[str, int]] = {}
    for what, sql in (
        (
            "waiting",
            "SELECT platform || '', count(*) FROM gateway_inbox WHERE finished_at IS NULL GROUP BY platform || ''",
        ),
        (
            "unsent",
            "SELECT platform, count(*) FROM gateway_outbox WHERE sent_at IS NULL AND error IS NULL GROUP BY platform",
        ),
        ("failed", "SELECT platform, count(*) FROM gateway_outbox WHERE error IS NOT NULL GROUP BY platform"),
    ):
        for platform, number in tx.rows(sql):
            found.setdefault(platform, {})[what] = int(number)
    return found


# Webhook deliveries that are identified by their bytes (<route>:<sha256>) or by GitLab's id, and Twilio's messages. Their
# signature has no time in it, so a captured one could be sent again for ever: they are never removed. Such a row has no text.
_LASTING = ("%:" + "_" * 64, "%:gitlab-%")


def forget(tx: Tx, before: float) -> int:
    """Remove rows finished before then, except those that detect repeated signed deliveries; returns how many.

    The newest row of each box stays: the next one gets the number after it, and no number is used twice.
    """
    gone = tx.run(
        "DELETE FROM gateway_inbox WHERE finished_at < ? AND id < (SELECT max(id) FROM gateway_inbox)"
        " AND NOT (platform = 'webhook' AND (event_id LIKE ? OR event_id LIKE ?))"
        " AND platform <> 'sms' AND platform NOT LIKE 'sms/%'",
        (before, *_LASTING),
    )
    return gone + tx.run(
        "DELETE FROM gateway_outbox WHERE (sent_at IS NOT NULL OR error IS NOT NULL) AND created_at < ?"
        " AND id < (SELECT max(id) FROM gateway_outbox)",
        (before,),
    )


def shred(tx: Tx, session_ids: Sequence[str]) -> None:
    """Take out what these sessions were told and were to answer: nothing of it is answered or sent any more."""
    if not tx.has_table("gateway_inbox"):
        return
    events = f"SELECT id FROM gateway_inbox WHERE session_id IN ({_marks(session_ids)})"
    tx.run(
        "UPDATE gateway_outbox SET text = NULL,"
        " error = CASE WHEN sent_at IS NULL THEN coalesce(error, 'its conversation was deleted') END"
        f" WHERE text IS NOT NULL AND inbox_id IN ({events})",
        session_ids,
    )
    _drop_contexts(tx, f"inbox_id IN ({events})", session_ids)
    for number, chat in tx.rows(
        "SELECT id, chat FROM gateway_outbox WHERE sent_at IS NULL AND instr(chat, ?) > 0", (f'"{SESSION}"',)
    ):
        if json.loads(chat).get(SESSION) in session_ids:
            tx.run(
                "UPDATE gateway_outbox SET text = NULL, chat = ?, error = coalesce(error, 'its conversation was deleted')"
                " WHERE id = ?",
                (without_context(chat), number),
            )
    for session_id in session_ids:
        forget_files(tx, session_id)
    tx.run(
        f"UPDATE gateway_inbox SET event = NULL, finished_at = coalesce(finished_at, ?)"
        f" WHERE session_id IN ({_marks(session_ids)}) AND (event IS NOT NULL OR finished_at IS NULL)",
        (tx.now(), *session_ids),
    )
    tx.run(f"DELETE FROM gateway_aliases WHERE session_id IN ({_marks(session_ids)})", session_ids)
    tx.run(f"UPDATE gateway_routes SET pending_title = NULL WHERE session_id IN ({_marks(session_ids)})", session_ids)


# ------------------------------------------------------------------------------------------ files of older versions

_BOXES = ("gateway_inbox", "gateway_outbox")
_HEAVY_INDEXES = ("idx_inbox_key", "idx_outbox_open")


def is_heavy(tx: Tx) -> bool:
    """Whether the queues of a file are of an older version, with counters and indexes on waiting rows."""
    return (
        tx.row(
            f"SELECT 1 FROM sqlite_master WHERE name IN ({_marks(_HEAVY_INDEXES)})"
            f" OR (name IN ({_marks(_BOXES)}) AND instr(sql, 'AUTOINCREMENT') > 0)",
            (*_HEAVY_INDEXES, *_BOXES),
        )
        is not None
    )


def lighten(tx: Tx) -> None:
    """Migrate the queues of such a file with all their rows; other columns stay as well."""
    for name in _HEAVY_INDEXES:
        tx.run(f"DROP INDEX IF EXISTS {name}")
    for name in _BOXES:
        sql = tx.value("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
        if sql is None or " AUTOINCREMENT" not in sql:
            continue
        given_out = tx.last_number(name)
        indexes = tx.rows(
            "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL", (name,)
        )
        tx.run(str(sql).replace(" AUTOINCREMENT", "").replace(name, f"{name}_lighter", 1))
        tx.run(f"INSERT INTO {name}_lighter SELECT * FROM {name}")
        tx.run(f"DROP TABLE {name}")
        tx.run(f"ALTER TABLE {name}_lighter RENAME TO {name}")
        for (index,) in indexes:
            tx.run(index)
        if name == "gateway_inbox":
            number_above(tx, given_out)


def number_above(tx: Tx, given_out: int) -> None:
    """Make the next events get higher numbers than this: the names of replies on the platforms contain them."""
    if given_out > int(tx.value("SELECT max(id) FROM gateway_inbox") or 0):
        now = tx.now()
        tx.run(
            "INSERT INTO gateway_inbox(id, platform, event_id, key, received_at, finished_at) VALUES(?, '', ?, '', ?, ?)",
            (given_out, f"number {given_out}", now, now),
        )

"""The gateway's inbox and outbox: rows stay until they are answered or sent, so that a kill loses and doubles nothing.

gateway_inbox.py and gateway_outbox.py have the rows of each; here is what concerns both.

Secrets are masked in both queues. The process that received a message uses the unmasked text and sends its reply unmasked;
a process after a crash, or another gateway of the same store, has only the masked text.

Waiting rows of a file are found by reading the queue from the oldest row that may wait (`Oldest`): an index would have to be
written twice for each message. A server, where rows may appear out of order, has such indexes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from hermes.store.engines.base import Tx
from hermes.store.gateway_inbox import marks
from hermes.store.gateway_outbox import SESSION, drop_contexts, forget_files, without_context


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


# Events that would be taken again if their row were removed: their proof has no time in it, or an old one can be accepted,
# so that a captured one could be sent again for ever. Webhook deliveries that are identified by their bytes (<route>:<sha256>)
# or by GitLab's id, Twilio's messages, mails of proven senders (<Message-ID> <address>). Such a row has no text.
_LASTING = (("webhook", "%:" + "_" * 64), ("webhook", "%:gitlab-%"), ("sms", "%"), ("email", "%> %@%"))
_MAY_GO = " AND ".join(["NOT ((platform = ? OR platform LIKE ?) AND event_id LIKE ?)"] * len(_LASTING))
_KEPT = tuple(value for platform, ids in _LASTING for value in (platform, f"{platform}/%", ids))


def forget(tx: Tx, before: float, last: float) -> int:
    """Remove rows finished before then, except those that detect repeated deliveries and mails; returns how many.

    Of each platform, the events of the `last` seconds before its newest one stay, however long ago that was: after a quiet
    month an adapter asks its platform for what came after its last message, and a little before it. The newest row of each
    box stays: the next one gets the number after it, and no number is used twice.
    """
    gone = 0
    for platform, newest in tx.rows(
        "SELECT platform, max(received_at) FROM gateway_inbox WHERE key <> '' GROUP BY platform"
    ):
        gone += tx.run(
            "DELETE FROM gateway_inbox WHERE platform = ? AND finished_at < ? AND key <> '' AND received_at < ?"
            f" AND id < (SELECT max(id) FROM gateway_inbox) AND {_MAY_GO}",
            (platform, before, newest - last, *_KEPT),
        )
    gone += tx.run(  # edits and deletions, which no adapter asks for
        "DELETE FROM gateway_inbox WHERE key = '' AND finished_at < ? AND id < (SELECT max(id) FROM gateway_inbox)"
        f" AND {_MAY_GO}",
        (before, *_KEPT),
    )
    return gone + tx.run(
        "DELETE FROM gateway_outbox WHERE (sent_at IS NOT NULL OR error IS NOT NULL) AND created_at < ?"
        " AND id < (SELECT max(id) FROM gateway_outbox)",
        (before,),
    )


def shred(tx: Tx, session_ids: Sequence[str]) -> None:
    """Remove the queued messages and replies of these sessions: none is answered or sent any more."""
    if not tx.has_table("gateway_inbox"):
        return
    events = f"SELECT id FROM gateway_inbox WHERE session_id IN ({marks(session_ids)})"
    tx.run(
        "UPDATE gateway_outbox SET text = NULL,"
        " error = CASE WHEN sent_at IS NULL THEN coalesce(error, 'its conversation was deleted') END"
        f" WHERE text IS NOT NULL AND inbox_id IN ({events})",
        session_ids,
    )
    drop_contexts(tx, f"inbox_id IN ({events})", session_ids)
    for number, chat in tx.rows(
        "SELECT id, chat FROM gateway_outbox WHERE text IS NOT NULL AND instr(chat, ?) > 0", (f'"{SESSION}"',)
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
        f" WHERE session_id IN ({marks(session_ids)}) AND (event IS NOT NULL OR finished_at IS NULL)",
        (tx.now(), *session_ids),
    )
    tx.run(f"DELETE FROM gateway_aliases WHERE session_id IN ({marks(session_ids)})", session_ids)
    tx.run(f"UPDATE gateway_routes SET pending_title = NULL WHERE session_id IN ({marks(session_ids)})", session_ids)

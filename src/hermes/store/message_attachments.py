"""Which attachments the messages refer to, with the type and size each message gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hermes.store import codec
from hermes.store.attachments import PREFIX, listed
from hermes.store.engines.base import Row, Tx, batched
from hermes.store.message_reading import turn_id_and_content

if TYPE_CHECKING:
    from hermes.store.rows import AttachmentEntry


def refer(tx: Tx, message_id: int, lifted: Iterable[tuple[str, str, int]]) -> None:
    """Record which attachments a message refers to."""
    for digest, mime, size in lifted:
        tx.run(
            "INSERT INTO attachments(hash, message_id, mime, bytes) VALUES(?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (digest, message_id, mime, size),
        )


def payload_kinds(tx: Tx, rows: Sequence[Row]) -> dict[int, dict[str, str]]:
    """By message (rows of TURN_ROW that refer to attachments), the MIME type given for each attachment."""
    texts = map(turn_id_and_content, rows)
    ids = [message_id for message_id, content in texts if isinstance(content, str) and PREFIX in content]
    kinds: dict[int, dict[str, str]] = {message_id: {} for message_id in ids}
    for some in batched(ids):
        these, params = tx.among("message_id", some)
        sql = f"SELECT message_id, hash, mime FROM attachments WHERE {these}"
        for message_id, digest, mime in tx.rows(sql, params):
            kinds[message_id][digest] = mime or ""
    return kinds


def kinds_of(tx: Tx, digests: Sequence[str]) -> dict[str, str]:
    """By hash, the MIME type that any message gives for an attachment."""
    found = {digest: tx.value("SELECT max(mime) FROM attachments WHERE hash = ?", (digest,)) for digest in digests}
    return {digest: mime or "" for digest, mime in found.items()}


def attached(tx: Tx, session_id: str) -> dict[int, list[AttachmentEntry]]:
    """By message, the attachments of what a session owns or may show, with type and size as given by the messages."""
    rows = tx.rows(
        "SELECT a.message_id, a.hash, a.mime, a.bytes FROM attachments a JOIN messages m ON m.id = a.message_id"
        " WHERE m.session_id = ? OR m.session_id IN (SELECT from_session FROM session_refs WHERE session_id = ?)"
        " ORDER BY a.message_id, a.hash",
        (session_id, session_id),
    )
    found: dict[int, list[AttachmentEntry]] = {}
    for message_id, digest, mime, size in rows:
        found.setdefault(message_id, []).extend(listed(((digest, mime or "", size or 0),)))
    return found


def mentions(content: Any) -> bool:
    """Whether content has something in it that reads like a reference to an attachment."""
    if isinstance(content, str):
        return PREFIX in content
    return content is not None and PREFIX in codec.to_json(content)


def attachments_of(tx: Tx, session_id: str) -> list[str]:
    """The hashes of the attachments a session's own messages refer to."""
    rows = tx.rows(
        "SELECT DISTINCT a.hash FROM attachments a JOIN messages m ON m.id = a.message_id WHERE m.session_id = ?",
        (session_id,),
    )
    return [row[0] for row in rows]


def attachments_shown(tx: Tx, session_id: str) -> list[str]:
    """The hashes of the attachments a session may show, with those of sessions it carries messages of."""
    return list({entry["hash"] for entries in attached(tx, session_id).values() for entry in entries})

"""Rows that another program wrote, converted to this program's form.

Programs that share the file store a message with pictures as text: a mark and JSON with the bytes in base64. Such a row is
readable as parts at once (codec.content_value); when it is indexed, its bytes are lifted into attachments. What such
a program undid, replaced by a summary or archived, is hidden or archived here as well (engines/sqlite/shared_columns.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from hermes.store import codec, lineage, message_attachments, messages, session_exports
from hermes.store.attachments import Attachments, listed
from hermes.store.engines.base import COMPACTED, KEPT, REDACTED, REPLACED, Engine, Tx
from hermes.store.engines.sqlite import shared_columns


def lift_rows(engine: Engine, attachments: Attachments, message_ids: Iterable[int]) -> list[str]:
    """Store the parts of these messages as this program does: JSON, with payloads as attachments; returns their sessions."""
    touched: dict[str, None] = {}
    for message_id in message_ids:
        with engine.read() as tx:
            row = tx.row("SELECT content, content_format, session_id FROM messages WHERE id = ?", (message_id,))
        if row is None or row[1] is not None:
            continue
        parts = codec.content_value(codec.restored(row[0]), None)
        if isinstance(parts, str):
            continue
        changed, lifted = attachments.lift(parts)  # the files are stored before the row loses the bytes
        with engine.write() as tx:
            attachments.secure(tx, lifted)
            done = tx.run(
                "UPDATE messages SET content = ?, content_format = 'json' WHERE id = ? AND content_format IS NULL"
                " AND content = ?",
                (codec.storable(codec.to_json(changed)), message_id, row[0]),
            )
            if done:
                message_attachments.refer(tx, message_id, lifted)
                tx.changed_by_us([message_id])
                touched[row[2]] = None
    return list(touched)


def lifted_export(data: Mapping[str, Any], attachments: Attachments) -> dict[str, Any]:
    """An exported session with the base64 payloads of its messages lifted, and the types given for them."""
    found: dict[str, tuple[str, int]] = dict(data.get(session_exports.KINDS) or {})
    told = dict(data[session_exports.ATTACHED]) if isinstance(data.get(session_exports.ATTACHED), dict) else None

    def without_payloads(message: Any) -> Any:
        if not isinstance(message, dict) or not isinstance(message.get("content"), (str, list, dict)):
            return message
        content, named = attachments.lift(message["content"])
        lifted = tuple(one for one in named if one[1])  # payloads: mere references are listed separately
        if not lifted:
            return message
        found.update({digest: (mime, size) for digest, mime, size in lifted})
        if told is not None:
            key = str(message.get("id"))
            told[key] = [*told.get(key, ()), *listed(lifted)]
        return {**message, "content": content}

    lists = {
        key: [without_payloads(message) for message in data[key]]
        for key in ("messages", "rewound_messages")
        if isinstance(data.get(key), list)
    }
    beside = {session_exports.KINDS: found or None, session_exports.ATTACHED: told}
    return {**data, **lists, **{key: value for key, value in beside.items() if value is not None}}


def follow(tx: Tx, session_id: str) -> None:
    """Hide, show, archive or unarchive what the other program has hidden, shown, archived or unarchived."""
    rows = tx.rows(
        f"SELECT id, active, compacted, hidden FROM messages WHERE session_id = ? AND {shared_columns.DIFFERS} ORDER BY id",
        (session_id,),
    )
    undone = [message_id for message_id, active, compacted, _ in rows if not active and not compacted]
    if undone:
        before = tx.value(
            "SELECT coalesce(max(id), 0) FROM messages WHERE session_id = ? AND id < ? AND hidden IS NULL",
            (session_id, undone[0]),
        )
        tx.run(
            "INSERT INTO session_rewinds(session_id, batch, cut_id) VALUES(?, ?, ?) ON CONFLICT(session_id, batch) DO UPDATE"
            " SET cut_id = min(cut_id, excluded.cut_id)",
            (session_id, shared_columns.UNDONE, before),
        )
    for message_id, active, compacted, hidden in rows:
        if hidden in (KEPT, REDACTED, REPLACED):  # there only for other sessions, or redacted: never shown here
            tx.run("UPDATE messages SET active = 0 WHERE id = ?", (message_id,))
            continue
        now = None if active else COMPACTED if compacted else shared_columns.UNDONE
        tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (now, message_id))
    if rows:
        lineage.drop_empty_rewinds(tx, session_id)
        messages.recount(tx, session_id)
    tx.run(
        "UPDATE sessions SET archived_at = CASE archived WHEN 0 THEN NULL ELSE coalesce(archived_at, ?) END WHERE id = ?"
        f" AND {shared_columns.ARCHIVED_DIFFERS}",
        (time.time(), session_id),
    )

"""Rows that another program wrote, brought to this program's form.

Programs that share the file store a message with pictures as text: a mark and JSON with the bytes in base64. Such a row is
read as the parts it holds at once (codec.content_value); when it is indexed, its bytes are lifted into attachments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hermes.store import codec, exchange, messages
from hermes.store.attachments import Attachments
from hermes.store.engines.base import Engine


def lift_rows(engine: Engine, attachments: Attachments, message_ids: Iterable[int]) -> None:
    """Store the parts of these messages as this program does: JSON, with its payloads as attachments."""
    for message_id in message_ids:
        with engine.read() as tx:
            row = tx.row("SELECT content, content_format FROM messages WHERE id = ?", (message_id,))
        if row is None or row[1] is not None:
            continue
        parts = codec.content_value(codec.restored(row[0]), None)
        if isinstance(parts, str):
            continue
        changed, lifted = attachments.lift(parts)  # the files are safe before the row lets go of the bytes
        with engine.write() as tx:
            attachments.secure(tx, lifted)
            done = tx.run(
                "UPDATE messages SET content = ?, content_format = 'json' WHERE id = ? AND content_format IS NULL"
                " AND content = ?",
                (codec.storable(codec.to_json(changed)), message_id, row[0]),
            )
            if done:
                messages.refer(tx, message_id, lifted)


def lifted_export(data: Mapping[str, Any], attachments: Attachments) -> dict[str, Any]:
    """An exported session with the base64 payloads of its messages lifted, and what they were told beside it."""
    found: dict[str, Any] = dict(data.get(exchange.KINDS) or {})

    def without_payloads(message: Any) -> Any:
        if not isinstance(message, dict) or not isinstance(message.get("content"), (str, list, dict)):
            return message
        content, lifted = attachments.lift(message["content"])
        found.update({digest: (mime, size) for digest, mime, size in lifted})
        return {**message, "content": content} if lifted else message

    lists = {
        key: [without_payloads(message) for message in data[key]]
        for key in ("messages", "rewound_messages")
        if isinstance(data.get(key), list)
    }
    return {**data, **lists, **({exchange.KINDS: found} if found else {})}

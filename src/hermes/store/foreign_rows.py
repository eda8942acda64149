"""Rows that another program wrote, converted to this program's form.

Programs that share the file store a message with pictures as text: a mark and JSON with the bytes in base64. Such a row is
readable as parts at once (codec.content_value); when it is indexed, its bytes are lifted into attachments.
"""

from __future__ import annotations

from collections.abc import Iterable

from hermes.store import codec, message_attachments
from hermes.store.attachments import Attachments
from hermes.store.engines.base import Engine


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

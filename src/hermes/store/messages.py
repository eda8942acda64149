"""Storing, replacing, counting and removing messages.

A message is prepared (message_values.py) before the write lock is taken; the transaction itself is two cached
statements. message_reading.py reads messages back, message_attachments.py knows what they refer to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hermes.errors import SessionNotFound
from hermes.store import codec
from hermes.store.engines.base import KEPT, REDACTED, Engine, Tx
from hermes.store.index_text import plain_parts
from hermes.store.message_attachments import refer
from hermes.store.message_reading import UNSETTLED, shown_rows
from hermes.store.message_values import Ready, StoredColumns, count_calls, preview_of

STORED = ("session_id", *StoredColumns._fields)
_INSERT = f"INSERT INTO messages({', '.join(STORED)}) VALUES({', '.join('?' * len(STORED))})"
_INSERT_WITH_ID = f"INSERT INTO messages(id, {', '.join(STORED)}) VALUES({', '.join('?' * (len(STORED) + 1))})"
_COUNT = (
    "UPDATE sessions SET message_count = coalesce(message_count, 0) + 1,"
    " tool_call_count = coalesce(tool_call_count, 0) + ?,"
    " active_at = CASE WHEN active_at > ? THEN active_at ELSE ? END, first_words = coalesce(first_words, ?)"
    " WHERE id = ? AND trashed_at IS NULL AND purged IS NULL"
)
_ALL = 1 << 62


def append(tx: Tx, session_id: str, ready: Ready) -> int:
    """Store one message and count it on its session."""
    stamp, values = ready.timestamp, ready.values
    preview = None if ready.preview is None else codec.storable(ready.preview)
    message_id = tx.store_message(
        (_COUNT, (ready.calls, stamp, stamp, preview, session_id)),
        (_INSERT, (session_id, *values)),
        stamp,
        (ready.text, values.content_format, values.tool_name, values.tool_calls),
    )
    if message_id is None:
        raise SessionNotFound(session_id)
    refer(tx, message_id, ready.lifted)
    return message_id


def insert(tx: Tx, session_id: str, ready: Ready, message_id: int | None) -> int:
    """Store a message (under a given id) without updating counters: imports and rebuilds recount afterwards."""
    if message_id is None:
        message_id = tx.insert(_INSERT, (session_id, *ready.values))
    else:
        tx.run(_INSERT_WITH_ID, (message_id, session_id, *ready.values))
    values = ready.values
    tx.message_stored(
        message_id, ready.timestamp, ready.text, values.content_format, values.tool_name, values.tool_calls
    )
    refer(tx, message_id, ready.lifted)
    return message_id


def set_content(tx: Tx, message_id: int, ready: Ready) -> None:
    """Replace the content of a row; the other columns stay."""
    tx.run(
        "UPDATE messages SET content = ?, content_format = ?, content_rest = ? WHERE id = ?",
        (ready.values.content, ready.values.content_format, ready.values.content_rest, message_id),
    )
    tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
    refer(tx, message_id, ready.lifted)
    tx.changed_by_us([message_id])


def set_values(tx: Tx, message_id: int, ready: Ready) -> None:
    """Replace a message's row with another version; its id, session and storage time stay."""
    columns = {name: value for name, value in ready.values._asdict().items() if name != "writer"}
    names = ", ".join(f"{name} = ?" for name in columns)
    tx.run(f"UPDATE messages SET {names} WHERE id = ?", (*columns.values(), message_id))
    tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
    refer(tx, message_id, ready.lifted)
    tx.changed_by_us([message_id])


def recount(tx: Tx, session_id: str) -> None:
    """Set a session's counters, last activity and preview from its own rows."""
    tx.hold(session_id)
    count = calls = 0
    last = None
    for tool_calls, stamp in tx.rows(
        "SELECT tool_calls, timestamp FROM messages WHERE session_id = ? AND hidden IS NULL ORDER BY id", (session_id,)
    ):
        count += 1
        calls += count_calls(codec.restored(tool_calls)) if tool_calls is not None else 0
        last = stamp if last is None else max(last, stamp)
    preview = _first_words(tx, session_id)
    tx.run(
        "UPDATE sessions SET message_count = ?, tool_call_count = ?, active_at = ?, first_words = ? WHERE id = ?",
        (count, calls, last, None if preview is None else codec.storable(preview), session_id),
    )


def _first_words(tx: Tx, session_id: str) -> str | None:
    """The preview: the first user message a session shows, carried ones included."""
    for _, role, content, rest, form in shown_rows(
        tx, session_id, "m.id, m.role, m.content, m.content_rest, m.content_format"
    ):
        if role == "user" and content:
            value = codec.content_value(codec.joined(content, rest), form)
            preview = preview_of(value if isinstance(value, str) else plain_parts(value))
            if preview:
                return preview
    return None


# ---------------------------------------------------------------------------------------------- removing


def remove_own(engine: Engine, tx: Tx, session_id: str, ids: Iterable[int] | None = None, *, cap: int = _ALL) -> int:
    """Remove a session's own rows (all, or those given, at most `cap`); returns how many were processed.

    Rows that other sessions refer to stay for them, with hidden = -1 unless they are redacted.
    """
    if ids is None:
        sql = f"SELECT m.id FROM messages m WHERE m.session_id = ? AND {UNSETTLED} ORDER BY m.id LIMIT ?"
        ids = [row[0] for row in tx.rows(sql, (session_id, cap))]
    ids = list(ids)
    ranges = tx.rows(
        "SELECT first_id, last_id FROM session_refs WHERE from_session = ? AND session_id <> ?",
        (session_id, session_id),
    )
    kept = [i for i in ids if any(first <= i <= last for first, last in ranges)]
    for message_id in kept:
        tx.run(
            f"UPDATE messages SET hidden = {KEPT} WHERE id = ? AND (hidden IS NULL OR hidden <> {REDACTED})",
            (message_id,),
        )
    gone = [i for i in ids if i not in set(kept)] if kept else ids
    delete(engine, tx, gone)
    return len(ids)


def delete(engine: Engine, tx: Tx, ids: Sequence[int]) -> None:
    """Delete the rows of messages, with their index entries."""
    engine.fulltext.drop(tx, ids)
    for message_id in ids:
        tx.run("DELETE FROM messages WHERE id = ?", (message_id,))
        tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
    tx.changed_by_us(ids)

"""Storing, counting, editing, redacting and removing messages.

A message is prepared (message_values.py) before the write lock is taken; the transaction itself is two cached
statements. message_reading.py reads messages back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hermes.errors import SessionNotFound
from hermes.store.engines.base import KEPT, REDACTED, REPLACED, Engine, Tx
from hermes.store.records import codec, file_changes
from hermes.store.records.message_reading import NEEDED, UNSETTLED, refer, shown_rows
from hermes.store.records.message_values import STORED, EncodedMessage, count_calls, preview_of
from hermes.store.text.index_text import plain_parts

_MARKS = ", ".join("?" * (1 + len(STORED)))
_INSERT = f"INSERT INTO messages(session_id, {', '.join(STORED)}) VALUES({_MARKS})"
_INSERT_WITH_ID = f"INSERT INTO messages(id, session_id, {', '.join(STORED)}) VALUES(?, {_MARKS})"
_COUNT = (
    "UPDATE sessions SET message_count = coalesce(message_count, 0) + ?,"
    " tool_call_count = coalesce(tool_call_count, 0) + ?,"
    " active_at = CASE WHEN active_at > ? THEN active_at ELSE ? END, first_words = coalesce(first_words, ?)"
    " WHERE id = ? AND trashed_at IS NULL AND purged IS NULL"
)


def append(tx: Tx, session_id: str, encoded: EncodedMessage) -> int:
    """Store one message and count it on its session."""
    stamp, preview = encoded.timestamp, None if encoded.preview is None else codec.storable(encoded.preview)
    counted = _COUNT, (1, encoded.calls, stamp, stamp, preview, session_id)
    message_id = tx.store_message(counted, (_INSERT, (session_id, *encoded.values.values())))
    if message_id is None:
        raise SessionNotFound(session_id)
    _stored(tx, session_id, message_id, encoded)
    return message_id


def _stored(tx: Tx, session_id: str, message_id: int, encoded: EncodedMessage) -> None:
    """Record what belongs to a message that was just stored."""
    refer(tx, message_id, encoded.lifted)
    file_changes.note(tx, session_id, message_id, encoded.changes, encoded.failed_call)


def insert(tx: Tx, session_id: str, encoded: EncodedMessage, message_id: int | None) -> int:
    """Store a message (under a given id) without updating counters: imports and rebuilds recount afterwards."""
    if message_id is None:
        message_id = tx.insert(_INSERT, (session_id, *encoded.values.values()))
    else:
        tx.run(_INSERT_WITH_ID, (message_id, session_id, *encoded.values.values()))
    _stored(tx, session_id, message_id, encoded)
    return message_id


ALL = 1 << 62  # rows
_CONTENT = ("content", "content_format", "content_rest")
_ALL_BUT_WRITER = tuple(name for name in STORED if name != "writer")


def set_values(tx: Tx, message_id: int, encoded: EncodedMessage, *, only_content: bool = False) -> None:
    """Replace a message's row (or only its content) with another version; its id, session and storage time stay.

    The caller indexes it again.
    """
    names = _CONTENT if only_content else _ALL_BUT_WRITER
    sets = ", ".join(f"{name} = ?" for name in names)
    tx.run(f"UPDATE messages SET {sets} WHERE id = ?", (*(encoded.values[name] for name in names), message_id))
    tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
    refer(tx, message_id, encoded.lifted)
    if not only_content:
        file_changes.forget(tx, [message_id])
        session_id = str(tx.value("SELECT session_id FROM messages WHERE id = ?", (message_id,)))
        file_changes.note(tx, session_id, message_id, encoded.changes, encoded.failed_call)


def recount(tx: Tx, session_id: str) -> None:
    """Set a session's counters, last activity and preview from its own rows."""
    tx.hold(session_id)
    count = calls = 0
    last = None
    sql = "SELECT tool_calls, timestamp FROM messages WHERE session_id = ? AND hidden IS NULL ORDER BY id"
    for tool_calls, stamp in tx.rows(sql, (session_id,)):
        count += 1
        calls += count_calls(codec.restored(tool_calls)) if tool_calls is not None else 0
        last = stamp if last is None else max(last, stamp)
    preview = _first_words(tx, session_id)
    tx.run(
        "UPDATE sessions SET message_count = ?, tool_call_count = ?, active_at = ?, first_words = ? WHERE id = ?",
        (count, calls, last, None if preview is None else codec.storable(preview), session_id),
    )


def count_more(tx: Tx, session_id: str, more: int, calls: int, latest: float, preview: str | None) -> None:
    """Add messages, which were stored after all others, to a session's counters."""
    stored = None if preview is None else codec.storable(preview)
    tx.run(_COUNT, (more, calls, latest, latest, stored, session_id))


def _first_words(tx: Tx, session_id: str) -> str | None:
    """The preview: the first user message a session shows, carried ones included."""
    columns = "m.id, m.role, m.content, m.content_rest, m.content_format"
    for _, role, content, rest, form in shown_rows(tx, session_id, columns):
        if role == "user" and content:
            value = codec.content_value(codec.joined(content, rest), form)
            preview = preview_of(value if isinstance(value, str) else plain_parts(value))
            if preview:
                return preview
    return None


# ---------------------------------------------------------------------------------------------- redacting and editing
#
# A redacted message stays in its row with `hidden` = -3: no session shows it, nor one that carries it, no search finds it, and no
# undone rewind restores it. An edited message keeps its row, its place and its time; its earlier text moves into a row of its own
# with `hidden` = -4, the same time and the same role.

_COPY = (
    f"INSERT INTO messages(session_id, {', '.join(_ALL_BUT_WRITER)}, writer, hidden)"
    f" SELECT ?, {', '.join(_ALL_BUT_WRITER)}, 1, {REPLACED} FROM messages WHERE id = ?"
)


@dataclass(frozen=True, slots=True)
class MessageHome:
    """The owner of a message, and the sessions that carry it."""

    owner: str
    carriers: tuple[str, ...]
    deleted: bool  # the owner was deleted: the message is there only for the carriers

    @property
    def sessions(self) -> tuple[str, ...]:
        """All sessions whose rows a change may affect."""
        return (self.owner, *self.carriers)

    @property
    def keeper(self) -> str:
        """The owner of earlier versions: of a deleted session only carried rows stay, so it is the first that carries it."""
        return self.carriers[0] if self.deleted else self.owner


def home_of(tx: Tx, message_id: int) -> MessageHome | None:
    """The place of a message; None when there is none, or no session can ever show it again."""
    row = tx.row(
        "SELECT m.session_id, m.hidden, s.purged FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.id = ?",
        (message_id,),
    )
    if row is None or row[1] in (REDACTED, REPLACED):
        return None
    carriers = tx.column(
        "SELECT DISTINCT session_id FROM session_refs WHERE from_session = ? AND ? BETWEEN first_id AND last_id AND"
        " session_id <> ? ORDER BY session_id",
        (row[0], message_id, row[0]),
    )
    deleted = row[2] is not None
    if deleted and not carriers:
        return None
    return MessageHome(row[0], tuple(carriers), deleted)


def redact(tx: Tx, message_id: int, place: MessageHome) -> None:
    """Redact a message in every session that shows it."""
    tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REDACTED, message_id))
    file_changes.forget(tx, [message_id])
    for session_id in place.sessions:
        recount(tx, session_id)


def replace(
    engine: Engine, tx: Tx, message_id: int, encoded: EncodedMessage, keeper: str, *, only_content: bool = False
) -> int:
    """Store another version of a message; the earlier one moves to a row of `keeper`, which is returned."""
    version = tx.insert(_COPY, (keeper, message_id))
    attached = "SELECT hash, ?, mime, bytes FROM attachments WHERE message_id = ?"
    tx.run(f"INSERT INTO attachments(hash, message_id, mime, bytes) {attached}", (version, message_id))
    set_values(tx, message_id, encoded, only_content=only_content)
    engine.fulltext.reindex(tx, [version, message_id])
    return version


def same_content(tx: Tx, message_id: int, encoded: EncodedMessage) -> bool:
    """Whether a message already has this content."""
    row = tx.row("SELECT content, content_rest, content_format FROM messages WHERE id = ?", (message_id,))
    return row is not None and (codec.joined(row[0], row[1]), row[2]) == (encoded.text, encoded.form)


# ---------------------------------------------------------------------------------------------- removing


def remove_own(
    engine: Engine, tx: Tx, session_id: str, ids: Iterable[int] | None = None, *, which: str = UNSETTLED, cap: int = ALL
) -> int:
    """Remove a session's own rows (those given, or of a condition on `m`, at most `cap`); returns how many were processed.

    Rows that other sessions refer to stay for them, with hidden = -1 unless they are redacted.
    """
    sql = f"SELECT m.id, {NEEDED} FROM messages m WHERE m.session_id = ? AND"
    if ids is None:
        rows = tx.rows(f"{sql} {which} ORDER BY m.id LIMIT ?", (session_id, cap))
    else:
        rows = [row for one in ids for row in tx.rows(f"{sql} m.id = ?", (session_id, one))]
    for message_id in (message_id for message_id, needed in rows if needed):
        sql = f"UPDATE messages SET hidden = {KEPT} WHERE id = ? AND (hidden IS NULL OR hidden <> {REDACTED})"
        tx.run(sql, (message_id,))
    delete(engine, tx, [message_id for message_id, needed in rows if not needed])
    return len(rows)


def delete(engine: Engine, tx: Tx, ids: Sequence[int]) -> None:
    """Delete the rows of messages, with their index entries."""
    for message_id in ids:
        tx.run("DELETE FROM messages WHERE id = ?", (message_id,))
        tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
    file_changes.forget(tx, ids)
    engine.fulltext.drop(tx, ids)

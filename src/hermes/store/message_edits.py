"""Redacting a message, or replacing its text.

A redacted message stays in its row with `hidden` = -3: no session shows it, nor one that carries it, no search finds it, and no
undone rewind restores it. An edited message keeps its row, its place and its time; its earlier text moves
into a row of its own with `hidden` = -4, the same time and the same role.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.store import codec, message_values, messages, transcript_replay
from hermes.store.engines.base import REDACTED, REPLACED, Engine, Tx


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


def find(tx: Tx, message_id: int) -> MessageHome | None:
    """Where a message is; None when there is none, or no session can ever show it again."""
    row = tx.row(
        "SELECT m.session_id, m.hidden, s.purged FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.id = ?",
        (message_id,),
    )
    if row is None or row[1] in (REDACTED, REPLACED):
        return None
    carriers = tx.rows(
        "SELECT DISTINCT session_id FROM session_refs WHERE from_session = ? AND ? BETWEEN first_id AND last_id AND"
        " session_id <> ? ORDER BY session_id",
        (row[0], message_id, row[0]),
    )
    deleted = row[2] is not None
    if deleted and not carriers:
        return None
    return MessageHome(row[0], tuple(one[0] for one in carriers), deleted)


def redact(tx: Tx, message_id: int, place: MessageHome) -> None:
    """Redact a message in every session that shows it."""
    tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REDACTED, message_id))
    for session_id in place.sessions:
        messages.recount(tx, session_id)


def edit(engine: Engine, tx: Tx, message_id: int, ready: message_values.Ready, place: MessageHome) -> tuple[int, str]:
    """Replace a message's content; returns the row with the earlier version, and its owner."""
    version = replace(engine, tx, message_id, ready, place.owner, place.keeper, only_content=True)
    for session_id in place.sessions:
        messages.recount(tx, session_id)
    return version, place.keeper


def replace(
    engine: Engine,
    tx: Tx,
    message_id: int,
    ready: message_values.Ready,
    owner: str,
    keeper: str,
    *,
    only_content: bool = False,
) -> int:
    """Store another version of a message; the earlier one moves to a row of `keeper`, which is returned."""
    (was,) = transcript_replay.with_attachments(tx, owner, [transcript_replay.message(tx, message_id)])
    version = messages.insert(tx, keeper, message_values.make_ready(was, mask=None, lift=None), None)
    tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REPLACED, version))
    engine.fulltext.index_now(tx, [version])
    messages.set_values(tx, message_id, ready, only_content=only_content)
    engine.fulltext.reindex(tx, [message_id])
    return version


def same_content(tx: Tx, message_id: int, ready: message_values.Ready) -> bool:
    """Whether a message already has this content."""
    row = tx.row("SELECT content, content_rest, content_format FROM messages WHERE id = ?", (message_id,))
    return row is not None and (codec.joined(row[0], row[1]), row[2]) == (ready.text, ready.form)

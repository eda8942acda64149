"""Taking back what was said: one message hidden for good, or its text replaced.

A redacted message stays in its row with `hidden` = -3: no session shows it, whoever carries it, no search finds it, and no
rewind that is undone brings it back. A message that is edited keeps its row, its place and its time; what it said before goes
into a row of its own with `hidden` = -4, the same time and the same role.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.store import codec, messages, transcript_replay
from hermes.store.engines.base import REDACTED, REPLACED, Engine, Tx


@dataclass(frozen=True, slots=True)
class MessageHome:
    """Whose a message is, and who else may show it."""

    owner: str
    carriers: tuple[str, ...]
    deleted: bool  # the owner was: the message is only there for the carriers

    @property
    def sessions(self) -> tuple[str, ...]:
        """All whose rows a change may touch."""
        return (self.owner, *self.carriers)


def find(tx: Tx, message_id: int) -> MessageHome | None:
    """Where a message is; None when there is none, or nobody can ever show it again."""
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
    """Hide a message for good, wherever it is shown."""
    tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REDACTED, message_id))
    for session_id in place.sessions:
        messages.recount(tx, session_id)


def edit(engine: Engine, tx: Tx, message_id: int, ready: messages.Ready, place: MessageHome) -> tuple[int, str]:
    """Put other content in place of a message's; the row that keeps what it was, and whose that is.

    Of a deleted session nothing but what others carry is kept, so the earlier version goes to the first who carries it.
    """
    keeper = place.carriers[0] if place.deleted else place.owner
    (was,) = transcript_replay.with_attachments(tx, place.owner, [transcript_replay.message(tx, message_id)])
    version = messages.insert(tx, keeper, messages.make_ready(was, mask=None, lift=None), None)
    tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REPLACED, version))
    engine.fulltext.index_now(tx, [version])
    messages.set_content(tx, message_id, ready)
    engine.fulltext.reindex(tx, [message_id])
    for session_id in place.sessions:
        messages.recount(tx, session_id)
    return version, keeper


def same_content(tx: Tx, message_id: int, ready: messages.Ready) -> bool:
    """Whether a message has this content already."""
    row = tx.row("SELECT content, content_rest, content_format FROM messages WHERE id = ?", (message_id,))
    return row is not None and (codec.joined(row[0], row[1]), row[2]) == (ready.text, ready.form)

"""Reads a conversation repeatedly, turn after turn: only new rows are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.store import message_reading, sessions
from hermes.store.db_open import read_again
from hermes.store.engines.base import Row

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.rows import ChatMessage, MessageRow


class CachedConversation:
    """A cached conversation: for unchanged rows, the same message objects are returned again."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[Row, ChatMessage]] = {}

    @read_again
    def read(self, db: SessionDB, session_id: str) -> list[ChatMessage]:
        """What get_messages_as_conversation gives, attachments as references. Callers must not change them.

        Every row is read and compared with the cached one, so that any change made meanwhile is seen.
        """
        with db._engine.read() as tx:
            if not sessions.is_shown(tx, session_id, None):
                return []
            rows = message_reading.shown_rows(tx, session_id, message_reading.TURN_ROW)
        known, now = self._known, {}
        for row in rows:
            before = known.get(row[0])
            now[row[0]] = before if before is not None and before[0] == row else (row, message_reading.as_turn(row))
        self._known = now
        return [now[row[0]][1] for row in rows]


@read_again
def last_id(db: SessionDB, session_id: str) -> int:
    """The id of the last message a session shows; 0 when there is none."""
    with db._engine.read() as tx:
        shown = message_reading.shown_rows(tx, session_id, "m.id") if sessions.is_shown(tx, session_id, None) else []
    return int(shown[-1][0]) if shown else 0


@read_again
def messages_after(db: SessionDB, session_id: str, message_id: int) -> list[MessageRow]:
    """The messages a session shows that have a higher id, as get_messages gives them; the others are not read."""
    with db._engine.read() as tx:
        if not sessions.is_shown(tx, session_id, None):
            return []
        ids = [int(row[0]) for row in message_reading.shown_rows(tx, session_id, "m.id") if row[0] > message_id]
        rows = [row for one in ids for row in message_reading.rows_of(tx, one)]
    return [message_reading.decode(row) for row in rows]

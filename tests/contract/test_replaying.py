"""Who reads a conversation again gets what a first reader gets, whatever was done to it in between."""

from __future__ import annotations

from typing import Any

from hermes.store.conversation_cache import CachedConversation, last_id, messages_after


def agrees(db: Any, session_id: str, replayed: CachedConversation) -> None:
    rows = db.get_messages(session_id)
    assert replayed.read(db, session_id) == db.get_messages_as_conversation(session_id, inline_attachments=False)
    assert last_id(db, session_id) == (rows[-1]["id"] if rows else 0)
    for after in [0, *(row["id"] for row in rows)]:
        assert messages_after(db, session_id, after) == [row for row in rows if row["id"] > after]


def test_reading_again_is_reading(db: Any) -> None:
    replayed = CachedConversation()
    agrees(db, "a", replayed)
    db.create_session("a", "cli")
    agrees(db, "a", replayed)
    call = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    ids = [
        db.append_message("a", "user", "one"),
        db.append_message("a", "assistant", None, tool_calls=call, reasoning_content=""),
        db.append_message("a", "tool", "found", tool_call_id="c", tool_name="look"),
        db.append_message("a", "assistant", "half \ud83d of it", finish_reason="stop"),
        db.append_message("a", "user", [{"type": "text", "text": "parts"}]),
    ]
    agrees(db, "a", replayed)
    db.rewind("a", ids[3])
    agrees(db, "a", replayed)
    db.append_message("a", "user", "another way")
    agrees(db, "a", replayed)
    db.unrewind("a")
    agrees(db, "a", replayed)
    db.branch_session("a", "b", at_message=ids[2])
    db.append_message("b", "user", "in the branch")
    agrees(db, "b", replayed)  # also of another session than before
    agrees(db, "a", replayed)
    db.replace_messages("a", [{"role": "user", "content": "all new"}])
    agrees(db, "a", replayed)
    agrees(db, "b", replayed)
    db.delete_session("a")
    agrees(db, "a", replayed)

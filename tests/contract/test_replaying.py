"""Who reads a conversation again gets what a first reader gets, whatever was done to it in between."""

from __future__ import annotations

import base64
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


def test_a_leaked_block_of_memory_before_a_prompt_is_not_replayed(db):
    leak = "<memory-context>\n[System note: recalled]\nlikes tea\n</memory-context>\n\n"
    prompts = [f"{leak}what shall I drink?", [{"type": "text", "text": f"{leak}and now?"}, {"type": "custom", "n": 1}],
               "what is <memory-context>x</memory-context>?", "<memory-context> without an end"]  # fmt: skip
    db.create_session("s", "cli")
    for prompt in prompts:
        db.append_message("s", "user", prompt)
    db.append_message("s", "assistant", f"{leak}as I said")
    replayed = [message["content"] for message in db.get_messages_as_conversation("s")]
    parts = [{"type": "text", "text": "and now?"}, {"type": "custom", "n": 1}]
    assert replayed == ["what shall I drink?", parts, *prompts[2:], f"{leak}as I said"]
    assert [message["content"] for message in db.get_messages("s")][:4] == prompts


def test_a_picture_is_stored_as_a_reference_and_replayed_as_it_came(db):
    url = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 8).decode()
    picture = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
    db.create_session("s", "cli")
    db.append_message("s", "user", picture)
    (stored,) = db.get_messages("s")
    assert stored["content"][0]["image_url"]["url"].startswith("attachment:sha256:")
    assert db.get_messages_as_conversation("s") == [{"role": "user", "content": picture}]
    assert db.resolve_attachments(stored["content"]) == picture

"""A conversation read back to be replayed."""

from __future__ import annotations

import base64


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

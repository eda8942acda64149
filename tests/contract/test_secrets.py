"""Secrets: masked before anything is kept, in every field and file; left alone when masking is off."""

from __future__ import annotations

import json

from . import found, shown, talk

# Not a real key: the shape alone is what masking looks at.
SECRET = "ghp_" + "R7kQ2mZx9Lw4" * 3


def everything_written(db):
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in db.sessions_dir.rglob("*.jsonl"))


def test_a_secret_is_masked_before_it_is_kept_anywhere(db):
    db.create_session("s", "cli", system_prompt=f"use {SECRET} wisely")
    call = [
        {
            "id": "1",
            "function": {"name": "terminal", "arguments": json.dumps({"command": f"git push {SECRET}"})},
        }
    ]
    db.append_message("s", "user", f"my token is {SECRET} and the walrus knows", reasoning=f"{SECRET}")
    db.append_message("s", "assistant", [{"type": "text", "text": f"so {SECRET}"}], tool_calls=call)
    details = [{"type": "reasoning.text", "text": f"hm, {SECRET}", "signature": "c2lnbmVk"}]
    db.append_message("s", "assistant", "hm", reasoning_details=details, codex_reasoning_items=[{"summary": SECRET}])
    db.append_message("s", "tool", "x" * 3000 + f" {SECRET} " + "y" * 3000)
    everything = [
        db.get_session("s"),
        db.get_messages("s"),
        db.get_messages_as_conversation("s"),
        db.export_session("s"),
    ]
    assert SECRET not in repr(everything)
    assert found(db, SECRET) == set() and found(db, f'"{SECRET}"') == set()
    (hit,) = db.search_messages("walrus")
    assert SECRET not in repr(hit)
    assert SECRET not in repr(db.list_sessions_rich())
    text = everything_written(db)
    assert "walrus" in text and SECRET not in text


def test_the_words_around_a_masked_secret_stay(db):
    talk(db, "s", f"my token is {SECRET} and the walrus knows")
    (text,) = shown(db, "s")
    assert text.startswith("my token is ") and text.endswith(" and the walrus knows")


def test_with_masking_off_everything_is_kept_as_it_is(make_db):
    db = make_db(redact_secrets=False)
    text = f"my token is {SECRET}"
    (message_id,) = talk(db, "s", text)
    assert shown(db, "s") == [text]
    assert found(db, SECRET) == {message_id}
    assert SECRET in everything_written(db)


def test_a_secret_in_replaced_messages_is_masked_too(db):
    talk(db, "s", "x")
    db.replace_messages("s", [{"role": "user", "content": f"key {SECRET}"}])
    assert SECRET not in repr(db.get_messages("s")) and SECRET not in everything_written(db)

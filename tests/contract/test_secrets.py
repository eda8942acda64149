"""Secrets: masked before anything is kept, in every field and file; left alone when masking is off."""

from __future__ import annotations

import json

from hermes.interop.sync import StorePlace, SyncResult, sync
from tests.support.stores import opener

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


def exported_with_secrets():
    """A session as a file of another machine has it, with a secret in every text."""
    call = [{"id": "1", "function": {"name": "f", "arguments": json.dumps({"command": f"git push {SECRET}"})}}]
    texts = [
        {"role": "user", "content": f"my token is {SECRET} and the walrus knows", "meta": {"note": SECRET}},
        {"role": "assistant", "content": [{"type": "text", "text": SECRET}], "tool_calls": call, "reasoning": SECRET},
        {"role": "assistant", "content": "hm", "reasoning_content": SECRET, "reasoning_details": [{"text": SECRET}],
         "codex_reasoning_items": [{"summary": SECRET, "encrypted_content": "gAAAAAB" + "c2lnbmVk" * 9}],
         "codex_message_items": [{"text": SECRET}]},
        {"role": "tool", "content": "x" * 3000 + f" {SECRET} " + "y" * 3000},
    ]  # fmt: skip
    messages = [
        {"id": number, "timestamp": 1000.0 + number, "platform_message_id": f"there-{number}", **one}
        for number, one in enumerate(texts, 1)
    ]
    hidden = {"id": 5, "role": "user", "content": f"undone {SECRET}", "timestamp": 1005.0, "hidden": 1}
    return {
        "id": "s", "source": "cli", "started_at": 1000.0, "end_reason": "imported", "title": f"Use {SECRET}",
        "system_prompt": f"use {SECRET} wisely", "model_config": {"key": SECRET}, "handoff_error": f"{SECRET} failed",
        "meta": {"imported": {"title": f"Use {SECRET}"}}, "tags": [SECRET], "messages": messages,
        "rewinds": [[1, 4]], "rewound_messages": [hidden],
        "events": [{"at": 1006.0, "after": 4, "kind": "model_error", "text": f"401 for {SECRET}"}],
    }  # fmt: skip


def assert_masked(db):
    exported = db.export_session("s")
    assert SECRET not in repr(exported) and repr(exported).count("[masked:github]") >= 14
    assert "gAAAAAB" + "c2lnbmVk" * 9 in repr(exported)  # encrypted reasoning is no secret
    assert found(db, SECRET) == set() and SECRET not in everything_written(db)
    assert db.check() == []


def test_an_import_masks_every_text_and_changes_nothing_the_second_time(db):
    data = exported_with_secrets()
    assert db.import_sessions([data], update=True) == {"sessions": 1, "messages": 4, "skipped": 0, "updated": 0}
    assert_masked(db)
    before = db.export_session("s")
    assert db.import_sessions([data], update=True) == {"sessions": 0, "messages": 0, "skipped": 1, "updated": 0}
    assert db.export_session("s") == before
    data["messages"].append({**data["messages"][0], "id": 6, "content": f"again {SECRET}", "platform_message_id": "6"})
    data["messages"][1] |= {"content": f"changed {SECRET}"}
    assert db.import_sessions([data], update=True)["updated"] == 1
    assert_masked(db)
    assert db.import_sessions([data], update=True)["updated"] == 0


def test_an_import_with_masking_off_keeps_everything(make_db):
    db = make_db(redact_secrets=False)
    assert db.import_session(exported_with_secrets())
    assert "[masked:" not in repr(db.export_session("s")) and db.get_session("s")["title"] == f"Use {SECRET}"


def test_another_database_is_imported_masked(db, tmp_path):
    with opener("sqlite")(tmp_path / "other", redact_secrets=False) as other:
        other.import_session(exported_with_secrets())
        there = other.path
    db.import_database(there)
    assert_masked(db)


def test_a_value_of_a_program_is_masked(db):
    db.set_meta("note", f"use {SECRET}")
    assert db.get_meta("note") == "use [masked:github]"


def test_a_store_that_masks_and_one_that_does_not_become_the_same(db, tmp_path):
    with opener("sqlite")(tmp_path / "other", redact_secrets=False) as other:
        other.import_session(exported_with_secrets())
        sync(db, StorePlace(other))
        assert_masked(db)
        assert [one["content"] for one in other.get_messages("s")] == shown(db, "s")  # the masked text is the later one
        assert sync(db, StorePlace(other)) == SyncResult()
        other.append_message("s", "user", f"later {SECRET}")
        (first, *_) = other.get_messages("s")
        other.edit_message(first["id"], f"edited {SECRET}")
        other.set_session_title("s", f"Now {SECRET}")
        for _ in range(2):
            assert sync(db, StorePlace(other)).problems == []
            assert_masked(db)
            assert shown(db, "s") == [one["content"] for one in other.get_messages("s")]
            assert db.get_session("s")["title"] == other.get_session("s")["title"] == "Now [masked:github]"
        assert len(db.list_sessions_rich(include_children=True)) == 1 == other.session_count()
        assert sync(db, StorePlace(other)) == SyncResult()


def test_the_same_history_imported_with_and_without_masking_is_one_session_after_a_sync(db, tmp_path):
    with opener("sqlite")(tmp_path / "other", redact_secrets=False) as other:
        other.import_session(exported_with_secrets())
        db.import_session(exported_with_secrets())
        for _ in range(2):
            assert sync(db, StorePlace(other)).problems == []
        assert db.session_count() == other.session_count() == 1 and len(shown(db, "s")) == 4
        assert_masked(db)

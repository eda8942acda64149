"""One message is hidden for good, or says something else from now on: everywhere, and whatever is undone."""

from __future__ import annotations

import json

import pytest

from hermes.errors import InvalidInput
from hermes.store.upkeep.check import rebuild_store
from hermes_state import SessionDB

from . import contents, found, shown, talk

TEXTS = ("one ocelot", "two", "three heron", "four")
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 20 + "A" * 4


@pytest.fixture
def parent(db):
    return db, talk(db, "p", *TEXTS, source="telegram", user_id="7")


# ------------------------------------------------------------------ redacting


def test_a_redacted_message_is_neither_shown_nor_replayed_found_counted_or_previewed(parent):
    db, ids = parent
    assert db.redact_message(ids[0]) is True
    assert shown(db, "p") == ["two", "three heron", "four"]
    assert contents(db.get_messages_as_conversation("p")) == ["two", "three heron", "four"]
    assert found(db, "ocelot") == set()
    assert all(one["content"] != "one ocelot" for hit in db.search_messages("two") for one in hit["context"])
    assert db.message_count("p") == 3 and db.get_session("p")["message_count"] == 3
    assert db.get_session("p")["preview"] == "three heron"
    assert db.session_of_message(ids[0]) is None
    assert contents(db.export_session("p")["messages"]) == ["two", "three heron", "four"]
    assert db.sql("SELECT id FROM visible_messages WHERE content = 'one ocelot'") == []


def test_it_stays_in_the_record_for_the_owner_and_not_for_others(parent):
    db, ids = parent
    db.redact_message(ids[2])
    (kept,) = db.export_session("p")["rewound_messages"]
    assert (kept["content"], kept["hidden"]) == ("three heron", -3)
    assert "heron" not in json.dumps(db.export_session("p", visible_to=("telegram", "7")))
    assert db.sql("SELECT content, hidden FROM messages WHERE id = ?", [ids[2]]) == [
        {"content": "three heron", "hidden": -3}
    ]


def test_what_is_not_there_or_was_redacted_before_is_not_redacted(parent):
    db, ids = parent
    assert db.redact_message(10_000) is False
    assert [db.redact_message(ids[1]) for _ in range(2)] == [True, False]
    assert db.edit_message(ids[1], "back again") is False
    assert shown(db, "p") == ["one ocelot", "three heron", "four"]


def test_undoing_a_rewind_brings_no_redacted_message_back(parent):
    db, ids = parent
    db.rewind("p", ids[0])
    assert db.redact_message(ids[2]) is True
    assert db.unrewind("p") == 2
    assert shown(db, "p") == ["one ocelot", "two", "four"]


def test_a_rewind_to_a_message_that_was_redacted_since_can_be_undone(parent):
    db, ids = parent
    db.rewind("p", ids[1])
    db.append_message("p", "user", "another way")
    db.redact_message(ids[1])
    assert db.unrewind("p") == 2
    assert shown(db, "p") == ["one ocelot", "three heron", "four"]
    assert db.unrewind("p") == 1
    assert shown(db, "p") == ["one ocelot", "another way"]


def test_branches_and_continuations_hide_it_too_and_keep_their_order(parent):
    db, ids = parent
    db.branch_session("p", "b", at_message=ids[2])
    db.append_message("b", "user", "aside")
    db.compress_session("b", "c", summary="in short", head_until=ids[0], tail_from=ids[2])
    db.append_message("c", "user", "last")
    summary = db.get_messages("c")[1]["id"]
    assert shown(db, "c") == ["one ocelot", "in short", "three heron", "aside", "last"]
    db.redact_message(summary)
    assert shown(db, "c") == ["one ocelot", "three heron", "aside", "last"], "what stood after it stays there"
    db.redact_message(ids[2])
    db.redact_message(ids[0])
    assert (
        shown(db, "c") == ["aside", "last"] and shown(db, "b") == ["two", "aside"] and shown(db, "p") == ["two", "four"]
    )
    assert (
        found(db, "heron") == set() and db.sql("SELECT 1 AS x FROM visible_messages WHERE content LIKE '%heron%'") == []
    )
    assert db.get_session("b")["preview"] == "aside"
    db.delete_session("p")
    assert shown(db, "c") == ["aside", "last"] and shown(db, "b") == ["two", "aside"]
    assert db.check() == []


# ------------------------------------------------------------------ editing


def test_an_edited_message_says_the_new_text_where_the_old_one_stood(parent):
    db, ids = parent
    db.branch_session("p", "b")
    before = db.get_messages("p")[0]
    assert db.edit_message(ids[0], "one lynx") is True
    assert shown(db, "p") == shown(db, "b") == ["one lynx", *TEXTS[1:]]
    assert db.get_messages("p")[0] == {**before, "content": "one lynx"}
    assert found(db, "lynx") == {ids[0]} and found(db, "ocelot") == set()
    assert db.get_session("p")["preview"] == db.get_session("b")["preview"] == "one lynx"
    assert db.message_count("p") == 4
    assert [row["content"] for row in db.sql("SELECT content FROM messages WHERE hidden = -4")] == ["one ocelot"]
    assert db.check() == []


def test_every_version_is_kept_and_the_same_text_again_makes_none(parent):
    db, ids = parent
    for text in ("a", "a", "b"):
        assert db.edit_message(ids[0], text) is True
    versions = [row["content"] for row in db.sql("SELECT content FROM messages WHERE hidden = -4 ORDER BY id")]
    assert versions == ["one ocelot", "a"]


def test_an_edit_is_searched_before_and_after_it_is_indexed(parent):
    db, ids = parent
    assert found(db, "heron") == {ids[2]}
    db.edit_message(ids[2], "three kingfisher")
    assert found(db, "heron") == set() and found(db, "kingfisher") == {ids[2]}
    db.catch_up()
    assert found(db, "heron") == set() and found(db, "kingfisher") == {ids[2]}
    db.edit_message(ids[2], "three puffin")
    assert found(db, "kingfisher") == set() and found(db, "puffin") == {ids[2]}


def test_secrets_are_masked_and_long_output_and_pictures_are_stored_as_ever(parent):
    db, ids = parent
    db.edit_message(ids[0], "key sk-proj-abcdefghij0123456789ABCDEFGHIJ")
    assert shown(db, "p")[0] == "key [masked:openai]"
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PICTURE}}]
    db.edit_message(ids[0], parts)
    assert db.get_messages_as_conversation("p")[0]["content"] == parts
    db.edit_message(ids[0], "without it")
    assert shown(db, "p")[0] == "without it"
    output = db.append_message("p", "tool", "short", tool_name="t")
    db.edit_message(output, "line\n" * 5000)
    assert shown(db, "p")[-1] == "line\n" * 5000
    assert db.check() == []
    with pytest.raises(InvalidInput):
        db.edit_message(ids[0], 7)  # type: ignore[arg-type]


def test_a_message_that_outlived_its_session_can_be_edited(parent):
    db, ids = parent
    db.branch_session("p", "b")
    db.delete_session("p")
    assert db.edit_message(ids[0], "one lynx") and db.redact_message(ids[1])
    assert shown(db, "b") == ["one lynx", "three heron", "four"]
    hidden = {(one["content"], one["hidden"]) for one in db.export_session("b")["rewound_messages"]}
    assert hidden == {("one ocelot", -4), ("two", -3)}
    assert db.check() == []
    db.delete_session("b")
    assert db.sql("SELECT count(*) AS n FROM messages") == [{"n": 0}]


def test_an_edit_in_another_process_is_searched_at_once(make_db):
    with make_db("a.db") as one, make_db("a.db") as other:
        ids = talk(one, "p", *TEXTS)
        assert found(other, "heron") == {ids[2]}
        one.edit_message(ids[2], "three kingfisher")
        assert found(other, "heron") == set() and found(other, "kingfisher") == {ids[2]}
        assert shown(other, "p")[2] == "three kingfisher"


# ------------------------------------------------------------------ transcripts


def lines_of(db, session_id):
    return [json.loads(line) for line in (db.sessions_dir / f"{session_id}.jsonl").read_text().splitlines()]


def test_a_simple_reader_of_a_transcript_can_follow(parent):
    """Show each message once; an event may hide some (`hides`) or have some as they are now (`replaces`)."""
    db, ids = parent
    db.edit_message(ids[2], "three puffin")
    db.redact_message(ids[1])
    texts, hidden = {}, set()
    for line in lines_of(db, "p"):
        if line["type"] == "message":
            texts.setdefault(line["id"], line["content"])
        texts.update({one["id"]: one["content"] for one in line.get("replaces", ())})
        hidden.update(line.get("hides", ()))
    assert [texts[one] for one in sorted(texts) if one not in hidden] == shown(db, "p")


def test_a_transcript_that_was_not_written_at_the_time_is_completed(make_db, tmp_path):
    with make_db("a.db") as db:
        ids = talk(db, "p", *TEXTS)
    with make_db("a.db", transcripts="off") as db:
        db.edit_message(ids[0], "one lynx")
        db.edit_message(ids[0], "one puma")
        db.redact_message(ids[1])
    with make_db("a.db") as db:
        assert db.check() == []
        folder, whole = db.sessions_dir, db.get_messages("p")
    rebuild_store(tmp_path / "again.db", folder)
    with SessionDB(tmp_path / "again.db") as again:
        assert contents(again.get_messages("p")) == contents(whole) == ["one puma", "three heron", "four"]
        assert found(again, "ocelot") == found(again, "lynx") == set()


def test_repair_does_not_bring_an_old_text_back_from_an_old_transcript(make_db, sqlite_only):
    with make_db("a.db") as db:
        ids = talk(db, "p", *TEXTS)
        path = db.sessions_dir / "p.jsonl"
        old = path.read_bytes()
        db.edit_message(ids[0], "one lynx")
        db.redact_message(ids[2])
    path.write_bytes(old)
    with make_db("a.db") as db:
        assert db.check() != []
        db.repair()
        assert shown(db, "p") == ["one lynx", "two", "four"] and db.check() == []
    path.write_bytes(old)
    with make_db("a.db") as db:
        db.rebuild()
        assert shown(db, "p") == ["one lynx", "two", "four"] and db.check() == []


def test_each_message_is_in_the_transcript_when_append_returns(db):
    db.create_session("s", "cli")
    for text in ("one", "two", "drei ✓"):
        db.append_message("s", "user", text)
        lines = (db.sessions_dir / "s.jsonl").read_text(encoding="utf-8").splitlines()
        assert any(json.loads(line).get("content") == text for line in lines)


def test_transcripts_can_be_switched_off(make_db):
    db = make_db(transcripts="off")
    talk(db, "s", "quiet", source="telegram")
    assert not (db.sessions_dir / "s.jsonl").exists()
    assert shown(db, "s") == ["quiet"]


def test_transcripts_for_the_gateway_only(make_db):
    db = make_db(transcripts="gateway")
    talk(db, "t", "hello", source="telegram")
    talk(db, "c", "hello", source="cli")
    assert (db.sessions_dir / "t.jsonl").exists() and not (db.sessions_dir / "c.jsonl").exists()

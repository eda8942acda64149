"""The trash: out of sight but whole, a freed title, and a way back."""

from __future__ import annotations

import pytest

from . import found, ids, shown, talk


@pytest.fixture
def bin_(db):
    talk(db, "s", "an ibex", "yes", user_id="1")
    db.set_session_title("s", "mountain")
    db.tag_session("s", "tag")
    talk(db, "other", "words")
    return db


def test_trashing_says_whether_something_was_trashed(bin_):
    assert bin_.trash_session("s") is True
    assert bin_.trash_session("s") is False
    assert bin_.trash_session("nobody") is False


def test_a_trashed_session_is_out_of_sight(bin_):
    bin_.trash_session("s")
    assert ids(bin_.list_sessions_rich(include_children=True)) == ["other"]
    assert ids(bin_.search_sessions()) == ["other"]
    assert bin_.session_count() == 1
    assert bin_.message_count() == 1
    assert found(bin_, "ibex") == set()
    assert bin_.get_session_by_title("mountain") is None
    assert bin_.resolve_session_by_title("mountain") is None
    assert ids(bin_.export_all()) == ids(bin_.iter_export()) == ["other"]
    assert ids(bin_.list_trash()) == ["s"]


def test_restoring_brings_everything_back(bin_):
    before = bin_.export_session("s")
    bin_.trash_session("s")
    assert bin_.restore_session("s") is True
    assert bin_.export_session("s") == before
    assert list(bin_.get_tags("s")) == ["tag"]
    assert len(found(bin_, "ibex")) == 1
    assert set(ids(bin_.list_sessions_rich())) == {"s", "other"}
    assert bin_.list_trash() == []


def test_restoring_what_is_not_in_the_trash_is_false(bin_):
    assert bin_.restore_session("s") is False
    assert bin_.restore_session("nobody") is False


def test_the_title_is_free_while_trashed_and_comes_back(bin_):
    bin_.trash_session("s")
    assert bin_.get_next_title_in_lineage("mountain") == "mountain"
    bin_.restore_session("s")
    assert bin_.get_session_title("s") == "mountain"
    assert bin_.get_session_by_title("mountain")["id"] == "s"


def test_a_title_taken_in_the_meantime_comes_back_with_the_next_number(bin_):
    bin_.trash_session("s")
    assert bin_.set_session_title("other", "mountain") is True
    bin_.restore_session("s")
    assert bin_.get_session_title("other") == "mountain"
    assert bin_.get_session_title("s") == "mountain #2"
    assert bin_.get_session_by_title("mountain #2")["id"] == "s"


def test_a_numbered_title_taken_in_the_meantime_gets_the_next_number(bin_):
    bin_.set_session_title("s", "mountain #2")
    bin_.trash_session("s")
    bin_.set_session_title("other", "mountain #2")
    bin_.restore_session("s")
    assert bin_.get_session_title("s") == "mountain #3"


def test_a_hundred_character_title_taken_in_the_meantime_still_restores(bin_):
    bin_.set_session_title("s", "x" * 100)
    bin_.trash_session("s")
    bin_.set_session_title("other", "x" * 100)
    assert bin_.restore_session("s") is True
    title = bin_.get_session_title("s")
    assert title != "x" * 100 and len(title) <= 100 and title.endswith(" #2")


def test_the_trash_survives_reopening(make_db):
    db = make_db(name="x")
    talk(db, "s", "an ibex")
    db.trash_session("s")
    db.close()
    again = make_db(name="x")
    assert ids(again.list_trash()) == ["s"] and again.search_messages("ibex") == []
    assert again.restore_session("s") is True and shown(again, "s") == ["an ibex"]


def test_emptying_keeps_what_is_younger_than_asked(bin_):
    bin_.trash_session("s")
    assert bin_.empty_trash() == 0
    assert ids(bin_.list_trash()) == ["s"]
    assert bin_.empty_trash(older_than_days=0) == 1
    assert bin_.list_trash() == [] and bin_.restore_session("s") is False
    assert bin_.get_session("s") is None and bin_.get_messages("s") == []
    assert not (bin_.sessions_dir / "s.jsonl").exists()
    assert ids(bin_.list_sessions_rich()) == ["other"]
    assert bin_.check() == []


def test_a_trashed_session_can_be_deleted_for_good(bin_):
    bin_.trash_session("s")
    assert bin_.delete_session("s") is True
    assert bin_.list_trash() == [] and bin_.restore_session("s") is False


def test_trashing_is_in_the_audit_log_with_its_command(bin_):
    bin_.trash_session("s", by="hermes sessions delete")
    text = repr(bin_.audit_log())
    assert "hermes sessions delete" in text and "'s'" in text


def test_the_audit_log_is_limited_to_the_newest_lines(db):
    for n in range(8):
        talk(db, f"session-{n}", "x")
        db.delete_session(f"session-{n}")
    assert len(db.audit_log()) == 8
    lines = repr(db.audit_log(limit=2))
    assert len(db.audit_log(limit=2)) == 2 and "session-7" in lines and "session-6" in lines


def test_a_trashed_parent_leaves_its_branch_readable(db):
    message_ids = talk(db, "a", "an ibex", "yes")
    db.branch_session("a", "b", at_message=message_ids[0])
    db.append_message("b", "user", "own words")
    db.trash_session("a")
    assert shown(db, "b") == ["an ibex", "own words"]
    db.empty_trash(older_than_days=0)
    assert shown(db, "b") == ["an ibex", "own words"]
    assert db.check() == []


def test_a_trashed_branch_leaves_its_parent_alone(db):
    talk(db, "a", "an ibex", "yes")
    db.branch_session("a", "b")
    db.trash_session("b")
    assert shown(db, "a") == ["an ibex", "yes"] and len(found(db, "ibex")) == 1
    db.empty_trash(older_than_days=0)
    assert shown(db, "a") == ["an ibex", "yes"] and len(found(db, "ibex")) == 1

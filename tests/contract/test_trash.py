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


@pytest.mark.parametrize(
    ("title", "restored"), [("mountain", "mountain #2"), ("mountain #2", "mountain #3"), ("x" * 100, "x" * 97 + " #2")]
)
def test_a_title_is_free_while_trashed_and_comes_back_or_the_next_number_of_it(bin_, title, restored):
    bin_.set_session_title("s", title)
    bin_.trash_session("s")
    assert bin_.get_session_by_title(title) is None
    bin_.restore_session("s")
    assert bin_.get_session_by_title(title)["id"] == "s"
    bin_.trash_session("s")
    bin_.set_session_title("other", title)
    assert bin_.restore_session("s") is True
    assert bin_.get_session_title("s") == restored and bin_.get_session_title("other") == title


def test_trashing_and_restoring_say_whether_they_did(bin_):
    assert bin_.restore_session("s") is False
    assert [bin_.trash_session("s"), bin_.trash_session("s")] == [True, False]

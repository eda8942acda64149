"""The model chosen for a conversation: it is kept, passes to what continues the session, and is deleted with it."""

from __future__ import annotations

from . import talk


def test_a_choice_is_kept_changed_and_forgotten(db):
    talk(db, "s1")
    assert db.chosen_model("s1") is None
    db.choose_model("s1", "gpt-4o")
    db.choose_model("s1", "a model with 'quotes' and \U0001f600")
    assert db.chosen_model("s1") == "a model with 'quotes' and \U0001f600"
    db.choose_model("s1", "")
    assert db.chosen_model("s1") == ""
    db.choose_model("s1", None)
    assert db.chosen_model("s1") is None


def test_a_choice_passes_to_branches_and_compressions_and_not_back(db):
    talk(db, "s1")
    db.choose_model("s1", "large")
    db.branch_session("s1", "s2")
    assert db.compress_session("s2", "s3", summary="so far") == "s3"
    assert [db.chosen_model(one) for one in ("s1", "s2", "s3")] == ["large"] * 3
    db.choose_model("s3", "")
    assert db.chosen_model("s1") == "large"


def test_what_was_chosen_before_the_first_message_belongs_to_the_session(db):
    db.choose_model("agent:main:telegram:dm:1", "large")
    talk(db, "s1")
    db.begin_with_choice("agent:main:telegram:dm:1", "s1")
    assert (db.chosen_model("agent:main:telegram:dm:1"), db.chosen_model("s1")) == (None, "large")
    db.begin_with_choice("agent:main:telegram:dm:1", "s1")  # again, after a crash: nothing changes
    assert db.chosen_model("s1") == "large"


def test_a_choice_is_deleted_with_its_session(db):
    for name in ("s1", "s2"):
        talk(db, name)
        db.choose_model(name, "large")
    assert db.delete_session("s1")
    db.shred_session("s2")
    assert (db.chosen_model("s1"), db.chosen_model("s2")) == (None, None)

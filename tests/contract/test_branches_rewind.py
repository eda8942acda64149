"""Branches refer to their prefix instead of copying it; rewinding hides what came later and can be undone."""

from __future__ import annotations

import contextlib

import pytest

from . import contents, found, ids, plain_sql, shown, talk

TEXTS = ("one ocelot", "two", "three", "four")


@pytest.fixture
def parent(db):
    return db, talk(db, "p", *TEXTS, model="m", user_id="7", source="telegram")


# ------------------------------------------------------------------ branches


def test_a_branch_shows_the_prefix_up_to_and_including_the_message(parent):
    db, message_ids = parent
    before, messages = db.get_session("p"), db.get_messages("p")
    assert db.branch_session("p", "b", at_message=message_ids[1]) == "b"
    assert shown(db, "b") == ["one ocelot", "two"]
    assert [m["role"] for m in db.get_messages("b")] == ["user", "assistant"]
    assert db.get_session("p") == before and db.get_messages("p") == messages, "the parent is untouched"
    row = db.get_session("b")
    assert row["parent_session_id"] == "p" and row["kind"] == "branch" and row["ended_at"] is None
    assert (row["source"], row["user_id"]) == ("telegram", "7")


@pytest.mark.parametrize(("at", "carried"), [({}, list(TEXTS)), ({"at_message": 0}, [])])
def test_a_branch_may_carry_everything_or_nothing(parent, at, carried):
    db, _ = parent
    db.branch_session("p", "b", **at)
    assert shown(db, "b") == carried and db.get_session("b")["parent_session_id"] == "p"


def test_parent_and_branch_go_separate_ways(parent):
    db, message_ids = parent
    db.branch_session("p", "b", at_message=message_ids[1])
    db.append_message("b", "user", "in the branch")
    db.append_message("p", "user", "in the parent")
    assert shown(db, "b") == ["one ocelot", "two", "in the branch"]
    assert shown(db, "p") == [*TEXTS, "in the parent"]
    assert contents(db.get_messages_as_conversation("b")) == ["one ocelot", "two", "in the branch"]
    assert contents(db.get_messages_as_conversation("b", include_ancestors=True)).count("one ocelot") == 1


def test_a_branch_adds_no_message_rows(parent, engine):
    db, message_ids = parent
    for n in range(10):
        db.branch_session("p", f"b{n}", at_message=message_ids[n % 4])
    assert db.message_count() == 4
    assert sum(db.get_session(row["id"])["message_count"] for row in db.search_sessions(limit=50)) == 4
    if engine == "sqlite":
        assert plain_sql(db.path, "SELECT count(*) FROM messages") == [[(4,)]]


def test_a_branch_of_a_branch(parent):
    db, message_ids = parent
    db.branch_session("p", "b", at_message=message_ids[2])
    own = db.append_message("b", "user", "b own")
    db.append_message("b", "user", "b more")
    db.branch_session("b", "c", at_message=own)
    db.append_message("c", "user", "c own")
    db.branch_session("c", "d", at_message=message_ids[0])
    assert shown(db, "c") == ["one ocelot", "two", "three", "b own", "c own"]
    assert shown(db, "d") == ["one ocelot"]
    assert len(found(db, "ocelot")) == 1


def test_a_branch_may_be_titled(parent):
    db, _ = parent
    db.branch_session("p", "b", title="  the side road ")
    assert db.get_session_title("b") == "the side road"


def test_a_branch_with_a_taken_title_is_refused_whole(parent):
    db, _ = parent
    db.set_session_title("p", "taken")
    with pytest.raises(ValueError, match="p"):
        db.branch_session("p", "b", title="taken")
    assert db.get_session("b") is None


def test_branching_into_an_existing_id_is_refused(parent):
    from hermes.errors import HermesError

    db, _ = parent
    talk(db, "taken", "other words")
    with pytest.raises(HermesError):
        db.branch_session("p", "taken")
    assert shown(db, "taken") == ["other words"] and db.get_session("taken")["parent_session_id"] is None


def test_branching_at_a_message_of_another_session_is_refused(parent):
    from hermes.errors import HermesError

    db, _ = parent
    (elsewhere,) = talk(db, "other", "other words")
    for at_message in (elsewhere, 999_999, -1):
        with pytest.raises(HermesError):
            db.branch_session("p", "b", at_message=at_message)
        assert db.get_session("b") is None


REMOVALS = {
    "delete": lambda db: db.delete_session("p"),
    "clear": lambda db: db.clear_messages("p"),
    "replace": lambda db: db.replace_messages("p", [{"role": "user", "content": "replaced"}]),
    "trash": lambda db: db.trash_session("p"),
    "trash emptied": lambda db: (db.trash_session("p"), db.empty_trash(older_than_days=0)),
    "prune": lambda db: (db.end_session("p", "done"), db.prune_sessions(older_than_days=0)),
    "rewind": lambda db: db.rewind("p", db.get_messages("p")[0]["id"]),
}


@pytest.mark.parametrize("how", REMOVALS)
def test_what_a_branch_shows_outlives_its_parents_messages(parent, how):
    db, message_ids = parent
    db.branch_session("p", "b", at_message=message_ids[2])
    db.append_message("b", "user", "own words")
    before = contents(db.get_messages_as_conversation("b"))
    assert before == ["one ocelot", "two", "three", "own words"]
    REMOVALS[how](db)
    assert contents(db.get_messages_as_conversation("b")) == before
    assert shown(db, "b") == before
    assert contents(db.export_session("b")["messages"]) == before
    db.append_message("b", "user", "and on")
    assert shown(db, "b") == [*before, "and on"]
    assert db.check() == []


@pytest.mark.parametrize("how", ["delete", "clear", "replace", "trash emptied"])
def test_removed_text_that_a_branch_still_shows_is_found_once_in_a_session_that_exists(parent, how):
    db, message_ids = parent
    db.branch_session("p", "b", at_message=message_ids[2])
    REMOVALS[how](db)
    hits = db.search_messages("ocelot")
    assert len(hits) == 1
    assert db.get_session(hits[0]["session_id"]) is not None
    assert db.search_messages("four") == [], "what only the parent showed is gone"
    if how in ("clear", "replace"):
        assert shown(db, "p") == ([] if how == "clear" else ["replaced"])
        assert db.get_session("p")["message_count"] == len(shown(db, "p"))


def test_when_the_last_branch_goes_the_kept_messages_go_too(parent):
    db, _ = parent
    db.branch_session("p", "b")
    db.branch_session("p", "c")
    db.delete_session("p")
    db.delete_session("b")
    assert shown(db, "c") == list(TEXTS)
    db.delete_session("c")
    assert found(db, "ocelot") == set() and db.message_count() == 0
    assert db.check() == []


@pytest.mark.parametrize("how", ["delete", "clear", "replace"])
def test_changing_a_branch_leaves_the_parent_whole(parent, how):
    db, _ = parent
    db.branch_session("p", "b")
    db.append_message("b", "user", "own words")
    {
        "delete": lambda: db.delete_session("b"),
        "clear": lambda: db.clear_messages("b"),
        "replace": lambda: db.replace_messages("b", [{"role": "user", "content": "new"}]),
    }[how]()
    assert shown(db, "p") == list(TEXTS) and shown(db, "b") == (["new"] if how == "replace" else [])
    assert len(found(db, "ocelot")) == 1 and db.search_messages('"own words"') == []


def test_compressed_children_keep_what_they_carry(parent):
    db, message_ids = parent
    db.compress_session("p", "c", summary="sum", head_until=message_ids[0], tail_from=message_ids[3])
    db.delete_session("p")
    assert shown(db, "c") == ["one ocelot", "sum", "four"]
    assert len(db.search_messages("ocelot")) == 1
    assert db.check() == []


# ------------------------------------------------------------------ rewinding


def test_rewinding_hides_what_came_later_and_tells_how_much(parent):
    db, message_ids = parent
    assert db.rewind("p", message_ids[3]) == 0
    assert db.rewind("p", message_ids[1]) == 2
    assert shown(db, "p") == ["one ocelot", "two"] and db.check() == []
    assert contents(db.get_messages_as_conversation("p")) == ["one ocelot", "two"]
    assert contents(db.export_session("p")["messages"]) == ["one ocelot", "two"]
    assert found(db, "three") == set()
    db.append_message("p", "user", "another three")
    assert shown(db, "p") == ["one ocelot", "two", "another three"]


def test_unrewinding_brings_everything_back(parent):
    db, message_ids = parent
    before = db.get_messages("p")
    db.rewind("p", message_ids[0])
    assert db.unrewind("p") == 3
    assert contents(db.get_messages("p")) == contents(before) and ids(db.get_messages("p")) == ids(before)
    assert found(db, "three") == {message_ids[2]}
    assert db.unrewind("p") == 0 and db.check() == []


def test_what_was_undone_last_can_be_read(parent):
    db, message_ids = parent
    assert db.get_undone_messages("p") == []
    db.branch_session("p", "b")
    own = db.append_message("b", "user", "five")
    db.rewind("b", own)  # hides nothing
    db.rewind("b", message_ids[2])
    assert contents(db.get_undone_messages("b")) == ["four", "five"]
    db.rewind("b", message_ids[0])
    assert contents(db.get_undone_messages("b")) == ["two", "three"]
    assert db.get_undone_messages("b", visible_to=("telegram", "8")) == [] == db.get_undone_messages("p")
    assert db.unrewind("b") == 2
    assert contents(db.get_undone_messages("b")) == ["four", "five"]


def test_a_rewind_outlives_reopening(make_db):
    db = make_db(name="x")
    message_ids = talk(db, "p", *TEXTS)
    db.rewind("p", message_ids[1])
    db.close()
    again = make_db(name="x")
    assert shown(again, "p") == ["one ocelot", "two"]
    assert again.unrewind("p") == 2


def test_rewinding_a_branch_into_its_prefix_leaves_the_parent_alone(parent):
    db, message_ids = parent
    db.branch_session("p", "b")
    db.append_message("b", "user", "own words")
    assert db.rewind("b", message_ids[1]) == 3
    assert shown(db, "b") == ["one ocelot", "two"] and shown(db, "p") == list(TEXTS)
    assert found(db, "three") == {message_ids[2]}, "the parent still shows it"
    assert db.unrewind("b") == 3
    assert shown(db, "b") == [*TEXTS, "own words"]


def test_rewinding_to_a_message_the_session_does_not_show_changes_nothing(parent):
    from hermes.errors import HermesError

    db, _ = parent
    (elsewhere,) = talk(db, "other", "other words")
    for target in (elsewhere, 999_999):
        with contextlib.suppress(HermesError):
            assert db.rewind("p", target) == 0
        assert shown(db, "p") == list(TEXTS) and shown(db, "other") == ["other words"]

"""Lineage: who continues whom, where a resume really goes on, and which prefix means which session."""

from __future__ import annotations

import time

import pytest

from . import DAY, contents, ids, old_session, shown, talk


def child(db, session_id, parent, later=1.0, **columns):
    """A child that starts a moment after now, and so after its parent's end."""
    return db.create_session(session_id, "cli", parent_session_id=parent, started_at=time.time() + later, **columns)


# ------------------------------------------------------------------ prefixes


@pytest.mark.parametrize(("prefix", "meant"), {
    "abc": "abc", "abcde": "abcde", "20250305": "20250305_a", "2025": None, "2026": None, "20250305_ab": None,
    "2025%": None, "2025030__": None, "%": None, "2025?*": None, "日本": "日本語-1", "a%": "a%b", "z": "z\U0001f680-1",
}.items())  # fmt: skip
def test_a_prefix_of_one_id_is_that_id_and_an_exact_id_wins(db, prefix, meant):
    """Wildcards are literal; a prefix of several ids is none."""
    for name in ("abc", "abcd", "abcde", "20250305_a", "20250306_b", "日本語-1", "a%b", "z\U0001f680-1"):
        db.create_session(name, "cli")
    assert db.resolve_session_id(prefix) == meant


# ------------------------------------------------------------------ compression


def test_the_tip_of_a_session_that_goes_on_nowhere_is_itself(db):
    talk(db, "a", "hi")
    assert db.get_compression_tip("a") == "a"
    db.end_session("a", "compression")
    assert db.get_compression_tip("a") == "a"


def test_the_tip_follows_the_chain_from_any_member(db):
    talk(db, "a", "hi")
    for old, new in ("ab", "bc", "cd"):
        db.compress_session(old, new, summary="s")
    assert [db.get_compression_tip(name) for name in "abcd"] == ["d"] * 4


def test_a_child_that_started_before_the_end_is_no_continuation(db):
    talk(db, "a", "hi")
    db.create_session("early", "cli", parent_session_id="a", started_at=time.time() - 100)
    db.end_session("a", "compression")
    assert db.get_compression_tip("a") == "a"
    child(db, "b", "a")
    assert db.get_compression_tip("a") == "b"


@pytest.mark.parametrize("kind", ["subagent", "branch", "reset"])
def test_other_kinds_of_children_are_no_continuation(db, kind):
    talk(db, "a", "hi")
    db.end_session("a", "compression")
    child(db, "other", "a", kind=kind)
    assert db.get_compression_tip("a") == "a"
    child(db, "b", "a", kind="compression")
    child(db, "later", "a", later=5, kind=kind)
    assert db.get_compression_tip("a") == "b"


def test_a_session_that_ended_otherwise_has_no_continuation(db):
    talk(db, "a", "hi")
    db.end_session("a", "user_exit")
    child(db, "b", "a")
    assert db.get_compression_tip("a") == "a"


def test_a_branch_off_the_tip_is_not_the_tip(db):
    message_ids = talk(db, "a", "one", "two")
    db.compress_session("a", "b", summary="s", tail_from=message_ids[1])
    db.branch_session("b", "side")
    db.branch_session("a", "side2")
    assert db.get_compression_tip("a") == "b"


def test_compressing_ends_the_old_and_opens_the_child_with_what_it_carries(db):
    first, second, _third, fourth = talk(db, "a", "one", "two", "three", "four", model="m", user_id="7")
    assert db.compress_session("a", "b", summary="two and three", head_until=first, tail_from=fourth) == "b"
    old, new = db.get_session("a"), db.get_session("b")
    assert old["end_reason"] == "compression" and old["ended_at"] is not None
    assert new["parent_session_id"] == "a" and new["ended_at"] is None and new["kind"] == "compression"
    assert (new["source"], new["user_id"]) == (old["source"], old["user_id"])
    assert shown(db, "a") == ["one", "two", "three", "four"]
    assert shown(db, "b") == ["one", "two and three", "four"]
    assert db.get_messages("b")[1]["role"] == "user"
    db.append_message("b", "user", "five")
    assert shown(db, "b") == ["one", "two and three", "four", "five"]
    assert second not in ids(db.get_messages("b"))


def test_the_summary_role_can_be_chosen_and_nothing_need_be_carried(db):
    talk(db, "a", "one", "two")
    db.compress_session("a", "b", summary="all of it", summary_role="system")
    assert [(m["role"], m["content"]) for m in db.get_messages("b")] == [("system", "all of it")]


def test_a_conversation_with_ancestors_starts_at_the_root_and_has_carried_messages_once(db):
    first, _, _, fourth = talk(db, "a", "one", "two", "three", "four")
    db.compress_session("a", "b", summary="sum 1", head_until=first, tail_from=fourth)
    fifth = db.append_message("b", "assistant", "five")
    db.compress_session("b", "c", summary="sum 2", head_until=first, tail_from=fifth)
    db.append_message("c", "user", "six")
    assert shown(db, "c") == ["one", "sum 2", "five", "six"]
    assert contents(db.get_messages_as_conversation("c")) == ["one", "sum 2", "five", "six"]
    whole = contents(db.get_messages_as_conversation("c", include_ancestors=True))
    assert sorted(whole) == sorted(["one", "two", "three", "four", "sum 1", "five", "sum 2", "six"]), "each once"
    assert whole[:4] == ["one", "two", "three", "four"] and whole[-1] == "six"
    assert whole.index("sum 1") < whole.index("five") < whole.index("six")
    assert contents(db.get_messages_as_conversation("a", include_ancestors=True)) == whole[:4]


def test_ancestors_of_a_chain_made_by_hand_come_first(db):
    talk(db, "a", "one", "two")
    db.end_session("a", "compression")
    child(db, "b", "a")
    db.append_message("b", "user", "three")
    assert contents(db.get_messages_as_conversation("b", include_ancestors=True)) == ["one", "two", "three"]
    assert contents(db.get_messages_as_conversation("b")) == ["three"]


def test_compressing_into_an_existing_id_changes_nothing(db):
    from hermes.errors import HermesError

    talk(db, "a", "one")
    talk(db, "taken", "other")
    with pytest.raises(HermesError):
        db.compress_session("a", "taken", summary="s")
    assert db.get_session("a")["ended_at"] is None
    assert shown(db, "taken") == ["other"]


def test_carried_messages_are_found_once_and_summed_once(db):
    first, second = talk(db, "a", "the capybara swims", "indeed")
    db.compress_session("a", "b", summary="about an animal", head_until=first, tail_from=second)
    assert len(db.search_messages("capybara")) == 1
    assert db.message_count() == 3
    assert sum(db.get_session(name)["message_count"] for name in "ab") == 3


# ------------------------------------------------------------------ resuming


def test_resuming_a_session_with_messages_or_without_any_below_it_is_that_session(db):
    talk(db, "a", "hi")
    child(db, "b", "a")
    child(db, "c", "b")
    assert [db.resolve_resume_session_id(name) for name in "abc"] == ["a", "b", "c"]


def test_resuming_an_empty_session_goes_to_the_first_descendant_with_messages(db):
    db.create_session("a", "cli")
    child(db, "b", "a", later=1)
    child(db, "c", "b", later=2)
    db.append_message("c", "user", "hi")
    child(db, "d", "c", later=3)
    db.append_message("d", "user", "hi")
    assert db.resolve_resume_session_id("a") == "c"


def test_resuming_takes_the_newest_child_at_each_step(db):
    db.create_session("a", "cli")
    for name, later in (("old", 1), ("new", 9), ("mid", 5)):
        child(db, name, "a", later=later)
        db.append_message(name, "user", "hi")
    assert db.resolve_resume_session_id("a") == "new"


def test_resuming_a_branch_that_only_carries_messages_is_the_branch(db):
    talk(db, "a", "hi", "hello")
    db.branch_session("a", "b")
    assert db.resolve_resume_session_id("b") == "b"


# ------------------------------------------------------------------ parents that go away


@pytest.mark.parametrize("how", ["delete", "prune"])
@pytest.mark.parametrize("kind", [None, "compression", "branch"])
def test_removing_a_parent_cuts_the_link_and_keeps_the_child(db, how, kind):
    old_session(db, "a", 200)
    db.create_session("b", "cli", parent_session_id="a", kind=kind)
    db.append_message("b", "user", "child words")
    if how == "delete":
        assert db.delete_session("a") is True
    else:
        assert db.prune_sessions(older_than_days=100) == 1
    row = db.get_session("b")
    assert row is not None and row["parent_session_id"] is None
    assert shown(db, "b") == ["child words"]
    assert "b" in ids(db.list_sessions_rich(include_children=True))


def test_a_child_whose_parent_is_gone_is_listed(db):
    """Hidden as a child, it must not become invisible for ever when nothing is left to show it through."""
    talk(db, "a", "one")
    db.compress_session("a", "b", summary="s")
    db.delete_session("a")
    assert ids(db.list_sessions_rich()) == ["b"]
    assert db.get_compression_tip("b") == "b"


# ------------------------------------------------------------------ a compressed conversation as a whole


def three_parts(db, *, days: float = 0.0) -> list[str]:
    """A conversation that was compressed twice; its first part is so old, the others are new."""
    then = time.time() - days * DAY
    db.create_session("a", "cli", started_at=then)
    db.append_message("a", "user", "the first part", timestamp=then)
    db.set_session_title("a", "plan")
    db.compress_session("a", "b", summary="summary one")
    db.append_message("b", "user", "the second part")
    db.compress_session("b", "c", summary="summary two")
    db.append_message("c", "user", "the third part")
    return ["a", "b", "c"]


def test_the_sub_agents_of_a_session_are_its_children_of_that_kind(db):
    db.create_session("a", "cli")
    for name, kind, at in (("y", "subagent", 20.0), ("x", "subagent", 10.0), ("b", "branch", 5.0)):
        db.create_session(name, "cli", parent_session_id="a", kind=kind, started_at=at)
    assert db.get_subagents("a") == ["x", "y"]
    assert db.get_subagents("x") == db.get_subagents("nobody") == []
    assert {row["id"] for row in db.list_sessions_rich()} == {"a", "b"}
    db.delete_session("x")
    assert db.get_subagents("a") == ["y"]


@pytest.mark.parametrize("named", ["a", "b", "c"])
def test_the_parts_of_a_conversation_are_known_from_any_of_them(db, named):
    parts = three_parts(db)
    db.branch_session("b", "branch")
    assert db.get_compression_chain(named) == parts
    assert db.get_compression_chain("branch") == ["branch"]
    assert db.get_compression_chain("nobody") == ["nobody"]


@pytest.mark.parametrize("named", ["a", "b", "c"])
def test_a_conversation_goes_to_the_trash_whole_and_comes_back_whole(db, named):
    parts = three_parts(db)
    db.branch_session("b", "branch")
    assert db.trash_session(named, whole=True) is True
    assert ids(db.list_sessions_rich(order_by_last_active=True)) == ["branch"]
    assert db.search_messages("part", exclude_sources=["x"], session_ids=parts) == []
    assert len({row["trashed_at"] for row in db.list_trash()}) == 1, "they leave the trash on the same day"
    assert sorted(db.get_compression_chain(named)) == parts
    assert db.trash_session(named, whole=True) is False
    assert db.restore_session(named, whole=True) is True
    assert [db.get_session_title(part) for part in parts] == ["plan", "plan #2", "plan #3"]
    assert db.list_trash() == [] and db.check() == []
    assert db.get_compression_tip("a") == "c"


@pytest.mark.parametrize("named", ["a", "c"])
def test_marks_are_those_of_the_whole_conversation_and_go_on_with_it(db, named):
    parts = three_parts(db)
    db.branch_session("b", "branch")
    assert db.pin_session(named) and db.archive_session(named) and db.tag_session(named, "work")
    db.compress_session("c", "d", summary="summary three")
    for part in [*parts, "d"]:
        row = db.get_session(part)
        assert row["pinned_at"] and row["archived_at"] and db.get_tags(part) == ["work"], part
    assert db.get_session("branch")["pinned_at"] is None and db.get_tags("branch") == []
    assert db.pin_session(named, False) and db.archive_session(named, False) and db.untag_session(named, "work")
    for part in [*parts, "d"]:
        row = db.get_session(part)
        assert (row["pinned_at"], row["archived_at"], db.get_tags(part)) == (None, None, [])
    assert db.check() == []


def test_a_conversation_is_pruned_whole_or_not_at_all(db):
    old_session(db, "single", 200)
    three_parts(db, days=200)
    assert db.prunable_sessions(100, whole=True) == ["single"], "its newest part was used today"
    assert db.prune_sessions(100, whole=True) == 1
    assert db.prunable_sessions(0, whole=True) == [], "it has not ended"
    db.end_session("c", "user_exit")
    assert db.prunable_sessions(0, whole=True) == ["c"]
    db.pin_session("a")
    assert db.prunable_sessions(0, whole=True) == []
    db.pin_session("a", False)
    token = db.hold_session("b", "somebody")
    assert db.prunable_sessions(0, whole=True) == []
    db.release_lease("session:b", token)
    assert db.prune_sessions(0, whole=True) == 3
    assert db.session_count() == 0 and db.message_count() == 0 and db.check() == []

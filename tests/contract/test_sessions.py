"""Sessions: made once, ended once, never changed behind anybody's back."""

from __future__ import annotations

import json
import time

import pytest

from . import shown, talk

COUNTERS = [
    "message_count", "tool_call_count", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
    "reasoning_tokens", "api_call_count",
]  # fmt: skip


COLUMNS = [
    "id", "source", "user_id", "model", "model_config", "system_prompt", "parent_session_id", "started_at", "ended_at",
    "end_reason", *COUNTERS, "billing_provider", "billing_base_url", "billing_mode", "estimated_cost_usd", "actual_cost_usd",
    "cost_status", "cost_source", "pricing_version", "title", "handoff_state", "handoff_platform", "handoff_error",
]  # fmt: skip
GIVEN = {
    "model": "m-1", "model_config": {"temperature": 0.5, "stop": ["x"]}, "system_prompt": "You are kind.", "user_id": "42",
    "parent_session_id": "p",
}  # fmt: skip


def as_dict(value):
    return json.loads(value) if isinstance(value, str) else value


@pytest.mark.parametrize("how", ["by name", "by position"])
def test_create_returns_the_id_and_keeps_every_column(db, how):
    """The order of positions is the documented one."""
    db.create_session("p", "cli")
    names, values = (GIVEN, ()) if how == "by name" else ({}, GIVEN.values())
    assert db.create_session("s", "telegram", *values, **names) == "s"
    row = db.get_session("s")
    assert (row["id"], row["source"]) == ("s", "telegram")
    assert {**{name: row[name] for name in GIVEN}, "model_config": as_dict(row["model_config"])} == GIVEN


def test_model_config_may_be_json_text(db):
    db.create_session("s", "cli", model_config='{"a": [1, 2]}')
    assert as_dict(db.get_session("s")["model_config"]) == {"a": [1, 2]}


def test_a_session_row_has_every_public_column(db):
    db.create_session("s", "cli")
    row = db.get_session("s")
    assert type(row) is dict
    assert not [name for name in COLUMNS if name not in row]


def test_a_new_session_starts_now_open_and_at_zero(db):
    before = time.time()
    db.create_session("s", "cli")
    row = db.get_session("s")
    assert before - 1 <= row["started_at"] <= time.time() + 1
    assert isinstance(row["started_at"], float)
    assert row["ended_at"] is None and row["end_reason"] is None
    assert [row[name] for name in COUNTERS] == [0] * len(COUNTERS)
    assert row["title"] is None and row["handoff_state"] is None


def test_started_at_and_kind_can_be_given(db):
    db.create_session("p", "cli")
    db.create_session("s", "cli", parent_session_id="p", started_at=1234.5, kind="subagent")
    row = db.get_session("s")
    assert row["started_at"] == 1234.5 and row["kind"] == "subagent"


def test_creating_an_existing_id_changes_nothing_and_returns_it(db):
    talk(db, "s", "hello", model="m-1", user_id="1", system_prompt="one")
    db.set_session_title("s", "kept")
    before = db.get_session("s")
    assert (
        db.create_session("s", "discord", model="m-2", user_id="2", system_prompt="two", model_config={"x": 1}) == "s"
    )
    assert db.get_session("s") == before
    assert shown(db, "s") == ["hello"]
    assert db.session_count() == 1


def test_ensure_creates_only_what_is_missing(db):
    assert db.ensure_session("s") == "s"
    assert db.get_session("s")["source"] == "unknown"
    assert db.ensure_session("s", "cli", "m") == "s"
    row = db.get_session("s")
    assert row["source"] == "unknown" and row["model"] is None
    assert db.ensure_session("t", source="cli", model="m") == "t"
    assert (db.get_session("t")["source"], db.get_session("t")["model"]) == ("cli", "m")


def test_the_first_end_wins_until_reopened(db):
    db.create_session("s", "cli")
    before = time.time()
    db.end_session("s", "first")
    first = db.get_session("s")
    assert first["end_reason"] == "first" and first["ended_at"] >= before - 1
    db.end_session("s", "second")
    assert db.get_session("s")["end_reason"] == "first"
    assert db.get_session("s")["ended_at"] == first["ended_at"]

    db.reopen_session("s")
    row = db.get_session("s")
    assert row["ended_at"] is None and row["end_reason"] is None

    db.end_session("s", "third")
    assert db.get_session("s")["end_reason"] == "third"


def test_update_system_prompt_reads_back_as_text(db):
    db.create_session("s", "cli", system_prompt="old")
    assert db.update_system_prompt("s", "new ✓ " + "long " * 5000) is None
    assert db.get_session("s")["system_prompt"] == "new ✓ " + "long " * 5000


def test_everything_is_there_after_reopening(make_db):
    first = make_db(name="x")
    talk(first, "s", "one", "two", model="m", system_prompt="p")
    first.set_session_title("s", "a title")
    first.end_session("s", "done")
    row, messages = first.get_session("s"), first.get_messages("s")
    first.close()
    again = make_db(name="x")
    assert again.get_session("s") == row
    assert again.get_messages("s") == messages


def test_two_openers_see_each_others_writes_at_once(make_db):
    one, two = make_db(name="x"), make_db(name="x")
    talk(one, "s", "written by one about walruses")
    assert shown(two, "s") == ["written by one about walruses"]
    assert len(two.search_messages("walruses")) == 1
    two.append_message("s", "assistant", "answered by two about narwhals")
    assert len(one.search_messages("narwhals")) == 1
    assert one.get_session("s")["message_count"] == 2


def test_the_store_is_a_context_manager_and_closing_twice_is_harmless(make_db):
    from hermes.errors import StoreClosed

    with make_db() as db:
        db.create_session("s", "cli")
    db.close()
    with pytest.raises(StoreClosed):
        db.create_session("t", "cli")
    with pytest.raises(StoreClosed):
        db.get_session("s")


def test_tags_are_a_set_of_names_per_session(db):
    db.create_session("s", "cli")
    db.create_session("t", "cli")
    db.tag_session("s", "work", "später")
    db.tag_session("s", "work")
    assert sorted(db.get_tags("s")) == ["später", "work"]
    assert list(db.get_tags("t")) == []
    db.untag_session("s", "work", "never there")
    assert list(db.get_tags("s")) == ["später"]


def test_archiving_hides_nothing_from_reading_by_id_and_search(db):
    """Archived sessions are never lost; it is left open where they are listed."""
    talk(db, "s", "archived pangolin")
    assert db.archive_session("s") is True
    assert shown(db, "s") == ["archived pangolin"]
    assert len(db.search_messages("pangolin")) == 1
    assert db.archive_session("s", archived=False) is True
    assert "s" in [row["id"] for row in db.list_sessions_rich()]


@pytest.mark.parametrize("call", ["pin_session", "archive_session"])
def test_pin_and_archive_say_whether_the_session_exists(db, call):
    db.create_session("s", "cli")
    assert getattr(db, call)("s") is True
    assert getattr(db, call)("nobody") is False


def test_several_sessions_and_their_tags_at_once_are_those_one_by_one(db):
    for number, name in enumerate(("one", "o'clock", "部", 'a,b{}\\"')):
        db.create_session(name, "telegram", user_id=str(number % 2))
        db.append_message(name, "user", "hello")
        db.tag_session(name, *("b", "a")[: number % 3])
    ids = [row["id"] for row in db.list_sessions_rich(limit=20)]
    assert len(ids) == 4
    for user in (None, ("telegram", "0"), ("telegram", "9")):
        several, tags = (
            db.get_sessions([*ids, "nobody"], visible_to=user),
            db.tags_of([*ids, "nobody"], visible_to=user),
        )
        one_by_one = {one: row for one in ids if (row := db.get_session(one, visible_to=user)) is not None}
        assert several == one_by_one and len(several) == {None: 4, "0": 2, "9": 0}[user and user[1]]
        assert tags == {**{one: db.get_tags(one, visible_to=user) for one in ids}, "nobody": []}
    assert (db.get_sessions([]), db.tags_of([])) == ({}, {})


# ------------------------------------------------------------------ which session shows a message


def test_the_session_of_a_message_is_its_own_else_one_that_carries_it(db):
    made = talk(db, "s", "one", "two", "three")
    assert [db.session_of_message(one) for one in made] == ["s", "s", "s"]
    assert db.session_of_message(max(made) + 1) is None
    db.branch_session("s", "b")
    assert db.session_of_message(made[0]) == "s"
    db.rewind("s", made[0])
    assert db.session_of_message(made[1]) == "b"
    db.trash_session("s")
    assert db.session_of_message(made[0]) == "b"
    db.trash_session("b")
    assert db.session_of_message(made[0]) is None


def test_the_session_of_a_message_is_told_to_those_who_may_see_it(db):
    (mine,) = talk(db, "mine", "x", source="telegram", user_id="1")
    assert db.session_of_message(mine, visible_to=("telegram", "1")) == "mine"
    assert db.session_of_message(mine, visible_to=("telegram", "2")) is None
    db.share_session("mine", "telegram", "2")
    assert db.session_of_message(mine, visible_to=("telegram", "2")) == "mine"


def test_only_if_untitled_gives_way_to_a_title_that_is_there(db):
    talk(db, "s", "x")
    assert db.set_session_title("s", "first", only_if_untitled=True) is True
    assert db.set_session_title("s", "second", only_if_untitled=True) is False
    assert db.get_session_title("s") == "first"
    db.set_session_title("s", "")
    assert db.set_session_title("s", "third", only_if_untitled=True) is True
    assert db.set_session_title("nowhere", "fourth", only_if_untitled=True) is False


# ------------------------------------------------------------------ the model chosen for a conversation


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

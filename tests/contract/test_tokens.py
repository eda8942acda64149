"""Usage: counters add up, an absolute update sets, model and billing fill only NULLs, nothing is created."""

from __future__ import annotations

import pytest

from hermes.errors import InvalidInput, SessionNotFound

from . import talk

COUNTS = {
    "input_tokens": 10, "output_tokens": 20, "cache_read_tokens": 3, "cache_write_tokens": 4, "reasoning_tokens": 5,
    "api_call_count": 1,
}  # fmt: skip


def test_counts_are_added(db):
    db.create_session("s", "cli")
    talk(db, "t", "a", "b")
    assert db.update_token_counts("s", **COUNTS) is None
    db.update_token_counts("s", **COUNTS)
    db.update_token_counts("s")
    db.update_token_counts("t", **COUNTS, absolute=True)
    assert db.get_session("t")["message_count"] == 2
    row = db.get_session("s")
    assert {name: row[name] for name in COUNTS} == {name: 2 * n for name, n in COUNTS.items()}


def test_the_first_three_may_be_given_by_position(db):
    db.create_session("s", "cli")
    db.update_token_counts("s", 7, 8, "m-1")
    row = db.get_session("s")
    assert (row["input_tokens"], row["output_tokens"], row["model"]) == (7, 8, "m-1")


def test_absolute_sets(db):
    db.create_session("s", "cli")
    db.update_token_counts("s", **dict.fromkeys(COUNTS, 1000))
    db.update_token_counts("s", **COUNTS, absolute=True)
    row = db.get_session("s")
    assert {name: row[name] for name in COUNTS} == COUNTS
    db.update_token_counts("s", input_tokens=1)
    assert db.get_session("s")["input_tokens"] == COUNTS["input_tokens"] + 1


@pytest.mark.parametrize("field", ["model", "billing_provider", "billing_base_url", "billing_mode"])
@pytest.mark.parametrize("absolute", [False, True])
def test_model_and_billing_fill_only_nulls(db, field, absolute):
    db.create_session("s", "cli")
    db.update_token_counts("s", **{field: "first"}, absolute=absolute)
    assert db.get_session("s")[field] == "first"
    db.update_token_counts("s", **{field: "second"}, absolute=absolute)
    assert db.get_session("s")[field] == "first"
    db.update_token_counts("s", input_tokens=1, absolute=absolute)
    assert db.get_session("s")[field] == "first"


def test_a_model_given_at_creation_stays(db):
    db.create_session("s", "cli", model="m-1")
    db.update_token_counts("s", model="m-2")
    assert db.get_session("s")["model"] == "m-1"


@pytest.mark.parametrize("field", ["estimated_cost_usd", "actual_cost_usd"])
def test_costs_add_up_and_absolute_sets_them(db, field):
    db.create_session("s", "cli")
    assert db.get_session("s")[field] is None
    db.update_token_counts("s", **{field: 0.5})
    db.update_token_counts("s", **{field: 0.25})
    assert db.get_session("s")[field] == pytest.approx(0.75)
    db.update_token_counts("s", input_tokens=1)
    assert db.get_session("s")[field] == pytest.approx(0.75)
    db.update_token_counts("s", **{field: 0.125}, absolute=True)
    assert db.get_session("s")[field] == pytest.approx(0.125)


def test_cost_notes_are_kept(db):
    db.create_session("s", "cli")
    db.update_token_counts("s", cost_status="estimated", cost_source="table", pricing_version="2025-01")
    row = db.get_session("s")
    assert (row["cost_status"], row["cost_source"], row["pricing_version"]) == ("estimated", "table", "2025-01")


def test_an_unknown_session_is_not_created(db):
    assert db.update_token_counts("nobody", input_tokens=5, model="m") is None
    assert db.session_count() == 0 and db.get_session("nobody") is None


def sums(db, session_id="s"):
    return {name: db.get_session(session_id)[name] for name in COUNTS}


def test_a_message_counts_what_it_used(db):
    db.create_session("s", "cli")
    for _ in range(2):
        db.append_message("s", "assistant", "hello", usage={**COUNTS, "estimated_cost_usd": 0.5, "model": "m-1"})
    assert sums(db) == {name: 2 * n for name, n in COUNTS.items()}
    row = db.get_session("s")
    assert (row["estimated_cost_usd"], row["model"], row["message_count"]) == (1.0, "m-1", 2)


def test_what_is_not_stored_is_not_counted(db):
    db.create_session("s", "cli")
    with pytest.raises(SessionNotFound):
        db.append_message("nobody", "assistant", "hello", usage=COUNTS)
    with pytest.raises(InvalidInput, match="input_token"):
        db.append_message("s", "assistant", "hello", usage={"input_token": 5})
    with pytest.raises(InvalidInput):
        db.append_message("s", "assistant", 5, usage=COUNTS)
    assert sums(db) == dict.fromkeys(COUNTS, 0)
    assert db.message_count("s") == 0

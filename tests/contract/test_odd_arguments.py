"""Times, numbers and texts that are none: a ValueError that names the argument, on every engine, and nothing is stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from hermes.errors import InvalidInput

HUGE = 10**5000  # Python prints no number this long
NO_TIMES = {
    "inf": math.inf, "-inf": -math.inf, "nan": math.nan, "1e308": 1e308, "huge": HUGE, "text": "soon", "list": [1],
}  # fmt: skip
NO_NUMBERS = {**NO_TIMES, "fraction": 1.5}


def message(**more: Any) -> dict[str, Any]:
    return {"role": "user", "content": "a lynx", **more}


def exported(**more: Any) -> dict[str, Any]:
    return {"id": "new", "source": "cli", "started_at": 1.0, "messages": [], **more}


TIMES: dict[str, Callable[[Any, Any], Any]] = {
    "timestamp": lambda db, value: db.append_message("s", "user", "x", timestamp=value),
    "timestamp of a replacement": lambda db, value: db.replace_messages("s", [message(), message(timestamp=value)]),
    "timestamp in an import": lambda db, value: db.import_session(exported(messages=[message(timestamp=value)])),
    "started_at": lambda db, value: db.create_session("new", "cli", started_at=value),
    "the time to live": lambda db, value: db.acquire_lease("lease", "me", value),
    "the time to live of a renewal": lambda db, value: db.renew_lease("lease", 1, value),
}
NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "token_count": lambda db, value: db.append_message("s", "user", "x", token_count=value),
    "cache_read_tokens": lambda db, value: db.update_token_counts("s", cache_read_tokens=value),
    "api_call_count": lambda db, value: db.update_token_counts("s", api_call_count=value, absolute=True),
}
MONEY: dict[str, Callable[[Any, Any], Any]] = {
    "cost_usd": lambda db, value: db.append_message("s", "user", "x", cost_usd=value),
}
BOUNDS: dict[str, Callable[[Any, Any], Any]] = {
    "since": lambda db, value: db.search_messages("lynx", since=value),
    "until": lambda db, value: db.search_messages("lynx", until=value),
    "until of a list": lambda db, value: db.list_sessions_rich(until=value),
}
PERIODS: dict[str, Callable[[Any, Any], Any]] = {
    "older_than_days": lambda db, value: db.prune_sessions(value),
    "older_than_days of the trash": lambda db, value: db.empty_trash(value),
    "after_hours": lambda db, value: db.end_abandoned_sessions(value),
}


TEXTS: dict[str, Callable[[Any, Any], Any]] = {
    "model": lambda db, value: db.create_session("new", "cli", model=value),
    "system_prompt": lambda db, value: db.create_session("new", "cli", system_prompt=value),
    "end_reason": lambda db, value: db.end_session("s", value),
    "system_prompt of an update": lambda db, value: db.update_system_prompt("s", value),
    "cost_status": lambda db, value: db.append_message("s", "user", "x", usage={"cost_status": value}),
    "title": lambda db, value: db.set_session_title("s", value),
    "key": lambda db, value: db.set_meta(value, "x"),
    "value": lambda db, value: db.set_meta("odd", value),
    "platform": lambda db, value: db.request_handoff("s", value),
    "error": lambda db, value: db.fail_handoff("s", value),
    "action": lambda db, value: db.record_audit(value, "s", by="me"),
    "by": lambda db, value: db.trash_session("s", by=value),
    "kind": lambda db, value: db.record_event("s", value, "x"),
    "model of a choice": lambda db, value: db.choose_model("s", value),
    "the holder": lambda db, value: db.acquire_lease("lease", value),
    "the name": lambda db, value: db.acquire_lease(value, "me"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_none(make_db: Any, name: str) -> None:
    db = a_store(make_db)
    refused(
        db,
        name,
        TEXTS[name],
        {"bytes": b"x", "no text at all": b"\xff", "list": ["x"], "bool": True, "object": object()},
    )
    assert db.get_meta("odd") is None and db.audit_log() == [] and db.chosen_model("s") is None
    assert db.check() == []


def test_whole_numbers_stand_for_their_digits(db: Any) -> None:
    db.create_session("s", "telegram", user_id=42)
    assert db.get_session("s", visible_to=("telegram", "42"))["user_id"] == "42"


@pytest.mark.parametrize("value", [None, "", "1", 1.0, False, b"1"])
def test_a_rewind_needs_the_id_of_a_message(db: Any, value: Any) -> None:
    db.create_session("s", "cli")
    db.append_message("s", "user", "a lynx")
    with pytest.raises(InvalidInput):
        db.rewind("s", value)
    assert len(db.get_messages("s")) == 1


def test_tool_calls_in_a_tuple_are_counted(db: Any) -> None:
    db.create_session("s", "cli")
    db.append_message("s", "assistant", tool_calls=({"id": "a"}, {"id": "b"}))
    assert db.get_session("s")["tool_call_count"] == 2 and db.get_messages("s")[0]["tool_calls"] == [
        {"id": "a"},
        {"id": "b"},
    ]
    assert db.check() == []


def test_the_title_of_a_branch_is_masked(db: Any) -> None:
    secret = "sk-proj-" + "abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    db.create_session("s", "cli")
    db.branch_session("s", "b", title=f"use {secret}")
    assert secret not in db.get_session_title("b") and "masked" in db.get_session_title("b")


def a_store(make_db: Any) -> Any:
    db = make_db()
    db.create_session("s", "cli")
    db.append_message("s", "user", "a lynx", timestamp=5.0)
    return db


def refused(db: Any, name: str, call: Callable[[Any, Any], Any], values: dict[str, Any]) -> None:
    before = db.export_session("s"), db.session_count(), db.lease_holder("lease")
    for kind, value in values.items():
        with pytest.raises(InvalidInput) as error:
            call(db, value)
        text = str(error.value)
        assert isinstance(error.value, ValueError) and name.partition(" of ")[0].partition(" in ")[0] in text, kind
        assert "\n" not in text and len(text) < 200, kind
    assert (db.export_session("s"), db.session_count(), db.lease_holder("lease")) == before


@pytest.mark.parametrize("name", TIMES)
def test_a_time_that_is_none(make_db: Any, name: str) -> None:
    refused(a_store(make_db), name, TIMES[name], NO_TIMES)


@pytest.mark.parametrize("name", [*NUMBERS, *MONEY])
def test_a_number_that_is_none(make_db: Any, name: str) -> None:
    numbers = NO_NUMBERS if name in NUMBERS else NO_TIMES
    refused(a_store(make_db), name, {**NUMBERS, **MONEY}[name], numbers)


@pytest.mark.parametrize("name", [*BOUNDS, *PERIODS])
def test_a_range_of_times_that_is_none(make_db: Any, name: str) -> None:
    """Infinity is no time, but a range may be open."""
    db = a_store(make_db)
    call = {**BOUNDS, **PERIODS}[name]
    refused(db, name, call, {kind: NO_TIMES[kind] for kind in ("nan", "huge", "text", "list")})
    call(db, math.inf)
    assert [one["content"] for one in db.get_messages("s")] == ["a lynx"]


def test_an_open_range_finds_everything(db: Any) -> None:
    db.create_session("s", "cli")
    db.append_message("s", "user", "a lynx", timestamp=5.0)
    for since, until, found in ((-math.inf, math.inf, 1), (math.inf, None, 0), (None, -math.inf, 0)):
        assert len(db.search_messages("lynx", since=since, until=until)) == found
        assert len(db.list_sessions_rich(since=since, until=until)) == found


def test_automatic_pruning_says_what_is_wrong_and_removes_nothing(db: Any) -> None:
    db.create_session("s", "cli", started_at=1.0)
    db.end_session("s", "done")
    for value in (math.nan, "soon", None, HUGE):
        assert "retention_days" in db.maybe_auto_prune_and_vacuum(value, 0)["error"]
        assert "min_interval_hours" in db.maybe_auto_prune_and_vacuum(90, value)["error"]
    assert db.session_count() == 1


def test_an_import_goes_on_after_a_session_with_such_a_time(db: Any) -> None:
    told: list[str] = []
    sessions = [exported(id=kind, messages=[message(timestamp=value)]) for kind, value in NO_TIMES.items()]
    sessions.append(exported(id="good", messages=[message(timestamp=7)]))
    counts = db.import_sessions(sessions, refused=lambda data, error: told.append(f"{data['id']}: {error}"))
    assert counts == {"sessions": 1, "messages": 1, "skipped": 0} and len(told) == len(NO_TIMES)
    assert all("timestamp" in line for line in told), told
    assert db.get_messages("good")[0]["timestamp"] == 7.0


def test_numbers_that_are_numbers_come_back(db: Any) -> None:
    db.create_session("s", "cli", started_at=-5)
    db.append_message("s", "user", "x", timestamp=1.7e12, token_count=2.0, cost_usd=1, input_tokens=0)
    (row,) = db.get_messages("s")
    assert (row["timestamp"], row["token_count"], row["cost_usd"], row["input_tokens"]) == (1.7e12, 2, 1.0, 0)
    assert [type(row[name]) for name in ("timestamp", "token_count", "cost_usd")] == [float, int, float]
    assert db.get_session("s")["started_at"] == -5.0

"""Insights: every number is the sum of the rows it is about, each message counted once, in the user's own hours."""

from __future__ import annotations

import math
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.errors import InvalidInput
from tests.support.sizes import size

from . import DAY, talk

NOW = 1_760_000_000.0  # a Thursday in October 2025
BERLIN = "Europe/Berlin"
COUNTERS = ("input", "output", "cache_read", "cache_write", "reasoning")


def call(name: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}


# ── the property: whatever happened, the numbers are the rows' sums ──

stamps = st.floats(min_value=NOW - 60 * DAY, max_value=NOW + 2 * DAY)
counts = st.integers(min_value=0, max_value=10**9)
costs = st.none() | st.floats(min_value=0, max_value=100)
message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "tool"]),
        "timestamp": stamps,
        "tools": st.lists(st.sampled_from(["terminal", "memory", "web_search"]), max_size=3),
        "model": st.none() | st.sampled_from(["m-1", "m-2"]),
        "input_tokens": st.none() | counts,
        "output_tokens": st.none() | counts,
        "cost_usd": costs,
    }
)
session = st.fixed_dictionaries(
    {
        "source": st.sampled_from(["cli", "telegram"]),
        "model": st.none() | st.sampled_from(["m-1", "m-3"]),
        "started_at": stamps,
        "messages": st.lists(message, max_size=6),
        "usage": st.fixed_dictionaries({f"{name}_tokens": counts for name in COUNTERS}),
        "estimated": costs,
        "actual": costs,
        "fate": st.sampled_from(["kept", "kept", "trashed", "branched", "compressed", "rewound"]),
    }
)


def build(db: Any, prefix: str, sessions: list[dict[str, Any]]) -> list[str]:
    names = []
    for number, wanted in enumerate(sessions):
        name = f"{prefix}-{number}"
        names.append(name)
        db.create_session(name, wanted["source"], model=wanted["model"], started_at=wanted["started_at"])
        ids = []
        for said in wanted["messages"]:
            more = {key: said[key] for key in ("timestamp", "model", "input_tokens", "output_tokens", "cost_usd")}
            calls = [call(tool) for tool in said["tools"]] or None
            ids.append(db.append_message(name, said["role"], "words", tool_calls=calls, **more))
        db.update_token_counts(
            name, **wanted["usage"], estimated_cost_usd=wanted["estimated"], actual_cost_usd=wanted["actual"]
        )
        if wanted["fate"] == "trashed":
            db.trash_session(name)
        elif wanted["fate"] == "branched":
            db.branch_session(name, f"{name}-branch")
            names.append(f"{name}-branch")
        elif wanted["fate"] == "compressed":
            db.compress_session(name, f"{name}-next", summary="so far", tail_from=ids[-1] if ids else None)
            names.append(f"{name}-next")
        elif wanted["fate"] == "rewound" and len(ids) > 1:
            db.rewind(name, ids[0])
    return names


def plain_sums(
    db: Any, names: list[str], since: float, until: float, source: str | None, zone: ZoneInfo
) -> dict[str, Any]:
    """The numbers of insights, counted from every row through the public calls."""
    out: dict[str, Any] = {"sessions": 0, "messages": 0, "tokens": Counter(), "tools": Counter(), "sources": Counter()}
    out |= {"hours": Counter(), "weekdays": Counter(), "days": set(), "estimated": [], "actual": [], "unknown": 0}
    for name in names:
        row = db.get_session(name)
        if row is None or (source is not None and row["source"] != source):
            continue
        own = [m for m in db.get_messages(name) if m["session_id"] == name and since <= m["timestamp"] <= until]
        began = since <= row["started_at"] <= until
        if not own and not began:
            continue
        out["sessions"] += 1
        out["sources"][row["source"]] += 1
        out["messages"] += len(own)
        for said in own:
            when = datetime.fromtimestamp(said["timestamp"], zone)
            out["hours"][when.hour] += 1
            out["weekdays"][when.weekday()] += 1
            out["days"].add(when.date())
            out["tools"].update(one["function"]["name"] for one in said["tool_calls"] or [])
        if began:
            used = {kind: row[f"{kind}_tokens"] for kind in COUNTERS}
            estimated, actual = row["estimated_cost_usd"], row["actual_cost_usd"]
            unknown = any(used.values()) and estimated is None and actual is None
        else:
            used = {kind: sum(m.get(f"{kind}_tokens") or 0 for m in own) for kind in COUNTERS}
            priced = [m["cost_usd"] for m in own if m["cost_usd"] is not None]
            estimated, actual = (math.fsum(priced) if priced else None), None
            unknown = any((m["input_tokens"] or m["output_tokens"]) and m["cost_usd"] is None for m in own)
        out["tokens"].update(used)
        out["estimated"] += [estimated] if estimated is not None else []
        out["actual"] += [actual] if actual is not None else []
        out["unknown"] += bool(unknown)
    return out


def same_money(found: float | None, parts: list[float]) -> bool:
    return found is None if not parts else found == pytest.approx(math.fsum(parts), abs=1e-6)


@settings(max_examples=size(8, 40))
@given(
    sessions=st.lists(session, max_size=5),
    days=st.sampled_from([1, 7, 30, 365]),
    source=st.none() | st.sampled_from(["cli", "telegram"]),
    zone=st.sampled_from([BERLIN, "America/St_Johns", "Asia/Kathmandu", "UTC"]),
)
def test_every_number_is_the_sum_of_its_rows(make_db, sessions, days, source, zone):
    db = make_db(transcripts="off", durability="normal")
    names = build(db, "s", sessions)
    found = db.insights(days, source, now=NOW, timezone=zone)
    want = plain_sums(db, names, NOW - days * DAY, NOW, source, ZoneInfo(zone))
    assert (found["sessions"], found["messages"]) == (want["sessions"], want["messages"])
    assert found["tokens"] == {kind: want["tokens"][kind] for kind in COUNTERS}
    assert {row["tool"]: row["calls"] for row in found["by_tool"]} == dict(want["tools"])
    assert found["tool_calls"] == want["tools"].total()
    assert {row["source"]: row["sessions"] for row in found["by_source"]} == dict(want["sources"])
    assert found["by_hour"] == [want["hours"][hour] for hour in range(24)]
    assert found["by_weekday"] == [want["weekdays"][day] for day in range(7)]
    assert found["streaks"]["days_active"] == len(want["days"])
    grid = found["by_weekday_hour"]
    assert [sum(row) for row in grid] == found["by_weekday"]
    assert [sum(column) for column in zip(*grid, strict=True)] == found["by_hour"]
    usage = found["usage_by_day"]
    assert {day: used["messages"] for day, used in usage.items()} == found["by_day"]
    assert (
        sum(used["tokens"] for used in usage.values()) == sum(found["tokens"].values()) - found["tokens"]["reasoning"]
    )
    assert same_money(math.fsum(used["cost_usd"] or 0.0 for used in usage.values()), [found["cost"]["usd"] or 0.0])
    assert same_money(found["cost"]["estimated_usd"], want["estimated"])
    assert same_money(found["cost"]["actual_usd"], want["actual"])
    assert found["cost"]["unknown_sessions"] == want["unknown"]
    # The parts add up to the whole, by model and by source.
    for part in ("by_model", "by_source"):
        for kind in COUNTERS:
            assert sum(row["tokens"][kind] for row in found[part]) == found["tokens"][kind], (part, kind)
        known = [row["cost_usd"] for row in found[part] if row["cost_usd"] is not None]
        assert same_money(found["cost"]["usd"], known), part


# ── what people notice ──


def test_a_store_without_sessions_has_zeros_and_no_cost(db):
    found = db.insights()
    assert (found["sessions"], found["messages"], found["tool_calls"]) == (0, 0, 0)
    assert found["cost"]["usd"] is None and found["by_model"] == [] and sum(found["by_hour"]) == 0
    assert found["streaks"] == {"current": 0, "longest": 0, "days_active": 0}


@pytest.mark.parametrize("moment", [0.0, 5e-324, 899.999, 900.0, 1_800_000_000.5])
def test_any_time_has_its_hour(db, moment):
    db.create_session("s", "cli", started_at=moment)
    db.append_message("s", "user", "hi", timestamp=moment)
    found = db.insights(days=1e6, now=1_900_000_000.0, timezone="UTC")
    assert found["messages"] == 1
    assert [hour for hour, count in enumerate(found["by_hour"]) if count] == [int(moment // 3600) % 24]


def test_carried_messages_count_once(db):
    ids = talk(db, "a", "one", "two", "three")
    db.branch_session("a", "b", at_message=ids[1])
    db.compress_session("a", "c", summary="so far", tail_from=ids[2])
    assert len(db.get_messages("b")) == 2 and len(db.get_messages("c")) == 2
    found = db.insights()
    assert found["messages"] == 4  # three said, one summary
    assert sum(found["by_hour"]) == 4


def test_an_unknown_price_is_not_zero(db):
    for name, cost in (("priced", 0.25), ("free", 0.0), ("unknown", None)):
        db.create_session(name, "cli", model=name)
        db.update_token_counts(name, input_tokens=10, estimated_cost_usd=cost)
    db.create_session("idle", "cli")
    cost = db.insights()["cost"]
    assert cost["usd"] == 0.25 and cost["priced_sessions"] == 2 and cost["unknown_sessions"] == 1
    by_model = {row["model"]: row["cost_usd"] for row in db.insights()["by_model"]}
    assert by_model["free"] == 0.0 and by_model["unknown"] is None


def test_what_was_billed_goes_before_the_estimate(db):
    db.create_session("a", "cli")
    db.update_token_counts("a", input_tokens=1, estimated_cost_usd=1.0, actual_cost_usd=0.5)
    cost = db.insights()["cost"]
    assert (cost["estimated_usd"], cost["actual_usd"], cost["usd"]) == (1.0, 0.5, 0.5)


def test_a_session_that_changed_its_model_is_divided(db):
    db.create_session("a", "cli", model="first")
    db.append_message("a", "assistant", "x", model="first", input_tokens=10, output_tokens=1, cost_usd=0.1)
    db.append_message("a", "assistant", "y", model="second", input_tokens=20, output_tokens=2, cost_usd=0.2)
    db.update_token_counts("a", input_tokens=35, output_tokens=3, reasoning_tokens=7, estimated_cost_usd=0.4)
    rows = {row["model"]: row for row in db.insights()["by_model"]}
    assert rows["second"]["tokens"]["input"] == 20 and rows["second"]["cost_usd"] == pytest.approx(0.2)
    assert rows["first"]["tokens"]["input"] == 15 and rows["first"]["tokens"]["reasoning"] == 7
    assert rows["first"]["cost_usd"] == pytest.approx(0.2)


def test_of_an_old_session_only_the_period_counts(db):
    db.create_session("a", "telegram", started_at=NOW - 400 * DAY)
    db.append_message("a", "assistant", "then", timestamp=NOW - 399 * DAY, input_tokens=1000, cost_usd=9.0)
    db.append_message("a", "assistant", "now", timestamp=NOW - DAY, input_tokens=10, cost_usd=0.1)
    db.update_token_counts("a", input_tokens=1010, estimated_cost_usd=9.1)
    found = db.insights(30, now=NOW)
    assert (found["sessions"], found["messages"], found["tokens"]["input"]) == (1, 1, 10)
    assert found["cost"]["usd"] == pytest.approx(0.1)
    assert db.insights(1000, now=NOW)["tokens"]["input"] == 1010


@pytest.mark.parametrize(
    ("moment", "hour"), [((2025, 10, 26, 0, 30), 2), ((2025, 10, 26, 1, 30), 2), ((2025, 3, 30, 1, 30), 3)]
)
def test_hours_follow_the_clock_when_it_is_changed(db, moment, hour):
    """In Berlin the hour from two to three comes twice in October and never in March."""
    stamp = datetime(*moment, tzinfo=UTC).timestamp()
    db.create_session("a", "cli", started_at=stamp)
    db.append_message("a", "user", "x", timestamp=stamp)
    by_hour = db.insights(1, now=stamp + 3600, timezone=BERLIN)["by_hour"]
    assert by_hour.index(1) == hour and sum(by_hour) == 1


def test_the_machines_own_time_zone_is_the_default(db, monkeypatch):
    stamp = datetime(2025, 7, 1, 20, 30, tzinfo=UTC).timestamp()
    db.create_session("a", "cli", started_at=stamp)
    db.append_message("a", "user", "x", timestamp=stamp)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = db.insights(1, now=stamp + 1)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found["by_hour"][5] == 1 and list(found["by_day"]) == ["2025-07-02"] and found["timezone"] == "JST"


@pytest.mark.parametrize(
    ("days_ago", "streaks"),
    [
        ([0, 1, 2, 5, 6, 7, 8], (3, 4, 7)),
        ([1, 2], (2, 2, 2)),  # today is not over
        ([2, 3, 4], (0, 3, 3)),
        ([0], (1, 1, 1)),
    ],
)
def test_streaks_are_days_in_a_row(db, days_ago, streaks):
    noon = datetime(2025, 11, 15, 12, tzinfo=ZoneInfo(BERLIN))
    db.create_session("a", "cli", started_at=(noon - timedelta(days=10)).timestamp())
    for days in days_ago:
        db.append_message("a", "user", "x", timestamp=(noon - timedelta(days=days)).timestamp())
    found = db.insights(30, now=noon.timestamp(), timezone=BERLIN)["streaks"]
    assert (found["current"], found["longest"], found["days_active"]) == streaks


def test_the_longest_and_the_costliest_are_named(db):
    for number in range(8):
        talk(db, f"s{number}", *["word"] * (number + 1))
        db.update_token_counts(f"s{number}", input_tokens=1, estimated_cost_usd=1.0 / (number + 1))
    found = db.insights()
    assert [row["id"] for row in found["longest"]] == ["s7", "s6", "s5", "s4", "s3"]
    assert [row["id"] for row in found["costliest"]] == ["s0", "s1", "s2", "s3", "s4"]
    assert found["longest"][0]["messages"] == 8 and found["costliest"][0]["cost_usd"] == 1.0


def test_a_user_sees_their_own_numbers_only(db):
    talk(db, "mine", "one", source="telegram", user_id="1")
    talk(db, "theirs", "two", "three", source="telegram", user_id="2")
    assert db.insights(visible_to=("telegram", "1"))["messages"] == 1
    db.share_session("theirs", "telegram", "1")
    assert db.insights(visible_to=("telegram", "1"))["messages"] == 3


@pytest.mark.parametrize("days", [0, -1, float("nan"), "30", None, True])
def test_days_that_are_none_are_refused(db, days):
    with pytest.raises(InvalidInput):
        db.insights(days)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", 7])
def test_a_time_zone_nobody_knows_is_refused(db, name):
    with pytest.raises(InvalidInput, match="time zone"):
        db.insights(timezone=name)


def test_calls_in_strange_shapes_are_counted_as_the_store_counts_them(db):
    db.create_session("a", "cli")
    for calls in ([{"name": "plain"}], {"function": {"name": "single"}}, ["what"], "[not json", [{"function": 7}]):
        db.append_message("a", "assistant", "x", tool_calls=calls)
    found = db.insights()
    assert found["tool_calls"] == db.get_session("a")["tool_call_count"]
    assert {row["tool"] for row in found["by_tool"]} == {"plain", "single", "(no name)"}

"""When a job is due, in time zones whose clocks are changed. Berlin: 29 March 2026 at 2:00, 25 October 2026 at 3:00."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hermes.errors import InvalidInput
from hermes.times import next_time

pytestmark = pytest.mark.mechanism

BERLIN = "Europe/Berlin"


def due(schedule: str, after: str, count: int, timezone: str = BERLIN) -> list[str]:
    """The next times, as the clock on the wall shows them with its distance from UTC."""
    moment = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(timezone)).timestamp()
    times = []
    for _ in range(count):
        moment = next_time(schedule, timezone, moment)
        times.append(datetime.fromtimestamp(moment, ZoneInfo(timezone)).strftime("%m-%d %H:%M %z"))
    return times


def test_nine_o_clock_is_nine_o_clock_before_and_after_the_change() -> None:
    assert due("0 9 * * *", "2026-03-28 00:00", 3) == ["03-28 09:00 +0100", "03-29 09:00 +0200", "03-30 09:00 +0200"]
    assert due("0 9 * * *", "2026-10-24 10:00", 2) == ["10-25 09:00 +0100", "10-26 09:00 +0100"]


def test_a_time_that_the_clock_skips_is_due_right_after_the_gap() -> None:
    assert due("30 2 * * *", "2026-03-28 12:00", 2) == ["03-29 03:00 +0200", "03-30 02:30 +0200"]


def test_a_time_that_comes_twice_is_due_once() -> None:
    assert due("30 2 * * *", "2026-10-24 12:00", 2) == ["10-25 02:30 +0200", "10-26 02:30 +0100"]


def test_every_hour_goes_by_real_time() -> None:
    assert due("0 * * * *", "2026-03-29 00:30", 3) == ["03-29 01:00 +0100", "03-29 03:00 +0200", "03-29 04:00 +0200"]
    hours = due("0 * * * *", "2026-10-25 01:30", 3)
    assert hours == ["10-25 02:00 +0200", "10-25 02:00 +0100", "10-25 03:00 +0100"]


def test_weekdays_are_those_of_the_zone() -> None:
    assert due("0 9 * * 1-5", "2026-11-13 10:00", 1, "Pacific/Auckland") == ["11-16 09:00 +1300"]


@pytest.mark.parametrize("schedule", ["", "* * * *", "* * * * * *", "61 * * * *", "0 0 30 2 *", "daily", "0 9 * * 1-9"])
def test_what_is_no_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(InvalidInput):
        next_time(schedule, BERLIN, 0.0)


@given(some.integers(0, 59), some.integers(0, 23), some.floats(1.7e9, 1.9e9))
def test_a_daily_time_is_due_within_a_day_and_an_hour_and_never_in_the_past(
    minute: int, hour: int, after: float
) -> None:
    found = next_time(f"{minute} {hour} * * *", BERLIN, after)
    assert after < found <= after + 25 * 3600

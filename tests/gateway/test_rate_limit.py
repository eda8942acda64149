"""A program that answers every reply is slowed down, the owner can see it, and people notice nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hermes.gateway.flow.inbox import RateLimit
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab


def rounds(limit: RateLimit, count: int, *, every: float = 0.5) -> list[float]:
    """How long each answer waits when the next message comes soon after the last answer."""
    now, found = 0.0, []
    for number in range(count):
        wait, _ = limit.delay(number, "plain", "bob", now)
        found.append(wait)
        limit.done(number)
        now += wait + every
    return found


def test_a_loop_is_answered_so_many_times_a_minute() -> None:
    waits = rounds(RateLimit(30), 300, every=0.1)
    assert waits[:30] == [0.0] * 30
    assert sum(waits) > 8 * 60  # all of it took half a minute before
    assert max(waits) <= 60


def test_people_notice_nothing() -> None:
    assert not any(rounds(RateLimit(30), 100, every=3.0))
    limit = RateLimit(30)  # a hundred forwarded messages are one round
    assert not any(limit.delay(number, "plain", "bob", 0.0)[0] for number in range(100))
    assert not any(rounds(RateLimit(0), 100))
    for number in range(31):  # another person's loop
        limit.delay(1000 + number, "plain", "loop", 0.0)
        limit.done(1000 + number)
    assert limit.delay(2000, "plain", "alice", 0.0) == (0.0, False)


def test_the_beginning_of_a_delay_is_told_once() -> None:
    limit, told = RateLimit(2), []
    for number in range(6):
        told.append(limit.delay(number, "plain", "bob", float(number))[1])
        limit.done(number)
    assert told == [False, False, True, False, False, False]


@given(st.lists(st.floats(0, 100), max_size=60), st.integers(0, 5))
def test_what_came_first_is_answered_first(pauses: list[float], per_minute: int) -> None:
    limit, now, last = RateLimit(per_minute), 0.0, 0.0
    for number, pause in enumerate(pauses):
        now += pause
        wait, _ = limit.delay(number, "plain", "bob", now)
        assert wait >= 0 and now + wait >= last
        last = now + wait
        if number % 2:
            limit.done(number)


def test_the_status_tells_of_it_and_nothing_is_lost(lab: PlainLab) -> None:
    settings = {"brake": {"per_minute": 2}, "streaming": {"enabled": False}}
    with Echo() as model:
        with running(lab, model, gateway=settings) as gateway:
            for number in range(2):
                lab.say(f"message {number}", who="bob")
                until(lambda number=number: f"echo: message {number}" in lab.shown(who="bob"))
            lab.say("message 2", who="bob")
            until(lambda: any("may be a program" in str(one["error"]) for one in gateway.store.statuses()))
            (row,) = [one for one in gateway.store.statuses() if one["platform"] == "plain"]
            assert row["state"] == "connected" and lab.user_id("bob") in str(row["error"])
            lab.say("/help", who="bob")
            until(lambda: any("/resume" in one for one in lab.shown(who="bob")))  # commands don't wait
            assert "echo: message 2" not in lab.shown(who="bob")
        with running(lab, model, gateway=settings):
            until(lambda: "echo: message 2" in lab.shown(who="bob"))
            assert lab.shown(who="bob").count("echo: message 2") == 1

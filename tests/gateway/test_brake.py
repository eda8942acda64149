"""A program that answers every reply is slowed down, the owner hears of it, and people notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.gateway.brake import LONGEST, Brake
from hermes.gateway.events import Chat, as_json
from hermes.store import approvals, gateway_inbox
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab

AUTOMATIC = "Thank you for your message, number {}. I am away and will answer when I am back."


@pytest.fixture
def lab() -> Iterator[PlainLab]:
    made = PlainLab()
    yield made
    made.close()


def rounds(brake: Brake, texts: list[str], *, every: float = 0.5) -> list[float]:
    """How long each answer waits when the next message comes soon after the last answer."""
    now, found = 0.0, []
    for number, text in enumerate(texts):
        wait, _ = brake.delay(number, "plain", "bob", text, now)
        found.append(wait)
        brake.done(number)
        now += wait + every
    return found


def test_a_loop_is_answered_ever_more_slowly() -> None:
    waits = rounds(Brake(30), [AUTOMATIC.format(number) for number in range(40)])
    assert waits[:6] == [0.0] * 6
    assert waits[6:12] == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    assert max(waits) == LONGEST
    assert sum(waits[:30]) > 2 * 3600  # thirty answers took half a minute before


def test_different_words_as_fast_as_no_person_types_are_slowed_down_too() -> None:
    waits = rounds(Brake(30), [f"{chr(97 + n) * 30} {chr(97 + n)}" for n in range(26)] * 2, every=0.1)
    assert waits[:30] == [0.0] * 30
    assert waits[30] > 0


def test_people_notice_nothing() -> None:
    assert not any(rounds(Brake(30), ["go on"] * 45, every=3.0))
    assert not any(rounds(Brake(30), [AUTOMATIC.format(1)] * 20, every=700.0))
    brake = Brake(30)  # a hundred forwarded messages are one round
    assert not any(brake.delay(number, "plain", "bob", AUTOMATIC, 0.0)[0] for number in range(100))
    assert not any(rounds(Brake(0), [AUTOMATIC] * 100))


@given(st.lists(st.tuples(st.text(max_size=30), st.floats(0, 100)), max_size=60), st.integers(0, 5))
def test_what_came_first_is_answered_first(said: list[tuple[str, float]], per_minute: int) -> None:
    brake, now, last = Brake(per_minute), 0.0, 0.0
    for number, (text, pause) in enumerate(said):
        now += pause
        wait, _ = brake.delay(number, "plain", "bob", text, now)
        assert wait >= 0 and now + wait >= last
        last = now + wait
        if number % 2:
            brake.done(number)


def test_the_owner_is_told_and_nothing_is_lost(lab: PlainLab, hermes_home: Path) -> None:
    with (
        Echo() as model,
        running(
            lab, hermes_home, model.base_url, gateway={"brake": {"per_minute": 3}, "streaming": {"enabled": False}}
        ) as gateway,
    ):
        home = Chat(platform="plain", chat_id=lab.chat_id("dm", "alice"))
        gateway.store.write(approvals.set_home, "plain", as_json(home))
        for number in range(4):
            lab.say(AUTOMATIC.format(number), who="bob")
            until(lambda number=number: len(lab.shown(who="bob")) == number + 1, 30)
        until(lambda: len(lab.shown(who="alice")) == 1, 30)
        (told,) = lab.shown(who="alice")
        assert lab.user_id("bob") in told and "may be a program" in told
        (row,) = [one for one in gateway.store.statuses() if one["platform"] == "plain"]
        assert row["state"] == "connected" and "may be a program" in row["error"]
        assert [text.partition(":")[0] for text in lab.shown(who="bob")] == ["echo"] * 4


def test_what_waits_is_answered_after_a_restart(lab: PlainLab, hermes_home: Path) -> None:
    brake = {"brake": {"per_minute": 1}}
    with Echo() as model:
        with running(lab, hermes_home, model.base_url, gateway=brake) as gateway:
            for number in range(2):  # the second one waits two seconds
                lab.say(f"message {number}")
                until(lambda number=number: f"echo: message {number}" in lab.shown())
            lab.say("message 2")
            until(lambda: gateway.store.read(gateway_inbox.waiting))
            lab.say("/help")
            until(lambda: any("/resume" in one for one in lab.shown()))  # commands don't wait
            assert "echo: message 2" not in lab.shown()
        with running(lab, hermes_home, model.base_url, gateway=brake):
            until(lambda: "echo: message 2" in lab.shown())
            assert lab.shown().count("echo: message 2") == 1

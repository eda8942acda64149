"""Conversations begin anew when their time is over: by every policy, in every time zone, and without losing anything."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.config import Config
from hermes.config.loading import parse_config
from hermes.config.settings_schema import SessionReset
from hermes.gateway.chats import resets
from hermes.gateway.chats.resets import boundary, due, notice, policy
from hermes.gateway.runner import Gateway
from hermes.gateway.settings import Timings
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import routes
from hermes.times import zone_of
from tests.support import gateway as in_process
from tests.support.echo import Echo
from tests.support.gateway import Clock
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab

running = partial(in_process.running, timings=Timings(reset_check=0.05))

BERLIN = ZoneInfo("Europe/Berlin")
HOUR, DAY = 3600.0, 86400.0


def reset(mode: str, idle_minutes: float, at_hour: int, notify: bool) -> SessionReset:
    return SessionReset(mode=mode, idle_minutes=idle_minutes, at_hour=at_hour, notify=notify)


def at(text: str, zone: ZoneInfo = BERLIN, *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


# ------------------------------------------------------------------------------------------------ when


@pytest.mark.parametrize(
    ("mode", "said", "now", "reason"),
    [
        ("none", "2026-05-01 12:00", "2027-05-01 12:00", None),
        ("idle", "2026-05-01 12:00", "2026-05-01 12:59", None),
        ("idle", "2026-05-01 12:00", "2026-05-01 13:00", "idle"),
        ("idle", "2026-05-01 03:59", "2026-05-01 04:01", None),
        ("daily", "2026-05-01 03:59", "2026-05-01 04:00", "daily"),
        ("daily", "2026-05-01 03:59", "2026-05-01 03:59", None),
        ("daily", "2026-05-01 04:00", "2026-05-02 03:59", None),
        ("daily", "2026-05-01 04:00", "2026-05-02 04:00", "daily"),
        ("daily", "2026-04-01 12:00", "2026-05-01 01:00", "daily"),
        ("both", "2026-05-01 03:59", "2026-05-01 04:01", "daily"),
        ("both", "2026-05-01 12:00", "2026-05-01 13:00", "idle"),
        ("both", "2026-05-01 12:00", "2026-05-01 12:59", None),
    ],
)
def test_the_four_modes(mode: str, said: str, now: str, reason: str | None) -> None:
    assert due(reset(mode, 60, 4, True), at(said), at(now), BERLIN) == reason


@pytest.mark.parametrize(
    ("now", "hour", "moment"),
    [
        # The clocks go forward: 02:00 becomes 03:00, and what should happen at two happens at three.
        ("2026-03-29 01:59", 2, at("2026-03-28 02:00")),
        ("2026-03-29 03:00", 2, at("2026-03-29 03:00")),
        ("2026-03-29 04:00", 4, at("2026-03-29 04:00")),
        ("2026-03-29 03:59", 4, at("2026-03-28 04:00")),
        # The clocks go back: 02:30 comes twice, and the first one counts.
        ("2026-10-25 01:59", 2, at("2026-10-24 02:00")),
        ("2026-10-25 02:00", 2, at("2026-10-25 02:00")),
        ("2026-10-25 04:00", 4, at("2026-10-25 04:00")),
        ("2026-10-25 12:00", 0, at("2026-10-25 00:00")),
    ],
)
def test_hours_are_those_of_the_clock_on_the_wall_when_it_is_changed(now: str, hour: int, moment: float) -> None:
    assert boundary(at(now), hour, BERLIN) == moment
    assert boundary(at("2026-10-25 02:30", fold=1), 2, BERLIN) == at("2026-10-25 02:00", fold=0)


def test_a_daily_reset_happens_once_in_a_night_with_two_of_its_hour() -> None:
    daily = reset("daily", 60, 2, True)
    first, second = at("2026-10-25 02:30", fold=0), at("2026-10-25 02:30", fold=1)
    assert due(daily, at("2026-10-25 01:30"), first, BERLIN) == "daily"
    assert due(daily, first, second, BERLIN) is None
    assert due(daily, first, at("2026-10-26 02:00"), BERLIN) == "daily"


@contextmanager
def machine_in(zone: str) -> Iterator[None]:
    """This process, as on a machine with that time zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ", None)
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


@given(
    st.floats(at("2025-01-01 00:00"), at("2027-12-31 00:00")),
    st.integers(0, 23),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]),
)
def test_the_machines_own_zone_is_reckoned_like_a_configured_one(now: float, hour: int, zone: str) -> None:
    with machine_in(zone):
        local = boundary(now, hour, zone_of(None))
    assert local == boundary(now, hour, zone_of(zone))
    assert local <= now < local + DAY + 2 * HOUR


# ------------------------------------------------------------------------------------------------ which policy


def configured(text: str) -> Config:
    return parse_config(text, Path("config.yaml"))


def test_what_is_said_of_the_platform_wins_then_of_the_type_then_of_all() -> None:
    config = configured(
        "session_reset: {mode: idle, idle_minutes: 10, notify: false, by_platform: {telegram: {mode: daily, at_hour: 6}},"
        " by_type: {group: {mode: both, idle_minutes: 5, at_hour: 7, notify: true}}}"
    )
    assert policy(config, "signal", "dm") == reset("idle", 10, 4, False)
    assert policy(config, "signal", "group") == reset("both", 5, 7, True)
    assert policy(config, "telegram", "dm") == reset("daily", 10, 6, False)
    assert policy(config, "telegram", "group") == reset("daily", 5, 6, True)
    assert policy(Config(), "telegram", "dm") == reset("none", 1440, 4, True)


@pytest.mark.parametrize(
    ("policy", "reason", "words"),
    [
        (reset("idle", 90, 4, True), "idle", "90 minutes"),
        (reset("idle", 1440, 4, True), "idle", "24 hours"),
        (reset("both", 4320, 4, True), "idle", "3 days"),
        (reset("both", 4320, 4, True), "daily", "at 4:00"),
    ],
)
def test_the_notice_says_why_and_how_to_go_back(policy: SessionReset, reason: str, words: str) -> None:
    text = notice(reason, policy, "my talk")
    assert words in text
    assert "`/resume my talk`" in text


# ------------------------------------------------------------------------------------------------ in the gateway


IDLE = {"mode": "idle", "idle_minutes": 60}


def say(lab: PlainLab, text: str, **where: Any) -> list[str]:
    """Say something and wait for its echo; what is shown there then."""
    lab.say(text, **where)
    place = {key: where[key] for key in ("who", "where") if key in where}
    until(
        lambda: any(f"echo: {text}" in one or f"] {text}" in one for one in lab.shown(**place)),
        str(lab.shown(**place)),
    )
    return lab.shown(**place)


def only_session(gateway: Gateway) -> str:
    (row,) = gateway.db.list_sessions_rich(source="plain")
    return str(row["id"])


def ended(gateway: Gateway, session_id: str) -> Any:
    return (gateway.db.get_session(session_id) or {})["end_reason"]


def quieted(lab: PlainLab, gateway: Gateway, clock: Clock, text: str, title: str | None = None) -> str:
    """A conversation that was reset, two hours after this was said."""
    say(lab, text)
    session_id = only_session(gateway)
    if title is not None:
        gateway.db.set_session_title(session_id, title)
    clock.forward(2 * HOUR)
    until(lambda: ended(gateway, session_id) == "idle")
    return session_id


def test_a_quiet_conversation_ends_and_the_next_message_begins_another_that_links_to_it(
    lab: PlainLab, model: Echo
) -> None:
    clock = Clock()
    with running(lab, model, clock=clock, session_reset=IDLE) as gateway:
        say(lab, "about tulips")
        old = only_session(gateway)
        clock.forward(59 * 60)
        say(lab, "still here")
        assert only_session(gateway) == old
        clock.forward(61 * 60)
        until(lambda: ended(gateway, old) == "idle")
        assert len(lab.shown()) == 2  # nobody is woken at night by it
        shown = say(lab, "good morning")
        assert shown[2].startswith("↻ This is a new conversation: the last one was quiet for 60 minutes.")
        assert shown[3] == "echo: good morning"
        route = gateway.store.read(routes.get, "agent:main:plain:dm:dm-alice")
        assert route and route.session_id and route.session_id != old
        new = gateway.db.get_session(route.session_id)
        assert new is not None
        assert (new["parent_session_id"], new["kind"]) == (old, "reset")
        assert next(m["content"] for m in gateway.db.get_messages(new["id"])) == "good morning"
        shown = say(lab, "once more")
        assert len(shown) == 5  # told once


def test_the_command_in_the_notice_brings_the_old_conversation_back_and_it_stays(lab: PlainLab, model: Echo) -> None:
    clock = Clock()
    with running(lab, model, clock=clock, session_reset=IDLE) as gateway:
        old = quieted(lab, gateway, clock, "about tulips", title="tulips & co")
        shown = say(lab, "good morning")
        command = shown[1].split("`")[1]
        assert command == "/resume tulips & co"
        lab.say(command)
        until(lambda: any("Continuing" in one for one in lab.shown()))
        clock.forward(50 * 60)  # less than the hour, but long after what was last said in it
        until(lambda: gateway.store.read(routes.get, "agent:main:plain:dm:dm-alice").session_id == old)
        say(lab, "and roses")
        said = [m["content"] for m in gateway.db.get_messages(old)]
        assert said[0] == "about tulips"
        assert said[-2:] == ["and roses", "echo: and roses"]
        assert ended(gateway, old) is None


def test_without_notify_nothing_is_said(lab: PlainLab, model: Echo) -> None:
    clock = Clock()
    settings = {**IDLE, "notify": False}
    with running(lab, model, clock=clock, session_reset=settings) as gateway:
        quieted(lab, gateway, clock, "one")
        assert say(lab, "two") == ["echo: one", "echo: two"]


def test_by_default_nothing_is_ever_reset(lab: PlainLab, model: Echo) -> None:
    clock = Clock()
    with running(lab, model, clock=clock) as gateway:
        say(lab, "one")
        clock.forward(400 * DAY)
        assert say(lab, "two") == ["echo: one", "echo: two"]
        only_session(gateway)


def test_a_daily_reset_is_at_the_configured_hour_of_the_configured_zone(lab: PlainLab, model: Echo) -> None:
    zone = "Asia/Kathmandu"
    clock = Clock(at("2026-06-01 03:30", ZoneInfo(zone)))
    settings = {"mode": "daily", "at_hour": 4}
    with running(lab, model, clock=clock, session_reset=settings, timezone=zone) as gateway:
        say(lab, "late at night")
        old = only_session(gateway)
        clock.forward(20 * 60)
        say(lab, "even later")
        assert ended(gateway, old) is None
        clock.forward(20 * 60)
        until(lambda: ended(gateway, old) == "daily")
        assert any("at 4:00" in one for one in say(lab, "morning"))


def test_a_restart_reckons_from_the_last_message_not_from_the_restart(lab: PlainLab, model: Echo) -> None:
    clock = Clock()
    with running(lab, model, clock=clock, session_reset=IDLE) as gateway:
        say(lab, "before")
        old = only_session(gateway)
    clock.forward(50 * 60)
    with running(lab, model, clock=clock, session_reset=IDLE) as gateway:
        clock.forward(5 * 60)
        assert ended(gateway, old) is None
        clock.forward(6 * 60)
        until(lambda: ended(gateway, old) == "idle")
    with running(lab, model, clock=clock, session_reset=IDLE):
        assert say(lab, "after")[1].startswith("↻ This is a new conversation")


def test_what_expired_while_the_gateway_was_off_begins_anew_with_the_first_message(lab: PlainLab, model: Echo) -> None:
    clock = Clock()
    with running(lab, model, timings=Timings(reset_check=3600.0), clock=clock, session_reset=IDLE) as gateway:
        say(lab, "before")
        old = only_session(gateway)
        clock.forward(2 * HOUR)
        shown = say(lab, "after")
        assert [one[:6] for one in shown] == ["echo: ", "↻ This", "echo: "]
        assert ended(gateway, old) == "idle"


# ------------------------------------------------------------------------------------------------ the last turn


@pytest.mark.parametrize("who", ["alice", "bob"])
def test_before_a_reset_the_agent_saves_what_matters_and_knows_it_afterwards(
    lab: PlainLab, model: Echo, hermes_home: Path, who: str
) -> None:
    clock = Clock()
    model.calls[resets.FAREWELL[:40]] = (
        "memory",
        {"action": "add", "target": "user", "text": "grows black tulips"},
    )
    with running(lab, model, clock=clock, session_reset=IDLE) as gateway:
        say(lab, "I grow black tulips", who=who)
        old = only_session(gateway)
        clock.forward(2 * HOUR)
        until(lambda: ended(gateway, old) == "idle")
        (farewell, *_) = [r for r in model.requests if resets.FAREWELL in str(r["messages"][-1])]
        assert {tool["function"]["name"] for tool in farewell["tools"]} == {"memory", "skills"}
        model.requests.clear()
        shown = say(lab, "hello again", who=who)
        assert shown[-1] == "echo: hello again"
        assert not any("From the gateway" in one for one in shown)
        (asked,) = [r for r in model.requests if r.get("tools")]
        assert "grows black tulips" in asked["messages"][0]["content"]
        assert "I grow black tulips" not in str(asked["messages"][1:])
    other = hermes_home / "memories" / "USER.md"
    assert other.exists() == (who == "alice")  # bob's lies in a folder of his own


def test_a_model_that_fails_does_not_stop_a_reset(lab: PlainLab, model: Echo) -> None:
    clock = Clock()
    with running(lab, model, clock=clock, session_reset=IDLE) as gateway:
        say(lab, "one")
        old = only_session(gateway)
        model.refuses["echo"] = 400
        clock.forward(2 * HOUR)
        until(lambda: ended(gateway, old) == "idle")
        model.refuses.clear()
        assert say(lab, "two")[-1] == "echo: two"


# ------------------------------------------------------------------------------------------------ not now


def test_a_turn_that_lasts_is_not_reset_in_its_middle(lab: PlainLab, model: Echo) -> None:
    clock = Clock()
    with running(lab, model, clock=clock, session_reset=IDLE) as gateway:
        say(lab, "first")
        old = only_session(gateway)
        lab.say("pause=1.5 think")
        until(lambda: any("pause=1.5 think" in str(r["messages"][-1]) for r in model.requests))
        clock.forward(2 * HOUR)
        until(lambda: "echo: pause=1.5 think" in lab.shown())
        assert [m["content"] for m in gateway.db.get_messages(old)][:4][-1] == "echo: pause=1.5 think"
        until(lambda: ended(gateway, old) == "idle")  # then it is


def test_a_session_with_something_running_in_the_background_is_not_reset(lab: PlainLab, model: Echo) -> None:
    clock = Clock()
    with running(lab, model, clock=clock, session_reset=IDLE) as gateway:
        lab.say('call=terminal {"command": "sleep 300", "background": true}')
        until(lambda: any("the tool said" in one for one in lab.shown()))
        old = only_session(gateway)
        agent = gateway.agents.get("agent:main:plain:dm:dm-alice")
        assert agent is not None
        assert agent.background_running() == 1
        clock.forward(2 * HOUR)
        say(lab, "is it done?")  # a look at the time comes before each answer
        assert only_session(gateway) == old
        lab.say("/stop")
        until(lambda: any("Stopped 1 background process" in one for one in lab.shown()))
        clock.forward(2 * HOUR)
        until(lambda: ended(gateway, old) == "idle")


def test_a_session_that_a_terminal_holds_is_not_reset(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    clock = Clock()
    with running(lab, model, clock=clock, session_reset=IDLE) as gateway:
        say(lab, "one")
        old = only_session(gateway)
        until(lambda: not gateway.db.is_live(old))
        with SessionDB(hermes_home / "state.db") as elsewhere:
            token = elsewhere.hold_session(old, "another:1:terminal", 600)
            assert token is not None
            clock.forward(2 * HOUR)
            say(lab, "two")
            assert ended(gateway, old) is None
            assert only_session(gateway) == old
            clock.forward(2 * HOUR)
            elsewhere.release_lease(f"session:{old}", token)
        until(lambda: ended(gateway, old) == "idle")

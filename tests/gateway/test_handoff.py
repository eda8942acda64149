"""Handoff: a conversation goes from the terminal to a chat and back, from chat to chat, and survives every failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox, routes
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.gateway_process import GatewayProcess, environment, write_config
from tests.support.hastened import HASTENED
from tests.support.labs.base import until
from tests.support.labs.plain import ForgetfulLab, PlainLab
from tests.support.screen import Screen

SESSION = "20260101_000000_abcdef"
HOME = {"platforms": {"plain": {"home_channel": "group:group-1"}}}


@pytest.fixture
def terminal(hermes_home: Path) -> Iterator[Callable[..., Screen]]:
    """terminal("-r", "title") → `hermes -r title` in a terminal."""
    screens: list[Screen] = []

    def start(*words: str, seconds: float = 60) -> Screen:
        variables = environment(hermes_home, TEST_HANDOFF_SECONDS=str(seconds), NO_COLOR="1")
        screen = Screen([*HASTENED, *words], 110, 40, env=variables)
        screens.append(screen)
        return screen

    yield start
    for screen in screens:
        screen.close()


def at_the_desk(home: Path) -> None:
    """A conversation of the terminal's, with a title."""
    with SessionDB(home / "state.db") as db:
        db.create_session(SESSION, "cli")
        db.set_session_title(SESSION, "about tulips")
        db.append_message(SESSION, "user", "we were talking about tulips")
        db.append_message(SESSION, "assistant", "yes, about tulips")


def outcome(db: SessionDB) -> dict[str, Any]:
    return until(lambda: (s := db.get_handoff_state(SESSION)) and s["state"] in ("completed", "failed") and s)


def in_thread(lab: PlainLab) -> list[str]:
    """The messages in the thread that was made for the handoff."""
    with lab._lock:
        return [one["text"] for one in lab.messages.values() if one["place"][1] is not None]


# ------------------------------------------------------------------------------------------ from a real terminal


def test_from_the_terminal_to_a_thread_and_back(
    lab: PlainLab, model: Echo, hermes_home: Path, terminal: Callable[..., Screen]
) -> None:
    with GatewayProcess(hermes_home, [lab], model.base_url, **HOME):
        screen = terminal()
        screen.wait_for("/help")
        screen.line("hello from the desk")
        screen.wait_for("echo: hello from the desk")
        screen.line("/title my tulips")
        screen.wait_for("my tulips")
        screen.line("/handoff plain")
        screen.wait_for("↻ Handoff complete. The session is now active on plain.")
        screen.wait_for("Resume it on this CLI later with:")
        screen.wait_for("/resume my tulips")
        assert screen.wait_until_over() == 0
        assert lab.threads() == ["my tulips"]
        until(lambda: len(in_thread(lab)) == 1)
        assert "from the terminal" in in_thread(lab)[0]
        with SessionDB(hermes_home / "state.db") as db:
            row = db.get_session_by_title("my tulips")
            assert row is not None
            assert row["ended_at"] is None
        (thread,) = {one["place"][1] for one in lab.messages.values()}
        lab.say("and from the sofa", who="bob", chat={"chat_id": "group-1", "type": "group", "thread_id": thread})
        until(lambda: len(in_thread(lab)) == 2)
        with SessionDB(hermes_home / "state.db") as db:
            said = [m["content"] for m in db.get_messages(row["id"]) if m["role"] == "user"]
        assert said[0] == "hello from the desk"
        assert said[1].startswith("[From the gateway")
        assert said[2] == "[Bob] and from the sofa"
        back = terminal("-r", "my tulips")
        back.wait_for("and from the sofa")
        back.line("at the desk again")
        back.wait_for("echo: at the desk again")
        back.line("/quit")
        back.wait_until_over()
        with SessionDB(hermes_home / "state.db") as db:
            assert db.get_messages(row["id"])[-2]["content"] == "at the desk again"


def test_without_a_home_chat_it_is_refused_with_the_way_out(
    lab: PlainLab, model: Echo, hermes_home: Path, terminal: Callable[..., Screen]
) -> None:
    write_config(hermes_home, [lab], model.base_url)
    at_the_desk(hermes_home)
    screen = terminal("-r", "about tulips")
    screen.wait_for("about tulips")
    screen.line("/handoff telegram")
    screen.wait_for("telegram is not switched on")
    screen.line("/handoff plain")
    screen.wait_for("/sethome")
    screen.line("still here")
    screen.wait_for("echo: still here")


def test_without_a_gateway_there_is_a_clear_word_and_the_conversation_goes_on(
    lab: PlainLab, model: Echo, hermes_home: Path, terminal: Callable[..., Screen]
) -> None:
    write_config(hermes_home, [lab], model.base_url, **HOME)
    at_the_desk(hermes_home)
    screen = terminal("-r", "about tulips", seconds=2)
    screen.wait_for("about tulips")
    screen.line("/handoff plain")
    screen.wait_for("no gateway took it over within 2 seconds. Is it running?")
    screen.line("still here")
    screen.wait_for("echo: still here")
    with SessionDB(hermes_home / "state.db", read_only=True) as db:
        assert outcome(db)["state"] == "failed"
        assert db.list_pending_handoffs() == []  # a gateway that comes later does not take it away from here


@pytest.mark.parametrize("how", ["Ctrl-C", "closed"])
def test_a_request_that_is_given_up_is_withdrawn(
    lab: PlainLab, model: Echo, hermes_home: Path, terminal: Callable[..., Screen], how: str
) -> None:
    write_config(hermes_home, [lab], model.base_url, **HOME)
    at_the_desk(hermes_home)
    screen = terminal("-r", "about tulips")
    screen.wait_for("about tulips")
    screen.line("/handoff plain")
    screen.wait_for("Handing over to plain")
    if how == "Ctrl-C":
        screen.press("C-c")
        screen.wait_for("withdrawn")
        screen.line("still here")
        screen.wait_for("echo: still here")
    else:
        os.kill(screen.pid(), signal.SIGHUP)
        screen.wait_until_over()
    with running(lab, model, **HOME) as gateway:  # comes later, and takes nothing
        state = gateway.db.get_handoff_state(SESSION)
        assert state is not None
        assert state["state"] == "failed"
        assert gateway.db.list_pending_handoffs() == []
    assert lab.threads() == []


def test_a_claimed_handoff_that_is_given_up_is_undone_and_the_desk_goes_on(
    lab: PlainLab, model: Echo, hermes_home: Path, terminal: Callable[..., Screen]
) -> None:
    at_the_desk(hermes_home)
    with GatewayProcess(hermes_home, [lab], model.base_url, **HOME), SessionDB(hermes_home / "state.db") as db:
        screen = terminal("-r", "about tulips")
        screen.wait_for("about tulips")
        model.latency = 60.0
        screen.line("/handoff plain")
        until(lambda: model.requests)  # the thread is made and the turn under way
        screen.press("C-c")
        screen.wait_for("withdrawn")
        until(lambda: GatewayDB(db).read(routes.of_session, SESSION) is None)
        model.latency = 0.0
        screen.line("still here")
        screen.wait_for("echo: still here")
        assert outcome(db)["state"] == "failed"
        assert in_thread(lab) == []
        assert db.get_messages(SESSION)[-2]["content"] == "still here"


def test_nobody_else_writes_into_a_conversation_that_is_being_handed_over(
    lab: PlainLab, model: Echo, hermes_home: Path, terminal: Callable[..., Screen]
) -> None:
    write_config(hermes_home, [lab], model.base_url, **HOME)
    at_the_desk(hermes_home)
    with SessionDB(hermes_home / "state.db") as db:
        screen = terminal("-r", "about tulips")
        screen.wait_for("about tulips")
        assert db.request_handoff(SESSION, "plain")
        assert db.claim_handoff(SESSION)
        screen.line("meanwhile")
        screen.wait_for("handoff to plain")
        assert not any(m["content"] == "meanwhile" for m in db.get_messages(SESSION))
        assert db.complete_handoff(SESSION)
        screen.wait_for("echo: meanwhile")


def test_what_is_typed_during_the_handoff_is_shown_as_not_sent(
    lab: PlainLab, model: Echo, hermes_home: Path, terminal: Callable[..., Screen]
) -> None:
    write_config(hermes_home, [lab], model.base_url, **HOME)
    at_the_desk(hermes_home)
    with SessionDB(hermes_home / "state.db") as db:
        screen = terminal("-r", "about tulips")
        screen.wait_for("about tulips")
        screen.line("/handoff plain")
        screen.wait_for("Handing over to plain")
        screen.line("one more thing")
        assert db.claim_handoff(SESSION)
        assert db.complete_handoff(SESSION)
        screen.wait_for("Not sent: one more thing")
        assert screen.wait_until_over() == 0


# ------------------------------------------------------------------------------------------ the gateway's side


def test_a_request_of_a_desk_that_is_long_gone_is_left_alone(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    """Its terminal was killed; a gateway that is started hours later does not carry it out, and takes a new one."""
    at_the_desk(hermes_home)
    with SessionDB(hermes_home / "state.db") as db:
        assert db.request_handoff(SESSION, "plain")
        with db._engine.write() as tx:
            tx.run("UPDATE sessions SET handoff_requested_at = handoff_requested_at - 7200")
    with running(lab, model, **HOME) as gateway:
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        assert gateway.db.get_handoff_state(SESSION)["state"] == "pending"
        assert gateway.db.request_handoff(SESSION, "plain")
        assert outcome(gateway.db)["state"] == "completed"
    assert lab.threads() == ["about tulips"]


@pytest.mark.parametrize("threads", [True, False])
def test_what_a_dead_gateway_left_of_a_handoff_is_undone_once_it_is_withdrawn(
    lab: PlainLab, model: Echo, hermes_home: Path, threads: bool
) -> None:
    at_the_desk(hermes_home)
    lab.no_threads = not threads
    gateway = GatewayProcess(hermes_home, [lab], model.base_url, **HOME)
    gateway.start()
    model.latency = 60.0
    with SessionDB(hermes_home / "state.db") as db:
        assert db.request_handoff(SESSION, "plain")
        until(lambda: model.requests)
        gateway.kill()
        assert db.fail_handoff(SESSION, "the desk gave it up")
        model.latency = 0.0
        gateway.start()
        lab.say("hello")
        until(lambda: lab.shown()[-1:] == ["echo: hello"])
        until(lambda: not GatewayDB(db).read(inbox.waiting))
        assert gateway.stop() == 0
        if threads:
            assert lab.shown() == ["echo: hello"] and in_thread(lab) == []
        else:  # the home chat is let go
            assert GatewayDB(db).read(routes.of_session, SESSION) is None
            assert not any(one["content"] == "hello" for one in db.get_messages(SESSION))


def test_where_no_thread_can_be_made_the_home_chat_serves(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    at_the_desk(hermes_home)
    lab.no_threads = True
    with running(lab, model, **HOME) as gateway:
        assert gateway.db.request_handoff(SESSION, "plain")
        assert outcome(gateway.db)["state"] == "completed"
        until(lambda: len(lab.shown("group")) == 1)
        lab.say("go on", where="group")
        until(lambda: len(lab.shown("group")) == 2)
        assert gateway.db.get_messages(SESSION)[-2]["content"].endswith("go on")


def test_a_refused_message_fails_the_handoff_with_its_reason_and_it_can_be_tried_again(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    at_the_desk(hermes_home)
    lab.no_threads = True
    with running(lab, model, platforms={"plain": {"home_channel": "dm-alice"}}) as gateway:
        lab.say("an own conversation")
        until(lambda: len(lab.shown()) == 1)
        (own,) = gateway.db.list_sessions_rich(source="plain")
        lab.refuses = "the bot was blocked"
        assert gateway.db.request_handoff(SESSION, "plain")
        state = outcome(gateway.db)
        assert (state["state"], state["error"]) == ("failed", "the bot was blocked")
        assert gateway.store.read(routes.of_session, SESSION) is None
        lab.refuses = None
        lab.say("as if nothing had happened")
        until(lambda: len(lab.shown()) == 2)
        assert gateway.db.get_messages(own["id"])[-2]["content"] == "as if nothing had happened"
        assert gateway.db.request_handoff(SESSION, "plain")
        until(lambda: gateway.db.get_handoff_state(SESSION)["state"] == "completed")


def test_from_chat_to_chat(lab: PlainLab, forgetful: ForgetfulLab, model: Echo) -> None:
    there = {"platforms": {"forgetful": {"home_channel": "group:group-1"}}}
    with running([lab, forgetful], model, **there) as gateway:
        lab.say("talk on the phone")
        until(lambda: len(lab.shown()) == 1)
        (row,) = gateway.db.list_sessions_rich(source="plain")
        lab.say("/handoff forgetful")
        lab.say("a new subject")
        until(lambda: any("↻ Handoff complete" in text for text in lab.shown()))
        until(lambda: lab.shown()[-1] == "echo: a new subject")
        until(lambda: len(in_thread(forgetful)) == 1)
        route = gateway.store.read(routes.of_session, row["id"])
        assert route is not None
        assert route.platform == "forgetful"
        assert gateway.db.session_count() == 2


def test_from_chat_to_chat_when_it_fails_everything_is_as_it_was(
    lab: PlainLab, forgetful: ForgetfulLab, model: Echo
) -> None:
    there = {"platforms": {"forgetful": {"home_channel": "group:group-1"}}}
    with running([lab, forgetful], model, **there) as gateway:
        lab.say("talk on the phone")
        until(lambda: len(lab.shown()) == 1)
        forgetful.refuses = "not in this room"
        lab.say("/handoff forgetful")
        until(lambda: any("did not work: not in this room" in text for text in lab.shown()))
        lab.say("then here")
        until(lambda: lab.shown()[-1] == "echo: then here")
        (row,) = gateway.db.list_sessions_rich(source="plain")
        assert gateway.db.get_messages(row["id"])[-2]["content"] == "then here"


@pytest.mark.parametrize("claimed", [True, False])
def test_from_chat_to_chat_when_it_takes_too_long_it_is_withdrawn(
    lab: PlainLab, forgetful: ForgetfulLab, model: Echo, monkeypatch: pytest.MonkeyPatch, claimed: bool
) -> None:
    there = {"platforms": {"forgetful": {"home_channel": "group:group-1"}}}
    with running([lab, forgetful], model, **there) as gateway:
        lab.say("talk on the phone")
        until(lambda: len(lab.shown()) == 1)
        (row,) = gateway.db.list_sessions_rich(source="plain")
        if claimed:
            monkeypatch.setattr("hermes.commands.chat_commands.LONGEST", 1.0)
            model.latency = 60.0
        else:
            monkeypatch.setattr("hermes.commands.chat_commands.PATIENCE", 1.0)
            forgetful.hides = True
            forgetful.drop()
            until(lambda: not gateway.connections["forgetful"].delivery.connected.is_set())
        lab.say("/handoff forgetful")
        until(lambda: any("The handoff did not work" in text for text in lab.shown()))
        model.latency, forgetful.hides = 0.0, False
        until(lambda: getattr(gateway.store.read(routes.of_session, row["id"]), "platform", None) == "plain")
        lab.say("then here")
        until(lambda: lab.shown()[-1] == "echo: then here")
        assert gateway.db.get_messages(row["id"])[-2]["content"] == "then here"
        forgetful.say("hello")
        until(lambda: forgetful.shown()[-1:] == ["echo: hello"])
    assert in_thread(forgetful) == []


def test_a_turn_elsewhere_is_not_handed_over_in_the_middle(
    lab: PlainLab, forgetful: ForgetfulLab, model: Echo, hermes_home: Path
) -> None:
    from hermes.agent.leases import SessionLease

    there = {"platforms": {"forgetful": {"home_channel": "group:group-1"}}}
    with running([lab, forgetful], model, **there) as gateway:
        lab.say("hello")
        until(lambda: len(lab.shown()) == 1)
        (row,) = gateway.db.list_sessions_rich(source="plain")
        until(lambda: not gateway.db.is_live(row["id"]))
        with SessionDB(hermes_home / "state.db") as db:
            hold = SessionLease(db)
            assert hold.open(row["id"])
            lab.say("/handoff forgetful")
            until(lambda: "another program" in lab.shown()[-1])
            hold.release()
        assert gateway.db.get_handoff_state(row["id"])["state"] is None


def test_a_gateway_killed_in_the_middle_is_followed_by_one_that_completes_it_once(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    at_the_desk(hermes_home)
    gateway = GatewayProcess(hermes_home, [lab], model.base_url, **HOME)
    gateway.variables["TEST_HANDOFF_SECONDS"] = "3"
    gateway.start()
    model.latency = 60.0
    with SessionDB(hermes_home / "state.db") as db:
        assert db.request_handoff(SESSION, "plain")
        until(lambda: model.requests)  # the thread is made and the turn under way
        gateway.kill()
        assert db.get_handoff_state(SESSION)["state"] == "running"
        model.latency = 0.0
        gateway.start()
        until(lambda: db.get_handoff_state(SESSION)["state"] == "completed")
        assert gateway.stop() == 0
        assert lab.threads() == ["about tulips"]
        assert len(in_thread(lab)) == 1
        said = [m["content"] for m in db.get_messages(SESSION) if m["role"] == "user"]
        assert [text.startswith("[From the gateway") for text in said] == [False, True]

"""From the outbox to the platform: what may go wrong on the way, and that nothing is lost or doubled by it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.models.endpoint import EndpointModel
from hermes.errors import SlowDown
from hermes.gateway.events import Chat, Event, Sender, as_json
from hermes.gateway.settings import Timings
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox, outbox
from hermes.store.gateway.gateway_db import GatewayDB
from hermes.store.gateway.inbox import IncomingEvent, SourceEvent
from tests.support.echo import Echo, reply_to
from tests.support.gateway import Clock, received, running
from tests.support.gateway_process import GatewayProcess, write_config
from tests.support.labs.base import until
from tests.support.labs.plain import ForgetfulLab, LettersLab, Plain, PlainLab
from tests.support.notices import REPEATED
from tests.support.program import run
from tests.support.sizes import size

STREAMING = {"streaming": {"edit_interval": 0.1, "buffer_threshold": 20}}


def nothing_waits(gateway: Any) -> bool:
    return not gateway.store.read(inbox.waiting) and not gateway.store.read(outbox.unsent)


# ------------------------------------------------------------------------------------------ what a kill leaves


def left_by_a_killed_process(home: Path, lab: PlainLab, parts: list[dict[str, Any]], **more: Any) -> None:
    """A store as it is when a gateway dies after a turn: the reply in the outbox, some of it perhaps on the platform."""
    chat = as_json(Chat(platform=lab.platform, chat_id="dm-alice"))
    with SessionDB(home / "state.db") as db:
        store = GatewayDB(db)
        number = received(store, lab.platform, "e-1", "key", "{}")
        assert number is not None
        if "shown" in more:
            with db._engine.write() as tx:
                tx.run("UPDATE gateway_inbox SET shown = ? WHERE id = ?", (more["shown"], number))
        store.finish(number, lab.platform, chat, parts)
        if more.get("begun"):
            with db._engine.write() as tx:
                tx.run("UPDATE gateway_outbox SET begun_at = 1.0")


def test_a_reply_that_had_begun_to_grow_is_completed_after_a_kill(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    """The partial message is on the platform under the part's nonce, but nobody noted its id."""
    lab.messages["m9"] = {"place": ("dm-alice", None), "text": "the beginning ▉", "nonce": "n-0"}
    lab._by_nonce["n-0"] = "m9"
    left_by_a_killed_process(hermes_home, lab, [{"text": "the beginning and the end", "nonce": "n-0"}])
    with running(lab, model) as gateway:
        until(lambda: nothing_waits(gateway))
    assert lab.shown() == ["the beginning and the end"]


def test_a_growing_message_whose_id_was_noted_is_completed_by_an_edit(
    forgetful: ForgetfulLab, model: Echo, hermes_home: Path
) -> None:
    forgetful.messages["m9"] = {"place": ("dm-alice", None), "text": "the beginning ▉", "nonce": "x"}
    parts = [{"text": "the beginning and the end", "nonce": "n-0"}, {"text": "of it all", "nonce": "n-1"}]
    left_by_a_killed_process(hermes_home, forgetful, parts, shown="m9")
    with running(forgetful, model) as gateway:
        until(lambda: nothing_waits(gateway))
    assert forgetful.shown() == ["the beginning and the end", "of it all"]


def test_what_may_have_been_sent_says_so_where_the_platform_does_not_notice_repetitions(
    letters: LettersLab, model: Echo, hermes_home: Path
) -> None:
    left_by_a_killed_process(hermes_home, letters, [{"text": "perhaps", "nonce": "n-0"}], begun=True)
    with running(letters, model) as gateway:
        until(lambda: nothing_waits(gateway))
    assert letters.shown() == [f"{REPEATED}perhaps"]


def test_a_first_growing_message_that_nobody_noted_is_said_to_be_repeated(
    forgetful: ForgetfulLab, model: Echo, hermes_home: Path
) -> None:
    left_by_a_killed_process(hermes_home, forgetful, [{"text": "whole", "nonce": "n-0"}], shown="")
    with running(forgetful, model) as gateway:
        until(lambda: nothing_waits(gateway))
    assert forgetful.shown() == [f"{REPEATED}whole"]


def test_a_question_of_a_turn_that_died_is_not_asked_again(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    with SessionDB(hermes_home / "state.db") as db:
        store = GatewayDB(db)
        chat = as_json(Chat(platform="plain", chat_id="dm-alice"))
        store.post("plain", chat, "Delete everything?", f"{store.identity()}-q123")
        store.post("plain", chat, "a notice", f"{store.identity()}-n123")
    with running(lab, model) as gateway:
        until(lambda: nothing_waits(gateway))
        assert lab.shown() == ["a notice"]


def test_what_is_for_a_platform_that_is_off_waits_and_holds_up_nobody(
    lab: PlainLab, letters: LettersLab, model: Echo, hermes_home: Path
) -> None:
    left_by_a_killed_process(hermes_home, letters, [{"text": "later", "nonce": "n-0"}])
    with running(lab, model) as gateway:
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        until(lambda: [part.text for part in gateway.store.read(outbox.unsent)] == ["later"])
    with running(letters, model) as gateway:
        until(lambda: letters.shown() == ["later"])


def test_a_message_from_a_platform_that_is_off_waits_until_it_is_on_again(
    lab: PlainLab, letters: LettersLab, model: Echo, hermes_home: Path
) -> None:
    model.latency = 30.0
    gateway = GatewayProcess(hermes_home, [letters], model.base_url)
    gateway.start()
    letters.say("are you there?")
    until(lambda: not letters.unacknowledged)
    gateway.kill()
    model.latency = 0.0
    with running(lab, model) as other:
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        assert len(other.store.read(inbox.waiting)) == 1
    with running(letters, model):
        until(lambda: letters.shown() == ["echo: are you there?"])


# ------------------------------------------------------------------------------------------ what a platform does


def test_a_lost_answer_is_marked_where_repetitions_are_not_noticed(letters: LettersLab, model: Echo) -> None:
    with running(letters, model) as gateway:
        letters.swallows = 1
        letters.say("hello")
        until(lambda: len(letters.shown()) == 2 and nothing_waits(gateway))
    assert letters.shown() == ["echo: hello", f"{REPEATED}echo: hello"]


def test_a_lost_answer_doubles_nothing_where_they_are(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, gateway=STREAMING) as gateway:
        lab.swallows = 2
        lab.say("slow=1 " + "hello " * 30)
        until(lambda: lab.shown() and nothing_waits(gateway))
    assert [text.strip() for text in lab.shown()] == [reply_to("slow=1 " + "hello " * 30).strip()]


def test_the_mark_never_makes_a_message_too_long(letters: LettersLab, model: Echo, hermes_home: Path) -> None:
    parts = [{"text": "x" * 1000, "nonce": "n-0"}, {"text": "y" * 990, "nonce": "n-1"}]
    left_by_a_killed_process(hermes_home, letters, parts, begun=True)
    with running(letters, model) as gateway:
        until(lambda: nothing_waits(gateway))
    assert letters.shown() == ["x" * 1000, "↻ " + "y" * 990]


def test_a_refused_message_is_noted_with_the_reason_and_the_next_goes_on(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.refuses = "the chat is gone"
        lab.say("first")
        until(lambda: gateway.store.mail_counts().get("plain", {}).get("failed") == 1)
        lab.refuses = None
        lab.say("second")
        until(lambda: len(lab.shown()) == 2 and "echo: second" in lab.shown())
        assert sum("could not be sent" in text for text in lab.shown()) == 1
        (status,) = gateway.store.statuses()
        assert "the chat is gone" in status["error"]


def lost(gateway: Any, platform: str) -> int:
    return int(gateway.store.mail_counts().get(platform, {}).get("failed", 0))


def without_part_two(shown: list[str], whole: str) -> bool:
    """Whether all parts of a reply were shown but that with Paragraph 8, and the person was told."""
    said = "".join(shown)
    there = [number for number in range(1, 16) if f"Paragraph {number}:" in said]
    return 1 in there and 15 in there and 8 not in there and "could not be sent" in said and "Paragraph 15:" in whole


@pytest.mark.parametrize("kind", [PlainLab, LettersLab])
def test_a_part_that_the_platform_refuses_is_given_up_and_the_person_is_told(
    kind: type[PlainLab], model: Echo, hermes_home: Path
) -> None:
    lab = kind()
    write_config(hermes_home, [lab], model.base_url)
    lab.dislikes = "Paragraph 8:"
    with running(lab, model) as gateway:
        lab.say("long=2600")
        until(lambda: without_part_two(lab.shown(), reply_to("long=2600")), str(lab.shown()))
        assert lost(gateway, lab.platform) == 1
        until(lambda: nothing_waits(gateway))
        told = [text for text in lab.shown() if "could not be sent" in text]
        lab.say("and now?")
        until(lambda: lab.shown()[-1] == "echo: and now?")
        assert [text for text in lab.shown() if "could not be sent" in text] == told  # once
        status = run("gateway", "status", home=hermes_home)
        assert "1 could not" in status.out
        assert "not allowed" in status.out
    lab.close()


HASTY = Timings(retry=0.001)


@pytest.mark.parametrize("failure", [{"broken": True}, {"wait": 0.01}], ids=["fails", "asks to wait"])
@pytest.mark.parametrize("kind", [PlainLab, LettersLab])
def test_a_part_at_which_the_platform_always_fails_is_given_up_after_ten_tries_in_ten_minutes(
    kind: type[PlainLab], failure: dict[str, Any], model: Echo
) -> None:
    lab, clock = kind(), Clock()
    lab.stumbles, lab.failure = "Paragraph 8:", failure
    with running(lab, model, clock=clock, timings=HASTY) as gateway:
        lab.say("long=2600")
        until(lambda: lab.stumbled >= 10)
        assert lost(gateway, lab.platform) == 0, "ten tries, but not ten minutes"
        clock.forward(600)
        until(lambda: without_part_two(lab.shown(), reply_to("long=2600")), str(lab.shown()))
        until(lambda: lost(gateway, lab.platform) == 1)
        lab.say("and now?")
        until(lambda: lab.shown()[-1] == "echo: and now?")
        assert sum("could not be sent" in text for text in lab.shown()) == 1
    lab.close()


def test_a_platform_that_asks_to_wait_for_hours_loses_no_message(letters: LettersLab, model: Echo) -> None:
    clock = Clock()
    letters.stumbles, letters.failure = "e", {"wait": 0.01}  # every text, also that of the trial
    with running(letters, model, clock=clock) as gateway:
        letters.say("hello")
        until(lambda: letters.stumbled >= 10)
        clock.forward(3600)
        before = letters.stumbled
        until(lambda: letters.stumbled >= before + 10)
        assert lost(gateway, "letters") == 0
        letters.stumbles = None
        until(lambda: letters.shown()[-1:] == ["echo: hello"], str(letters.shown()))
        assert lost(gateway, "letters") == 0


def test_a_platform_that_fails_at_everything_loses_no_message(letters: LettersLab, model: Echo) -> None:
    clock = Clock()
    with running(letters, model, clock=clock, timings=HASTY) as gateway:
        letters.fail(1_000_000)
        letters.say("hello")
        until(lambda: letters._failures < 1_000_000)
        clock.forward(3600)
        until(lambda: letters._failures <= 1_000_000 - 14)
        assert lost(gateway, "letters") == 0
        letters._failures = 0
        until(lambda: letters.shown()[-1:] == ["echo: hello"], str(letters.shown()))
        assert lost(gateway, "letters") == 0


def test_a_message_that_was_removed_while_it_grew_is_said_anew(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, gateway=STREAMING) as gateway:
        lab.say("slow=1.5 " + "grow " * 40)
        until(lab.shown)
        lab.delete(next(iter(lab.messages)))
        until(lambda: nothing_waits(gateway))
    assert [text.strip() for text in lab.shown()] == [reply_to("slow=1.5 " + "grow " * 40).strip()]


def test_after_a_long_time_without_a_connection_everything_comes_in_order(lab: PlainLab, model: Echo) -> None:
    with running(lab, model, display={"busy": "queue"}) as gateway:
        (connection,) = gateway.connections.values()
        for n in range(3):
            lab.say(f"number {n}")
        until(lambda: not lab.unacknowledged)
        lab.hides = True
        lab.drop()
        until(lambda: not gateway.store.read(inbox.waiting))
        assert not connection.delivery.connected.is_set()
        lab.hides = False
        until(lambda: lab.shown() == [f"echo: number {n}" for n in range(3)], str(lab.shown()))


def test_a_reply_that_grows_while_there_is_no_connection_holds_up_nothing(lab: PlainLab, model: Echo) -> None:
    said = "slow=3 " + "grow " * 60
    with running(lab, model, gateway={**STREAMING}) as gateway:
        (connection,) = gateway.connections.values()
        lab.say(said)
        until(lab.shown)
        lab.hides = True
        lab.drop()
        until(lambda: not connection.delivery.connected.is_set())
        until(lambda: not gateway.store.read(inbox.waiting))  # written to its end meanwhile
        assert not connection.delivery.connected.is_set()
        lab.hides = False
        until(lambda: [text.strip() for text in lab.shown()] == [reply_to(said).strip()], str(lab.shown()))


# ------------------------------------------------------------------------------------------ what an adapter does


class Clumsy(Plain):
    """An adapter with mistakes, as many as a test wants."""

    mistakes = 0
    slow = 0
    noisy = False
    hanging = False

    async def connect(self, link: Any) -> None:
        kind = type(self)
        if kind.slow:
            kind.slow -= 1
            raise SlowDown("not so fast", 0.01)
        await super().connect(link)
        self.link = link

    async def send(self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None) -> str:
        kind = type(self)
        if kind.mistakes:
            kind.mistakes -= 1
            raise KeyError("on purpose")
        return await super().send(chat, text, nonce=nonce, reply_to=reply_to)

    async def disconnect(self) -> None:
        await super().disconnect()
        if type(self).noisy:
            raise RuntimeError("on purpose")


class ClumsyLab(PlainLab):
    adapter = Clumsy


@pytest.fixture
def clumsy() -> Iterator[ClumsyLab]:
    Clumsy.mistakes = Clumsy.slow = 0
    Clumsy.noisy = False
    made = ClumsyLab()
    yield made
    made.close()


def test_a_mistake_of_an_adapter_is_tried_again_and_then_noted(clumsy: ClumsyLab, model: Echo) -> None:
    with running(clumsy, model, timings=Timings(reconnect=0.05)) as gateway:
        Clumsy.mistakes = 2
        clumsy.say("once")
        until(lambda: clumsy.shown() == ["echo: once"])
        Clumsy.mistakes = 3
        clumsy.say("twice")
        until(lambda: gateway.store.mail_counts().get("plain", {}).get("failed") == 1)
        clumsy.say("thrice")
        until(lambda: clumsy.shown()[-1] == "echo: thrice")
        assert ["could not be sent" in text for text in clumsy.shown()] == [False, True, False]


def test_an_adapter_that_fails_at_letting_go_is_connected_again(clumsy: ClumsyLab, model: Echo) -> None:
    with running(clumsy, model, timings=Timings(reconnect=0.05)) as gateway:
        (connection,) = gateway.connections.values()
        Clumsy.noisy = True
        old = connection.adapter.link
        clumsy.drop()
        until(lambda: connection.adapter.link is not old and connection.delivery.connected.is_set())
        clumsy.say("still here")
        until(lambda: clumsy.shown() == ["echo: still here"])
        now = connection.adapter.link
        gateway.loop.call_soon_threadsafe(old.lost, RuntimeError("late"))
        clumsy.say("and here")
        until(lambda: clumsy.shown()[1:] == ["echo: and here"])
        assert connection.adapter.link is now  # a connection that is over says nothing about the one that stands


def test_the_state_that_is_told_is_the_last_one(clumsy: ClumsyLab, model: Echo) -> None:
    with running(clumsy, model, timings=Timings(reconnect=0.05)) as gateway:
        (connection,) = gateway.connections.values()
        for _ in range(5):
            old = connection.adapter.link
            clumsy.drop()
            until(lambda old=old: connection.adapter.link is not old and connection.delivery.connected.is_set())
            clumsy.say("hello")
            count = len(clumsy.events)
            until(lambda count=count: len(clumsy.shown()) == count)
            assert gateway.store.statuses()[0]["state"] == "connected"


# ------------------------------------------------------------------------------------------ what the store does


def test_what_is_said_while_the_connection_breaks_is_answered(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    """The adapter gives up waiting for an event to be kept; it is kept all the same, and answered."""
    with running(lab, model, display={"busy": "queue"}) as gateway:
        until(lambda: [row for row in gateway.store.statuses() if row["state"] == "connected"])  # it has begun
        other = sqlite3.connect(hermes_home / "state.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # the store takes its time
        for n in range(4):
            lab.say(f"n{n}", chat={"chat_id": f"c{n}", "type": "dm"})
        (connection,) = gateway.connections.values()
        until(lambda: gateway.inbox._tasks)
        lab.drop()
        until(lambda: not connection.delivery.connected.is_set())
        other.execute("ROLLBACK")
        other.close()
        until(lambda: all(lab.shown_in(f"c{n}") == [f"echo: n{n}"] for n in range(4)))
        until(lambda: not lab.unacknowledged)


def test_a_store_that_is_held_by_somebody_else_delays_but_loses_nothing(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    seconds = size(3, 20)  # a write fails after 16
    with running(lab, model) as gateway:
        other = sqlite3.connect(hermes_home / "state.db", isolation_level=None, check_same_thread=False)
        lab.say("slow=1.5 please wait")
        until(lambda: [row for row in gateway.store.read(inbox.waiting) if row.session_id])
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(seconds, lambda: other.execute("ROLLBACK")).start()
        until(lambda: lab.shown() == ["echo: slow=1.5 please wait"] and nothing_waits(gateway))
        (row,) = gateway.db.list_sessions_rich(source="plain")
        assert [m["role"] for m in gateway.db.get_messages(row["id"])] == ["user", "assistant"]


# ------------------------------------------------------------------------------------------ turns


class BrokenModel(EndpointModel):
    """A model with a bug, which one question meets."""

    def stream(self, messages: Any, tools: Any, **more: Any) -> Any:
        if "second" in str(messages[-1]):
            raise AttributeError("on purpose")
        return super().stream(messages, tools, **more)


def test_a_mistake_in_a_turn_is_told_and_the_chat_goes_on(lab: PlainLab, model: Echo) -> None:
    """A bug in something a turn uses ends in a word, not in silence."""
    broken = BrokenModel("echo", model.base_url, None, 100_000)
    with running(lab, broken) as gateway:
        lab.say("first")
        until(lambda: lab.shown() == ["echo: first"])
        lab.say("second")
        until(lambda: len(lab.shown()) == 2)
        assert "an internal error (AttributeError)" in lab.shown()[1]
        lab.say("third")
        until(lambda: lab.shown()[2:] == ["echo: third"])
        until(lambda: nothing_waits(gateway))


@pytest.mark.parametrize("how", ["deleted", "trashed"])
def test_a_message_whose_session_is_gone_when_it_is_taken_up_begins_a_new_one(
    lab: PlainLab, model: Echo, hermes_home: Path, how: str
) -> None:
    model.latency = 30.0
    gateway = GatewayProcess(hermes_home, [lab], model.base_url)
    gateway.start()
    lab.say("remember me")
    until(lambda: not lab.unacknowledged)

    def stored() -> bool:
        with SessionDB(hermes_home / "state.db", read_only=True) as db:
            return any(row.message_id is not None for row in GatewayDB(db).read(inbox.waiting))

    until(stored)
    gateway.kill()
    model.latency = 0.0
    with SessionDB(hermes_home / "state.db") as db:
        (row,) = db.list_sessions_rich(source="plain")
        if how == "deleted":
            db.delete_session(row["id"])
        else:
            db.trash_session(row["id"])
    with running(lab, model) as gateway_now:
        until(lambda: lab.shown() == ["echo: remember me"])
        (new,) = gateway_now.db.list_sessions_rich(source="plain")
        assert new["id"] != row["id"]


def test_a_terminal_that_holds_the_session_hinders_no_answer(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    from hermes.agent.leases import SessionLease

    with running(lab, model) as gateway:
        lab.say("first")
        until(lambda: lab.shown() == ["echo: first"])
        (row,) = gateway.db.list_sessions_rich(source="plain")
        until(lambda: not gateway.db.is_live(row["id"]))  # between turns anybody may have it
        with SessionDB(hermes_home / "state.db") as db:
            hold = SessionLease(db, ttl=2.0)
            assert hold.open(row["id"])
            lab.say("second")
            until(lambda: lab.shown()[1:] == ["echo: second"])
            until(lambda: gateway.db.is_live(row["id"]))  # it is open in the terminal again
            hold.release()


def test_deliveries_hold_up_nobody_else(lab: PlainLab, model: Echo) -> None:
    """One chat's wait is its own."""
    with running(lab, model):
        lab.rate_limit(600.0)
        lab.say("slowly", chat={"chat_id": "slow", "type": "dm"})
        until(lambda: not lab._waits)
        lab.say("quickly", chat={"chat_id": "quick", "type": "dm"})
        until(lambda: lab.shown_in("quick") == ["echo: quickly"])
        assert lab.shown_in("slow") == []


def test_a_growing_reply_that_nobody_noted_is_whole_after_a_turn_is_taken_up(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    """A killed process had begun to show the reply; the next one shows it growing again, under the same names."""
    text = "long=2600 slow=1.5"
    with SessionDB(hermes_home / "state.db") as db:
        store = GatewayDB(db)
        chat = Chat(platform="plain", chat_id="dm-alice")
        event = Event(id="e-1", chat=chat, sender=Sender(user_id="u-alice", proven=True), text=text)
        key = "agent:main:plain:dm:dm-alice"
        incoming = IncomingEvent(key, "plain", "e-1", as_json(event), as_json(chat), "dm", user_id="u-alice")
        number = store.receive(incoming).id
        assert number is not None
        db.create_session("20260101_000000_abcdef01", "plain", user_id="u-alice")
        store.append_user_message(number, key, "20260101_000000_abcdef01", text, SourceEvent("e-1", (text, text)))
        for part in range(2):
            nonce = f"{store.identity()}-{number}-{part}"
            lab.messages[f"m9{part}"] = {"place": ("dm-alice", None), "text": f"partial {part} ▉", "nonce": nonce}
            lab._by_nonce[nonce] = f"m9{part}"
    late = {"streaming": {"edit_interval": 0.1, "buffer_threshold": 1300}}  # the first part is whole when it is shown
    with running(lab, model, gateway=late) as gateway:
        until(lambda: nothing_waits(gateway))
    assert " ".join(lab.shown()).split() == reply_to(text).split()


def test_two_parts_after_a_kill_between_them_come_in_order(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    left_by_a_killed_process(hermes_home, lab, [{"text": f"part {n}", "nonce": f"n-{n}"} for n in range(4)])
    with SessionDB(hermes_home / "state.db") as db, db._engine.write() as tx:
        tx.run("UPDATE gateway_outbox SET sent_at = 1.0, message_id = 'm1', text = NULL WHERE nonce = 'n-0'")
    with running(lab, model) as gateway:
        until(lambda: nothing_waits(gateway))
    assert lab.shown() == ["part 1", "part 2", "part 3"]

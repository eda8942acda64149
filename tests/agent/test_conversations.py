"""The conversations of a process: one has each at a time, in order, and an agent stays for the next one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.conversations import Conversations
from hermes.agent.loop import Agent
from hermes.config import Config

from .saying import Canned


@pytest.fixture
def make(db: Any, tmp_path: Path) -> Callable[[str], Callable[[], Agent]]:
    def of(session_id: str) -> Callable[[], Agent]:
        if db.get_session(session_id) is None:
            db.create_session(session_id, "cli")
        return lambda: Agent(db, Config(), Canned("Yes."), session_id=session_id, home=tmp_path, cwd=tmp_path)

    return of


def test_those_who_want_one_conversation_get_it_in_the_order_they_came() -> None:
    some: Conversations[Agent] = Conversations()
    first, second, third, other = (some.queue(name) for name in ("a", "a", "a", "b"))
    assert (first.done(), second.done(), third.done(), other.done()) == (True, False, False, True)
    assert (some.users("a"), some.users()) == (3, 4)
    some.leave("a")
    assert second.done() and not third.done()
    some.leave("a")
    assert third.done()
    some.leave("a")
    some.leave("b")
    assert some.users() == 0


def test_who_gives_up_waiting_loses_the_place_and_the_next_one_gets_it() -> None:
    some: Conversations[Agent] = Conversations()
    first, second, third = (some.queue("a") for _ in range(3))
    assert second.cancel()
    assert some.users("a") == 2
    some.leave("a")
    assert third.done() and not third.cancel()  # it is theirs by now
    some.leave("a")
    assert first.done() and some.users("a") == 0


def test_an_agent_stays_for_the_next_turn_and_goes_with_its_session(db: Any, make: Any) -> None:
    some: Conversations[Agent] = Conversations()
    agent = some.take("chat", "one", make("one"))
    assert agent.hold() and db.is_live("one")
    assert some.take("chat", "one", make("one")) is agent
    assert some.take("chat", None, make("one")) is agent
    other = some.take("chat", "two", make("two"))
    assert other is not agent and some.get("chat") is other
    assert not db.is_live("one")
    some.drop("chat")
    assert some.get("chat") is None


def test_the_longest_unused_agents_go_first_and_never_one_that_is_at_work(db: Any, make: Any) -> None:
    some: Conversations[Agent] = Conversations(kept=2)
    at_work = some.take("a", "one", make("one"))
    with at_work.at_work():
        for name, session_id in (("b", "two"), ("c", "three"), ("d", "four")):
            assert some.take(name, session_id, make(session_id)).hold()
        assert some.get("a") is at_work
        assert some.get("d") is not None
        assert [some.get("b"), some.get("c")] == [None, None]
        assert [db.is_live(name) for name in ("two", "three", "four")] == [False, False, True]


def test_an_idle_agent_is_closed_when_another_is_taken_and_one_in_use_is_not(db: Any, make: Any) -> None:
    some: Conversations[Agent] = Conversations(idle_seconds=0)
    for name, session_id in (("a", "one"), ("b", "two"), ("c", "three")):
        some.queue(name).result(5)
        assert some.take(name, session_id, make(session_id)).hold()
        if name == "b":
            some.leave("b")
    assert (some.get("a") is None, some.get("b") is None) == (False, True)
    assert [db.is_live(session_id) for session_id in ("one", "two", "three")] == [True, False, True]


def test_closing_lets_all_sessions_go_except_those_that_are_in_use(db: Any, make: Any) -> None:
    some: Conversations[Agent] = Conversations()
    for name, session_id in (("a", "one"), ("b", "two")):
        assert some.take(name, session_id, make(session_id)).hold()
    some.queue("b").result(5)
    some.close(0.1)
    assert [db.is_live(name) for name in ("one", "two")] == [False, True]
    some.leave("b")

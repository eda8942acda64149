"""The agent's features for messengers: other people's sessions, messages stored together with other rows, and progress."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.agent.session_search import session_search
from hermes.agent.tools.terminal import process, terminal
from hermes.agent.turn import ToolFinished
from hermes.errors import InvalidInput
from tests.support.wire import Wire, call, delta, end, said, sse

from .saying import talk
from .test_killed_turns import rows


def test_a_new_session_gets_what_its_row_was_to_have(db: Any, make_agent: Any) -> None:
    talk(db, "old", "before")
    with Wire([said("ok")]) as wire:
        agent = make_agent(
            wire, db=db, source="telegram", user=("telegram", "7"), user_id="8", parent_session_id="old", kind="branch"
        )
        list(agent.turn("hello"))
    session = db.get_session("s1")
    assert (session["source"], session["user_id"], session["parent_session_id"]) == ("telegram", "8", "old")
    assert session["kind"] == "branch"


def test_each_turn_may_have_another_user(db: Any, make_agent: Any) -> None:
    """In a shared session, what is looked up is what the one who speaks may see."""
    for name in ("ann", "bob"):
        talk(db, f"of {name}", f"the password of {name} is walrus", source="telegram", user_id=name)
    search = sse(delta(tool_calls=[call("session_search", '{"query": "walrus"}', index=0, id="c")]), end("tool_calls"))
    with Wire([search, said("ok"), search, said("ok")]) as wire:
        agent = make_agent(wire, db=db, source="telegram", tools=[session_search], user=("telegram", "ann"))
        agent.config.auxiliary.summary.model = "nobody"
        agent.config.auxiliary.summary.base_url = "http://127.0.0.1:9/v1"
        list(agent.turn("what was it?"))
        agent.context.user = ("telegram", "bob")
        list(agent.turn("and mine?"))
    ann, bob = (row["content"] for row in db.get_messages("s1") if row["role"] == "tool")
    assert "password of ann" in ann and "password of bob" not in ann
    assert "password of bob" in bob and "password of ann" not in bob


def test_what_could_not_be_kept_is_not_answered(db: Any, make_agent: Any) -> None:
    def keep(session_id: str, content: Any, also: Any) -> int:
        raise InvalidInput("answered already")

    with Wire([said("ok")]) as wire:
        agent = make_agent(wire, db=db)
        with pytest.raises(InvalidInput, match="answered already"):
            list(agent.turn("hello", keep=keep))
        assert wire.bodies == []
        assert not agent.busy
    assert rows(db) == []


def test_it_counts_the_background_processes_that_run(make_agent: Any) -> None:
    start = delta(tool_calls=[call("terminal", '{"command": "sleep 600", "background": true}', index=0, id="c")])
    stop = delta(tool_calls=[call("process", '{"action": "kill", "id": 1}', index=0, id="d")])
    with Wire([sse(start, end("tool_calls")), said("started"), sse(stop, end("tool_calls")), said("killed")]) as wire:
        agent = make_agent(wire, tools=[terminal, process])
        assert agent.background_running() == 0
        list(agent.turn("start it"))
        assert agent.background_running() == 1
        list(agent.turn("stop it"))
        assert agent.background_running() == 0


def test_a_command_the_user_declined_has_failed(make_agent: Any) -> None:
    remove = delta(tool_calls=[call("terminal", '{"command": "rm -r everything"}', index=0, id="c")])
    with Wire([sse(remove, end("tool_calls")), said("As you like.")]) as wire:
        agent = make_agent(wire, tools=[terminal], confirm=lambda question: False)
        events = list(agent.turn("tidy up"))
        assert [event.ok for event in events if isinstance(event, ToolFinished)] == [False]
        assert "declined" in wire.bodies[1]["messages"][-1]["content"]

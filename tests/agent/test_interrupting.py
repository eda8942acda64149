"""Interrupting a turn: it ends soon, what was said is kept, and the next turn can go on from there."""

from __future__ import annotations

import _thread
import threading
import time
from typing import Any

import pytest

from hermes.agent.tools.tool import Context, Tool
from hermes.agent.turn import Done, Stop, Text, ToolFinished
from tests.support.aimock import fixtures_of
from tests.support.labs.base import until
from tests.support.sizes import some
from tests.support.wire import STALL, Wire, call, delta, end, said, sse

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def rows(agent: Any) -> list[tuple[str, Any, Any]]:
    return [(row["role"], row["content"], row["finish_reason"]) for row in agent.db.get_messages(agent.session_id)]


def test_an_interruption_before_the_first_word_leaves_only_the_question(aimock: Any, make_agent: Any) -> None:
    server = aimock([*fixtures_of("late", streamingProfile={"ttft": 600_000, "tps": 1})])
    agent = make_agent(server)

    def interrupt() -> None:
        until(server.requests, "the model was asked")
        agent.interrupt()

    threading.Thread(target=interrupt, daemon=True).start()
    events = list(agent.turn("hello"))
    assert events[-1] == Done("", interrupted=True)
    assert rows(agent) == [("user", "hello", None)]


def test_an_interruption_before_the_first_event_is_asked_for_is_not_lost(make_agent: Any) -> None:
    with Wire([said("never asked for"), said("as before")]) as wire:
        agent = make_agent(wire)
        for interrupt in (lambda turn: agent.interrupt(), lambda turn: turn.interrupt()):
            turn = agent.turn("hello")
            interrupt(turn)
            assert list(turn)[-1] == Done("", interrupted=True)
        assert wire.bodies == []
        agent.interrupt()  # nothing is under way: this is for no turn
        assert list(agent.turn("and now?"))[-1] == Done("never asked for")


def test_a_stop_that_came_before_the_turn_ends_it_and_no_other(make_agent: Any) -> None:
    with Wire([said("yes")]) as wire:
        agent = make_agent(wire)
        early = Stop()
        early.want()
        assert list(early.bind(agent.turn("hello")))[-1] == Done("", interrupted=True)
        with agent.at_work(early) as cancelled:
            assert cancelled()
        assert list(Stop().bind(agent.turn("hello again")))[-1] == Done("yes")


def test_a_half_made_tool_call_is_not_kept(make_agent: Any) -> None:
    with Wire([sse(delta(content="Let me"), delta(tool_calls=[call("x", '{"a', index=0, id="c")]), STALL)]) as wire:
        agent = make_agent(wire, tools=[Tool("x", "", NOTHING, lambda context, arguments: "never")])
        for event in agent.turn("go"):
            if isinstance(event, Text):
                threading.Timer(0.2, agent.interrupt).start()
    assert rows(agent) == [("user", "go", None), ("assistant", "Let me", "interrupted")]
    assert agent.db.get_messages("s1")[1]["tool_calls"] is None


def test_a_running_tool_hears_of_it_and_every_call_has_a_result(make_agent: Any) -> None:
    running = threading.Event()

    def patient(context: Context, arguments: dict[str, Any]) -> str:
        running.set()
        while not context.cancelled():
            time.sleep(0.01)
        return "stopped half way"

    never = threading.Event()

    def deaf(context: Context, arguments: dict[str, Any]) -> str:
        never.wait(60)
        return "far too late"

    asks = delta(tool_calls=[call("deaf", "{}", index=0, id="c0"), call("patient", "{}", index=1, id="c1")])
    with Wire([sse(asks, end("tool_calls")), said("unheard")]) as wire:
        tools = [Tool("patient", "", NOTHING, patient), Tool("deaf", "", NOTHING, deaf)]
        agent = make_agent(wire, tools=tools)
        threading.Thread(target=lambda: running.wait(120) and agent.interrupt(), daemon=True).start()
        events = list(agent.turn("go"))
        never.set()
        assert len(wire.bodies) == 1
    assert events[-1].interrupted
    assert len([event for event in events if isinstance(event, ToolFinished)]) == 2
    results = [(row["tool_call_id"], row["content"]) for row in agent.db.get_messages("s1") if row["role"] == "tool"]
    assert results == [("c0", "error: interrupted by the user before it had finished"), ("c1", "stopped half way")]


def test_no_tool_works_on_for_a_listener_who_has_gone(make_agent: Any) -> None:
    began, over = threading.Event(), threading.Event()

    def patient(context: Context, arguments: dict[str, Any]) -> str:
        began.set()
        while not context.cancelled():
            time.sleep(0.01)
        over.set()
        return "stopped half way"

    asks = sse(delta(tool_calls=[call("patient", "{}", index=0, id="c")]), end("tool_calls"))
    with Wire([asks, said("Fine.")]) as wire:
        agent = make_agent(wire, tools=[Tool("patient", "", NOTHING, patient)])

        def give_up() -> None:
            began.wait(120)
            _thread.interrupt_main()

        threading.Thread(target=give_up, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            list(agent.turn("hello"))
        assert over.is_set()
        assert rows(agent)[-1][:2] == ("tool", "stopped half way")
        assert list(agent.turn("and?"))[-1] == Done("Fine.")


def test_control_c_in_the_middle_keeps_what_was_said(make_agent: Any) -> None:
    with Wire([sse(delta(content="Hello "), STALL)]) as wire:
        agent = make_agent(wire)
        try:
            for event in agent.turn("hi"):
                if isinstance(event, Text):
                    threading.Timer(0.2, _thread.interrupt_main).start()
            raise AssertionError("the turn went on")
        except KeyboardInterrupt:
            pass
    assert rows(agent) == [("user", "hi", None), ("assistant", "Hello ", "interrupted")]


def assert_acceptable(messages: list[dict[str, Any]]) -> None:
    """Assert what strict endpoints require of a conversation: results right behind their calls, no two questions in a row."""
    open_calls: list[str] = []
    before = ""
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_calls.pop(0)
            continue
        assert not open_calls
        assert not message["role"] == before == "user"
        before = message["role"]
        open_calls = [made["id"] for made in message.get("tool_calls", ())]
    assert not open_calls


@pytest.mark.parametrize("way", ["interrupted", "abandoned"])
@pytest.mark.parametrize("moment", some(range(12), 6))
def test_wherever_a_turn_is_stopped_the_record_is_whole_and_the_next_turn_is_accepted(
    make_agent: Any, moment: int, way: str
) -> None:
    calls = delta(tool_calls=[call("x", "{}", index=n, id=f"c{n}") for n in range(2)])
    first = sse(delta(reasoning="hm"), delta(content="Let "), delta(content="me."), calls, end("tool_calls"))
    with Wire(
        [first, sse(delta(content="It "), delta(content="is "), delta(content="so."), end()), said("Next.")]
    ) as wire:
        agent = make_agent(wire, tools=[Tool("x", "", NOTHING, lambda context, arguments: "done")])
        shown, turn = [], agent.turn("go")
        for number, event in enumerate(turn):
            if isinstance(event, Text):
                shown.append(event.text)
            if number == moment:
                if way == "abandoned":
                    turn.close()
                    break
                agent.interrupt()
        stored = rows(agent)
        assert stored[0] == ("user", "go", None)
        assert "".join(content for role, content, _ in stored if role == "assistant" and content) == "".join(shown)
        made = [c["id"] for row in agent.db.get_messages("s1") for c in row["tool_calls"] or ()]
        assert [row["tool_call_id"] for row in agent.db.get_messages("s1") if row["role"] == "tool"] == made
        wire.answer_next(said("Next."))
        assert list(agent.turn("and?"))[-1] == Done("Next.")
        assert_acceptable(wire.bodies[-1]["messages"])
        assert agent.db.check() == []

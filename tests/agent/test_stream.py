"""A turn on an event loop: events in order, errors, readers that leave, permissions, and callers one after the other."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import pytest

from hermes.agent.conversations import Conversations
from hermes.agent.tools.permission import Question, permit
from hermes.agent.tools.tool import Context, Tool
from hermes.agent.turn import Done, PermissionDecided, PermissionRequest, StreamEvent, Text, ToolFinished, stream_turn
from hermes.errors import ModelRefused
from tests.support.wire import STALL, Wire, call, delta, end, error, said, sse

HALF = sse(delta(content="half of it"), delta(content=" and"), STALL)
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def stored(agent: Any) -> list[tuple[str, Any, Any]]:
    return [(row["role"], row["content"], row["finish_reason"]) for row in agent.db.get_messages(agent.session_id)]


async def whole(agent: Any, text: str, **more: Any) -> list[StreamEvent]:
    return [event async for event in stream_turn(agent, agent.turn(text), **more)]


def test_the_events_come_in_order_and_the_next_turn_goes_on(make_agent: Any) -> None:
    with Wire([said("One reply."), said("Another.")]) as wire:
        agent = make_agent(wire)
        events = asyncio.run(whole(agent, "hello"))
        assert "".join(event.text for event in events if isinstance(event, Text)) == "One reply."
        assert events[-1] == Done("One reply.")
        assert asyncio.run(whole(agent, "again"))[-1] == Done("Another.")
    assert [role for role, _, _ in stored(agent)] == ["user", "assistant"] * 2


def test_what_the_turn_raises_is_raised_to_its_reader(make_agent: Any) -> None:
    with Wire([error(401, {"error": {"message": "no such key"}})]) as wire:
        agent = make_agent(wire)
        with pytest.raises(ModelRefused):
            asyncio.run(whole(agent, "hello"))
    assert stored(agent) == [("user", "hello", None)] and not agent.busy


@pytest.mark.parametrize("by", ["closing", "cancelling"])
def test_a_reader_that_leaves_stops_the_turn_and_finds_it_over(make_agent: Any, by: str) -> None:
    async def read(agent: Any, heard: asyncio.Event) -> None:
        async with aclosing(stream_turn(agent, agent.turn("hello"))) as events:
            async for event in events:
                if isinstance(event, Text):
                    heard.set()
                    if by == "closing":
                        break

    async def leave(agent: Any) -> None:
        heard = asyncio.Event()
        reading = asyncio.create_task(read(agent, heard))
        await heard.wait()
        if by == "cancelling":
            reading.cancel()
        await asyncio.wait({reading})
        assert not agent.busy  # it waited for the end of the turn

    with Wire([HALF, said("later")]) as wire:
        agent = make_agent(wire)
        asyncio.run(leave(agent))
        (question, (role, text, reason)) = stored(agent)
        assert question == ("user", "hello", None)
        assert (role, reason) == ("assistant", "interrupted") and text.startswith("half of it")
        assert asyncio.run(whole(agent, "again"))[-1] == Done("later")


def test_work_that_belongs_to_the_turn_is_done_although_the_loop_is_gone(make_agent: Any) -> None:
    over = threading.Event()

    def through(events: Any) -> Any:
        try:
            yield from events
        finally:
            over.set()

    async def begin(agent: Any) -> None:
        stream = stream_turn(agent, agent.turn("hello").through(through))
        del stream  # never read

    with Wire([said("unheard")]) as wire:
        agent = make_agent(wire)
        asyncio.run(begin(agent))
        assert over.wait(120)
    assert stored(agent)[-1] == ("assistant", "unheard", "stop")


def asking() -> Tool:
    def run(context: Context, arguments: dict[str, Any]) -> str:
        permit(context, Question("Really?"), "Not allowed.")
        return "done it"

    return Tool("risky", "does something", NOTHING, run)


CALLS = [sse(delta(tool_calls=[call("risky", "{}", index=0, id="c")]), end("tool_calls")), said("I see.")]


@pytest.mark.parametrize("yes", [True, False])
def test_a_tool_asks_and_waits_for_the_answer(make_agent: Any, yes: bool) -> None:
    async def talk(agent: Any) -> list[StreamEvent]:
        events = []
        async for event in stream_turn(agent, agent.turn("do it")):
            events.append(event)
            if isinstance(event, PermissionRequest):
                assert event.question == "Really?"
                assert event.answer(yes) and not event.answer(not yes)
        return events

    with Wire(list(CALLS)) as wire:
        agent = make_agent(wire, tools=[asking()])
        events = asyncio.run(talk(agent))
    (decided,) = (event for event in events if isinstance(event, PermissionDecided))
    (finished,) = (event for event in events if isinstance(event, ToolFinished))
    assert decided.allowed is yes and finished.ok is yes
    assert ("done it" in finished.text) is yes


@pytest.mark.parametrize("how", ["patience", "interrupt"])
def test_without_an_answer_it_is_a_no(make_agent: Any, how: str) -> None:
    async def talk(agent: Any) -> list[StreamEvent]:
        turn, events = agent.turn("do it"), []
        async for event in stream_turn(agent, turn, patience=0.01 if how == "patience" else 600):
            events.append(event)
            if isinstance(event, PermissionRequest) and how == "interrupt":
                turn.interrupt()
        return events

    with Wire(list(CALLS)) as wire:
        agent = make_agent(wire, tools=[asking()])
        events = asyncio.run(talk(agent))
    (decided,) = (event for event in events if isinstance(event, PermissionDecided))
    assert not decided.allowed and not decided.request.answer(True)
    assert events[-1] == Done("I see." if how == "patience" else "", interrupted=how == "interrupt")


def test_without_patience_no_one_is_asked_and_the_refusal_says_so(make_agent: Any) -> None:
    async def talk(agent: Any) -> list[StreamEvent]:
        return [event async for event in stream_turn(agent, agent.turn("do it"), patience=0)]

    with Wire(list(CALLS)) as wire:
        agent = make_agent(wire, tools=[asking()])
        events = asyncio.run(talk(agent))
    assert not [event for event in events if isinstance(event, (PermissionRequest, PermissionDecided))]
    (finished,) = (event for event in events if isinstance(event, ToolFinished))
    assert not finished.ok and "Really?" in finished.text


async def test_callers_on_a_loop_have_a_conversation_in_the_order_they_came() -> None:
    some: Conversations[Any] = Conversations()
    had: list[int] = []

    async def caller(number: int) -> None:
        await some.enter("a")
        try:
            had.append(number)
            await asyncio.sleep(0)
        finally:
            await asyncio.to_thread(some.leave, "a")

    tasks = [asyncio.create_task(caller(number)) for number in range(6)]
    while len(had) < 1:
        await asyncio.sleep(0)
    tasks[3].cancel()  # it waits, and gives up
    await asyncio.wait(tasks)
    assert some.users() == 0
    assert had == [0, 1, 2, 4, 5]

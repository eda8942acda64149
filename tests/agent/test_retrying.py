"""A model that does not answer is asked again, with patience and without anything doubled; a full window is made room in."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from hermes.agent.models.transport import TRIES, pause
from hermes.agent.tools.tool import Tool
from hermes.agent.turn import Done, Followed, Notice, Restarted, Retrying, Text
from hermes.config import Config
from hermes.errors import ContextTooLong, ModelRefused, ModelUnreachable, RateLimited
from tests.support.ports import free_port
from tests.support.wire import CUT, STALL, Wire, call, delta, end, error, said, sse

BUSY = error(429, {"error": {"message": "slow down"}})
DOWN = error(503, {"error": {"message": "down"}})
TOO_LONG = error(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})


def spoken(agent: Any) -> list[tuple[str, Any]]:
    return [(row["role"], row["content"]) for row in agent.db.get_messages(agent.session_id)]


def notices(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def test_a_busy_server_is_asked_again_after_the_time_it_names(make_agent: Any) -> None:
    with Wire([error(429, {"error": {"message": "slow down"}}, retry_after="1"), said("Here I am.")]) as wire:
        agent = make_agent(wire)
        events = list(agent.turn("hi"))
    assert events[-1] == Done("Here I am.")
    (notice,) = [event for event in events if isinstance(event, Retrying)]
    assert "slow down" in notice.text and notice.seconds >= 1.0  # never sooner than it asked for
    assert spoken(agent) == [("user", "hi"), ("assistant", "Here I am.")] and len(wire.bodies) == 2


def test_after_five_tries_the_error_is_told_and_the_message_is_kept(make_agent: Any) -> None:
    with Wire([DOWN]) as wire:
        agent = make_agent(wire)
        with pytest.raises(RateLimited, match="down"):
            list(agent.turn("hi"))
        assert len(wire.bodies) == TRIES == 5
    assert spoken(agent) == [("user", "hi")]


def test_a_refusal_is_not_repeated(make_agent: Any) -> None:
    with Wire([error(401, {"error": {"message": "who?"}})]) as wire:
        agent = make_agent(wire)
        with pytest.raises(ModelRefused):
            list(agent.turn("hi"))
        assert len(wire.bodies) == 1


def test_a_dead_server_is_given_up_soon(make_agent: Any) -> None:
    class Nobody:
        base_url = f"http://127.0.0.1:{free_port()}/v1"

    agent = make_agent(Nobody)
    events = []
    with pytest.raises(ModelUnreachable):
        for event in agent.turn("hi"):
            events.append(event)
    assert len(notices(events)) == 2
    assert spoken(agent) == [("user", "hi")]


def test_a_broken_stream_begins_anew_says_so_and_is_stored_once(make_agent: Any) -> None:
    with Wire([sse(delta(content="A long and "), CUT), said("A long and winding reply.")]) as wire:
        agent = make_agent(wire)
        events = list(agent.turn("hi"))
    at = next(n for n, event in enumerate(events) if isinstance(event, Notice))
    assert isinstance(events[at], Restarted) and "starts over" in events[at].text
    shown = ["".join(one.text for one in part if isinstance(one, Text)) for part in (events[:at], events[at:])]
    assert shown == ["A long and ", "A long and winding reply."]
    assert spoken(agent) == [("user", "hi"), ("assistant", "A long and winding reply.")]


def test_what_arrived_before_the_last_break_is_kept(make_agent: Any) -> None:
    with Wire([sse(delta(content="Half a rep"), CUT)]) as wire:
        agent = make_agent(wire)
        with pytest.raises(ModelUnreachable):
            list(agent.turn("hi"))
        assert len(wire.bodies) == 5
    assert spoken(agent) == [("user", "hi"), ("assistant", "Half a rep")]
    assert agent.db.get_messages("s1")[1]["finish_reason"] == "interrupted"


def test_waiting_for_the_next_try_can_be_interrupted(make_agent: Any) -> None:
    with Wire([error(429, {"error": {"message": "later"}}, retry_after="100")]) as wire:
        agent = make_agent(wire)
        events = []
        for event in agent.turn("hi"):
            events.append(event)
            if isinstance(event, Notice):
                threading.Timer(0.1, agent.interrupt).start()
        assert len(wire.bodies) == 1
        assert events[-1] == Done("", interrupted=True)
    assert spoken(agent) == [("user", "hi")]


def test_the_pauses_grow_and_honour_the_server() -> None:
    def waits(error: Any, **more: Any) -> list[float | None]:
        return [pause(n, error, first=1.0, heard=False, **more) for n in range(1, 6)]

    growing = waits(RateLimited("busy"))
    assert growing[4] is None
    for number, wait in enumerate(growing[:4]):
        assert wait is not None
        assert 0.75 * 2**number <= wait <= 1.25 * 2**number
    asked = waits(RateLimited("busy", 7.0))[0]
    assert asked is not None
    assert 7.0 <= asked <= 7.7
    assert waits(RateLimited("come back tomorrow", 80_000.0))[0] is None


# ── a full window ──


def long_talk(agent: Any, exchanges: int = 30) -> None:
    agent.db.create_session("s1", "cli", system_prompt="be good")
    for number in range(exchanges):
        agent.db.append_message("s1", "user", f"question {number} about the parser " * 20)
        agent.db.append_message("s1", "assistant", f"answer {number}: we decided on parsers.py " * 20)


def test_a_conversation_that_no_longer_fits_is_compressed_and_goes_on_in_the_child(make_agent: Any) -> None:
    with Wire([TOO_LONG, said("## Goal\n- a parser"), said("On we go.")]) as wire:
        agent = make_agent(wire)
        long_talk(agent)
        events = list(agent.turn("and now?"))
        followed = [event for event in events if isinstance(event, Followed)]
        assert len(followed) == 1
        assert followed[0].old_session_id == "s1"
        assert agent.session_id == followed[0].session_id != "s1"
        assert agent.context.session_id == agent.session_id
        assert events[-1] == Done("On we go.")
        assert len(wire.bodies[2]["messages"]) < len(wire.bodies[0]["messages"])
    assert agent.db.get_session("s1")["end_reason"] == "compression"
    assert spoken(agent)[-2:] == [("user", "and now?"), ("assistant", "On we go.")]
    assert agent.db.is_live(agent.session_id)
    assert not agent.db.is_live("s1")
    assert agent.db.get_messages("s1")[-1]["content"] == "and now?"  # nothing was deleted, the reply is in the child


def test_a_compression_can_be_interrupted_and_changes_nothing(make_agent: Any) -> None:
    with Wire([sse(delta(content="## Goal"), STALL)]) as wire:
        agent = make_agent(wire)
        long_talk(agent)
        agent.model.context_length = 14_000

        def stop() -> None:
            while not wire.bodies:
                time.sleep(0.01)
            agent.interrupt()

        threading.Thread(target=stop, daemon=True).start()
        events = list(agent.turn("and now?"))  # the server never ends its reply
        assert events[-1] == Done("", interrupted=True)
        assert len(wire.bodies) == 1
    assert agent.session_id == "s1"
    assert agent.db.get_session("s1")["ended_at"] is None
    assert spoken(agent)[-1] == ("user", "and now?")


def test_a_failed_compression_changes_nothing_and_says_so(make_agent: Any) -> None:
    refusal = error(400, {"error": {"message": "no summaries here"}})
    with Wire([refusal, said("I manage.")]) as wire:
        agent = make_agent(wire)
        long_talk(agent)
        agent.model.context_length = 14_000
        events = list(agent.turn("and now?"))
        assert any("could not be compressed" in text for text in notices(events))
        assert events[-1] == Done("I manage.")
    assert agent.session_id == "s1"
    assert agent.db.get_session("s1")["ended_at"] is None


def test_compression_that_is_switched_off_stays_off(make_agent: Any) -> None:
    config = Config()
    config.compression.enabled = False
    with Wire([TOO_LONG]) as wire:
        agent = make_agent(wire, config=config)
        long_talk(agent)
        with pytest.raises(ContextTooLong, match="no longer fits"):
            list(agent.turn("and now?"))
        assert agent.session_id == "s1"


def test_a_result_too_big_for_the_window_is_shown_shorter_and_shorter(make_agent: Any) -> None:
    asks = sse(delta(tool_calls=[call("big", "{}", index=0, id="c")]), end("tool_calls"))
    with Wire([asks, TOO_LONG, TOO_LONG, said("Now it fits.")]) as wire:
        big = Tool("big", "much", {"type": "object", "properties": {}}, lambda context, arguments: "x" * 300_000)
        agent = make_agent(wire, tools=[big])
        agent.model.context_length = 1_000_000
        events = list(agent.turn("go"))
        assert events[-1] == Done("Now it fits.")
        sizes = [len(body["messages"][-1]["content"]) for body in wire.bodies[1:]]
        assert sizes[0] > 40_000 > sizes[1] > sizes[2]
    assert len(agent.db.get_messages("s1")[2]["content"]) == 300_000


def test_a_reply_to_a_session_that_is_compressed_meanwhile_goes_to_the_child(make_agent: Any) -> None:
    asks = delta(tool_calls=[call("look", "{}", index=0, id="c")])
    with Wire([sse(delta(content="Let me see. "), asks, end("tool_calls")), said("Here.")]) as wire:
        look = Tool("look", "looks", {"type": "object", "properties": {}}, lambda context, arguments: "a result")
        agent = make_agent(wire, tools=[look])
        long_talk(agent)
        events = []
        for event in agent.turn("and now?"):
            events.append(event)
            if event == Text("Let me see. "):
                agent.db.compress_session(
                    "s1", "child", summary="notes", tail_from=agent.db.get_messages("s1")[-1]["id"]
                )
        assert Followed("s1", "child") in events
        assert events[-1] == Done("Here.")
        assert agent.session_id == "child"
    assert [content for _, content in spoken(agent)][-4:] == ["and now?", "Let me see. ", "a result", "Here."]
    assert agent.db.get_messages("s1")[-1]["content"] == "and now?"
    assert [m["role"] for m in wire.bodies[1]["messages"]][-3:] == ["user", "assistant", "tool"]

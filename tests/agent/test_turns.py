"""One turn against the fake model: what is shown, what is sent, and above all what is stored, and when."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.conversations import new_session_id
from hermes.agent.loop import ROUNDS
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.tools.tool import Context, Tool
from hermes.agent.turn import Done, Text, Thought, ToolFinished, ToolStarted
from hermes.errors import InvalidInput, ToolError
from tests.support.aimock import fixtures_of
from tests.support.commits import commits
from tests.support.wire import Wire, call, delta, end, said, sse

HI = fixtures_of("Hello, I am fake.", chunkSize=4)


def tool(name: str, run: Any, **properties: Any) -> Tool:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name, f"does {name}", parameters, run)


def spoken(db: Any, session_id: str = "s1") -> list[tuple[str, Any]]:
    return [(row["role"], row["content"]) for row in db.get_messages(session_id)]


def of(kind: Any, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_a_reply_is_shown_in_pieces_and_stored_once(aimock: Any, make_agent: Any) -> None:
    agent = make_agent(aimock(HI))
    events = list(agent.turn("hello"))
    assert len(of(Text, events)) > 2
    assert "".join(event.text for event in of(Text, events)) == "Hello, I am fake."
    assert events[-1] == Done("Hello, I am fake.")
    assert spoken(agent.db) == [("user", "hello"), ("assistant", "Hello, I am fake.")]


def test_the_session_begins_with_the_first_message(aimock: Any, make_agent: Any, tmp_path: Path) -> None:
    agent = make_agent(aimock(HI), source="telegram", user=("telegram", "77"))
    assert agent.db.get_session("s1") is None
    list(agent.turn("hello"))
    session = agent.db.get_session("s1")
    assert session["source"] == "telegram"
    assert session["user_id"] == "77"
    assert session["model"] == "fake"
    assert session["cwd"] == str(tmp_path)
    assert json.loads(session["model_config"])["base_url"] == agent.model.base_url
    assert "Hermes" in session["system_prompt"]


def test_the_users_message_is_safe_before_the_model_is_asked(make_agent: Any) -> None:
    with Wire([said("x")]) as wire:
        agent = make_agent(wire)
        seen: list[Any] = []

        class Looking(EndpointModel):
            def stream(self, *words: Any, **more: Any) -> Any:
                seen.append(spoken(agent.db))
                return super().stream(*words, **more)

        agent.model = Looking("fake", wire.base_url, "k", 100_000)
        list(agent.turn("precious"))
    assert seen == [[("user", "precious")]]


def test_the_system_prompt_is_made_once_and_kept_on_resume(aimock: Any, make_agent: Any, hermes_home: Path) -> None:
    server = aimock(HI)
    first = make_agent(server)
    list(first.turn("hello"))
    (hermes_home / "memories").mkdir(parents=True, exist_ok=True)
    (hermes_home / "memories" / "MEMORY.md").write_text("the user likes tea\n")
    again = make_agent(server, db=first.db)
    list(again.turn("hello again"))
    prompts = [request["messages"][0]["content"] for request in server.requests()]
    assert prompts[0] == prompts[1] == first.db.get_session("s1")["system_prompt"]
    assert [m["content"] for m in server.requests()[1]["messages"][1:]] == ["hello", "Hello, I am fake.", "hello again"]
    other = make_agent(server, db=first.db, session_id="s2")
    list(other.turn("hello"))
    assert "the user likes tea" in first.db.get_session("s2")["system_prompt"]


def test_an_ended_session_is_open_again_after_a_turn(aimock: Any, make_agent: Any) -> None:
    agent = make_agent(aimock(HI))
    list(agent.turn("hello"))
    agent.db.end_session("s1", "user_exit")
    list(agent.turn("back"))
    assert agent.db.get_session("s1")["ended_at"] is None


def test_a_question_and_its_answer_are_three_transactions(aimock: Any, make_agent: Any) -> None:
    """The message with the lease, the reply, and the lease that goes back (docs/architecture.md)."""
    agent = make_agent(aimock(HI))
    agent.titles = False
    list(agent.turn("hello"))
    began, before = commits(agent.db.path)
    list(agent.turn("hello again"))
    assert commits(agent.db.path) == (began, before + 3)


def test_a_session_is_live_until_the_agent_is_closed(aimock: Any, make_agent: Any) -> None:
    agent = make_agent(aimock(HI))
    list(agent.turn("hello"))
    assert agent.db.is_live("s1")
    agent.close()
    assert not agent.db.is_live("s1")


def test_a_session_gets_its_title_after_the_first_exchange(make_agent: Any) -> None:
    with Wire([said("It is a parser."), said("Writing a forgiving parser"), said("Yes.")]) as wire:
        agent = make_agent(wire)
        agent.config.auxiliary.title = None
        list(agent.turn("what shall we write?"))
        agent.close()
        assert agent.db.get_session_title("s1") == "Writing a forgiving parser"
        list(agent.turn("sure?"))
        agent.close()
        assert len(wire.bodies) == 3  # once per session


# ── tools ──


def weather(context: Context, arguments: dict[str, Any]) -> str:
    return f"rain in {arguments['city']}"


def test_a_tool_is_run_and_its_result_goes_back(aimock: Any, make_agent: Any) -> None:
    calls = [{"id": "c1", "name": "weather", "arguments": {"city": "Ulm"}}]
    server = aimock(
        [
            {"match": {"hasToolResult": False}, "response": {"content": "Let me see.", "toolCalls": calls}},
            {"match": {"toolResultContains": "rain in Ulm"}, "response": {"content": "It rains."}},
        ]
    )
    agent = make_agent(server, tools=[tool("weather", weather, city={"type": "string"})])
    events = list(agent.turn("weather?"))
    assert of(ToolStarted, events) == [ToolStarted("c1", "weather", {"city": "Ulm"})]
    finished = of(ToolFinished, events)[0]
    assert (finished.ok, finished.text) == (True, "rain in Ulm")
    assert events[-1] == Done("It rains.")
    rows = agent.db.get_messages("s1")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert rows[1]["content"] == "Let me see."
    assert rows[1]["tool_calls"][0]["id"] == rows[2]["tool_call_id"] == "c1"
    assert rows[2]["tool_name"] == "weather"
    assert agent.db.get_session("s1")["tool_call_count"] == 1
    assert [t["function"]["name"] for t in server.requests()[0]["tools"]] == ["weather"]


def test_parallel_calls_run_at_once_and_are_stored_in_their_order(aimock: Any, make_agent: Any) -> None:
    meeting = threading.Barrier(3, timeout=30)

    def run(context: Context, arguments: dict[str, Any]) -> str:
        meeting.wait()  # only gets through when all three run at once
        time.sleep(0.05 * (3 - arguments["n"]))  # the last call is done first
        return f"result {arguments['n']}"

    calls = [{"id": f"c{n}", "name": "work", "arguments": {"n": n}} for n in (1, 2, 3)]
    server = aimock(
        [
            {"match": {"hasToolResult": False}, "response": {"toolCalls": calls}},
            {"match": {"hasToolResult": True}, "response": {"content": "done"}},
        ]
    )
    agent = make_agent(server, tools=[tool("work", run, n={"type": "integer"})])
    events = list(agent.turn("go"))
    assert len(of(ToolFinished, events)) == 3
    results = [row for row in agent.db.get_messages("s1") if row["role"] == "tool"]
    assert [(r["tool_call_id"], r["content"]) for r in results] == [(f"c{n}", f"result {n}") for n in (1, 2, 3)]


def fail(context: Context, arguments: dict[str, Any]) -> str:
    raise ToolError("the disk is full")


def crash(context: Context, arguments: dict[str, Any]) -> str:
    raise ZeroDivisionError("by nothing")


@pytest.mark.parametrize(
    "name, arguments, words",
    [
        ("fail", "{}", "error: the disk is full"),
        ("crash", "{}", "error: crash failed: ZeroDivisionError: by nothing"),
        ("nosuch", "{}", "error: there is no tool called 'nosuch'"),
        ("weather", "{oops", "error: the arguments of weather are not JSON"),
        ("weather", "[1]", "error: the arguments of weather are an object"),
    ],
)
def test_a_failing_tool_is_a_result_and_the_turn_goes_on(
    make_agent: Any, name: str, arguments: str, words: str
) -> None:
    with Wire(
        [sse(delta(tool_calls=[call(name, arguments, index=0, id="c")]), end("tool_calls")), said("I see.")]
    ) as wire:
        tools = [tool("fail", fail), tool("crash", crash), tool("weather", weather, city={"type": "string"})]
        agent = make_agent(wire, tools=tools)
        events = list(agent.turn("go"))
        assert events[-1] == Done("I see.")
        assert not of(ToolFinished, events)[0].ok
        stored = agent.db.get_messages("s1")[2]["content"]
        assert stored.startswith(words)
        assert wire.bodies[1]["messages"][-1] == {"role": "tool", "tool_call_id": "c", "content": stored}


def test_a_model_that_never_stops_calling_is_asked_to_conclude(make_agent: Any) -> None:
    asks = sse(delta(tool_calls=[call("weather", '{"city": "x"}', index=0, id="again")]), end("tool_calls"))
    with Wire([*[asks] * ROUNDS, said("I conclude.")]) as wire:
        agent = make_agent(wire, tools=[tool("weather", weather, city={"type": "string"})])
        events = list(agent.turn("go"))
        assert events[-1] == Done("I conclude.")
        assert "tools" not in wire.bodies[-1]
        assert len(wire.bodies) == ROUNDS + 1
        assert len(agent.db.get_messages("s1")) == 2 + 2 * ROUNDS


def test_the_model_sees_a_long_result_shortened_and_the_record_keeps_all(make_agent: Any) -> None:
    long = "line of output\n" * 20_000
    asks = sse(delta(tool_calls=[call("big", "{}", index=0, id="c")]), end("tool_calls"))
    with Wire([asks, said("ok")]) as wire:
        agent = make_agent(wire, tools=[tool("big", lambda context, arguments: long)])
        list(agent.turn("go"))
        assert len(wire.bodies[1]["messages"][-1]["content"]) <= 50_000
    assert agent.db.get_messages("s1")[2]["content"] == long


def test_questions_of_parallel_tools_come_one_at_a_time(make_agent: Any) -> None:
    at_once: list[int] = []
    inside = 0

    def confirm(question: str) -> bool:
        nonlocal inside
        inside += 1
        at_once.append(inside)
        time.sleep(0.05)
        inside -= 1
        return True

    asks = delta(tool_calls=[call("ask", "{}", index=n, id=f"c{n}") for n in range(3)])
    with Wire([sse(asks, end("tool_calls")), said("ok")]) as wire:
        ask = tool("ask", lambda context, arguments: str(context.confirm("really?")))
        agent = make_agent(wire, tools=[ask], confirm=confirm)
        list(agent.turn("go"))
    assert at_once == [1, 1, 1]
    assert [content for role, content in spoken(agent.db) if role == "tool"] == ["True"] * 3


# ── reasoning, usage, cost ──


def test_reasoning_is_shown_stored_and_replayed(make_agent: Any) -> None:
    thinking = sse(delta(reasoning_content="hm, "), delta(reasoning_content="yes"), delta(content="Yes."), end())
    with Wire([thinking, said("Still yes.")]) as wire:
        agent = make_agent(wire)
        events = list(agent.turn("sure?"))
        assert "".join(event.text for event in of(Thought, events)) == "hm, yes"
        row = agent.db.get_messages("s1")[1]
        assert (row["content"], row["reasoning_content"], row["reasoning"]) == ("Yes.", "hm, yes", None)
        list(agent.turn("really?"))
        assert wire.bodies[1]["messages"][2] == {"role": "assistant", "content": "Yes.", "reasoning_content": "hm, yes"}


def test_usage_and_cost_are_stored_per_message_and_per_session(aimock: Any, make_agent: Any) -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 100_000, "total_tokens": 1_100_000}
    server = aimock([{"match": {}, "response": {"content": "Hi", "usage": usage, "model": "gpt-4o-2024-08-06"}}])
    model = EndpointModel("gpt-4o", server.base_url, "key", 10_000_000, provider="openai")
    agent = make_agent(server, model=model)
    list(agent.turn("one"))
    list(agent.turn("two"))
    rows = [row for row in agent.db.get_messages("s1") if row["role"] == "assistant"]
    assert [(r["input_tokens"], r["output_tokens"], r["model"]) for r in rows] == [
        (1_000_000, 100_000, "gpt-4o-2024-08-06")
    ] * 2
    assert rows[0]["cost_usd"] == pytest.approx(2.5 + 1.0)
    session = agent.db.get_session("s1")
    assert (session["input_tokens"], session["output_tokens"], session["api_call_count"]) == (2_000_000, 200_000, 2)
    assert session["estimated_cost_usd"] == pytest.approx(sum(row["cost_usd"] for row in rows))
    assert session["cost_status"] == "estimated"
    assert session["pricing_version"]
    assert (session["billing_provider"], session["billing_base_url"]) == ("openai", server.base_url)


# ── taking back ──


def test_retry_takes_the_reply_back_and_answers_again(aimock: Any, make_agent: Any) -> None:
    server = aimock(
        [
            {"match": {"userMessage": "q", "sequenceIndex": 0}, "response": {"content": "bad"}},
            {"match": {"userMessage": "q", "sequenceIndex": 1}, "response": {"content": "good"}},
        ]
    )
    agent = make_agent(server)
    list(agent.turn("q"))
    assert list(agent.retry())[-1] == Done("good")
    assert spoken(agent.db) == [("user", "q"), ("assistant", "good")]
    assert [m["content"] for m in server.requests()[1]["messages"][1:]] == ["q"]


def test_there_is_nothing_to_retry_before_the_first_message(aimock: Any, make_agent: Any) -> None:
    with pytest.raises(InvalidInput, match="nothing to answer again"):
        list(make_agent(aimock(HI)).retry())


def test_a_second_turn_at_the_same_time_is_refused(aimock: Any, make_agent: Any) -> None:
    agent = make_agent(aimock(HI))
    turn = agent.turn("one")
    next(turn)
    with pytest.raises(InvalidInput, match="a turn is running"):
        next(agent.turn("two"))
    list(turn)
    assert len(spoken(agent.db)) == 2


def test_a_secret_is_usable_in_the_turn_and_masked_in_the_record(make_agent: Any) -> None:
    secret = "ghp_" + "a1B2c3D4e5" * 4
    with Wire([said("ok")]) as wire:
        agent = make_agent(wire)
        list(agent.turn(f"use {secret}"))
        assert secret in wire.bodies[0]["messages"][-1]["content"]
        assert secret not in str(spoken(agent.db))


def test_ids_tell_when_the_session_began_and_where() -> None:
    import re

    assert re.fullmatch(r"\d{8}_\d{6}_[0-9a-f]{6}", new_session_id())
    assert re.fullmatch(r"\d{8}_\d{6}_[0-9a-f]{8}", new_session_id(gateway=True))

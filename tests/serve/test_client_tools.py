"""Tools of the caller: the model's call is handed over, and the conversation goes on with what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.prompt import LOST
from hermes.agent.tools.tool import Tool
from hermes.config import Config
from hermes.serve.api import turns
from tests.support.labs.base import until
from tests.support.wire import Wire, call, delta, end, said, sse

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED = [{"role": "user", "content": "How is the weather in Oslo?"}]
SAYS_CALL = sse(
    delta(content="Let me look. "),
    delta(tool_calls=[call("weather", '{"city": "Oslo"}', index=0, id="call_1")]),
    end("tool_calls", usage={"prompt_tokens": 10, "completion_tokens": 5}),
    "[DONE]",
)
CLOCK = Tool("clock", "Tells the time", {"type": "object", "properties": {}}, lambda context, arguments: "noon")


def calls(*names: str) -> Any:
    made = [call(name, "{}", index=number, id=f"call_{name}") for number, name in enumerate(names)]
    return sse(delta(tool_calls=made), end("tool_calls"), "[DONE]")


def test_a_call_is_handed_to_the_caller_and_its_result_goes_on(serve: Any) -> None:
    with Wire([SAYS_CALL, said("Sunny."), said("You are welcome.")]) as wire:
        served = serve(wire, tools=[CLOCK])
        client = served.client()
        first = client.chat.completions.create(model="fake", messages=ASKED, tools=[WEATHER])
        choice = first.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look. ")
        (made,) = choice.message.tool_calls
        assert (made.id, made.function.name, json.loads(made.function.arguments)) == (
            "call_1",
            "weather",
            {"city": "Oslo"},
        )
        assert {tool["function"]["name"] for tool in wire.bodies[0]["tools"]} == {"clock", "weather"}

        messages = [*ASKED, choice.message.model_dump(exclude_none=True)]
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": "22 degrees"})
        second = client.chat.completions.create(model="fake", messages=messages, tools=[WEATHER])
        assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("Sunny.", "stop")
        shown = wire.bodies[1]["messages"][1:]
        assert [message["role"] for message in shown] == ["user", "assistant", "tool"]
        assert shown[2] == {"role": "tool", "tool_call_id": "call_1", "content": "22 degrees"}

        messages += [second.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "thanks"}]
        client.chat.completions.create(model="fake", messages=messages, tools=[WEATHER])
        (session_id,) = served.sessions()
        assert [role for role, _ in served.said(session_id)] == [
            "user", "assistant", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert served.db.get_messages(session_id)[2]["tool_name"] == "weather"


def test_a_call_comes_through_a_stream_too(serve: Any) -> None:
    with Wire([SAYS_CALL]) as wire:
        client = serve(wire).client()
        with client.chat.completions.stream(model="fake", messages=ASKED, tools=[WEATHER]) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        assert final.choices[0].finish_reason == "tool_calls"
        assert final.choices[0].message.tool_calls[0].function.arguments == '{"city": "Oslo"}'
        assert final.choices[0].message.content == "Let me look. "


def test_the_agents_own_tools_run_here_and_the_callers_there(serve: Any) -> None:
    with Wire([calls("clock"), calls("clock", "weather"), said("Noon and sunny.")]) as wire:
        served = serve(wire, tools=[CLOCK])
        client = served.client()
        got = client.chat.completions.create(model="fake", messages=ASKED, tools=[WEATHER])
        assert [made.function.name for made in got.choices[0].message.tool_calls] == ["weather"]
        messages = [*ASKED, got.choices[0].message.model_dump(exclude_none=True)]
        messages.append({"role": "tool", "tool_call_id": "call_weather", "content": "sun"})
        last = client.chat.completions.create(model="fake", messages=messages, tools=[WEATHER])
        assert last.choices[0].message.content == "Noon and sunny."
        shown = wire.bodies[-1]["messages"][1:]
        assert [(m["role"], m.get("content")) for m in shown[3:]] == [
            ("assistant", None), ("tool", "noon"), ("tool", "sun"),
        ]  # fmt: skip
        assert len(served.sessions()) == 1


def test_the_words_before_and_after_a_tool_of_ours_are_one_reply(serve: Any) -> None:
    look = sse(delta(content="Looking."), delta(tool_calls=[call("clock", "{}", index=0, id="c")]), end("tool_calls"))
    with Wire([look, said("It is noon.", prompt_tokens=20, completion_tokens=4), said("Yes.")]) as wire:
        served = serve(wire, tools=[CLOCK])
        client = served.client()
        got = client.chat.completions.create(model="fake", messages=ASKED)
        assert got.choices[0].message.content == "Looking.\n\nIt is noon."
        more = [
            *ASKED,
            {"role": "assistant", "content": "Looking.\n\nIt is noon."},
            {"role": "user", "content": "sure?"},
        ]
        client.chat.completions.create(model="fake", messages=more)
        assert len(served.sessions()) == 1
        wire.answer_next(look, said("It is noon."))
        pieces = client.chat.completions.create(model="fake", messages=ASKED, stream=True)
        assert "".join(p.choices[0].delta.content or "" for p in pieces) == "Looking.\n\nIt is noon."


def test_usage_is_the_sum_over_all_calls_of_the_model(serve: Any) -> None:
    first = sse(
        delta(tool_calls=[call("clock", "{}", index=0, id="c")]),
        end("tool_calls", usage={"prompt_tokens": 10, "completion_tokens": 5}),
    )
    with Wire([first, said("Noon.", prompt_tokens=20, completion_tokens=4)]) as wire:
        got = serve(wire, tools=[CLOCK]).client().chat.completions.create(model="fake", messages=ASKED)
        assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (30, 9, 39)


def test_a_caller_that_never_brings_the_result_can_go_on_with_other_words(serve: Any) -> None:
    with Wire([SAYS_CALL, said("Never mind, then.")]) as wire:
        served = serve(wire)
        client = served.client()
        got = client.chat.completions.with_raw_response.create(model="fake", messages=ASKED, tools=[WEATHER])
        session_id = got.headers["x-hermes-session-id"]
        client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "forget it"}],
            extra_headers={"X-Hermes-Session-Id": session_id},
        )  # fmt: skip
        assert [m["content"] for m in wire.bodies[1]["messages"][3:]] == [LOST, "forget it"]


def test_a_result_for_a_named_session_goes_on_without_the_rest(serve: Any) -> None:
    with Wire([SAYS_CALL, said("Sunny.")]) as wire:
        served = serve(wire)
        client = served.client()
        got = client.chat.completions.with_raw_response.create(model="fake", messages=ASKED, tools=[WEATHER])
        session_id = got.headers["x-hermes-session-id"]
        reply = client.chat.completions.create(
            model="fake", messages=[{"role": "tool", "tool_call_id": "call_1", "content": "22"}], tools=[WEATHER],
            extra_headers={"X-Hermes-Session-Id": session_id},
        )  # fmt: skip
        assert reply.choices[0].message.content == "Sunny."
        assert [role for role, _ in served.said(session_id)] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("choice", ["none", None])
def test_tools_the_caller_forbids_are_not_offered(serve: Any, choice: str | None) -> None:
    with Wire([said("Hi.")]) as wire:
        more = {"tools": [WEATHER], "tool_choice": choice} if choice else {}
        serve(wire).client().chat.completions.create(model="fake", messages=ASKED, **more)
        assert "tools" not in wire.bodies[0]


def test_dangerous_commands_are_not_run_since_nobody_can_be_asked(serve: Any, tmp_path: Any) -> None:
    target = tmp_path / "precious"
    target.write_text("x")
    remove = sse(
        delta(tool_calls=[call("terminal", json.dumps({"command": f"rm -rf {target}"}), index=0, id="c")]),
        end("tool_calls"),
    )
    with Wire([remove, said("I was not allowed to.")]) as wire:
        serve(wire, tools=None).client().chat.completions.create(model="fake", messages=ASKED)
        assert target.exists()
        assert wire.bodies[1]["messages"][-1]["role"] == "tool"


def test_a_process_in_the_background_lives_until_the_server_stops(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "IDLE", 0.05)
    mark = tmp_path / "pid"
    line = f"echo $$ > {mark}; sleep 600"
    command = json.dumps({"command": line, "background": True})
    config = Config()
    config.permissions.allow.append(line)  # no one can be asked, so a rule decides
    start = sse(delta(tool_calls=[call("terminal", command, index=0, id="c1")]), end("tool_calls"))
    look = sse(delta(tool_calls=[call("process", '{"action": "list"}', index=0, id="c2")]), end("tool_calls"))
    with Wire([start, said("Started."), said("Hi."), look, said("Still running.")]) as wire:
        served = serve(wire, tools=None, config=config)
        got = served.client().chat.completions.with_raw_response.create(model="fake", messages=ASKED)
        until(lambda: mark.exists() and mark.read_text().strip())
        process = Path("/proc") / mark.read_text().strip()
        named = {"X-Hermes-Session-Id": got.headers["x-hermes-session-id"]}
        other = served.client().chat.completions.with_raw_response.create(model="fake", messages=ASKED)
        until(lambda: not served.db.is_live(other.headers["x-hermes-session-id"]))  # that one's agent has left
        served.client().chat.completions.create(model="fake", messages=ASKED, extra_headers=named)
        assert "running" in wire.bodies[-1]["messages"][-1]["content"]
        served.stop()
        until(lambda: not process.exists() or ") Z " in (process / "stat").read_text())

"""Responses, OpenAI's newer way to ask, through its own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.support.wire import Wire, call, delta, end, error, said, sse

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
CALLS = sse(
    delta(content="Looking."),
    delta(tool_calls=[call("weather", '{"city":"Oslo"}', index=0, id="call_1")]),
    end("tool_calls", usage={"prompt_tokens": 3, "completion_tokens": 2}),
)


def test_a_response_comes_whole_with_what_it_used(serve: Any) -> None:
    with Wire([said("Hi there.", prompt_tokens=7, completion_tokens=3)]) as wire:
        served = serve(wire)
        got = served.client().responses.with_raw_response.create(model="fake", input="hello", instructions="Be brief.")
        response = got.parse()
        assert (response.output_text, response.status, response.object) == ("Hi there.", "completed", "response")
        assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 3, 10)
        assert response.id.startswith("resp_") and response.output[0].id.startswith("msg_")
        assert wire.bodies[0]["messages"][0]["content"].endswith("Be brief.")
        assert served.said(got.headers["x-hermes-session-id"]) == [("user", "hello"), ("assistant", "Hi there.")]


def test_a_response_comes_in_pieces_in_the_order_the_client_expects(serve: Any) -> None:
    with Wire([sse(delta(content="One "), delta(content="two."), end())]) as wire:
        with serve(wire).client().responses.stream(model="fake", input="hello") as stream:
            events = list(stream)
            final = stream.get_final_response()
        assert [event.type for event in events] == [
            "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
            "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
            "response.content_part.done", "response.output_item.done", "response.completed",
        ]  # fmt: skip
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert final.output_text == "One two." and final.status == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_the_previous_response_is_gone_on_from(serve: Any, stream: bool) -> None:
    with Wire([said("Noted."), said("Blue."), said("Green.")]) as wire:
        served = serve(wire)
        client = served.client()
        if stream:
            with client.responses.stream(model="fake", input="my colour is blue") as running:
                first = running.get_final_response().id
        else:
            first = client.responses.create(model="fake", input="my colour is blue").id
        second = client.responses.create(model="fake", input="which?", previous_response_id=first)
        assert second.previous_response_id == first
        assert [m["content"] for m in wire.bodies[1]["messages"][1:]] == ["my colour is blue", "Noted.", "which?"]
        (session_id,) = served.sessions()
        client.responses.create(model="fake", input="another?", previous_response_id=first)  # from the middle: a branch
        old, new = served.sessions()
        assert old == session_id and len(served.said(old)) == 4
        assert [text for _, text in served.said(new)] == ["my colour is blue", "Noted.", "another?", "Green."]


def test_a_response_that_was_not_to_be_stored_cannot_be_gone_on_from(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        client = serve(wire).client()
        first = client.responses.create(model="fake", input="hello", store=False)
        for unknown in (first.id, "resp_nobody"):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(model="fake", input="more", previous_response_id=unknown)
            assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_a_client_that_sends_all_items_each_time_stays_in_one_session(serve: Any) -> None:
    with Wire([said("One."), said("Two.")]) as wire:
        served = serve(wire)
        client = served.client()
        items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}]
        items += client.responses.create(model="fake", input=items).model_dump()["output"]
        items.append({"role": "user", "content": "b"})
        client.responses.create(model="fake", input=items)
        (session_id,) = served.sessions()
        assert [role for role, _ in served.said(session_id)] == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_handed_to_the_caller_and_its_result_goes_on(serve: Any, stream: bool) -> None:
    with Wire([CALLS, said("Sunny.")]) as wire:
        served = serve(wire)
        client = served.client()
        if stream:
            with client.responses.stream(model="fake", input="weather?", tools=[TOOL]) as running:
                response = running.get_final_response()
        else:
            response = client.responses.create(model="fake", input="weather?", tools=[TOOL])
        text, made = response.output
        assert (text.type, made.type, made.name, made.arguments) == (
            "message",
            "function_call",
            "weather",
            '{"city":"Oslo"}',
        )
        result = {"type": "function_call_output", "call_id": made.call_id, "output": "22"}
        last = client.responses.create(model="fake", input=[result], previous_response_id=response.id, tools=[TOOL])
        assert last.output_text == "Sunny."
        assert [m["role"] for m in wire.bodies[1]["messages"][1:]] == ["user", "assistant", "tool"]
        assert len(served.sessions()) == 1


def test_calls_and_results_may_be_sent_as_items_too(serve: Any) -> None:
    with Wire([said("Sunny.")]) as wire:
        items = [
            {"role": "developer", "content": "Be kind."}, {"role": "user", "content": "weather?"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "22"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "23"}]},
        ]  # fmt: skip
        serve(wire).client().responses.create(model="fake", input=items)
        shown = wire.bodies[0]["messages"]
        assert [m["role"] for m in shown] == ["system", "user", "assistant", "tool", "tool"]
        assert [c["id"] for c in shown[2]["tool_calls"]] == ["c1", "c2"] and shown[4]["content"] == "23"


def test_a_reply_that_was_cut_short_is_incomplete(serve: Any) -> None:
    with Wire([sse(delta(content="And then"), end("length"))]) as wire:
        client = serve(wire).client()
        response = client.responses.create(model="fake", input="tell")
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        kinds = [event.type for event in client.responses.create(model="fake", input="tell", stream=True)]
        assert kinds[-1] == "response.incomplete"


def test_trouble_in_the_middle_of_a_stream_ends_it_as_failed(serve: Any) -> None:
    with Wire([sse(delta(content="Half "), {"error": {"message": "bad luck", "code": 400}})]) as wire:
        events = list(serve(wire).client().responses.create(model="fake", input="tell", stream=True))
        assert events[-1].type == "response.failed" and "bad luck" in events[-1].response.error.message


def test_trouble_before_the_first_word_is_a_status(serve: Any) -> None:
    with Wire([error(401, {"error": {"message": "bad key"}})]) as wire:
        with pytest.raises(openai.InternalServerError):
            serve(wire).client().responses.create(model="fake", input="tell", stream=True)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"model": 5}, "model"),
]


def test_a_request_that_makes_no_sense_is_refused_and_the_place_is_named(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        client = serve(wire).client()
        for change, param in BAD:
            with pytest.raises(openai.BadRequestError) as caught:
                client.post("/responses", body={"model": "fake", "input": "hi", **change}, cast_to=object)
            assert caught.value.param == param, change
        assert wire.bodies == []

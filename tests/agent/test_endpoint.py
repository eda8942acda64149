"""EndpointModel over real sockets: against aimock, and where that has no words, against a server that plays a script."""

from __future__ import annotations

import threading
import time
from email.utils import formatdate
from typing import Any

import pytest

from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.models.model import Piece, Reply
from hermes.errors import ContextTooLong, ModelError, ModelRefused, ModelUnreachable, RateLimited
from tests.support.aimock import fixtures_of
from tests.support.ports import free_port
from tests.support.wire import CUT, STALL, Answer, Wire, call, delta, error, said, sse

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def model_at(server: Any, **more: Any) -> EndpointModel:
    return EndpointModel("fake", server.base_url, "key", **more)


def answer(model: EndpointModel, messages: Any = HELLO, tools: Any = ()) -> tuple[list[Piece], Reply]:
    items = list(model.stream(messages, tools, cancelled=lambda: False))
    assert isinstance(items[-1], Reply)
    assert all(isinstance(item, Piece) for item in items[:-1])
    return items[:-1], items[-1]  # type: ignore[return-value]


# ── aimock ──


def test_a_reply_streams_in_pieces_and_ends_whole(aimock: Any) -> None:
    text = "Once upon a time there was a parser that forgave everything."
    server = aimock(fixtures_of(text, chunkSize=7))
    pieces, reply = answer(model_at(server))
    assert len(pieces) > 3
    assert "".join(piece.text for piece in pieces) == text == reply.content
    assert reply.finish_reason == "stop"
    assert server.requests()[0]["stream"] is True
    assert server.requests()[0]["stream_options"] == {"include_usage": True}


def test_reasoning_is_shown_as_thoughts_and_kept_apart(aimock: Any) -> None:
    server = aimock([{"match": {}, "response": {"content": "42", "reasoning": "six times seven"}}])
    pieces, reply = answer(model_at(server))
    assert "".join(piece.thought for piece in pieces) == "six times seven"
    assert (reply.reasoning or reply.reasoning_content) == "six times seven"
    assert reply.content == "42"


def test_an_interruption_is_heard_while_the_server_is_silent(aimock: Any) -> None:
    server = aimock(fixtures_of("late", streamingProfile={"ttft": 600_000, "tps": 1}))
    asked = model_at(server, timeout=60).stream(HELLO, cancelled=lambda: bool(server.requests()))
    items = list(asked)  # else: an error after a minute
    assert items == [Reply(finish_reason="interrupted")]


def test_a_side_task_gets_one_answer(aimock: Any) -> None:
    server = aimock(fixtures_of("<think>hm</think>\n A fine title "))
    assert model_at(server).complete(HELLO, max_tokens=50) == "A fine title"
    assert server.requests()[0]["max_tokens"] == 50


@pytest.mark.parametrize(
    "status, body, kind, words",
    [
        (401, {"message": "Incorrect API key", "code": "invalid_api_key"}, ModelRefused, "model.api_key"),
        (403, {"message": "Not your country"}, ModelRefused, "model.api_key"),
        (404, {"message": "no such model", "code": "model_not_found"}, ModelRefused, "model.default"),
        (400, {"message": "temperature is odd"}, ModelRefused, "temperature is odd"),
        (400, {"message": "this model does not support image input"}, ModelRefused, "gateway.media.vision_model"),
        (
            422,
            {"message": "messages[1].content[1]: image_url is not allowed"},
            ModelRefused,
            "gateway.media.vision_model",
        ),
        (429, {"message": "slow down", "type": "rate_limit_error"}, RateLimited, "slow down"),
        (429, {"message": "You exceeded your current quota", "code": "insufficient_quota"}, ModelRefused, "quota"),
        (500, {"message": "oops"}, RateLimited, "oops"),
        (529, {"message": "Overloaded"}, RateLimited, "Overloaded"),
        (400, {"message": "too many", "code": "context_length_exceeded"}, ContextTooLong, "no longer fits into fake"),
    ],
)
def test_each_refusal_becomes_an_error_that_says_what_to_do(
    aimock: Any, status: int, body: dict[str, Any], kind: type[ModelError], words: str
) -> None:
    server = aimock([{"match": {}, "response": {"error": {"type": "some_error", **body}, "status": status}}])
    with pytest.raises(ModelError) as caught:
        answer(model_at(server))
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "key" not in str(caught.value).replace("model.api_key", "").replace("API key", "").replace("the key", "")


def test_how_long_to_wait_is_taken_from_the_server(aimock: Any) -> None:
    server = aimock([{"match": {}, "response": {"error": {"message": "later"}, "status": 429, "retryAfter": 17}}])
    with pytest.raises(RateLimited) as caught:
        answer(model_at(server))
    assert caught.value.retry_after == 17


def test_a_stream_cut_in_the_middle_is_not_taken_for_a_reply(aimock: Any) -> None:
    server = aimock(fixtures_of("this will never be finished, I fear", chunkSize=5, truncateAfterChunks=3))
    said_so_far = []
    with pytest.raises(ModelUnreachable):
        said_so_far += model_at(server).stream(HELLO, cancelled=lambda: False)


# ── the wire ──

TOO_LONG = [
    (400, {"error": {"message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."}}),
    (400, {"error": {"code": 400, "message": "the request exceeds the available context size (4096 tokens), try increasing it", "type": "exceed_context_size_error"}}),
    (500, {"error": {"message": "context shift is disabled"}}),
    (400, {"object": "error", "message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096."}),
    (400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum", "type": "invalid_request_error"}}),
    (400, {"error": {"message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."}}),
    (400, {"error": "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough. reduce the length of the prompt"}),
    (413, {"error": {"message": "Request too large"}}),
]  # fmt: skip


@pytest.mark.parametrize("status, body", TOO_LONG)
def test_too_long_is_understood_in_the_words_of_the_usual_servers(status: int, body: Any) -> None:
    with Wire([error(status, body)]) as wire, pytest.raises(ContextTooLong):
        answer(model_at(wire))


@pytest.mark.parametrize(
    "parts",
    [
        (delta(content="Hal"), CUT),
        (delta(content="Hal"), "[DONE]"),
        (delta(content="Hal"), {"error": {"message": "the engine died"}}),
        (CUT,),
    ],
)
def test_whatever_way_a_stream_breaks_off_it_is_said(parts: Any) -> None:
    with Wire([sse(*parts)]) as wire, pytest.raises(ModelUnreachable):
        answer(model_at(wire))


def test_an_error_inside_the_stream_is_told_apart_by_its_code() -> None:
    with (
        Wire([sse(delta(content="a"), {"error": {"message": "busy", "code": 429}})]) as wire,
        pytest.raises(RateLimited),
    ):
        answer(model_at(wire))
    with (
        Wire([sse({"error": {"message": "x", "code": "context_length_exceeded"}})]) as wire,
        pytest.raises(ContextTooLong),
    ):
        answer(model_at(wire))


def test_nobody_listening_is_said_with_the_address() -> None:
    port = free_port()
    with pytest.raises(ModelUnreachable, match=str(port)) as caught:
        answer(EndpointModel("fake", f"http://127.0.0.1:{port}/v1", None))
    assert "model.base_url" in str(caught.value)


def test_a_server_that_omits_nearly_everything_is_understood() -> None:
    bare = [{"choices": [{"delta": {"content": "Hi"}}]}, {"choices": []}, {"choices": [{"finish_reason": "stop"}]}]
    with Wire([sse(*bare)]) as wire:
        reply = answer(model_at(wire))[1]
    assert (reply.content, reply.finish_reason, reply.usage, reply.tool_calls) == ("Hi", "stop", None, [])


def test_what_a_server_does_not_understand_is_left_out_from_then_on() -> None:
    complaint = error(400, {"error": {"message": "Unrecognized request argument supplied: stream_options"}})
    with Wire([complaint, said("fine")]) as wire:
        model = model_at(wire)
        assert answer(model)[1].content == "fine"
        answer(model)
        assert ["stream_options" in body for body in wire.bodies] == [True, False, False]


def test_reasoning_goes_back_as_it_came_unless_the_server_refuses_it() -> None:
    history = [
        *HELLO,
        {"role": "assistant", "content": "Hi", "reasoning_content": "hm", "reasoning_details": [{"type": "x"}], "finish_reason": "stop"},
        {"role": "user", "content": "again"},
    ]  # fmt: skip
    refusal = error(400, {"error": {"message": "Extra inputs are not permitted: messages.1.reasoning_content"}})
    with Wire([said("one"), refusal, said("two")]) as wire:
        model = model_at(wire)
        answer(model, history)
        assert wire.bodies[0]["messages"][1] == {
            "role": "assistant", "content": "Hi", "reasoning_content": "hm", "reasoning_details": [{"type": "x"}],
        }  # fmt: skip
        assert answer(model, history)[1].content == "two"
        assert wire.bodies[2]["messages"][1] == {"role": "assistant", "content": "Hi"}


def test_interrupting_hangs_up_on_a_server_that_goes_on_talking() -> None:
    with Wire([sse(delta(content="Hal"), STALL)]) as wire:
        heard = threading.Event()
        items = []
        for item in model_at(wire).stream(HELLO, cancelled=heard.is_set):
            items.append(item)
            heard.set()
        assert items[-1] == Reply(content="Hal", finish_reason="interrupted", model="wire-1")
        assert wire.hung_up.wait(120)


def test_interrupting_hangs_up_on_a_server_that_still_reads_the_prompt() -> None:
    with Wire([Answer(late=3600)]) as wire:
        items = list(model_at(wire).stream(HELLO, cancelled=lambda: bool(wire.bodies)))  # as soon as it is asked
        assert items == [Reply(finish_reason="interrupted")]
        assert wire.hung_up.wait(120)


def test_silence_longer_than_the_timeout_is_unreachable() -> None:
    with Wire([sse(3600)]) as wire, pytest.raises(ModelUnreachable, match="in time"):
        answer(model_at(wire, timeout=0.3))
    with Wire([sse(delta(content="a"), STALL)]) as wire, pytest.raises(ModelUnreachable, match="within"):
        model_at(wire).complete(HELLO, timeout=0.3)


def test_the_key_is_sent_and_never_shown() -> None:
    with Wire([error(401, {"error": {"message": "who are you?"}})]) as wire:
        model = EndpointModel("fake", wire.base_url.replace("//", "//me:hidden@"), "sk-very-hidden")
        with pytest.raises(ModelRefused) as caught:
            answer(model)
        assert wire.headers[0]["authorization"]
        assert "hidden" not in str(caught.value) + model.describe()


def test_a_reply_in_one_piece_is_a_reply_too() -> None:
    message = {"role": "assistant", "content": "Hi", "tool_calls": [call("f", "{}", id="c")]}
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 2}}
    with Wire([Answer(json=whole)]) as wire:
        pieces, reply = answer(model_at(wire))
    assert [piece.text for piece in pieces] == ["Hi"]
    assert (reply.content, reply.tool_calls[0]["id"], reply.finish_reason) == ("Hi", "c", "tool_calls")


def test_a_web_page_is_not_an_endpoint() -> None:
    page = Answer(json="<html>Welcome!</html>", headers={"Content-Type": "text/html"})
    with Wire([page]) as wire, pytest.raises(ModelRefused, match="web page"):
        answer(model_at(wire))


def test_a_date_to_come_back_at_is_understood() -> None:
    later = formatdate(time.time() + 50, usegmt=True)
    with Wire([error(429, {"error": {"message": "later"}}, retry_after=later)]) as wire:
        with pytest.raises(RateLimited) as caught:
            answer(model_at(wire))
    assert caught.value.retry_after is not None
    assert 30 < caught.value.retry_after <= 50


def test_a_model_that_wants_the_newer_name_of_the_limit_gets_it() -> None:
    complaint = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    with Wire([error(400, {"error": {"message": complaint}}), said("A title")]) as wire:
        assert model_at(wire).complete(HELLO, max_tokens=77) == "A title"
        assert (wire.bodies[1].get("max_tokens"), wire.bodies[1]["max_completion_tokens"]) == (None, 77)


# ── how much fits ──


def listing(**fields: Any) -> dict[str, Any]:
    return {"/v1/models": {"data": [{"id": "other", "context_length": 5}, {"id": "fake", **fields}]}}


@pytest.mark.parametrize(
    "get, size",
    [
        (listing(context_length=77_000), 77_000),
        (listing(max_model_len=40_960), 40_960),
        (listing(meta={"n_ctx": 4096, "n_ctx_train": 131_072}), 4096),
        (listing(context_length=9, top_provider={"context_length": 8}), 8),
        ({**listing(), "/props": {"default_generation_settings": {"n_ctx": 2048}}}, 2048),
        ({**listing(), "/api/v0/models/fake": {"loaded_context_length": 6000, "max_context_length": 9000}}, 6000),
        ({**listing(), "/api/show": {"model_info": {"llama.context_length": 131_072}, "parameters": "stop x\nnum_ctx   16384"}}, 16_384),
        ({**listing(), "/api/show": {"model_info": {"llama.context_length": 8192}}, "/api/ps": {"models": []}}, 8192),
        (listing(), 32_768),
        ({}, 32_768),
    ],
)  # fmt: skip
def test_the_window_is_asked_of_the_server(get: Any, size: int) -> None:
    with Wire([said("x")], get=get) as wire:
        assert model_at(wire).context_length == size


def test_the_window_is_the_configured_one_or_known_by_name() -> None:
    with Wire([said("x")], get=listing(context_length=5)) as wire:
        assert model_at(wire, context_length=1234).context_length == 1234
        assert EndpointModel("gpt-4o-mini", wire.base_url, None).context_length == 128_000

"""A reply is put together from whatever pieces a server sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.models.endpoint import Assembler, usage_in
from tests.support.wire import call, delta, end

pytestmark = pytest.mark.mechanism


def assembled(*chunks: Any) -> Any:
    parts = Assembler()
    for chunk in chunks:
        list(parts.take(chunk))
    return parts.reply()


def names_and_arguments(reply: Any) -> list[tuple[str, str]]:
    return [(c["function"]["name"], c["function"]["arguments"]) for c in reply.tool_calls]


def test_parallel_calls_in_turns_are_told_apart_by_their_index() -> None:
    reply = assembled(
        delta(tool_calls=[call("first", "", index=0, id="a"), call("second", "", index=1, id="b")]),
        delta(tool_calls=[call(None, '{"x":', index=1)]),
        delta(tool_calls=[call(None, '{"y":', index=0)]),
        delta(tool_calls=[call(None, " 2}", index=0), call(None, " 1}", index=1)]),
        end("tool_calls"),
    )
    assert names_and_arguments(reply) == [("first", '{"y": 2}'), ("second", '{"x": 1}')]
    assert [c["id"] for c in reply.tool_calls] == ["a", "b"]


def test_calls_without_index_are_told_apart_by_id_and_without_both_by_name() -> None:
    by_id = assembled(
        delta(tool_calls=[call("one", '{"a"', id="1")]),
        delta(tool_calls=[call("two", "{}", id="2")]),
        delta(tool_calls=[call(None, ": 1}", id="1")]),
    )
    assert names_and_arguments(by_id) == [("one", '{"a": 1}'), ("two", "{}")]
    by_name = assembled(
        delta(tool_calls=[call("one", '{"a"')]),
        delta(tool_calls=[call(None, ": 1}")]),
        delta(tool_calls=[call("two", "{}")]),
    )
    assert names_and_arguments(by_name) == [("one", '{"a": 1}'), ("two", "{}")]
    ids = [c["id"] for c in by_name.tool_calls]
    assert len(set(ids)) == 2
    assert all(ids)


def test_a_server_that_numbers_every_call_zero_still_makes_several_calls() -> None:
    reply = assembled(
        delta(tool_calls=[call("one", "{}", index=0, id="a")]), delta(tool_calls=[call("two", "{}", index=0, id="b")])
    )
    assert names_and_arguments(reply) == [("one", "{}"), ("two", "{}")]


def test_arguments_may_be_an_object_and_a_repeated_name_is_one_name() -> None:
    reply = assembled(
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": [1]}}}]),
        delta(tool_calls=[call("f", None, index=0, id="a")]),
    )
    assert [(n, json.loads(a)) for n, a in names_and_arguments(reply)] == [("f", {"x": [1]})]


def test_a_providers_own_mark_on_a_call_is_kept_for_the_way_back() -> None:
    mark = {"google": {"thought_signature": "abc"}}
    reply = assembled(delta(tool_calls=[call("f", "{}", index=0, id="a", extra_content=mark)]))
    assert reply.tool_calls[0]["extra_content"] == mark


def test_reasoning_is_kept_under_the_name_it_came_with_and_details_are_joined_by_index() -> None:
    reply = assembled(
        delta(reasoning="I ", reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "I "}]),
        delta(reasoning="think", reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "think"}]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "index": 1, "data": "xyz"}]),
        delta(content="Yes"),
    )
    assert (reply.reasoning, reply.reasoning_content) == ("I think", None)
    assert reply.reasoning_details == [
        {"type": "reasoning.text", "index": 0, "text": "I think"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xyz"},
    ]
    assert assembled(delta(reasoning_content="hm"), delta(content="Yes")).reasoning_content == "hm"


def test_usage_is_read_from_the_places_servers_put_it() -> None:
    openai = usage_in(
        {
            "prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60},
            "completion_tokens_details": {"reasoning_tokens": 8},
        }
    )  # fmt: skip
    assert (openai.input_tokens, openai.output_tokens, openai.cache_read_tokens, openai.reasoning_tokens) == (
        40,  # what is cached is counted apart
        20,
        60,
        8,
    )
    assert openai.prompt_tokens == 100
    deepseek = usage_in({"prompt_tokens": 5, "prompt_cache_hit_tokens": 4})
    assert (deepseek.input_tokens, deepseek.cache_read_tokens) == (1, 4)
    anthropic = usage_in(
        {"input_tokens": 3, "output_tokens": 2, "cache_creation_input_tokens": 1, "cache_read_input_tokens": 9}
    )
    assert (anthropic.input_tokens, anthropic.cache_write_tokens, anthropic.prompt_tokens) == (3, 1, 13)
    responses = usage_in({"input_tokens": 30, "input_tokens_details": {"cached_tokens": 10}})
    assert (responses.input_tokens, responses.cache_read_tokens) == (20, 10)
    assert usage_in({"prompt_tokens": 3, "prompt_cache_hit_tokens": 4}).input_tokens == 0
    assert (
        usage_in({"prompt_tokens": None, "completion_tokens": "many", "prompt_tokens_details": None}).input_tokens == 0
    )
    for odd in (float("inf"), float("nan"), 10**400, 2**63):  # no store holds such a count
        counted = usage_in({"prompt_tokens": odd, "completion_tokens": 7, "cost": odd})
        assert (counted.input_tokens, counted.output_tokens, counted.cost_usd) == (0, 7, None)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "tool_calls", "function", "name", "arguments", "index", "id", "usage"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.lists(_JSON, max_size=5))
def test_no_chunk_however_odd_is_an_error(chunks: list[Any]) -> None:
    reply = assembled(*chunks)
    for made in reply.tool_calls:
        assert isinstance(made["function"]["name"], str)
        assert isinstance(made["function"]["arguments"], str)

"""The second request on a line, and those after it: the same as the first, but for what it says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.models.endpoint.client import EndpointModel
from hermes.agent.models.endpoint.transport import encoded
from hermes.agent.models.model import Reply
from hermes.errors import ContextTooLong, ModelError, ModelRefused, ModelUnreachable, RateLimited
from hermes.texts import encodable
from tests.support.wire import CUT, Answer, Wire, error, said, sse


def asked(model: EndpointModel, text: str, tools: Any = ()) -> str:
    *_, reply = model.stream([{"role": "user", "content": text}], tools, cancelled=lambda: False)
    assert isinstance(reply, Reply)
    return str(reply.content)


def test_it_has_the_same_headers_and_its_own_body() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    with Wire([said("one"), said("two"), said("three")]) as wire:
        model = EndpointModel("fake", wire.base_url, "a-key", 1000, timeout=30)
        answers = [asked(model, "first"), asked(model, "zweitens, länger: \ud83d 漢字 😀"), asked(model, "3", [tool])]
        assert answers == ["one", "two", "three"]
        first, *others = wire.headers
        lengths = [headers.pop("content-length") for headers in wire.headers]
        assert all(headers == first for headers in others)
        assert first["authorization"] == "Bearer a-key"
        assert len(set(lengths)) == 3
        said_there = [body["messages"][0]["content"] for body in wire.bodies]
        assert said_there == ["first", "zweitens, länger: � 漢字 😀", "3"]
        assert [body.get("tools") for body in wire.bodies] == [None, None, [tool]]
        assert all(body["model"] == "fake" and body["stream"] is True for body in wire.bodies)


REFUSALS = [
    error(401, {"error": {"message": "wrong key"}}),
    error(400, {"error": {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}}),
    error(429, {"error": {"message": "slow down"}}, **{"retry-after": "7"}),
    error(500, {"error": {"message": "broken"}}),
    sse(CUT),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["401", "400", "429", "500", "cut"])
def test_it_fails_as_a_first_one_does(refusal: Answer) -> None:
    """Whatever a server says to it, the turn hears the same error with the same words."""
    raised: list[ModelError] = []
    for before in (0, 2):
        with Wire([*[said("fine")] * before, refusal]) as wire:
            model = EndpointModel("fake", wire.base_url, "key", 1000, timeout=30)
            for _ in range(before):
                assert asked(model, "hello") == "fine"
            with pytest.raises(ModelError) as problem:
                asked(model, "hello")
            raised.append(problem.value)
            message = str(problem.value).replace(str(wire.port), "PORT")
            problem.value.args = (message,)
    first, third = raised
    assert type(first) is type(third)
    assert first.args == third.args
    assert getattr(first, "retry_after", None) == getattr(third, "retry_after", None)
    assert isinstance(first, (ModelRefused, ContextTooLong, RateLimited, ModelUnreachable))


def test_a_server_that_is_gone_is_unreachable() -> None:
    with Wire([said("fine")]) as wire:
        model = EndpointModel("fake", wire.base_url, "key", 1000, timeout=5)
        assert asked(model, "hello") == "fine"
    with pytest.raises(ModelUnreachable):
        asked(model, "is anybody there")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=4), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(), max_size=4), JSON, max_size=4))
def test_any_body_goes_out_as_it_is_but_for_halves_of_characters(body: dict[str, Any]) -> None:
    import json

    assert json.loads(encoded(body)) == encodable(body)

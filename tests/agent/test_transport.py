"""Calls to an endpoint, several at a time, and each can be hung up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hermes.agent.models.endpoint.client import EndpointModel
from hermes.agent.models.model import Reply
from tests.support.echo import Echo
from tests.support.labs.base import until


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        yield server


def asked(model: EndpointModel, text: str) -> str:
    *_, reply = model.stream([{"role": "user", "content": text}], cancelled=lambda: False)
    assert isinstance(reply, Reply)
    return str(reply.content)


def test_calls_at_the_same_time_have_a_connection_each(echo: Echo) -> None:
    model = EndpointModel("echo", echo.base_url, None)
    with ThreadPoolExecutor(4) as crew:
        words = [f"pause=0.5 {n}" for n in range(4)]
        assert list(crew.map(lambda text: asked(model, text), words)) == [f"echo: {text}" for text in words]
    assert echo.connections <= 4


def test_a_call_that_is_given_up_hangs_up_and_the_next_one_works(echo: Echo) -> None:
    model = EndpointModel("echo", echo.base_url, None)
    assert asked(model, "first") == "echo: first"
    stop = threading.Event()
    silent = model.stream([{"role": "user", "content": "pause=600 silent"}], cancelled=stop.is_set)
    with ThreadPoolExecutor(1) as crew:
        ending = crew.submit(lambda: list(silent))
        until(lambda: len(echo.requests) == 2)
        stop.set()
        (reply,) = ending.result(timeout=20)
    assert reply.finish_reason == "interrupted"
    until(lambda: echo.hung_up == 1)  # before its reply began
    assert asked(model, "next") == "echo: next"

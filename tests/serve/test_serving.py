"""The server as a whole: many at once, in order, models, stops and kills; whatever comes in, no insides come out."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import OpenAI
from starlette.applications import Starlette

from hermes.agent.models.endpoint import EndpointModel
from hermes.config import Auxiliary, Config
from hermes.errors import ConfigError, PlatformUnreachable
from hermes.serve.api import turns
from hermes.serve.api.app import api_app
from hermes.serve.http import HttpServer
from hermes_state import SessionDB
from tests.serve.running import NOBODY, Loop
from tests.support.labs.base import until
from tests.support.sizes import size
from tests.support.wire import STALL, Wire, delta, end, said, sse

HELLO = [{"role": "user", "content": "hello"}]


# ------------------------------------------------------------------------------------------------ many at once


def test_many_conversations_at_once_are_all_answered_and_kept_apart(serve: Any) -> None:
    many = size(20, 50)
    with Wire([sse(0.3, delta(content="Yes."), end())]) as wire:
        served = serve(wire)
        client = served.client(timeout=60)

        def talk(number: int) -> str:
            messages: list[Any] = [{"role": "user", "content": f"question {number}"}]
            first = client.chat.completions.with_raw_response.create(model="fake", messages=messages)
            messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"more {number}"}]
            second = client.chat.completions.with_raw_response.create(
                model="fake", messages=messages, stream=number % 2 == 0
            )
            second.http_response.read()
            assert first.headers["x-hermes-session-id"] == second.headers["x-hermes-session-id"]
            return str(first.headers["x-hermes-session-id"])

        with ThreadPoolExecutor(many) as pool:
            ids = list(pool.map(talk, range(many)))
        assert len(set(ids)) == many
        for number, session_id in enumerate(ids):
            assert [text for _, text in served.said(session_id)] == [
                f"question {number}", "Yes.", f"more {number}", "Yes.",
            ]  # fmt: skip


def test_turns_of_one_session_wait_for_each_other(serve: Any, make_db: Any) -> None:
    db = make_db()
    db.create_session("s1", "cli")
    with Wire([sse(0.05, delta(content="Yes."), 0.05, end())]) as wire:
        served = serve(wire, db=db)
        client = served.client(timeout=60)

        def say(number: int) -> None:
            messages: list[Any] = [{"role": "user", "content": f"q{number}"}]
            client.chat.completions.create(model="fake", messages=messages, extra_headers={"X-Hermes-Session-Id": "s1"})

        with ThreadPoolExecutor(10) as pool:
            list(pool.map(say, range(10)))
        said_ = served.said("s1")
        assert [role for role, _ in said_] == ["user", "assistant"] * 10
        assert {text for role, text in said_ if role == "user"} == {f"q{number}" for number in range(10)}
        assert [len(body["messages"]) for body in wire.bodies] == list(range(2, 22, 2))


def test_a_long_line_for_one_session_is_told_to_come_later(
    serve: Any, make_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "QUEUE", 0)
    db = make_db()
    db.create_session("s1", "cli")
    with Wire([sse(delta(content="Hm"), STALL)]) as wire:
        served = serve(wire, db=db)
        client = served.client()
        named = {"X-Hermes-Session-Id": "s1"}
        first = client.chat.completions.create(model="fake", messages=HELLO, stream=True, extra_headers=named)
        next(iter(first))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="fake", messages=HELLO, extra_headers=named)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        wire.answer_next(said("Your turn."))
        first.close()
        patient = client.with_options(max_retries=5)
        reply = patient.chat.completions.create(model="fake", messages=HELLO, extra_headers=named)
        assert reply.choices[0].message.content == "Your turn."


def test_the_same_words_of_many_are_many_conversations_and_none_waits(serve: Any) -> None:
    with Wire([sse(delta(content="Hm"), STALL)]) as wire:
        served = serve(wire)
        stream = served.client().chat.completions.create(model="fake", messages=HELLO, stream=True)
        next(iter(stream))
        wire.answer_next(said("Quick."))
        assert (
            served.client().chat.completions.create(model="fake", messages=HELLO).choices[0].message.content == "Quick."
        )
        assert len(served.sessions()) == 2
        stream.close()


def test_a_double_click_is_one_conversation_and_a_branch_not_a_muddle(serve: Any) -> None:
    with Wire([said("First."), sse(0.2, delta(content="Again."), end())]) as wire:
        served = serve(wire)
        client = served.client()
        client.chat.completions.create(model="fake", messages=HELLO)
        messages = [*HELLO, {"role": "assistant", "content": "First."}, {"role": "user", "content": "and?"}]
        with ThreadPoolExecutor(2) as pool:
            for done in [
                pool.submit(client.chat.completions.create, model="fake", messages=messages) for _ in range(2)
            ]:  # fmt: skip
                assert done.result().choices[0].message.content == "Again."
        for session_id in served.sessions():
            assert [role for role, _ in served.said(session_id)] == ["user", "assistant"] * 2
        assert len(served.sessions()) == 2


# ------------------------------------------------------------------------------------------------ models


def test_every_model_of_the_endpoint_may_be_named(serve: Any) -> None:
    listed = {"/v1/models": {"data": [{"id": "fake"}, {"id": "big/model"}, {"id": "text-embedding-3"}]}}
    with Wire([said("Hi.")], get=listed) as wire:
        client = serve(wire).client()
        assert [model.id for model in client.models.list()] == ["hermes", "fake", "big/model"]
        client.chat.completions.create(model="big/model", messages=HELLO)
        client.chat.completions.create(model="hermes", messages=HELLO)
        assert [body["model"] for body in wire.bodies] == ["big/model", "fake"]
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="gpt-9", messages=HELLO)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_server_that_lists_nothing_still_has_its_own_model(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        assert [model.id for model in serve(wire).client().models.list()] == ["hermes", "fake"]


# ------------------------------------------------------------------------------------------------ stops and kills


def test_stopping_lets_a_turn_finish_within_its_grace(serve: Any) -> None:
    with Wire([sse(delta(content="Almost "), 0.5, delta(content="done."), end())]) as wire:
        served = serve(wire)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(served.client().chat.completions.create, model="fake", messages=HELLO)
            until(lambda: wire.bodies)
            served.stop(10)
            assert asked.result().choices[0].message.content == "Almost done."
        with pytest.raises(openai.APIConnectionError):
            served.client().models.list()


def test_stopping_breaks_off_what_takes_too_long_and_keeps_what_was_said(serve: Any) -> None:
    with Wire([sse(delta(content="So far "), STALL)]) as wire:
        served = serve(wire)
        stream = served.client().chat.completions.create(model="fake", messages=HELLO, stream=True)
        pieces = iter(stream)
        until(lambda: next(pieces).choices[0].delta.content)
        served.stop(0.1)
        with pytest.raises(openai.APIConnectionError), stream:
            list(pieces)
        (session_id,) = served.sessions()
        assert served.said(session_id) == [("user", "hello"), ("assistant", "So far ")]
        assert not served.db.is_live(session_id)
        assert served.loop.tasks() == []
        until(lambda: not [t.name for t in threading.enumerate() if t.name.startswith("hermes-api")])


CHILD = """
import asyncio, sys
from pathlib import Path
from hermes_state import SessionDB
from hermes.agent.models.endpoint import EndpointModel
from hermes.config import Auxiliary, Config
from hermes.serve.api import turns
from hermes.serve.api.app import api_app
from hermes.serve.http import HttpServer

async def main():
    db, config = SessionDB(db_path=Path(sys.argv[1])), Config()
    config.auxiliary.title = Auxiliary(model="nobody", base_url="http://127.0.0.1:9/v1")
    model = EndpointModel("fake", sys.argv[2], "key", 100_000)
    app = api_app(db, config, model=model, home=Path(sys.argv[3]), token="t", tools=list)
    print(await HttpServer(app, "127.0.0.1", 0).start(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Child:
    """A server in a process of its own."""

    def __init__(self, database: Path, base_url: str, home: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(database), base_url, str(home)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self._clients: list[OpenAI] = []

    def client(self) -> OpenAI:
        base_url = f"http://127.0.0.1:{self.port}/v1"
        self._clients.append(OpenAI(api_key="t", base_url=base_url, max_retries=0, timeout=30))
        return self._clients[-1]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for client in self._clients:
            client.close()


def test_after_a_kill_the_same_request_goes_on_in_the_same_session(tmp_path: Path, hermes_home: Path) -> None:
    database = tmp_path / "store" / "state.db"
    with Wire([said("First."), sse(delta(content="It was a dark "), STALL)]) as wire:
        child = Child(database, wire.base_url, hermes_home)
        child.client().chat.completions.create(model="fake", messages=HELLO)
        messages: list[Any] = [
            *HELLO,
            {"role": "assistant", "content": "First."},
            {"role": "user", "content": "a story"},
        ]
        stream = child.client().chat.completions.create(model="fake", messages=messages, stream=True)
        for piece in stream:
            if piece.choices[0].delta.content:
                break
        child.kill()
        with pytest.raises(openai.APIConnectionError), stream:
            list(stream)
        wire.answer_next(said("It was a dark and stormy night."))
        child = Child(database, wire.base_url, hermes_home)
        try:
            reply = child.client().chat.completions.create(model="fake", messages=messages)
        finally:
            child.kill()
        assert reply.choices[0].message.content == "It was a dark and stormy night."
        with SessionDB(db_path=database) as db:
            (row,) = db.list_sessions_rich(include_children=True)
            assert [message["content"] for message in db.get_messages(row["id"])] == [
                "hello", "First.", "a story", "It was a dark and stormy night.",
            ]  # fmt: skip


# ------------------------------------------------------------------------------------------------ the HTTP server


def test_a_place_that_cannot_be_had_is_an_error_of_ours(loop: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PlatformUnreachable, match=f"port {port}"):
            loop.run(HttpServer(Starlette(), "127.0.0.1", port).start())
    for host in ("no.such.host.invalid", "192.0.2.7"):
        with pytest.raises(ConfigError):
            loop.run(HttpServer(Starlette(), host, 0).start())
    assert loop.tasks() == []


def test_localhost_is_reached_by_every_address_it_has(loop: Any) -> None:
    server = HttpServer(Starlette(), "localhost", 0)
    port = loop.run(server.start())
    for family, _, _, _, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        with socket.socket(family) as one:
            reached = one.connect_ex(address[:2]) == 0
        assert reached or family == socket.AF_INET6, address  # there are machines without IPv6
    loop.run(server.stop(0))
    loop.run(server.stop(0))
    assert loop.tasks() == []


def test_the_programs_signal_handlers_stay_as_they_are(hermes_home: Path) -> None:
    import asyncio

    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))

    async def live() -> Any:
        server = HttpServer(Starlette(), "127.0.0.1", 0)
        await server.start()
        during = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
        await server.stop(0)
        return during

    runner = asyncio.new_event_loop()
    try:
        assert runner.run_until_complete(live()) == before
    finally:
        runner.close()


def test_a_server_that_ends_by_itself_is_told_of(loop: Any) -> None:
    told: list[Exception] = []
    server = HttpServer(Starlette(), "127.0.0.1", 0, died=told.append)
    loop.run(server.start())
    loop.loop.call_soon_threadsafe(server._task.cancel)
    until(lambda: told)
    assert isinstance(told[0], PlatformUnreachable)


# ------------------------------------------------------------------------------------------------ whatever comes in

_leaf = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20)
)
_any = st.recursive(
    _leaf,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
_role = st.sampled_from(["user", "assistant", "system", "developer", "tool", "function", ""])
_part = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image_url", "input_audio", "file", "input_text", "input_image", "refusal", "x"]),
        "text": _any, "image_url": _any, "input_audio": _any, "file": _any, "refusal": _any,
    },
)  # fmt: skip
_call = st.fixed_dictionaries(
    {}, optional={"id": _any, "type": _any, "function": st.one_of(_any, st.fixed_dictionaries({"name": _any, "arguments": _any}))}
)  # fmt: skip
_message = st.one_of(
    _any,
    st.fixed_dictionaries(
        {"role": _role, "content": st.one_of(st.text(max_size=30), st.lists(_part, max_size=3), _any)},
        optional={
            "tool_calls": st.one_of(_any, st.lists(_call, max_size=2)), "tool_call_id": _any, "name": _any, "type": _any,
            "call_id": _any, "output": _any, "arguments": _any,
        },
    ),
)  # fmt: skip
_tool = st.one_of(
    _any, st.fixed_dictionaries({"type": st.just("function"), "function": st.one_of(_any, st.fixed_dictionaries({"name": _any}))})
)  # fmt: skip
_body = st.fixed_dictionaries(
    {},
    optional={
        "model": st.one_of(st.sampled_from(["fake", "hermes"]), _any), "messages": st.one_of(st.lists(_message, max_size=4), _any),
        "input": st.one_of(st.text(), st.lists(_message, max_size=4), _any), "stream": _any, "tools": st.lists(_tool, max_size=2),
        "tool_choice": _any, "n": _any, "stream_options": _any, "previous_response_id": _any, "instructions": _any,
        "metadata": _any, "store": _any, "max_output_tokens": _any,
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One server for all examples."""
    folder = tmp_path_factory.mktemp("fuzz")
    loop, config = Loop(), Config()
    config.auxiliary.title = Auxiliary(model="nobody", base_url=NOBODY)
    with Wire([said("Hi.")]) as wire, SessionDB(db_path=folder / "state.db", durability="normal") as db:
        model = EndpointModel("fake", wire.base_url, "key", 100_000)
        server = HttpServer(api_app(db, config, model=model, home=folder, token=None, tools=list), "127.0.0.1", 0)
        loop.run(server.start())
        with httpx.Client(trust_env=False, timeout=30, base_url=f"http://127.0.0.1:{server.port}") as client:
            yield client
        loop.run(server.stop(1))
    loop.close()


@settings(max_examples=size(12, 120))
@given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/responses"]), body=_body,
    session=st.one_of(st.none(), st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20)),
)  # fmt: skip
def test_whatever_is_sent_the_answer_is_one_a_client_understands(
    fuzzed: Any, path: str, body: Any, session: str | None
) -> None:
    headers = {} if session is None else {"X-Hermes-Session-Id": session.strip().encode("latin-1")}
    got = fuzzed.post(path, json=body, headers=headers)
    assert got.status_code in (200, 400, 404), got.text
    if got.status_code != 200:
        problem = got.json()["error"]
        assert problem["message"] and problem["type"] == "invalid_request_error"
    assert "Traceback" not in got.text


def test_an_error_nobody_foresaw_shows_no_insides(serve: Any, monkeypatch: pytest.MonkeyPatch, make_db: Any) -> None:
    db = make_db()
    with Wire([said("Hi.")]) as wire:
        served = serve(wire, db=db)
        db.close()
        for path, body in (("/chat/completions", {"messages": HELLO}), ("/responses", {"input": "hi"})):
            with httpx.Client(trust_env=False) as client:
                got = client.post(served.base_url + path, json={"model": "fake", **body})
            assert got.status_code == 503 and "Traceback" not in got.text and "/" not in got.json()["error"]["message"]

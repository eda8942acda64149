"""Who gets in: the token, this machine, no web page; and nothing listens for strangers by mistake."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from hermes.agent.models.offline import ExtractiveModel
from hermes.config import Config
from hermes.errors import ConfigError, SessionBusy
from hermes.serve import http_messages
from hermes.serve.api import app
from hermes.serve.api.app import api_app
from hermes.serve.http import is_loopback
from tests.support.wire import Wire, said

TOKEN = "correct-horse-battery-staple-42"
HELLO = [{"role": "user", "content": "hello"}]


def ask(served: Any, path: str = "/v1/models", method: str = "GET", **headers: str) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=10) as client:
        body = {"model": "fake", "messages": HELLO} if method == "POST" else None
        return client.request(method, served.root + path, headers=headers, json=body)


def test_the_token_opens_the_door_and_nothing_else_does(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        served = serve(wire, token=TOKEN)
        assert served.client(TOKEN).chat.completions.create(model="fake", messages=HELLO).choices
        for wrong in (TOKEN[:-1], TOKEN + "2", TOKEN.upper(), "none", "ünïcode"):
            got = ask(served, Authorization=f"Bearer {wrong}".encode()) if wrong == "ünïcode" else None
            if got is None:
                with pytest.raises(openai.AuthenticationError) as caught:
                    served.client(wrong).models.list()
                assert caught.value.code == "invalid_api_key" and TOKEN not in str(caught.value)
            else:
                assert got.status_code == 401
        for headers in ({}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": "Bearer"}):
            for path, method in (("/v1/models", "GET"), ("/v1/chat/completions", "POST"), ("/nothing", "GET")):
                got = ask(served, path, method, **headers)
                assert got.status_code == 401 and got.json()["error"]["type"] == "authentication_error"
        assert ask(served, Authorization=f"bearer {TOKEN}").status_code == 200
        assert ask(served, "/health").json() == {"status": "ok"}
        assert len(wire.bodies) == 1


def test_a_token_with_letters_of_any_script_works(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        served = serve(wire, token="schlüssel-鍵")
        assert ask(served, Authorization="Bearer schlüssel-鍵".encode()).status_code == 200  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.com"])
def test_without_a_token_nothing_listens_beyond_this_machine(make_db: Any, hermes_home: Path, host: str) -> None:
    db, config = make_db(), Config()
    config.api_server.host = host
    model = ExtractiveModel(db)
    for token in (None, "", "  "):
        with pytest.raises(ConfigError, match="api_server.token"):
            api_app(db, config, model=model, home=hermes_home, tools=list, token=token)
    assert api_app(db, config, model=model, home=hermes_home, tools=list, token="t" * 16)
    with pytest.raises(ConfigError, match="15 characters"):
        api_app(db, config, model=model, home=hermes_home, tools=list, token="t" * 15)
    assert api_app(db, config, model=model, home=hermes_home, tools=list, token=None, insecure=True)


def test_without_a_token_a_web_page_gets_nothing(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        served = serve(wire)
        for host in (
            "evil.example",
            "evil.example:8642",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "0.0.0.0",
            "",
        ):
            assert ask(served, "/v1/chat/completions", "POST", Host=host).status_code == 403, host
        for origin in ("https://evil.example", "null", "http://localhost.evil.example", "file://", "http://[::1"):
            got = ask(served, "/v1/chat/completions", "POST", Origin=origin)
            assert got.status_code == 403, origin
            assert "access-control-allow-origin" not in got.headers
        assert wire.bodies == []
        for host in ("localhost", "localhost:8642", "127.0.0.1:1", "[::1]:8642", "LOCALHOST"):
            assert ask(served, Host=host).status_code == 200, host
        assert ask(served, Origin="http://localhost:3000").status_code == 200


def test_saying_insecure_does_not_open_this_machine_to_web_pages(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        assert ask(serve(wire, insecure=True), Host="evil.example").status_code == 403


def test_with_a_token_or_without_other_pages_are_not_let_in_by_cors(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        served = serve(wire, token=TOKEN)
        got = ask(
            served, "/v1/chat/completions", "OPTIONS", Origin="https://evil.example", Authorization=f"Bearer {TOKEN}"
        )
        assert got.status_code == 405 and "access-control-allow-origin" not in got.headers


def test_with_a_token_any_name_of_the_machine_will_do(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        assert ask(serve(wire, token=TOKEN), Host="hermes.example", Authorization=f"Bearer {TOKEN}").status_code == 200


@pytest.mark.parametrize(
    "host, here",
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True), ("a.localhost", True),
     ("0.0.0.0", False), ("::", False), ("", False), ("10.0.0.1", False), ("localhost.example", False), ("127.0.0.1.x", False)],
)  # fmt: skip
def test_which_addresses_only_this_machine_reaches(host: str, here: bool) -> None:
    assert is_loopback(host) is here


def test_the_token_reaches_no_log_and_no_error(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    with Wire([said("Hi.")]) as wire, caplog.at_level(logging.DEBUG):
        served = serve(wire, token=TOKEN)
        ask(served, Authorization=f"Bearer {TOKEN}")
        ask(served, f"/v1/nothing?key={TOKEN}", Authorization=f"Bearer {TOKEN}")
        ask(served, "/v1/chat/completions", "POST", Authorization=f"Bearer {TOKEN}")
        served.stop()
        of_others = ("httpcore", "httpx", "openai")
        ours = [record.getMessage() for record in caplog.records if not record.name.startswith(of_others)]
        assert TOKEN not in "\n".join(ours)
        assert all(
            TOKEN not in str(message) for session in served.sessions() for message in served.db.get_messages(session)
        )


def test_a_key_in_the_models_complaint_is_masked(serve: Any) -> None:
    from tests.support.wire import error

    key = "sk-proj-" + "aB3dE6gH9jK2mN5pQ8sT" * 2
    with Wire([error(401, {"error": {"message": f"Incorrect API key provided: {key}."}})]) as wire:
        with pytest.raises(openai.InternalServerError) as caught:
            serve(wire).client().chat.completions.create(model="fake", messages=HELLO)
        assert key not in str(caught.value)


def test_a_request_that_is_too_large_or_too_slow_is_refused(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LARGEST", 10_000)
    monkeypatch.setattr(app, "SLOWEST", 0.3)
    with Wire([said("Hi.")]) as wire:
        served = serve(wire)
        with pytest.raises(openai.APIStatusError) as caught:
            served.client().chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 20_000}])
        assert caught.value.status_code == 413
        with socket.create_connection(("127.0.0.1", served.server.port), timeout=10) as slow:
            slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert slow.recv(100).startswith(b"HTTP/1.1 408")
        assert wire.bodies == []


def test_a_session_that_another_process_takes_in_a_turn_is_a_conflict() -> None:
    found = http_messages.api_error_of(SessionBusy("s1", "cli", "compression"))
    assert (found.status, found.code) == (409, "session_busy") and "cli" in found.message


def test_a_request_that_dribbles_is_cut(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then kept a connection, and what is read of the request, for two minutes."""
    monkeypatch.setattr(http_messages, "HEAD_START", 0.3)
    with Wire([said("Hi.")]) as wire:
        served = serve(wire)
        with socket.create_connection(("127.0.0.1", served.server.port), timeout=0.05) as slow:
            slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n")
            answer = b""
            for _ in range(200):
                with suppress(TimeoutError):
                    answer = slow.recv(100)
                    break
                slow.sendall(b" ")
            assert answer.startswith(b"HTTP/1.1 408")
        assert wire.bodies == []


def test_what_is_not_there_is_said_in_openais_way(serve: Any) -> None:
    with Wire([said("Hi.")]) as wire:
        served = serve(wire)
        got = ask(served, "/v1/embeddings", "POST")
        assert got.status_code == 404 and got.json()["error"]["type"] == "invalid_request_error"
        assert ask(served, "/v1/chat/completions", "GET").status_code == 405
        for body in (b"{", b"[]", b"null", b"", b"\xff", b"[" * 100_000, b'{"model": "\\ud800"}'):
            with httpx.Client(trust_env=False) as client:
                got = client.post(served.base_url + "/chat/completions", content=body)
            assert got.status_code == 400 and got.json()["error"]["message"], body[:20]

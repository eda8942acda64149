"""Connections that say nothing: they are counted, closed in time, and never take what others need."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hermes.serve import http
from hermes.serve.http import HttpServer
from tests.cli.test_gateway_doors import platforms
from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab

pytestmark = pytest.mark.mechanism


async def _hello(request: Any) -> PlainTextResponse:
    return PlainTextResponse("hello")


@pytest.fixture
def served(loop: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = []

    def start(connections: int = 256, header_seconds: float = 10.0) -> HttpServer:
        monkeypatch.setattr(http, "CONNECTIONS", connections)
        monkeypatch.setattr(http, "HEADER_SECONDS", header_seconds)
        server = HttpServer(Starlette(routes=[Route("/", _hello)]), "127.0.0.1", 0)
        loop.run(server.start())
        made.append(server)
        return server

    yield start
    for one in made:
        loop.run(one.stop(0.2))


def silent(port: int, count: int, stack: ExitStack) -> list[socket.socket]:
    """Connections that say nothing."""
    made = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(count)]
    for one in made:
        one.settimeout(10)
    return made


def heard(one: socket.socket) -> bytes:
    """An answer with a body."""
    text = b""
    while not text.partition(b"\r\n\r\n")[2]:
        piece = one.recv(65536)
        assert piece
        text += piece
    return text


def is_closed(one: socket.socket) -> bool:
    """Whether the other end hangs up; waits for it."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


def test_a_connection_that_sends_no_whole_request_is_closed_in_time(served: Any) -> None:
    server = served(header_seconds=0.3)
    with ExitStack() as stack:
        nothing, begun, again = silent(server.port, 3, stack)
        begun.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        again.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert heard(again).endswith(b"hello")
        again.sendall(b"GET / HT")  # the second request on a connection that was well used
        assert all(is_closed(one) for one in (nothing, begun, again))


def test_a_request_that_is_answered_slowly_is_not_cut(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEADER_SECONDS", 0.2)
    release = asyncio.Event()

    async def slow(request: Any) -> PlainTextResponse:
        await release.wait()
        return PlainTextResponse("late")

    server = HttpServer(Starlette(routes=[Route("/", slow)]), "127.0.0.1", 0)
    loop.run(server.start())
    with ExitStack() as stack:
        (asked, idle) = silent(server.port, 2, stack)
        asked.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert is_closed(idle)  # its time is over, and so would be the other's
        loop.loop.call_soon_threadsafe(release.set)
        assert heard(asked).endswith(b"late")
    loop.run(server.stop(0.2))


def test_more_connections_than_allowed_are_closed_and_a_place_is_free_again_when_one_leaves(served: Any) -> None:
    server = served(connections=5, header_seconds=60)
    with ExitStack() as stack:
        kept = silent(server.port, 5, stack)
        assert all(is_closed(one) for one in silent(server.port, 20, stack))
        kept.pop().close()

        def answers() -> bool:
            try:
                return httpx.get(f"http://127.0.0.1:{server.port}/", trust_env=False).text == "hello"
            except httpx.HTTPError:
                return False

        until(answers)


def test_silent_connections_to_one_port_leave_everything_else_running(tmp_path: Path) -> None:
    lab = PlainLab()
    try:
        with (
            Echo() as model,
            ExitStack() as stack,
            GatewayProcess(
                tmp_path / "home", [lab], model.base_url,
                webhooks={"port": 0, "routes": {"push": {"prompt": "x"}}}, api_server={"enabled": True, "port": 0},
            ) as gateway,
        ):  # fmt: skip
            until(lambda: {one["state"] for one in platforms(gateway.home).values()} == {"connected"})
            assert gateway.process is not None
            _, most = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (160, most))
            found = platforms(gateway.home)
            port = int(found["webhook"]["identity"].split("/")[2].rpartition(":")[2])
            silent(port, 300, stack)
            answer = httpx.get(f"{found['api-server']['identity']}/models", trust_env=False, timeout=10)
            assert answer.status_code == 200
            lab.say("still there?")
            until(lambda: lab.shown() == ["echo: still there?"])
            log = gateway.home / "logs" / "gateway.jsonl"
            until(lambda: b"connections are refused" in log.read_bytes())
            assert platforms(gateway.home)["webhook"]["state"] == "connected" and log.stat().st_size < 20_000
    finally:
        lab.close()

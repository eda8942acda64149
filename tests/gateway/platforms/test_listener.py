"""The listener that platforms call: one port for several adapters, nothing read before the sender is known."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("uvicorn")

from hermes.errors import ConfigError
from hermes.gateway.adapter import Listening
from hermes.gateway.platforms._shared.listener import (
    LARGEST,
    LARGEST_UNKNOWN,
    PlatformRequest,
    PlatformResponse,
    Registration,
    in_window,
    is_signed,
    listen,
)
from tests.support.labs.recording import Recorder
from tests.support.ports import free_port

pytestmark = pytest.mark.mechanism


class Mailbox:
    """A path, what was posted to it, and the word that its sender must know."""

    def __init__(self, path: str, word: str) -> None:
        self.path, self.word, self.bodies, self.broken = path, word, list[bytes](), False
        self.calls: list[PlatformRequest] = []
        self.link = Recorder()

    async def handler(self, call: PlatformRequest) -> int | PlatformResponse:
        if self.broken:
            raise OSError("the disk is full")
        self.calls.append(call)
        if call.method == "GET":
            return PlatformResponse(body=call.query.get("challenge", ""), headers={"X-Kind": "challenge"})
        self.bodies.append(call.body)
        return 202

    async def open(self, port: int, **place: Any) -> Registration:
        return await listen(
            Listening(port=port, **place), self.path, verify=lambda headers: headers.get("x-word") == self.word,
            handler=self.handler, link=self.link,
        )  # fmt: skip


@asynccontextmanager
async def client(port: int) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as made:
        yield made


async def test_adapters_share_a_port_and_each_hears_its_own_path() -> None:
    port, first, second = free_port(), Mailbox("/one", "a"), Mailbox("/two", "b")
    async with client(port) as caller:

        async def post(path: str, word: str, body: bytes = b"hi") -> int:
            return (await caller.post(path, content=body, headers={"X-Word": word})).status_code

        one = await first.open(port)
        assert await post("/rewritten/by/a/proxy", "a", b"1") == 202
        two = await second.open(port)
        assert [await post("/one", "a", b"2"), await post("/two/", "b", b"3")] == [202, 202]
        assert [await post("/one", "b"), await post("/two", ""), await post("/three", "a")] == [
            403,
            403,
            503,
        ]  # "three" may still be connecting
        assert (await caller.get("/one", headers={"X-Word": "a"})).status_code == 405
        assert (await caller.get("/health")).json() == {"status": "ok"}
        assert (first.bodies, second.bodies) == ([b"1", b"2"], [b"3"])
        await one.close()
        await one.close()
        assert await post("/two", "b", b"4") == 202
        await two.close()
        with pytest.raises(httpx.ConnectError):
            await post("/two", "b")
        again = await first.open(port)
        assert await post("/one", "a") == 202
        await again.close()


async def test_what_is_not_stored_is_asked_for_again_and_what_is_too_large_is_not() -> None:
    port, box = free_port(), Mailbox("/one", "a")
    registration = await box.open(port)
    async with client(port) as caller:
        box.broken = True
        assert (await caller.post("/one", content=b"x", headers={"X-Word": "a"})).status_code == 503
        box.broken = False
        assert (await caller.post("/one", content=b"x", headers={"X-Word": "a"})).status_code == 202
        large = await caller.post("/one", content=b"x" * (LARGEST + 1), headers={"X-Word": "a"})
        assert large.status_code == 413
    assert box.bodies == [b"x"]
    await registration.close()


async def test_a_signature_is_checked_on_the_bytes_before_the_handler_sees_them() -> None:
    port, box = free_port(), Mailbox("/signed", "")

    async def signed(call: PlatformRequest) -> bool:  # as one that fetches the vendor's keys
        await asyncio.sleep(0)
        return call.method == "GET" or is_signed("k", call.body, call.headers.get("X-Hub-Signature-256", ""))

    registration = await listen(
        Listening(port=port, public_url="https://bots.example.org/hermes/"), box.path, handler=box.handler, link=box.link,
        signed=signed, methods=("GET", "POST"),
    )  # fmt: skip
    right = {"X-Hub-Signature-256": "sha256=" + hmac.new(b"k", b"{}", hashlib.sha256).hexdigest()}
    async with client(port) as caller:
        assert (await caller.post("/signed", content=b"{}", headers=right)).status_code == 202
        assert (await caller.post("/hermes/signed", content=b"{}", headers=right)).status_code == 202
        for body, headers in ((b"{ }", right), (b"{}", {}), (b"{}", {"X-Hub-Signature-256": "sha256=é".encode()})):
            assert (await caller.post("/signed", content=body, headers=headers)).status_code == 403
        large = await caller.post("/signed", content=b"x" * (LARGEST_UNKNOWN + 1))
        assert large.status_code == 413
        challenge = await caller.get("/signed?challenge=123%20x&mode=subscribe")
        assert (challenge.text, challenge.headers["x-kind"]) == ("123 x", "challenge")
    assert box.bodies == [b"{}", b"{}"]
    assert [call.url for call in box.calls] == [
        "https://bots.example.org/hermes/signed",
        "https://bots.example.org/hermes/signed",
        "https://bots.example.org/hermes/signed?challenge=123%20x&mode=subscribe",
    ]
    await registration.close()


async def test_a_platform_that_waits_three_seconds_is_answered_in_time_and_nothing_is_lost() -> None:
    port, stored, go = free_port(), list[bytes](), asyncio.Event()

    async def slow(call: PlatformRequest) -> int:
        await go.wait()
        stored.append(call.body)
        return 200

    registration = await listen(
        Listening(port=port), "/slow", handler=slow, link=Recorder(), verify=lambda headers: True, seconds=0.05
    )
    async with client(port) as caller:
        assert (await caller.post("/slow", content=b"first")).status_code == 503
        assert stored == []
        go.set()
        assert (await caller.post("/slow", content=b"again")).status_code == 200
    assert stored == [b"first", b"again"]  # the first one went on; both would be one event
    await registration.close()


async def test_a_path_that_anyone_could_call_is_refused() -> None:
    box = Mailbox("/open", "")
    with pytest.raises(ConfigError, match="would accept everyone"):
        await listen(Listening(host="0.0.0.0", port=0), "/open", handler=box.handler, link=box.link)
    registration = await listen(Listening(port=0), "/open", handler=box.handler, link=box.link)
    async with client(registration.port) as caller:
        assert (await caller.post("/open", content=b"x")).status_code == 202
    await registration.close()


@given(st.binary(max_size=50), st.text(max_size=20), st.text(max_size=80))
def test_only_the_right_signature_is_one(body: bytes, secret: str, other: str) -> None:
    secret = secret.encode("utf-8", "ignore").decode()
    right = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    assert is_signed(secret, body, right) and is_signed(secret, body, f"sha256={right.upper()}")
    assert not is_signed(secret, body + b"x", right)
    assert is_signed(secret, body, other) == (other.removeprefix("sha256=").lower() == right)


def test_only_a_time_near_ours_is_in_the_window() -> None:
    now = 1_900_000_000.0
    assert all(in_window(at, clock=lambda: now) for at in (now, str(int(now)), now - 299, "1900000299.5"))
    assert not any(in_window(at, clock=lambda: now) for at in (now - 301, now + 301, None, "", "soon", 0, "inf", "nan"))

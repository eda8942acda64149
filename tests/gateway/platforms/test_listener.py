"""The listener that platforms call: one port for several adapters, nothing read before the sender is known."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx
import pytest

pytest.importorskip("uvicorn")

from hermes.errors import PlatformUnreachable
from hermes.gateway.platforms.listener import LARGEST, Registration, listen
from tests.support.labs.recording import Recorder


class Mailbox:
    """A path, what was posted to it, and the word that its sender must know."""

    def __init__(self, path: str, word: str) -> None:
        self.path, self.word, self.bodies, self.broken = path, word, list[bytes](), False

    async def handler(self, headers: Mapping[str, str], body: bytes) -> int:
        if self.broken:
            raise OSError("the disk is full")
        self.bodies.append(body)
        return 202

    async def open(self, port: int) -> Registration:
        return await listen(
            "127.0.0.1", port, self.path, verify=lambda headers: headers.get("x-word") == self.word,
            handler=self.handler, link=Recorder(),
        )  # fmt: skip


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_adapters_share_a_port_and_each_hears_its_own_path() -> None:
    async def scene() -> None:
        port, first, second = free_port(), Mailbox("/one", "a"), Mailbox("/two", "b")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:

            async def post(path: str, word: str, body: bytes = b"hi") -> int:
                return (await client.post(path, content=body, headers={"X-Word": word})).status_code

            one = await first.open(port)
            assert await post("/rewritten/by/a/proxy", "a", b"1") == 202
            two = await second.open(port)
            assert [await post("/one", "a", b"2"), await post("/two/", "b", b"3")] == [202, 202]
            assert [await post("/one", "b"), await post("/two", ""), await post("/three", "a")] == [403, 403, 404]
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

    asyncio.run(scene())


def test_what_is_not_stored_is_asked_for_again_and_what_is_too_large_is_not() -> None:
    async def scene() -> None:
        port, box = free_port(), Mailbox("/one", "a")
        registration = await box.open(port)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            box.broken = True
            assert (await client.post("/one", content=b"x", headers={"X-Word": "a"})).status_code == 503
            box.broken = False
            assert (await client.post("/one", content=b"x", headers={"X-Word": "a"})).status_code == 202
            large = await client.post("/one", content=b"x" * (LARGEST + 1), headers={"X-Word": "a"})
            assert large.status_code == 413
        assert box.bodies == [b"x"]
        await registration.close()

    asyncio.run(scene())


def test_a_port_of_another_program_is_worth_another_try() -> None:
    import socket

    async def scene() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(PlatformUnreachable, match="taken"):
                await Mailbox("/one", "a").open(taken.getsockname()[1])

    asyncio.run(scene())

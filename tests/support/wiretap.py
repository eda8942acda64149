"""A proxy between a client and a lab that records every request and every WebSocket frame.

    tap = Wiretap(lab.port)          # clients connect to 127.0.0.1:tap.port instead
    tap.calls                        # requests: method, path, query, headers, body
    tap.frames                       # WebSocket frames: "up" is from the client

Addresses of the lab in answers and text frames are changed to the proxy's, so that a client stays on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from tests.support.loop_thread import LoopThread

_HOP = {"host", "connection", "transfer-encoding", "content-length", "upgrade", "keep-alive", "accept-encoding"}


class Call(NamedTuple):
    """A request."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    status: int

    @property
    def json(self) -> Any:
        """The body as JSON; None if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class Frame(NamedTuple):
    """A WebSocket frame; `way` is up (from the client) or down."""

    way: str
    data: str | bytes

    @property
    def json(self) -> Any:
        """The frame as JSON; None if it is none."""
        try:
            return json.loads(self.data)
        except ValueError:
            return None


class Wiretap:
    """Listens until `close`; `calls` and `frames` may be read from any thread."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.calls: list[Call] = []
        self.frames: list[Frame] = []
        self._thread = LoopThread()
        self._thread.call(self._start())

    def forget(self) -> None:
        """Drop what was kept so far."""
        self.calls.clear()
        self.frames.clear()

    def of(self, method: str, path: str) -> list[Call]:
        """The requests with this method whose path has this in it."""
        return [one for one in list(self.calls) if one.method == method and path in one.path]

    def up(self) -> list[Any]:
        """The clients' text frames, as JSON."""
        return [one.json for one in list(self.frames) if one.way == "up" and isinstance(one.data, str)]

    def close(self) -> None:
        """End the proxy."""
        self._thread.call(self._stop())
        self._thread.stop()

    # ------------------------------------------------------------------------------------------ the proxy

    async def _start(self) -> None:
        app = web.Application(client_max_size=200_000_000)
        app.router.add_route("*", "/{rest:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = int(self._runner.addresses[0][1])
        self._session = aiohttp.ClientSession(trust_env=False, auto_decompress=False)

    async def _stop(self) -> None:
        await self._session.close()
        await self._runner.cleanup()

    def _moved(self, text: str) -> str:
        for host in ("127.0.0.1", "localhost"):
            text = text.replace(f"{host}:{self._target}", f"127.0.0.1:{self.port}")
        return text

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        url = f"http://127.0.0.1:{self._target}{request.raw_path}"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._websocket(request, url, headers)
        body = await request.read()
        asked = self._session.request(request.method, url, headers=headers, data=body, allow_redirects=False)
        try:
            async with asked as answer:
                data = await answer.read()
        except aiohttp.ClientError:  # the lab has cut the connection: so do we
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        if "json" in answer.headers.get("Content-Type", ""):
            data = self._moved(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        call = Call(request.method, request.path, dict(request.query), dict(request.headers), body, answer.status)
        self.calls.append(call)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        return web.Response(status=answer.status, body=data, headers=kept)

    async def _websocket(self, request: web.Request, url: str, headers: dict[str, str]) -> web.StreamResponse:
        named = {name: value for name, value in headers.items() if not name.lower().startswith("sec-websocket")}
        try:
            behind = await self._session.ws_connect(url, headers=named, max_msg_size=0)
        except aiohttp.WSServerHandshakeError as error:
            kept = {name: value for name, value in (error.headers or {}).items() if name.lower() not in _HOP}
            return web.Response(status=error.status, headers=kept)
        self.calls.append(
            Call("WEBSOCKET", request.path, dict(request.query), dict(request.headers), b"", 101)
        )  # fmt: skip
        front = web.WebSocketResponse(max_msg_size=0)
        await front.prepare(request)
        ways = [
            asyncio.create_task(self._pass(front, behind, "up")),
            asyncio.create_task(self._pass(behind, front, "down")),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        code = behind.close_code or 1000
        await behind.close(code=front.close_code if front.close_code in range(1000, 5000) else 1000)  # type: ignore[arg-type]
        if code == 1006 and request.transport is not None:
            request.transport.abort()
        else:
            await front.close(code=code)
        return front

    async def _pass(self, source: Any, target: Any, way: str) -> None:
        async for message in source:
            if message.type is aiohttp.WSMsgType.TEXT:
                text = message.data if way == "up" else self._moved(message.data)
                self.frames.append(Frame(way, text))
                await target.send_str(text)
            elif message.type is aiohttp.WSMsgType.BINARY:
                self.frames.append(Frame(way, message.data))
                await target.send_bytes(message.data)

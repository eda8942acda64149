"""Feishu's long connection: a WebSocket that pushes events; each is acknowledged by its own frame with a status.

What is not acknowledged within three seconds, or with an error, is sent again (15 s, 5 min, 1 h and 6 h later).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable
from hermes.gateway.platforms.connections import Recent
from hermes.gateway.platforms.feishu.client import FeishuApi
from hermes.gateway.platforms.feishu.protobuf_frames import CONTROL, DATA, Frame, decode, encode, ping
from hermes.gateway.platforms.frames import LOG, Log, dropped, parsed, read_object
from hermes.gateway.platforms.websocket_client import WebSocketClient

_HEARTBEAT = 25.0
_MOST_PARTS = 1_000
_LARGEST = 20_000_000  # bytes of one frame

Taken = Callable[[dict[str, Any]], Awaitable[None]]


class LongConnection(WebSocketClient):
    """One connection. `open` connects (again), `run` hands over events until it breaks."""

    def __init__(self, api: FeishuApi, *, secure: bool, log: Log = LOG) -> None:
        super().__init__("Feishu", log)
        self._api, self._secure = api, secure
        self._service = 0
        self._ping_every = 120.0
        self._parts: Recent[str, list[bytes | None]] = Recent(50)

    async def open(self) -> None:
        """Ask where the connection is opened, and open it."""
        await self.close()
        found = await self._api.address()
        address = str(found["URL"])
        parts = urlsplit(address)
        if parts.scheme not in (("wss",) if self._secure else ("ws", "wss")):
            raise PlatformRefused("Feishu names an address for the long connection that is not encrypted")
        service = parse_qs(parts.query).get("service_id", ["0"])[0]
        self._service = int(service) if service.isascii() and service.isdigit() else 0
        self._configure(found.get("ClientConfig"))
        async with self.opening():
            await self.connect(address, heartbeat=_HEARTBEAT, most=_LARGEST)

    async def run(self, taken: Taken, alive: Callable[[], None]) -> None:
        """Hand over events in order until the connection breaks (PlatformUnreachable); `alive` is called with every frame."""
        pinging = asyncio.get_running_loop().create_task(self._keep_open())
        try:
            async for frame in self._frames():
                alive()
                if frame.method == CONTROL and frame.header("type") == "pong":
                    self._configure(parsed(frame.payload))
                elif frame.method == DATA:
                    await self._data(frame, taken)
        finally:
            pinging.cancel()

    async def _data(self, frame: Frame, taken: Taken) -> None:
        """Hand over an event, and say whether it is stored. A part of one is kept until the others are here."""
        whole = self._joined(frame)
        if whole is None or frame.header("type") not in ("event", "card"):
            return
        begun, status = time.monotonic(), 200
        content = read_object(whole, "Feishu", self.log)
        try:
            if content is not None:
                await taken(content)
        except Exception:
            status = 500  # it comes again
        took = str(int((time.monotonic() - begun) * 1000))
        await self._write(encode(frame.answer(("biz_rt", took), json.dumps({"code": status}).encode())))

    def _joined(self, frame: Frame) -> bytes | None:
        total, number, name = frame.number("sum", 1), frame.number("seq", 0), frame.header("message_id")
        if total <= 1:
            return frame.payload
        if total > _MOST_PARTS or number >= total or not name:
            return None
        parts = self._parts.get(name)
        if parts is None or len(parts) != total:
            parts = self._parts.put(name, [None] * total)
        parts[number] = frame.payload
        if any(one is None for one in parts):
            return None
        self._parts.drop(name)
        return b"".join(one for one in parts if one is not None)

    async def _frames(self) -> AsyncIterator[Frame]:
        socket = self._socket
        while socket is not None:
            message = await socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                try:
                    frame = decode(message.data)
                except ValueError:
                    dropped(message.data, "Feishu", "it is not a frame of the long connection", self.log)
                    continue
                yield frame
            elif message.type is not aiohttp.WSMsgType.TEXT:
                break
        raise PlatformUnreachable("Feishu has closed the long connection")

    async def _keep_open(self) -> None:
        while True:
            await self._write(ping(self._service))
            await asyncio.sleep(self._ping_every)

    async def _write(self, data: bytes) -> None:
        if self._socket is not None and not self._socket.closed:
            with suppress(ConnectionError):  # the reader sees the end of the connection, too
                await self._socket.send_bytes(data)

    def _configure(self, found: Any) -> None:
        every = found.get("PingInterval") if isinstance(found, dict) else None
        if isinstance(every, int | float) and not isinstance(every, bool) and every > 0:
            self._ping_every = max(1.0, float(every))

    def explained(self, error: Exception) -> HermesError:
        """The error without its text, which has the address and its ticket."""
        if isinstance(error, aiohttp.WSServerHandshakeError):
            status = error.headers.get("handshake-status", "") if error.headers is not None else ""
            if status == "403":
                return PlatformRefused("Feishu refuses the long connection (403); check app_id and the app's state")
            return PlatformUnreachable(
                f"Feishu's long connection can't be opened (HTTP {error.status} {status})".rstrip()
            )
        return PlatformUnreachable(f"Feishu's long connection can't be opened ({type(error).__name__})")

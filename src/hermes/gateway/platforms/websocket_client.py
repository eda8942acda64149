"""A vendor's WebSocket as adapters use it: one connection, read as JSON objects, closed within a bounded time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import aiohttp

from hermes.errors import PlatformError, PlatformUnreachable
from hermes.gateway.platforms.frames import LOG, Log, read_object

_CLOSING = 1.5  # seconds for a vendor to confirm the end of a connection


class WebSocketClient:
    """One connection at a time; adapters add the vendor's login and its frames. `title` is what errors call the vendor."""

    def __init__(self, title: str, log: Log = LOG) -> None:
        self.title, self.log = title, log
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def connect(self, url: str, *, most: int = 0, **options: Any) -> aiohttp.ClientWebSocketResponse:
        """Connect. `most` is the largest frame in bytes (0: any); other options are those of aiohttp's ws_connect."""
        self._session = aiohttp.ClientSession(trust_env=False)
        self._socket = await self._session.ws_connect(url, max_msg_size=most, **options)
        return self._socket

    async def receive(self) -> dict[str, Any]:
        """The next JSON object; `ended` is raised when the connection breaks. What can't be read is dropped, and logged."""
        socket = self._socket
        if socket is None:
            raise PlatformUnreachable(f"there is no connection to {self.title}")
        while True:
            message = await socket.receive()
            if message.type is aiohttp.WSMsgType.TEXT:
                found = read_object(message.data, self.title, self.log)
                if found is not None:
                    return found
            elif message.type is not aiohttp.WSMsgType.BINARY:
                raise self.ended(socket.close_code)

    def ended(self, code: int | None) -> PlatformError:
        """The error for a connection that the vendor has closed, with its close code."""
        return PlatformUnreachable(f"{self.title} has closed the connection")

    async def close(self) -> None:
        """Disconnect. May be called twice, and `connect` may follow."""
        socket, session = self._socket, self._session
        self._socket = self._session = None
        with suppress(Exception):
            if socket is not None:
                async with asyncio.timeout(_CLOSING):
                    await socket.close()
        if session is not None:
            await session.close()

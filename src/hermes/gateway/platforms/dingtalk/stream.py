"""DingTalk's Stream mode: a WebSocket that pushes frames, each of which is acknowledged by its id.

https://open.dingtalk.com/document/direction/stream-mode-protocol-access-description
A connection is opened with a ticket that is good for one time. DingTalk asks us to leave it when it moves ("disconnect").
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp

from hermes.errors import PlatformUnreachable
from hermes.gateway.platforms.frames import LOG, Log, read_object
from hermes.gateway.platforms.http import connection_trouble

_PATIENCE = 20.0
_HEARTBEAT = 30.0
SYSTEM, CALLBACK = "SYSTEM", "CALLBACK"
PING, DISCONNECT = "ping", "disconnect"


class Stream:
    """One connection. It is used until it breaks, or until DingTalk asks for another one."""

    def __init__(self, log: Log = LOG) -> None:
        self._log = log
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self, endpoint: str, ticket: str) -> None:
        """Connect."""
        self._session = aiohttp.ClientSession(trust_env=False)
        try:
            async with asyncio.timeout(_PATIENCE):
                self._socket = await self._session.ws_connect(
                    endpoint, params={"ticket": ticket}, heartbeat=_HEARTBEAT, max_msg_size=0
                )
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                raise PlatformUnreachable(f"DingTalk's stream can't be reached: {connection_trouble(error)}") from None
            raise

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """What is pushed, in order. PlatformUnreachable when the connection breaks."""
        assert self._socket is not None
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.TEXT:
                frame = read_object(message.data, "DingTalk", self._log)
                if frame is not None:
                    yield frame
            elif message.type is not aiohttp.WSMsgType.BINARY:
                raise PlatformUnreachable("DingTalk has closed the stream")

    async def acknowledge(self, frame: dict[str, Any], data: str = '{"response": null}', code: int = 200) -> None:
        """Tell DingTalk that a frame has arrived. If the connection is gone the frame comes again."""
        headers = {"messageId": header(frame, "messageId"), "contentType": "application/json"}
        answer = {"code": code, "headers": headers, "message": "OK", "data": data}
        if self._socket is not None and not self._socket.closed:
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.send_json(answer)

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        socket, session = self._socket, self._session
        self._socket = self._session = None
        with suppress(Exception):
            if socket is not None:
                async with asyncio.timeout(1.5):
                    await socket.close()
        if session is not None:
            await session.close()


def header(frame: dict[str, Any], name: str) -> str:
    """A header of a frame; "" without one."""
    headers = frame.get("headers")
    value = headers.get(name) if isinstance(headers, dict) else None
    return value if isinstance(value, str) else ""

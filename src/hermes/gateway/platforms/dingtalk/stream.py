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

from hermes.errors import PlatformError, PlatformUnreachable
from hermes.gateway.platforms.frames import LOG, Log
from hermes.gateway.platforms.http import connection_trouble
from hermes.gateway.platforms.websocket_client import WebSocketClient

_PATIENCE = 20.0
_HEARTBEAT = 30.0
SYSTEM, CALLBACK = "SYSTEM", "CALLBACK"
PING, DISCONNECT = "ping", "disconnect"


class Stream(WebSocketClient):
    """One connection. It is used until it breaks, or until DingTalk asks for another one."""

    def __init__(self, log: Log = LOG) -> None:
        super().__init__("DingTalk", log)

    async def open(self, endpoint: str, ticket: str) -> None:
        """Connect."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self.connect(endpoint, params={"ticket": ticket}, heartbeat=_HEARTBEAT)
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                raise PlatformUnreachable(f"DingTalk's stream can't be reached: {connection_trouble(error)}") from None
            raise

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """What is pushed, in order. PlatformUnreachable when the connection breaks."""
        while True:
            yield await self.receive()

    def ended(self, code: int | None) -> PlatformError:
        """The error for a stream that DingTalk has closed."""
        return PlatformUnreachable("DingTalk has closed the stream")

    async def acknowledge(self, frame: dict[str, Any], data: str = '{"response": null}') -> None:
        """Tell DingTalk that a frame has arrived. If the connection is gone the frame comes again."""
        headers = {"messageId": header(frame, "messageId"), "contentType": "application/json"}
        answer = {"code": 200, "headers": headers, "message": "OK", "data": data}
        if self._socket is not None and not self._socket.closed:
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.send_json(answer)


def header(frame: dict[str, Any], name: str) -> str:
    """A header of a frame; "" without one."""
    headers = frame.get("headers")
    value = headers.get(name) if isinstance(headers, dict) else None
    return value if isinstance(value, str) else ""

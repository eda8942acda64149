"""Mattermost's WebSocket: it pushes events, numbered in order, and resumes a broken connection at the next number.

A server keeps the events of a connection for a while after it broke, and sends the missed ones when it is resumed. Otherwise
it opens a new one, which begins with the event "hello": then the adapter reads the missed posts by the REST API.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SlowDown
from hermes.gateway.platforms.frames import LOG, Log
from hermes.gateway.platforms.http import connection_trouble, retry_after
from hermes.gateway.platforms.websocket_client import WebSocketClient

_PATIENCE = 20.0  # seconds for the greeting
_HEARTBEAT = 25.0


class EventSocket(WebSocketClient):
    """One login. `open` connects (again), `events` are what the server pushes until the connection breaks."""

    def __init__(self, url: str, token: str, context: ssl.SSLContext, log: Log = LOG) -> None:
        super().__init__("Mattermost", log)
        self._url, self._token, self._context = url, token, context
        self._numbers = itertools.count(1)
        self._connection_id = ""
        self._next = 0  # the number of the next event
        self._early: list[dict[str, Any]] = []  # events that came before the answer to our login

    async def open(self) -> None:
        """Connect and log in, to resume the previous connection if the server can."""
        await self.close()
        query = (
            {"connection_id": self._connection_id, "sequence_number": str(self._next)} if self._connection_id else {}
        )
        try:
            async with asyncio.timeout(_PATIENCE):
                await self.connect(self._url, params=query, heartbeat=_HEARTBEAT, ssl=self._context)
                self._early = []
                await self.act("authentication_challenge", token=self._token)
                await self._let_in()
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                raise self._explained(error) from None
            raise

    async def _let_in(self) -> None:
        """Wait for the answer to our login; events may come before it."""
        while True:
            item = await self.receive()
            if "event" in item:
                self._early.append(item)
            elif item.get("status") == "FAIL":
                raise PlatformRefused("Mattermost does not accept the token; create a new one for the bot")
            elif item.get("status") == "OK":
                return

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The pushed events in order; PlatformUnreachable when the connection breaks or an event is missing."""
        while True:
            item = self._early.pop(0) if self._early else await self.receive()
            if "event" not in item:
                continue
            if item["event"] == "hello":
                data = item.get("data")
                name = str(data.get("connection_id") or "") if isinstance(data, dict) else ""
                self._next = self._next if name and name == self._connection_id else 0
                self._connection_id = name
            number = item.get("seq")
            if isinstance(number, int) and number < self._next:
                continue  # repeated after a resumption
            if isinstance(number, int) and number > self._next:
                self._connection_id = ""  # the server has dropped some: start over, and read them by the REST API
                raise PlatformUnreachable("Mattermost has left out events")
            yield item
            self._count(item)

    def _count(self, item: dict[str, Any]) -> None:
        number = item.get("seq")
        if isinstance(number, int):
            self._next = number + 1

    async def act(self, action: str, **data: Any) -> None:
        """Send an action; its answer is not awaited."""
        socket = self._socket
        if socket is None or socket.closed:
            raise PlatformUnreachable("there is no connection to Mattermost")
        await socket.send_json({"seq": next(self._numbers), "action": action, "data": data})

    def _explained(self, error: Exception) -> HermesError:
        if isinstance(error, HermesError):
            return error
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return PlatformRefused(
                "the certificate of the Mattermost server is not trusted; ca_file names the one that vouches for it"
            )
        if isinstance(error, aiohttp.WSServerHandshakeError):
            if error.status == 429:
                return SlowDown("Mattermost asks us to wait", max(1.0, retry_after(error.headers or {})))
            if error.status == 401:
                return PlatformRefused("Mattermost does not accept the token (HTTP 401)")
            if 300 <= error.status < 500:
                return PlatformRefused(
                    f"the server at url has no Mattermost WebSocket (HTTP {error.status}); check url"
                )
        return PlatformUnreachable(f"Mattermost's WebSocket can't be reached: {connection_trouble(error)}")

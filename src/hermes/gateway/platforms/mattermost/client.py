"""Mattermost's WebSocket: it pushes events, numbered in order, and resumes a broken connection at the next number.

A server keeps the events of a connection for a while after it broke, and sends the missed ones when it is resumed. Otherwise
it opens a new one, which begins with the event "hello": then the adapter reads the missed posts by the REST API.
"""

from __future__ import annotations

import itertools
import ssl
from collections.abc import AsyncIterator
from typing import Any

from hermes.errors import PlatformRefused, PlatformUnreachable
from hermes.gateway.platforms._shared.receipt import LOG, Log
from hermes.gateway.platforms._shared.websocket import WebSocketClient

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
        async with self.opening():
            await self.connect(self._url, params=query, heartbeat=_HEARTBEAT, ssl=self._context)
            self._early = []
            await self.act("authentication_challenge", token=self._token)
            await self._let_in()

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
            if isinstance(number, int):
                self._next = number + 1

    async def act(self, action: str, **data: Any) -> None:
        """Send an action; its answer is not awaited."""
        socket = self._socket
        if socket is None or socket.closed:
            raise PlatformUnreachable("there is no connection to Mattermost")
        await socket.send_json({"seq": next(self._numbers), "action": action, "data": data})

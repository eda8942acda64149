"""A vendor's WebSocket as adapters use it: one connection, read as JSON objects, closed within a bounded time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from hermes.errors import HermesError, PlatformError, PlatformRefused, PlatformUnreachable, SlowDown
from hermes.gateway.platforms._shared.http import connection_trouble, retry_after
from hermes.gateway.platforms._shared.receipt import LOG, Log, read_object
from hermes.gateway.platforms._shared.tasks import Tasks

_CLOSING = 1.5  # seconds for a vendor to confirm the end of a connection


class WebSocketClient:
    """One connection at a time; adapters add the vendor's login and its frames. `title` is what errors call the vendor."""

    def __init__(self, title: str, log: Log = LOG) -> None:
        self.title, self.log = title, log
        self.where = title  # what errors call a server that can't be reached
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._tasks = Tasks()  # they end with the connection
        self._answers: dict[Any, asyncio.Future[dict[str, Any]]] = {}  # to requests that were not answered yet

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

    async def exchange(self, name: Any, frame: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request; the frame that is `answered` under its name. PlatformUnreachable without one."""
        socket = self._socket
        if socket is None or socket.closed:
            raise PlatformUnreachable(f"there is no connection to {self.title}")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[name] = answer
        try:
            async with asyncio.timeout(seconds):
                await socket.send_str(json.dumps(frame, ensure_ascii=False))
                return await answer
        except (TimeoutError, aiohttp.ClientError, OSError):
            raise PlatformUnreachable(f"{self.title} gave no answer", maybe_sent=True) from None
        finally:
            if self._answers.get(name) is answer:
                del self._answers[name]

    def answered(self, name: Any, frame: dict[str, Any]) -> None:
        """Pass on the answer to a request; one to no open request is ignored."""
        if name in self._answers and not self._answers[name].done():
            self._answers[name].set_result(frame)

    def unanswered(self) -> None:
        """Fail all open requests: the connection has ended."""
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(PlatformUnreachable(f"the connection to {self.title} broke", maybe_sent=True))

    @asynccontextmanager
    async def opening(self, seconds: float = 20.0) -> AsyncIterator[None]:
        """A context for connecting and logging in: if that fails or takes longer, it closes and raises `explained`."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                raise self.explained(error) from None
            raise

    def explained(self, error: Exception) -> HermesError:
        """The error for a connection that can't be opened. It has no text of a library's: addresses hold tickets."""
        if isinstance(error, HermesError):
            return error
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return PlatformRefused(
                f"the certificate of {self.where} is not trusted; ca_file names the one that vouches for it"
            )
        if isinstance(error, aiohttp.WSServerHandshakeError):
            if error.status == 429:
                return SlowDown(f"{self.where} asks us to wait", max(1.0, retry_after(error.headers or {})))
            if 300 <= error.status < 500:
                return PlatformRefused(
                    f"{self.where} opens no WebSocket there (HTTP {error.status}); check the url and the token"
                )
            return PlatformUnreachable(f"{self.where} answers with HTTP {error.status}")
        return PlatformUnreachable(f"{self.where} can't be reached: {connection_trouble(error)}")

    def ended(self, code: int | None) -> PlatformError:
        """The error for a connection that the vendor has closed, with its close code."""
        return PlatformUnreachable(f"{self.title} has closed the connection")

    async def close(self) -> None:
        """Disconnect. May be called twice, and `connect` may follow."""
        await self._tasks.stop()
        self.unanswered()
        socket, session = self._socket, self._session
        self._socket = self._session = None
        with suppress(Exception):
            if socket is not None:
                async with asyncio.timeout(_CLOSING):
                    await socket.close()
        if session is not None:
            await session.close()

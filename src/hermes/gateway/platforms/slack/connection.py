"""Socket Mode: the websocket that Slack sends events through, each in an envelope that wants to be acknowledged.

An envelope is acknowledged once what it holds is kept; what is not acknowledged Slack sends again. Before Slack ends a
connection it says so: the next one is opened first, and the old one is read to its end. The library has a client for
this, too; it goes on trying in silence when it should say that it gave up, so this one is ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import aiohttp

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable
from hermes.gateway.platforms.slack.answers import kind

_HELLO = 15.0  # seconds for a new connection to begin
_HEARTBEAT = 15.0  # seconds between our pings; a connection that does not answer them is dead
_LINGER = 30.0  # seconds an old connection is read beside its successor

Socket = aiohttp.ClientWebSocketResponse
Envelope = dict[str, Any]


class Connection:
    """A connection and its successors. `keep` gets every envelope; when it returns the envelope is acknowledged.

    Envelopes of one chat are kept one after the other, as they came. `ticket` asks for the address of a new connection,
    `connected` hears of each that stands, `lost` of the end of the last one, once.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        ticket: Callable[[], Awaitable[str]],
        keep: Callable[[Envelope], Awaitable[None]],
        connected: Callable[[], None],
        lost: Callable[[PlatformError], None],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._session = session
        self._ticket = ticket
        self._keep = keep
        self._connected = connected
        self._lost = lost
        self._log = log
        self._sockets: set[Socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: dict[str, asyncio.Task[None]] = {}  # chat → what is done with its newest envelope

    async def open(self) -> None:
        """Open a connection, hear its hello and begin to read it; PlatformError when that can't be."""
        address = await self._ticket()
        try:
            socket = await self._session.ws_connect(
                address, heartbeat=_HEARTBEAT, timeout=aiohttp.ClientWSTimeout(ws_close=1.0), max_msg_size=0
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            # The error's own text may hold the address, and with it the ticket: it goes nowhere.
            raise PlatformUnreachable(f"Slack's connection for events did not open ({kind(error)})") from None
        self._sockets.add(socket)
        try:
            await _hello(socket)
        except BaseException:
            await self._leave(socket)
            raise
        self._start(self._read(socket))
        self._connected()

    async def close(self) -> None:
        """End every connection, within a few seconds."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=3)
        for socket in list(self._sockets):  # those whose reader had not even begun
            await self._leave(socket)

    async def _leave(self, socket: Socket) -> None:
        self._sockets.discard(socket)
        await socket.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read(self, socket: Socket) -> None:
        """Read a connection to its end; one that ends without a successor is lost."""
        replaced = False
        error = PlatformError()
        try:
            async with asyncio.timeout(None) as limit:
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        continue
                    envelope = json.loads(message.data)
                    if envelope.get("type") != "disconnect":
                        self._take(envelope, socket)
                    elif not replaced:
                        await self._succeed(envelope.get("reason"))
                        replaced = True
                        limit.reschedule(asyncio.get_running_loop().time() + _LINGER)
            error = PlatformUnreachable("Slack closed the connection for events")
        except TimeoutError:
            pass  # _LINGER is over
        except PlatformError as problem:
            error = problem
        except Exception as problem:
            error = PlatformUnreachable(f"Slack's connection for events broke ({kind(problem)})")
        finally:
            await self._leave(socket)
        if not replaced:
            self._lost(error)

    async def _succeed(self, reason: object) -> None:
        """Slack will end this connection: open the next one."""
        if reason == "link_disabled":
            raise PlatformRefused("Socket Mode was turned off: turn it on in your app at api.slack.com")
        await self.open()

    def _take(self, envelope: Envelope, socket: Socket) -> None:
        """See to an envelope, after those of the same chat that came before it."""
        if not envelope.get("envelope_id"):
            return
        payload = envelope.get("payload") or {}
        chat = str((payload.get("event") or {}).get("channel") or payload.get("channel_id") or "")
        task = self._start(self._see_to(envelope, socket, self._last.get(chat)))
        self._last[chat] = task
        task.add_done_callback(lambda done: self._last.pop(chat) if self._last.get(chat) is done else None)

    async def _see_to(self, envelope: Envelope, socket: Socket, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            await self._keep(envelope)
        except Exception as error:
            self._log.warning("a message could not be kept; Slack will send it again: %s: %s", kind(error), error)
            return
        try:
            await socket.send_str(json.dumps({"envelope_id": envelope["envelope_id"]}))
        except (aiohttp.ClientError, OSError):
            pass  # the connection is gone: Slack sends the event again, and it is known by its id


async def _hello(socket: Socket) -> None:
    """A connection stands when Slack has said hello; it may say goodbye at once instead."""
    try:
        first = await socket.receive_json(timeout=_HELLO)
    except (aiohttp.ClientError, OSError, TimeoutError, TypeError, ValueError) as error:
        raise PlatformUnreachable(f"Slack's connection for events did not begin ({kind(error)})") from None
    if first.get("type") != "hello":
        raise PlatformUnreachable(f"Slack ended a new connection at once ({first.get('reason')})")

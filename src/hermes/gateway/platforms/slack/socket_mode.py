"""Socket Mode: the websocket that Slack sends events through, each in an envelope to be acknowledged.

An envelope is acknowledged once its content is stored; Slack sends it again after three seconds without that, and it is
recognised by its id. Slack announces the end of a connection: the next one is opened
first, and the old one is read to its end. The library has a client for this, too; it keeps retrying in silence when it
should report that it gave up, so this one is ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SlowDown
from hermes.gateway.events import Event, Reaction, Revision
from hermes.gateway.platforms.connections import Tasks
from hermes.gateway.platforms.slack.web_api import kind

_HELLO = 15.0  # seconds for a new connection to begin
HEARTBEAT = 15.0  # seconds between our pings; a connection that does not answer them is dead
_LINGER = 30.0  # seconds an old connection is read beside its successor
_READING = 10.0  # seconds that a new message waits for those that were missed
_LONGEST_PAUSE = 30.0  # seconds between two tries to store an event

Socket = aiohttp.ClientWebSocketResponse
Envelope = dict[str, Any]


class SocketMode:
    """A connection and its successors. `read` makes an event of an envelope (None: no message), `keep` stores it.

    Envelopes of one chat are stored one after the other, in order. `ticket` requests the address of a new connection,
    `connected` is called for each that is established, `lost` at the end of the last one, once.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        ticket: Callable[[], Awaitable[str]],
        read: Callable[[Envelope], Awaitable[Event | Revision | Reaction | None]],
        keep: Callable[[Event | Revision | Reaction], Awaitable[None]],
        connected: Callable[[], None],
        lost: Callable[[PlatformError], None],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        heartbeat: float = HEARTBEAT,
    ) -> None:
        self._session = session
        self._heartbeat = heartbeat
        self._ticket = ticket
        self._read_event = read
        self._keep = keep
        self._connected = connected
        self._lost = lost
        self._log = log
        self._sockets: set[Socket] = set()
        self._tasks = Tasks()
        self.first: asyncio.Task[None] | None = None  # it reads what was missed
        self._last: dict[str, asyncio.Task[bool]] = {}  # chat → the task that stores its newest envelope

    async def open(self) -> None:
        """Open a connection, wait for its hello and begin to read it; PlatformError when that fails."""
        address = await self._ticket()
        try:
            socket = await self._session.ws_connect(
                address, heartbeat=self._heartbeat, timeout=aiohttp.ClientWSTimeout(ws_close=1.0), max_msg_size=0
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            # The error's own text may hold the address, and with it the ticket: it is not shown.
            raise PlatformUnreachable(f"Slack's connection for events did not open ({kind(error)})") from None
        self._sockets.add(socket)
        try:
            await _hello(socket)
        except BaseException:
            await self._leave(socket)
            raise
        self._tasks.start(self._read(socket))
        self._connected()

    async def close(self) -> None:
        """End every connection, within a few seconds."""
        await self._tasks.stop()
        for socket in list(self._sockets):  # including those whose reader had not begun
            await self._leave(socket)

    async def _leave(self, socket: Socket) -> None:
        self._sockets.discard(socket)
        await socket.close()

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
        """Store an envelope, then acknowledge it."""
        if envelope.get("envelope_id"):
            self._tasks.start(self._acknowledge(envelope["envelope_id"], self._in_turn(envelope), socket))

    async def _acknowledge(self, envelope_id: str, kept: asyncio.Task[bool], socket: Socket) -> None:
        if await kept:
            with suppress(aiohttp.ClientError, OSError):  # the connection is gone: Slack sends the event again
                await socket.send_str(json.dumps({"envelope_id": envelope_id}))

    def _in_turn(self, envelope: Envelope) -> asyncio.Task[bool]:
        """Store an envelope, after the earlier ones of its chat."""
        payload = envelope.get("payload") or {}
        place = payload.get("channel")  # of a pressed button
        chosen = place.get("id") if isinstance(place, dict) else None
        chat = str((payload.get("event") or {}).get("channel") or payload.get("channel_id") or chosen or "")
        task = self._tasks.start(self._in_order(envelope, self._last.get(chat)))
        self._last[chat] = task
        task.add_done_callback(lambda done: self._last.pop(chat) if self._last.get(chat) is done else None)
        return task

    async def take_missed(self, envelope: Envelope) -> None:
        """Store a message that was read from its conversation, before those that come by the connection."""
        await self._kept(envelope)

    async def _in_order(self, envelope: Envelope, before: asyncio.Task[bool] | None) -> bool:
        """Store an envelope after the earlier ones: of its chat, and those that are being read from the conversations."""
        if before is not None:
            await asyncio.wait([before])
        elif self.first is not None and not self.first.done():
            await asyncio.wait([self.first], timeout=_READING)
        return await self._kept(envelope)

    async def _kept(self, envelope: Envelope) -> bool:
        """Store the content, however long that takes; False if it can't be read at all."""
        event, pause = None, 1.0
        while True:
            try:
                event = event or await self._read_event(envelope)
            except (PlatformUnreachable, SlowDown) as error:
                self._log.warning("a message can't be read yet (%s); next try in %g s", error, pause)
            except Exception as error:
                self._log.error("a message of Slack's can't be read: %s: %s", kind(error), error)
                return False
            else:
                try:
                    if event is not None:
                        await self._keep(event)
                    return True
                except Exception as error:
                    self._log.warning("a message could not be stored (%s); next try in %g s", kind(error), pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


async def _hello(socket: Socket) -> None:
    """Wait for Slack's hello, which establishes a connection; Slack may close it at once instead."""
    try:
        first = await socket.receive_json(timeout=_HELLO)
    except (aiohttp.ClientError, OSError, TimeoutError, TypeError, ValueError) as error:
        raise PlatformUnreachable(f"Slack's connection for events did not begin ({kind(error)})") from None
    if first.get("type") != "hello":
        raise PlatformUnreachable(f"Slack ended a new connection at once ({first.get('reason')})")

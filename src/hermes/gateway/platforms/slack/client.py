"""Slack's two connections: requests to the Web API, and Socket Mode, the websocket that Slack sends events through.

A response of the Web API is the data, or one of our errors for Slack's. The error texts of Slack and of the library stay out
of ours: they repeat the request, tickets included.

An event comes in an envelope, which is acknowledged once its content is stored; Slack sends it again after three seconds
without that, and it is recognised by its id. Slack announces the end of a connection: the next one is opened
first, and the old one is read to its end. The library has a client for this, too; it keeps retrying in silence when it
should report that it gave up, so this one is ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import CHANNEL, DM, GROUP, Event, Revision
from hermes.gateway.platforms._shared.http import retry_after
from hermes.gateway.platforms._shared.tasks import Recent, Tasks

_LOCKED_OUT = frozenset(
    "invalid_auth not_authed account_inactive token_revoked token_expired not_allowed_token_type"
    " org_login_required team_access_not_granted two_factor_setup_required".split()
)
_PASSING = frozenset("internal_error fatal_error service_unavailable request_timeout team_added_to_org".split())
_FORMATTING = frozenset("invalid_blocks invalid_blocks_format msg_blocks_too_long msg_too_long".split())
_HINTS = {
    "not_in_channel": "invite the bot there with /invite",
    "channel_not_found": "the chat is gone, or it is private and the bot is not in it",
    "is_archived": "the channel is archived",
    "restricted_action": "the workspace does not let the bot write there",
}


class Unformattable(SendRefused):
    """Slack refuses the message in this form; as plain text it may accept it."""


async def ask(request: Awaitable[AsyncSlackResponse], *, token: str = "bot_token") -> dict[str, Any]:
    """Slack's response; a PlatformError on failure. `token` is the setting to name when it is not accepted."""
    try:
        answer = (await request).data
    except SlackApiError as error:
        raise _translated(error.response, token) from None
    except (aiohttp.ClientError, SlackClientError, OSError, TimeoutError, ValueError, AttributeError) as error:
        lost = not isinstance(error, aiohttp.ClientConnectorError)  # the answer may be lost, and the message sent
        raise PlatformUnreachable(f"Slack can't be reached ({kind(error)})", maybe_sent=lost) from None
    return answer if isinstance(answer, dict) else {}


def _translated(response: Any, token: str) -> PlatformError:
    """`response` is the library's, or aiohttp's where the answer could not even be read."""
    data = getattr(response, "data", None)
    data = data if isinstance(data, dict) else {}
    status = int(getattr(response, "status_code", 0) or getattr(response, "status", 0) or 0)
    code = str(data.get("error") or f"HTTP {status}")
    if status == 429 or code in ("ratelimited", "rate_limited"):
        return SlowDown("Slack asks us to wait", retry_after(getattr(response, "headers", {})))
    if status >= 500 or not data or code in _PASSING:
        return PlatformUnreachable(f"Slack failed ({code}); trying again")
    if code == "missing_scope":
        needed = data.get("needed")
        return PlatformRefused(
            f"the Slack app lacks the scope {needed}: add it under OAuth & Permissions and install the app again"
        )
    if code in _LOCKED_OUT:
        return PlatformRefused(f"Slack does not accept {token} ({code}): copy it again from your app at api.slack.com")
    if code in _FORMATTING:
        return Unformattable(f"Slack does not accept the message ({code})")
    return SendRefused(f"Slack refuses: {code}" + (f" ({_HINTS[code]})" if code in _HINTS else ""))


def kind(error: BaseException) -> str:
    """The class name of an error: its text may hold what must not be shown."""
    return type(error).__name__


# ----------------------------------------------------------------------------------------------------
# The names of people and chats, requested once and remembered.
#
# A name is a courtesy. Where Slack does not give it soon, there is none: no message waits for it or is lost by it.

_PATIENCE = 3.0  # seconds
_TYPES = {"im": DM, "mpim": GROUP, "channel": CHANNEL, "group": CHANNEL}  # Slack's "group" is a private channel


class ChatInfo(NamedTuple):
    """A chat: its type, its name, and whether the bot may speak there."""

    type: str
    name: str | None = None
    ours: bool = True


class Directory:
    """The people and chats of a workspace."""

    def __init__(self) -> None:
        self._names: Recent[str, str] = Recent()
        self._places: Recent[str, ChatInfo] = Recent()

    async def name(self, web: AsyncWebClient, user: str) -> str | None:
        """The display name of a person; None if Slack does not give it."""
        known = self._names.get(user)
        if known is not None:
            return known
        about = (await courtesy(web.users_info(user=user))).get("user") or {}
        profile = about.get("profile") or {}
        name = profile.get("display_name") or profile.get("real_name") or about.get("name")
        return self._names.put(user, str(name)) if name else None

    async def place(self, web: AsyncWebClient, chat: str, kind: str | None = None) -> ChatInfo:
        """The type and name of a chat. `kind` is the event's; without it, and if Slack can't say, it is not ours."""
        if kind == "im":
            return self._places.put(chat, ChatInfo(DM))
        known = self._places.get(chat)
        if known is not None:
            return known
        about = (await courtesy(web.conversations_info(channel=chat))).get("channel")
        if about:
            return self._places.put(chat, _described(about))
        return ChatInfo(_TYPES.get(kind or "", DM if chat.startswith("D") else CHANNEL), ours=kind is not None)


def _described(about: dict[str, Any]) -> ChatInfo:
    name = str(about.get("name") or "")
    if about.get("is_im"):
        return ChatInfo(DM)
    if about.get("is_mpim"):  # "mpdm-alice--bob--hermes-1"
        return ChatInfo(GROUP, name.removeprefix("mpdm-").rpartition("-")[0].replace("--", ", ") or None)
    return ChatInfo(CHANNEL, f"#{name}" if name else None, bool(about.get("is_member", True)))


async def courtesy(request: Awaitable[AsyncSlackResponse]) -> dict[str, Any]:
    """Slack's answer, or {} without one in time."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return await ask(request)
    except (PlatformError, TimeoutError):
        return {}


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
        read: Callable[[Envelope], Awaitable[Event | Revision | None]],
        keep: Callable[[Event | Revision], Awaitable[None]],
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
        """Open the next connection: Slack will end this one."""
        if reason == "link_disabled":
            raise PlatformRefused("Socket Mode was turned off: turn it on in your app at api.slack.com")
        await self.open()

    def _take(self, envelope: Envelope, socket: Socket) -> None:
        """Store an envelope, then acknowledge it."""
        if envelope.get("envelope_id"):
            self._tasks.start(self._acknowledge(envelope["envelope_id"], self._in_turn(envelope), socket))

    async def _acknowledge(self, envelope_id: str, stored: asyncio.Task[bool], socket: Socket) -> None:
        if await stored:
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
        await self._store(envelope)

    async def _in_order(self, envelope: Envelope, before: asyncio.Task[bool] | None) -> bool:
        """Store an envelope after the earlier ones: of its chat, and those that are being read from the conversations."""
        if before is not None:
            await asyncio.wait([before])
        elif self.first is not None and not self.first.done():
            await asyncio.wait([self.first], timeout=_READING)
        return await self._store(envelope)

    async def _store(self, envelope: Envelope) -> bool:
        """Store the content of an envelope, however long that takes; False if it can't be read at all."""
        pause = 1.0
        while True:
            try:
                event = await self._read_event(envelope)
            except (PlatformUnreachable, SlowDown) as error:
                self._log.warning("a message can't be read yet (%s); next try in %g s", error, pause)
            except Exception as error:
                self._log.error("a message of Slack's can't be read: %s: %s", kind(error), error)
                return False
            else:
                if event is not None:
                    await self._keep(event)
                return True
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

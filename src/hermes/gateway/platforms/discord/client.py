"""discord.py's client, pointed at the configured server, with secrets kept out of its logs and its errors as ours.

Nothing of the library is changed for others: requests and sockets of this one client are redirected. A dropped socket
is resumed by the library at once; when that can't be done it gives up, and the gateway connects again with its own
back-off (`reconnect=False`; the library would wait up to 17 minutes between tries).
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import aiohttp
import discord
from discord.gateway import DiscordWebSocket, KeepAliveHandler
from discord.http import Route

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import Choice
from hermes.gateway.platforms._shared.http import retry_after

API_BASE = Route.BASE
GATEWAY_URL = str(DiscordWebSocket.DEFAULT_GATEWAY)
LONGEST_WAIT = 30.0  # seconds the library itself waits for a rate limit; the gateway waits for longer ones
_TO_CLOSE = 3.0  # seconds
MOST_SOCKETS = 20  # in a minute; the library itself resumes without a pause, however often it is disconnected
INTENTS_ADVICE = (
    'Discord gives this bot no message texts: switch on "Message Content Intent" on the Bot page of the application at'
    " https://discord.com/developers/applications"
)
TOKEN_ADVICE = (
    "Discord does not accept the bot token: copy a new one from the Bot page of the application (Reset Token) at"
    " https://discord.com/developers/applications"
)

_NAME = re.compile(r"[a-z0-9_-]{1,32}")
_MOST = 100
_DEFERRED_REPLY = 5
_DEFERRED_PRESS, _CHANGED = 6, 7
SAYS = "says:"  # in the id of a button, before its number and what it says
_EPHEMERAL = 64  # only the sender of the command sees the line

# We use no voice; without this the library warns about its missing parts at every start.
discord.VoiceClient.warn_nacl = False
discord.VoiceClient.warn_dave = False


Revised = discord.RawMessageUpdateEvent | discord.RawMessageDeleteEvent | discord.RawBulkMessageDeleteEvent
Incoming = discord.Message | discord.Interaction | Revised


class DiscordClient(discord.Client):
    """A client that hands over every message, slash command, and established connection."""

    def __init__(
        self,
        api_base: str,
        gateway_url: str,
        *,
        on_connected: Callable[[bool], None] = lambda resumed: None,
        on_item: Callable[[Incoming], None] = lambda item: None,
    ) -> None:
        super().__init__(
            intents=discord.Intents(
                guilds=True,
                guild_messages=True,
                dm_messages=True,
                message_content=True,
            ),  # fmt: skip
            allowed_mentions=discord.AllowedMentions.none(),
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=0,
            max_ratelimit_timeout=LONGEST_WAIT,
        )
        self._on_connected, self._on_item = on_connected, on_item
        _redirect(self.http, api_base.rstrip("/"), gateway_url)
        for name in ("discord.http", "discord.gateway", "discord.client", "discord.state"):
            logging.getLogger(name).addFilter(_DISCREET)

    # Each of these is begun in the order of the events, and ends without waiting: the order stays.

    async def on_connect(self) -> None:
        self._on_connected(False)

    async def on_resumed(self) -> None:
        self._on_connected(True)

    async def on_message(self, message: discord.Message) -> None:
        self._on_item(message)

    async def on_raw_message_edit(self, payload: discord.RawMessageUpdateEvent) -> None:
        self._on_item(payload)

    async def on_raw_message_delete(self, payload: discord.RawMessageDeleteEvent) -> None:
        self._on_item(payload)

    async def on_raw_bulk_message_delete(self, payload: discord.RawBulkMessageDeleteEvent) -> None:
        self._on_item(payload)

    async def on_interaction(self, interaction: discord.Interaction) -> None:
        self._on_item(interaction)

    async def close(self) -> None:
        """Close the connection without waiting for the server's close frame.

        Heartbeat threads of this client end, too: a handshake that was cut off leaves one behind.
        """
        try:
            async with asyncio.timeout(_TO_CLOSE):
                await super().close()
        except Exception:
            await self.http.close()
        for thread in threading.enumerate():
            if isinstance(thread, KeepAliveHandler) and thread.ws._connection is self._connection:
                thread.stop()


def _redirect(http: discord.http.HTTPClient, api_base: str, gateway_url: str) -> None:
    request, ws_connect = http.request, http.ws_connect
    opened: deque[float] = deque(maxlen=MOST_SOCKETS)

    async def request_there(route: Route, **options: Any) -> Any:
        if route.url.startswith(API_BASE):
            route.url = api_base + route.url.removeprefix(API_BASE)
        return await request(route, **options)

    async def ws_connect_there(url: str, **options: Any) -> aiohttp.ClientWebSocketResponse:
        if len(opened) == MOST_SOCKETS and time.monotonic() - opened[0] < 60:
            raise PlatformUnreachable("Discord accepts connections and closes them again")
        opened.append(time.monotonic())
        if url.startswith(GATEWAY_URL):
            url = gateway_url + url.removeprefix(GATEWAY_URL)
        return await ws_connect(url, **options)

    http.request = request_there  # type: ignore[method-assign]
    http.ws_connect = ws_connect_there  # type: ignore[method-assign]


class _Discreet(logging.Filter):
    """Drops the library's debug lines, which hold message texts; addresses of interactions hold a token."""

    _TOKENS = re.compile(r"(/(?:interactions|webhooks)/\d+/)[^/\s]+")

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return False
        record.msg, record.args = self._TOKENS.sub(r"\1…", record.getMessage()), None
        return True


_DISCREET = _Discreet()


@contextmanager
def our_errors(what: str) -> Iterator[None]:
    """Errors of the library become those of hermes.errors; `what` says what could not be done ("send this message")."""
    try:
        yield
    except PlatformError:
        raise
    except Exception as error:
        raise translated(error, what) from None


def translated(error: Exception, what: str) -> PlatformError:
    """One of our errors for one of the library's. It never carries an address or a header, where tokens are."""
    if isinstance(error, PlatformError):
        return error
    if isinstance(error, discord.LoginFailure):
        return PlatformRefused(TOKEN_ADVICE)
    if isinstance(error, discord.ConnectionClosed):
        return _closed(error)
    if isinstance(error, discord.RateLimited):
        return SlowDown(f"Discord asks us to wait before we {what}", error.retry_after)
    if isinstance(error, discord.HTTPException):
        return _answered(error, what)
    if isinstance(error, (OSError, aiohttp.ClientError)):
        return PlatformUnreachable(f"Discord can't be reached to {what} ({_reason(error)})")
    return PlatformUnreachable(f"Discord's library could not {what} ({type(error).__name__})")


def _reason(error: Exception) -> str:
    reason = getattr(error, "strerror", None)
    return str(reason) if reason else type(error).__name__


def _closed(error: discord.ConnectionClosed) -> PlatformError:
    if error.code == 4004:
        return PlatformRefused(TOKEN_ADVICE)
    if error.code == 4014:
        return PlatformRefused(INTENTS_ADVICE)
    if error.code in (4010, 4011, 4012, 4013):
        return PlatformRefused(f"Discord refuses the connection (close code {error.code})")
    return PlatformUnreachable(f"Discord closed the connection (close code {error.code})")


def _answered(error: discord.HTTPException, what: str) -> PlatformError:
    if error.status == 401:
        return PlatformRefused(TOKEN_ADVICE)
    if error.status == 429:
        headers = getattr(error.response, "headers", None) or {}
        return SlowDown(f"Discord asks us to wait before we {what}", retry_after(headers, 60.0))
    if error.status >= 500:
        return PlatformUnreachable(f"Discord could not {what} (HTTP {error.status}); trying again")
    reason = " ".join(error.text.split())[:300] or f"status {error.status}"
    return SendRefused(f"Discord refuses to {what}: {reason} (code {error.code})")


# ------------------------------------------------------------------------------------------------ commands and buttons
#
# A command of Discord's menu has one optional text, "arguments", and becomes the text "/name arguments" like everywhere else.
# Its reply is a normal message in the channel, so the "thinking" line that Discord shows for it is removed.


async def write_menu(client: discord.Client, commands: Sequence[tuple[str, str]]) -> None:
    """Write these commands (name, help) into the menu, if it differs: Discord limits the changes a day."""
    application = client.application_id
    if application is None:
        raise PlatformUnreachable("Discord has not sent our application's id")
    named = {name: words for name, words in commands if _NAME.fullmatch(name)}
    wanted = [_command(name, words) for name, words in list(named.items())[:_MOST]]
    there: Sequence[Mapping[str, Any]] = await client.http.get_global_commands(application)
    if _as_seen(there) != _as_seen(wanted):
        await client.http.bulk_upsert_global_commands(application, wanted)


def buttons(choices: Sequence[Choice]) -> discord.ui.View:
    """Buttons for a message. The library does not wait for presses: they are interactions like others."""
    view = discord.ui.View(timeout=None)
    for number, one in enumerate(choices):  # ids must differ, also of two that say the same
        view.add_item(discord.ui.Button(label=one.label[:80], custom_id=f"{SAYS}{number}:{one.says}"))
    view.stop()
    return view


async def defer(client: discord.Client, interaction: discord.Interaction) -> None:
    """Acknowledge a command; Discord waits 3 seconds for that, and shows "thinking" from then on."""
    path = "/interactions/{webhook_id}/{webhook_token}/callback"
    answer: dict[str, Any] = {"type": _DEFERRED_REPLY, "data": {"flags": _EPHEMERAL}}
    if interaction.type is discord.InteractionType.component:  # in a direct message the buttons go: one is pressed once
        alone = interaction.guild_id is None
        answer = {"type": _CHANGED, "data": {"components": []}} if alone else {"type": _DEFERRED_PRESS}
    route = Route("POST", path, webhook_id=interaction.id, webhook_token=interaction.token)
    await client.http.request(route, json=answer)


async def clear(client: discord.Client, interaction: discord.Interaction) -> None:
    """Remove the "thinking" line; that works for the 15 minutes an interaction lasts."""
    path = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
    route = Route("DELETE", path, webhook_id=interaction.application_id, webhook_token=interaction.token)
    await client.http.request(route)


def _command(name: str, words: str) -> dict[str, Any]:
    option = {"type": 3, "name": "arguments", "description": "What comes after the command", "required": False}
    return {"name": name, "type": 1, "description": words.strip()[:100] or name, "options": [option]}


def _as_seen(commands: Sequence[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
    """The visible fields of commands, to see whether anything changed."""
    return {
        (one["name"], one.get("type", 1), one.get("description"), *(part["name"] for part in one.get("options") or ()))
        for one in commands
    }

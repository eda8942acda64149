"""The Bot API client, and receiving updates: it never holds the token, and raises Telegram's errors as ours.

Telegram wants the token inside every address, and addresses end up in log lines and error messages. So the library
works with a placeholder, and only the last step before the socket replaces it by the real token.

Updates come by long polling or by a webhook. Both acknowledge a message only when it is stored. To polling, Telegram repeats
every update until a later one is requested; to a webhook, it repeats a delivery until it is answered with 200.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
import msgspec
from telegram import Bot, CallbackQuery, Update
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
)
from telegram.request import HTTPXRequest
from telegram.warnings import PTBDeprecationWarning, PTBUserWarning

from hermes.errors import SOCKS, PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown, pip_line
from hermes.gateway.adapter import Link
from hermes.gateway.events import Revision
from hermes.gateway.platforms._shared.http import TooLarge, bounded_answer, connection_trouble, may_have_arrived
from hermes.gateway.platforms._shared.receipt import dropped
from hermes.gateway.platforms._shared.tasks import Retries, Tasks
from hermes.gateway.platforms.telegram.incoming import (
    Reading,
    conversations,
    edits,
    migration,
    press_event,
    presses,
)

if TYPE_CHECKING:
    from hermes.gateway.platforms._shared.listener import PlatformRequest, Registration


_TOKEN = re.compile(r"\d+:[\w-]+")
_STAND_IN = "the-token"
_CONNECTIONS = 256
_PATIENCE = 20.0  # seconds for an answer, and for each piece of a file

# The library warns each time that this number will be of another type one day; `_seconds` reads both.
warnings.filterwarnings("ignore", message=".*`retry_after`", category=PTBDeprecationWarning)
# The library's own method for this reads all updates or none.
warnings.filterwarnings("ignore", message="Please use 'Bot.getUpdates'", category=PTBUserWarning)
# At this level it logs every message and the webhook's secret.
logging.getLogger("telegram").setLevel(logging.INFO)


class _PutsTokenIn(httpx.AsyncBaseTransport):
    """Sends each request with the real token instead of the placeholder."""

    def __init__(self, inner: httpx.AsyncBaseTransport, token: str) -> None:
        self._inner = inner
        self._stand_in, self._token = f"/bot{_STAND_IN}/".encode(), f"/bot{token}/".encode()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.replace(self._stand_in, self._token, 1)
        real = httpx.Request(
            request.method,
            request.url.copy_with(raw_path=path),
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        answer = await self._inner.handle_async_request(real)
        return await bounded_answer(answer, real) if b"/file/bot" in path else answer

    async def aclose(self) -> None:
        await self._inner.aclose()


def open_bot(values: Mapping[str, Any]) -> Bot:
    """A client for these settings, not yet logged in; PlatformRefused when they can't be right."""
    token, base = str(values.get("token") or ""), str(values.get("base_url") or "").rstrip("/")
    if not _TOKEN.fullmatch(token):
        raise PlatformRefused("the Telegram token is missing or misspelt: @BotFather gives one like 123456:ABC-DEF")
    if urlsplit(base).scheme not in ("http", "https"):
        raise PlatformRefused("base_url of Telegram must begin with http:// or https://")
    try:
        inner = httpx.AsyncHTTPTransport(proxy=_proxy(values, base), limits=httpx.Limits(max_connections=_CONNECTIONS))
    except (ImportError, ValueError) as error:
        raise PlatformRefused(f"the proxy for Telegram can't be used; socks5:// needs {pip_line(SOCKS)}") from error
    request = HTTPXRequest(
        read_timeout=_PATIENCE,
        connect_timeout=10.0,
        pool_timeout=_PATIENCE,
        httpx_kwargs={"transport": _PutsTokenIn(inner, token)},
    )
    return Bot(_STAND_IN, f"{base}/bot", f"{base}/file/bot", request=request, get_updates_request=request)


def _proxy(values: Mapping[str, Any], base: str) -> str | None:
    """The proxy of the settings, else the one of the environment."""
    if values.get("proxy"):
        return str(values["proxy"])
    address = urlsplit(base)
    if proxy_bypass(address.hostname or ""):
        return None
    known = getproxies()
    return known.get(address.scheme) or known.get("all")


def read_update(raw: Any, bot: Bot, log: logging.Logger | logging.LoggerAdapter[logging.Logger]) -> Update:
    """Parse one update. What the library can't read becomes an empty update, so that it is not redelivered for ever
    and delays nothing."""
    number = raw.get("update_id") if isinstance(raw, dict) else None
    if not isinstance(number, int):
        raise PlatformUnreachable("Telegram sent something that is not an update")
    try:
        return Update.de_json(raw, bot)
    except Exception as error:
        log.error("Telegram: skipping update %d, which can't be read (%s)", number, type(error).__name__)
        return Update(number)


@contextmanager
def our_errors(*, login: bool = False) -> Iterator[None]:
    """Translate the library's errors into those of hermes.errors. During `login` a refusal means that the account is
    refused, not a message."""
    try:
        yield
    except (PlatformError, ChatMigrated):
        raise
    except RetryAfter as error:
        raise SlowDown("Telegram asks us to wait", _seconds(error)) from error
    except InvalidToken as error:
        raise PlatformRefused("Telegram does not know this token; @BotFather shows the right one (/token)") from error
    except Conflict as error:
        raise PlatformUnreachable(f"another program receives the messages of this bot ({error.message})") from error
    except (BadRequest, Forbidden) as error:
        raise (PlatformRefused if login else SendRefused)(f"Telegram refuses: {error.message}") from error
    except NetworkError as error:
        if isinstance(error.__cause__, TooLarge):
            raise error.__cause__ from None
        lost = isinstance(error.__cause__, httpx.HTTPError) and may_have_arrived(error.__cause__)
        why = connection_trouble(error.__cause__ or error)
        raise PlatformUnreachable(f"Telegram can't be reached: {why}", maybe_sent=lost) from error
    except TelegramError as error:
        raise PlatformUnreachable(f"Telegram: {error.message}") from error
    except Exception as error:  # not an answer of Telegram's: some proxies and hotel networks send their own pages
        raise PlatformUnreachable(f"the answer is not from Telegram ({type(error).__name__})") from error


def _seconds(error: RetryAfter) -> float:
    delay = error.retry_after
    return float(delay) if isinstance(delay, int) else delay.total_seconds()


# The updates we ask for: no joins and the like. Telegram does not report deletions to bots.
KINDS = ("message", "channel_post", "edited_message", "edited_channel_post", "callback_query")
_MOST = 100  # updates at once, Telegram's own limit
_WAIT = 25  # seconds that Telegram waits for an update before it answers with none
ALBUM_PAUSE, _ALBUM_ROUNDS = 0.3, 4  # seconds between, and number of, polls for more pictures of an album
FAILURES = 5  # in a row, before the connection counts as lost
_SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"


Listen = Callable[..., Awaitable["Registration"]]  # Adapter.listen


class PollingReceiver:
    """Polls for messages until it is stopped, or until too many polls in a row have failed (`Link.lost`)."""

    def __init__(
        self, bot: Bot, link: Link, identity: str, read: Reading, *, failures: int, album_pause: float
    ) -> None:
        self._bot, self._link, self._identity, self._read = bot, link, identity, read
        self._failures, self._album_pause = failures, album_pause
        self._offset: int | None = None  # the first update that is not stored yet
        self._tasks = Tasks()

    async def start(self) -> None:
        with our_errors(login=True):
            await self._bot.delete_webhook()  # with a webhook set, polling is refused
        self._tasks.start(self._run(), name="telegram: receiving")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _run(self) -> None:
        pauses = [min(0.25 * 2**number, 5.0) for number in range(1, self._failures + 1)]
        retries = Retries(self._link, self._identity, pauses)
        try:
            while True:
                try:
                    with our_errors():
                        updates = await self._whole_albums(await self._updates(_WAIT))
                except PlatformError as error:
                    await retries.failed(error)
                    continue
                retries.succeeded()
                await self._keep(updates)
        except Exception as error:
            self._link.lost(error)  # unconfirmed updates are sent again

    async def _updates(self, seconds: int) -> Sequence[Update]:
        try:
            return await self._bot.get_updates(self._offset, _MOST, seconds, KINDS)
        except TelegramError:
            raise
        except Exception:  # the library can't read one of them: parse them one by one
            arguments = {"offset": self._offset, "limit": _MOST, "allowed_updates": list(KINDS)}
            raw = await self._bot.do_api_request("getUpdates", arguments)
            return [read_update(one, self._bot, self._link.log) for one in raw]

    async def _whole_albums(self, updates: Sequence[Update]) -> Sequence[Update]:
        """The updates, with the rest of an album whose first pictures just arrived. Confirms nothing."""
        for _ in range(_ALBUM_ROUNDS):
            if _open_album(updates) is None or len(updates) >= _MOST:
                break
            await asyncio.sleep(self._album_pause)
            more = await self._updates(0)
            if len(more) <= len(updates):
                break
            updates = more
        start = _open_album(updates)
        if start and len(updates) >= _MOST:
            return updates[:start]  # its rest is in the next hundred: leave the whole album for then
        return updates

    async def _keep(self, updates: Sequence[Update]) -> None:
        await _take(self._link, self._read, updates)
        for update in updates:
            self._offset = max(self._offset or 0, update.update_id + 1)


async def _take(link: Link, read: Reading, updates: Sequence[Update]) -> None:
    """Have the gateway store the updates, in order."""
    for query in presses(updates):
        event = press_event(query)
        if event is not None:
            await link.received(event)
        await _confirm_press(query)
    for messages in conversations(updates):
        moved = migration(messages[0])
        if moved is not None:
            await link.moved(*moved)
            continue
        event = read(messages)
        if event is not None:
            await link.received(event)
    for name, message in edits(updates):
        event = read([message])
        if event is not None:
            await link.revised(Revision(id=name, revises=event.id, event=event))


async def _confirm_press(query: CallbackQuery) -> None:
    """End the waiting sign on a button; in a private chat the buttons go, too: one is pressed once. A failure harms nothing."""
    try:
        await query.answer()
        if query.message is not None and query.message.chat.type == "private":
            await query.edit_message_reply_markup(None)
    except TelegramError:
        pass


def _open_album(updates: Sequence[Update]) -> int | None:
    """The start of the first album that may be incomplete: no other message in its chat has followed it."""
    last: dict[int, str | None] = {}
    for update in updates:
        message = update.message or update.channel_post
        if message is not None:
            last[message.chat.id] = message.media_group_id
    for place, update in enumerate(updates):
        message = update.message or update.channel_post
        if message is not None and message.media_group_id and last[message.chat.id] == message.media_group_id:
            return place
    return None


class WebhookReceiver:
    """Listens on a port of this machine for the updates Telegram sends to the public address in front of it."""

    def __init__(self, bot: Bot, link: Link, read: Reading, *, url: str, secret: str, listen: Listen) -> None:
        self._bot, self._link, self._read = bot, link, read
        self._url, self._secret, self._listen = url, secret, listen
        self._registration: Registration | None = None
        self._one_by_one = asyncio.Lock()

    async def start(self) -> None:
        path = urlsplit(self._url).path or "/"
        self._registration = await self._listen(self._link, self._delivered, path=path, verify=self._is_telegram)
        with our_errors(login=True):
            await self._bot.set_webhook(self._url, secret_token=self._secret, allowed_updates=KINDS)

    async def stop(self) -> None:
        """Stop listening. The webhook stays set: Telegram delivers later what arrives meanwhile."""
        if self._registration is not None:
            await self._registration.close()

    def _is_telegram(self, headers: Mapping[str, str]) -> bool:
        token = headers.get(_SECRET_HEADER, "")
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._secret.encode())

    async def _delivered(self, call: PlatformRequest) -> int:
        try:
            update = read_update(msgspec.json.decode(call.body), self._bot, self._link.log)
        except (ValueError, RecursionError, PlatformError):
            dropped(call.body, "Telegram", "it is not an update", self._link.log)
            return 400
        # Telegram delivers the messages of a chat one after the other, each when the one before it was accepted; so the
        # rest of an album can't be waited for here, and each of its pictures is an event of its own.
        async with self._one_by_one:
            await _take(self._link, self._read, [update])
        return 200

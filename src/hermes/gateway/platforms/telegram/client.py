"""The Bot API client: it never holds the token, and raises Telegram's errors as ours.

Telegram wants the token inside every address, and addresses end up in log lines and error messages. So the library
works with a placeholder, and only the last step before the socket replaces it by the real token.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from telegram import Bot, Update
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

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.platforms.http import TooLarge, bounded_answer, connection_trouble, may_have_arrived
from hermes.install_line import SOCKS, pip_line

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
    asked = error.retry_after
    return float(asked) if isinstance(asked, int) else asked.total_seconds()

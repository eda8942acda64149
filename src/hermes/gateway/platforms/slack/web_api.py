"""Web API responses: the data, or one of our errors for Slack's.

The error texts of Slack and of the library stay out of ours: they repeat the request, tickets included.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.events import CHANNEL, DM, GROUP
from hermes.gateway.platforms.connections import Recent
from hermes.gateway.platforms.http import retry_after

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
# How often messages are edited: Slack counts the edits of all chats of a workspace together.
#
# chat.update is of Tier 3 ("50+ per minute", docs.slack.dev, Rate limits), for each method and workspace. Growing replies
# share a part of that; the rest is for finished replies, which are edited without a wait. When Slack says to wait, nothing
# is edited before that time is over, and then finished replies come first.

A_MINUTE = 36  # edits of streamed replies; 14 of Slack's 50 are left for finished ones
AT_ONCE = 4  # edits without a pause after a quiet time; few, as it is unknown when Slack's minutes begin


class EditLimit:
    """The edits of one workspace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left, self._at = float(AT_ONCE), clock()
        self._closed_until = 0.0

    def wait(self) -> float:
        """Seconds before a streamed reply may be edited; 0: now."""
        now = self._refill()
        missing = max(0.0, 1.0 - self._left) * 60 / A_MINUTE
        return max(missing, self._closed_until - now, 0.0)

    def take(self) -> None:
        """Count an edit that is about to be made; SlowDown while Slack refuses edits."""
        now = self._refill()
        if now < self._closed_until:
            raise SlowDown("Slack asks us to wait before the next edit", self._closed_until - now)
        self._left -= 1.0

    def refused(self, seconds: float) -> None:
        """Slack refuses edits for so long; streamed replies begin after that with an empty budget."""
        now = self._refill()
        self._closed_until = max(self._closed_until, now + seconds)
        self._left, self._at = min(self._left, 0.0), self._closed_until

    def _refill(self) -> float:
        now = self._clock()
        if now > self._at:
            self._left = min(float(AT_ONCE), self._left + (now - self._at) * A_MINUTE / 60)
            self._at = now
        return now


# ----------------------------------------------------------------------------------------------------
# Who and where: the names of people and chats, asked for once and remembered.
#
# A name is a courtesy. Where Slack does not tell it, or not soon, there is none: no message waits for it or is lost by it.

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

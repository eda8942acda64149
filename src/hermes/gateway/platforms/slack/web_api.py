"""Web API responses: the data, or one of our errors for Slack's.

The error texts of Slack and of the library stay out of ours: they repeat the request, tickets included.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
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

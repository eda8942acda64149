"""The names of people and chats, requested once and cached.

A name is optional. If Slack does not give it, or not soon, the message goes without: none waits for it or is lost by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from hermes.errors import PlatformError
from hermes.gateway.events import CHANNEL, DM, GROUP
from hermes.gateway.platforms.connections import Recent
from hermes.gateway.platforms.slack.web_api import ask

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
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _once(self, what: str) -> asyncio.Lock:
        """A lock held while Slack is asked, so that concurrent callers share one request."""
        return self._asking.setdefault(what, asyncio.Lock())

    async def name(self, web: AsyncWebClient, user: str) -> str | None:
        """The display name of a person; None if Slack does not give it."""
        async with self._once(user):
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
        async with self._once(chat):
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

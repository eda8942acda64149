"""Messages sent while no gateway was connected: Slack delivers them again for a few minutes only, and keeps them in its channels.

A small file has the time of the newest stored message, by Slack's clock. A new connection reads what came after it from the
conversations that the bot is in, direct messages first. Of threads, those are read whose first message is at most a day
older, and which the bot takes part in. Commands of Slack's own menu (/hermes) are not messages, and can't be read.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import msgspec

from hermes.gateway.platforms.http import seconds
from hermes.gateway.platforms.marks import MarkFile

_OVERLAP = 60.0  # seconds that are read again: events of two conversations may come out of order
_THREADS = 86_400.0
_TYPES = "im,mpim,private_channel,public_channel"

Ask = Callable[..., Awaitable[dict[str, Any]]]


class _State(msgspec.Struct):
    until: float = 0.0


class Mark:
    """The time up to which all messages are stored, in a file of its own."""

    def __init__(self, file: Path, bot: str) -> None:
        self._mark = MarkFile(file, bot, _State)
        self._newest = self._mark.state.until
        self.behind = False  # earlier messages are still being read: the file keeps its time

    def begin(self, now: float) -> float | None:
        """The time to read from; None at the very first start of this bot, which sets the mark."""
        if self._newest:
            return self._newest - _OVERLAP
        self.note(now)
        return None

    def note(self, moment: float) -> None:
        """A message of this time is stored."""
        self._newest = max(self._newest, moment)
        if not self.behind:
            self._mark.state.until = self._newest
            self._mark.changed()

    def caught_up(self) -> None:
        """All earlier messages are read."""
        self.behind = False
        self.note(0.0)

    def save(self) -> None:
        """Write the file, if it is outdated."""
        self._mark.save()


def slack_time(headers: Any) -> float:
    """The time by Slack's clock, of an answer; ours where it has none."""
    with suppress(AttributeError, ValueError, TypeError):
        return parsedate_to_datetime(headers.get("Date")).timestamp()
    return time.time()


async def missed(ask: Ask, us: str, since: float) -> AsyncIterator[dict[str, Any]]:
    """The messages of people since then, as events, in order within each conversation. Raises what `ask` raises.

    `ask` takes a method's name and its arguments.
    """
    chats = [one async for one in _listed(ask, "users.conversations", "channels", types=_TYPES, exclude_archived=True)]
    chats = [one for one in chats if isinstance(one.get("id"), str)]
    for chat in sorted(chats, key=lambda one: not one.get("is_im")):
        async for message in _in_chat(ask, chat["id"], us, since):
            yield {**message, "type": "message", "channel": chat["id"], "channel_type": _type(chat)}


async def _in_chat(ask: Ask, chat_id: str, us: str, since: float) -> AsyncIterator[dict[str, Any]]:
    oldest = f"{max(0.0, since - _THREADS):.6f}"
    roots = [one async for one in _listed(ask, "conversations.history", "messages", channel=chat_id, oldest=oldest)]
    found = [one for one in roots if seconds(one.get("ts"), 0.0) > since]
    for root in roots:
        users = root.get("reply_users") or ()
        ours = us in users or len(users) < int(root.get("reply_users_count") or 0) or root.get("user") == us
        if ours and seconds(root.get("latest_reply"), 0.0) > since:
            asked = {"channel": chat_id, "ts": root["ts"], "oldest": f"{since:.6f}"}
            replies = [one async for one in _listed(ask, "conversations.replies", "messages", **asked)]
            found += [one for one in replies if one.get("ts") != root["ts"] and seconds(one.get("ts"), 0.0) > since]
    for message in sorted(found, key=lambda one: seconds(one.get("ts"), 0.0)):
        yield message


async def _listed(ask: Ask, method: str, what: str, **arguments: Any) -> AsyncIterator[dict[str, Any]]:
    cursor = ""
    while True:
        answer = await ask(method, **arguments, limit=200, **({"cursor": cursor} if cursor else {}))
        for one in answer.get(what) or ():
            if isinstance(one, dict):
                yield one
        about = answer.get("response_metadata")
        cursor = str(about.get("next_cursor") or "") if isinstance(about, dict) else ""
        if not cursor:
            return


def _type(chat: dict[str, Any]) -> str:
    if chat.get("is_im"):
        return "im"
    return "mpim" if chat.get("is_mpim") else "group" if chat.get("is_private") else "channel"

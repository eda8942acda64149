"""Messages sent while the gateway was not connected: Discord keeps them in the channels, so they are fetched from there.

A resumed connection loses nothing. For a new one (a long outage, a restart) a small file has the newest stored message
and the known direct-message channels; newer messages are read from the channels, oldest first. Ids on Discord
are times, so one mark serves all channels. Bounded: one day, 50 channels, 200 messages in each. Slash commands can't
be fetched: Discord shows their sender that the command failed.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

import discord
import msgspec

from hermes.gateway.platforms.marks import MarkFile

_OVERLAP = 10_000 << 22  # ten seconds of ids: events of two channels may arrive the wrong way round
_LONGEST = datetime.timedelta(days=1)
_CHANNELS = 50
_MESSAGES = 200
_DIRECT = 500  # direct-message channels that are remembered


class _State(msgspec.Struct):
    last: int | None = None
    direct: list[int] = []  # the one that spoke last is last


class Seen:
    """The newest stored message, and the known direct-message channels, in a file of its own."""

    def __init__(self, file: Path, bot: int) -> None:
        self._mark = MarkFile(file, str(bot), _State)
        self.save = self._mark.save

    @property
    def direct(self) -> list[int]:
        """The known direct-message channels, the one that spoke last at the end."""
        return self._mark.state.direct

    def begin(self) -> int | None:
        """Where to continue reading; None at the very first start, which sets the mark."""
        last, now = self._mark.state.last, discord.utils.utcnow()
        if last is not None:
            return max(last - _OVERLAP, discord.utils.time_snowflake(now - _LONGEST))
        self.note(discord.utils.time_snowflake(now))
        return None

    def note(self, message_id: int, direct: int | None = None) -> None:
        """Note a stored message; `direct` is its channel if that is a direct message."""
        state = self._mark.state
        state.last = max(state.last or 0, message_id)
        if direct is not None:
            state.direct = [*(one for one in state.direct if one != direct), direct][-_DIRECT:]
        self._mark.changed()


async def missed(
    client: discord.Client, seen: Seen, log: Logger | LoggerAdapter[Logger]
) -> AsyncIterator[discord.Message]:
    """Every message since the last one seen, in order within its channel. Raises what the network raises."""
    since = seen.begin()
    if since is None:
        return
    await _servers_told(client)
    for channel in _with_news(client, seen, since):
        number = 0
        try:
            async for message in channel.history(limit=_MESSAGES, after=discord.Object(since), oldest_first=True):
                number += 1
                yield message
        except discord.HTTPException as error:
            if error.status == 401:
                raise
            if error.status not in (403, 404):  # no access, or deleted: nothing can be missed there
                log.warning(
                    "missed messages of Discord channel %s can't be fetched (HTTP %s)", channel.id, error.status
                )
        if number == _MESSAGES:
            log.warning(
                "more than %d messages were missed in Discord channel %s; skipping the newer ones",
                _MESSAGES,
                channel.id,
            )


async def _servers_told(client: discord.Client, patience: float = 5.0) -> None:
    """Wait until Discord has announced all our servers; some may be unavailable for long."""
    deadline = time.monotonic() + patience
    while any(guild.unavailable for guild in client.guilds) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def _with_news(client: discord.Client, seen: Seen, since: int) -> list[Any]:
    """Channels and threads with newer messages, and direct messages (whose newest is unknown); freshest first."""
    places = [place for guild in client.guilds for place in (*guild.channels, *guild.threads)]
    fresh = [place for place in places if (getattr(place, "last_message_id", None) or 0) > since]
    fresh = [place for place in fresh if isinstance(place, discord.abc.Messageable)]
    fresh.sort(key=lambda place: int(getattr(place, "last_message_id", 0)), reverse=True)
    direct = [client.get_partial_messageable(number) for number in reversed(seen.direct)]
    return [*direct[:_CHANNELS], *fresh[:_CHANNELS]]

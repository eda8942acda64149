"""Messages sent while the gateway was not connected: Discord keeps them in the channels, so they are fetched from there.

A resumed connection loses nothing. For a new one (a long outage, a restart) a small file has the newest stored message
and the known direct-message channels; newer messages are read from the channels, oldest first. Ids on Discord
are times, so one mark serves all channels. Bounded: one day, 50 channels, 200 messages in each. Slash commands can't
be fetched: Discord shows their sender that the command failed.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import time
from collections.abc import AsyncIterator
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

import discord

from hermes.whole_files import write_whole

_OVERLAP = 10_000 << 22  # ten seconds of ids: events of two channels may arrive the wrong way round
_LONGEST = datetime.timedelta(days=1)
_CHANNELS = 50
_MESSAGES = 200
_DIRECT = 500  # direct-message channels that are remembered
_PAUSE = 1.0  # seconds between two writes of the file; what a crash loses is only fetched again


class Seen:
    """The newest stored message, and the known direct-message channels, in a file of its own."""

    def __init__(self, file: Path, bot: int) -> None:
        self._file, self._bot = file, bot
        self._written = 0.0
        self._dirty = False
        kept = self._read()
        self.last: int | None = kept.get("last")
        self.direct: dict[int, None] = dict.fromkeys(kept.get("direct", ()))  # the one that spoke last is last

    def _read(self) -> dict[str, Any]:
        try:
            kept = json.loads(self._file.read_text())
            good = kept["bot"] == self._bot and isinstance(kept["last"], int)
            return dict(kept) if good and all(isinstance(one, int) for one in kept["direct"]) else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def begin(self) -> int | None:
        """Where to continue reading; None at the very first start, which sets the mark."""
        oldest = discord.utils.time_snowflake(discord.utils.utcnow() - _LONGEST)
        if self.last is not None:
            return max(self.last - _OVERLAP, oldest)
        self.note(discord.utils.time_snowflake(discord.utils.utcnow()))
        return None

    def note(self, message_id: int, direct: int | None = None) -> None:
        """Note a stored message; `direct` is its channel if that is a direct message."""
        self.last = max(self.last or 0, message_id)
        if direct is not None:
            self.direct.pop(direct, None)
            self.direct[direct] = None
            if len(self.direct) > _DIRECT:
                del self.direct[next(iter(self.direct))]
        self._dirty = True
        if time.monotonic() - self._written > _PAUSE:
            self.save()

    def save(self) -> None:
        """Write the file, if it is outdated. If the disk refuses it, messages may be missed after a restart."""
        if not self._dirty:
            return
        self._written = time.monotonic()
        state = {"bot": self._bot, "last": self.last, "direct": list(self.direct)}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(state), sync=False)
            self._dirty = False
        except OSError:
            pass


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

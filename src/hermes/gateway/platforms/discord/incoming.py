"""Messages on Discord as events, also those sent while the gateway was not connected.

A server channel is a channel, a thread in it (or a forum's post) is the same channel with a thread id. Ids of threads
and of people look alike there, so a thread's is written `thread-<id>`.

A resumed connection loses nothing. For a new one (a long outage, a restart) a small file has the newest stored message
and the known direct-message channels; newer messages are read from the channels, oldest first. Ids on Discord
are times, so one mark serves all channels. Bounded: one day, 50 channels, 200 messages in each. Slash commands can't
be fetched: Discord shows their sender that the command failed.
"""

from __future__ import annotations

import asyncio
import datetime
import re
import time
from collections.abc import AsyncIterator
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

import discord
import msgspec

from hermes.gateway.events import CHANNEL, DM, GROUP, Attachment, Chat, Event, Forwarded, Sender
from hermes.gateway.platforms._shared.http import attachment
from hermes.gateway.platforms._shared.receipt import MarkFile
from hermes.gateway.platforms.discord.client import SAYS

PLATFORM = "discord"
THREAD = "thread-"
_SAID = (discord.MessageType.default, discord.MessageType.reply)  # all other types are announcements of Discord
_MENTION = re.compile(r"<(@!?|@&|#)(\d{1,20})>")
_EMOJI = re.compile(r"<a?(:\w{1,32}:)\d{1,20}>")


def chat_of(channel: Any, person: str | None = None) -> Chat:
    """The chat of a discord.py channel; `person` is the other person, if it is a direct message."""
    if isinstance(channel, discord.Thread):
        parent = f"#{channel.parent.name} › " if channel.parent is not None else ""
        return Chat(
            platform=PLATFORM, type=CHANNEL, chat_id=str(channel.parent_id), thread_id=f"{THREAD}{channel.id}",
            name=f"{parent}{channel.name}",
        )  # fmt: skip
    if isinstance(channel, discord.GroupChannel):
        return Chat(platform=PLATFORM, type=GROUP, chat_id=str(channel.id), name=channel.name)
    if getattr(channel, "guild", None) is None and getattr(channel, "guild_id", None) is None:
        return Chat(platform=PLATFORM, type=DM, chat_id=str(channel.id), name=person)
    name = getattr(channel, "name", None)
    return Chat(platform=PLATFORM, type=CHANNEL, chat_id=str(channel.id), name=f"#{name}" if name else None)


def channel_id(chat: Chat) -> int:
    """The channel of a message to this chat. ValueError if it is not a Discord chat."""
    return int(chat.thread_id.removeprefix(THREAD) if chat.thread_id else chat.chat_id)


def message_event(message: discord.Message, me: discord.ClientUser) -> Event | None:
    """A person's message; None for bots (ourselves too), announcements, and messages without content."""
    if message.author.bot or message.webhook_id is not None or message.type not in _SAID:
        return None
    text = _text(message, me)
    attachments = tuple(_attachment(message, one) for one in files(message))
    forwarded = _forwarded(message)
    if not text and not attachments and forwarded is None:
        return None
    chat = chat_of(message.channel, message.author.display_name)
    return Event(
        id=f"{message.channel.id}:{message.id}",
        chat=chat,
        sender=_sender(message.author),
        text=text,
        attachments=attachments,
        message_id=str(message.id),
        reply_to=str(message.reference.message_id) if _is_reply(message) and message.reference else None,
        quoted=_quoted(message),
        forwarded=forwarded,
        sent_at=message.created_at.timestamp(),
        addressed=chat.type == DM or _addresses(message, me),
    )


def _quoted(message: discord.Message) -> str | None:
    """The text of the answered message, if Discord included it."""
    answered = message.reference.resolved if _is_reply(message) and message.reference else None
    return answered.clean_content or None if isinstance(answered, discord.Message) else None


def command_event(interaction: discord.Interaction) -> Event | None:
    """A slash command from Discord's menu, as the text "/name arguments"; None for every other interaction."""
    data: dict[str, Any] = dict(interaction.data or {})
    if interaction.type is not discord.InteractionType.application_command or data.get("type", 1) != 1:
        return None
    if interaction.channel is None:
        return None
    arguments = " ".join(str(option.get("value", "")) for option in data.get("options", []))
    return Event(
        id=f"interaction:{interaction.id}",
        chat=chat_of(interaction.channel, interaction.user.display_name),
        sender=_sender(interaction.user),
        text=f"/{data['name']} {arguments}".strip(),
        sent_at=interaction.created_at.timestamp(),
    )


def press_event(interaction: discord.Interaction) -> Event | None:
    """A pressed button: what it says, by the person who pressed it; None for every other interaction."""
    data: dict[str, Any] = dict(interaction.data or {})
    custom_id = str(data.get("custom_id") or "")
    if interaction.type is not discord.InteractionType.component or not custom_id.startswith(SAYS):
        return None
    if interaction.channel is None or interaction.message is None:
        return None
    return Event(
        id=f"interaction:{interaction.id}",
        chat=chat_of(interaction.channel, interaction.user.display_name),
        sender=_sender(interaction.user),
        text=custom_id.removeprefix(SAYS).partition(":")[2],
        reply_to=str(interaction.message.id),
        sent_at=interaction.created_at.timestamp(),
    )


def files(message: discord.Message) -> list[discord.Attachment]:
    """The files of a message, and of the messages it forwards."""
    return [*message.attachments, *(one for snapshot in message.message_snapshots for one in snapshot.attachments)]


def _sender(person: discord.User | discord.Member) -> Sender:
    # Discord authenticated the account, and the connection is ours.
    return Sender(user_id=str(person.id), name=person.display_name, proven=True)


def _is_reply(message: discord.Message) -> bool:
    return message.type is discord.MessageType.reply


def _our_role(message: discord.Message) -> int | None:
    """The bot's own role on a server, which people mention as often as the bot itself."""
    role = message.guild.self_role if message.guild is not None else None
    return role.id if role is not None else None


def _addresses(message: discord.Message, me: discord.ClientUser) -> bool:
    if any(person.id == me.id for person in message.mentions):
        return True
    ours = _our_role(message)
    if ours is not None and any(role.id == ours for role in message.role_mentions):
        return True
    answered = message.reference.resolved if _is_reply(message) and message.reference is not None else None
    return isinstance(answered, discord.Message) and answered.author.id == me.id


def _text(message: discord.Message, me: discord.ClientUser) -> str:
    """The text as its author saw it: without the mention of us, with names where Discord has ids."""
    ours = _our_role(message)
    us = rf"<@!?{me.id}>" + (rf"|<@&{ours}>" if ours is not None else "")
    return _named(re.sub(rf"[ \t]*(?:{us})[ \t]*", " ", message.content).strip(), message)


def _forwarded(message: discord.Message) -> Forwarded | None:
    """The messages that this one forwards; Discord does not name their authors."""
    if not message.message_snapshots:
        return None
    words = "\n\n".join(one.content for one in message.message_snapshots if one.content)
    return Forwarded(text=_named(words, message)) if words or files(message) else None


def _named(text: str, message: discord.Message) -> str:
    people = {person.id: person.display_name for person in message.mentions}
    roles = {role.id: role.name for role in message.role_mentions}

    def name(found: re.Match[str]) -> str:
        kind, number = found[1], int(found[2])
        if kind == "#":
            channel = message.guild.get_channel_or_thread(number) if message.guild is not None else None
            return f"#{channel.name}" if channel is not None else found[0]
        named = (roles if kind == "@&" else people).get(number)
        return f"@{named}" if named else found[0]

    return _EMOJI.sub(r"\1", _MENTION.sub(name, text))


def _attachment(message: discord.Message, file: discord.Attachment) -> Attachment:
    """A file of a message. Its address expires after a day, so the reference names the message, which has a new address later."""
    mime = (file.content_type or "").partition(";")[0].strip()
    reference = {"channel": str(message.channel.id), "message": str(message.id), "attachment": str(file.id)}
    return attachment(file.filename, mime, file.size, **reference)


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
        """The mark from which to continue reading; None at the very first start, which sets it."""
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
    await _servers_announced(client)
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


async def _servers_announced(client: discord.Client, patience: float = 5.0) -> None:
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

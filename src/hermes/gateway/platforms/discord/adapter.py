"""The Discord adapter: one connection for receiving, requests for everything else.

Discord wants no receipt for messages, so we note which are stored (`missed`): a message that could not be stored, or
that was still waiting when the process ended, is fetched again by the next connection. Slash commands want one within
three seconds and can't be fetched: without it Discord shows the person that the command failed. Rate limits of up to 30 seconds
are waited for by discord.py inside a call (it obeys Retry-After and can be cancelled); longer ones are a SlowDown.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import aiohttp
import discord

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting, utf16_units
from hermes.gateway.events import (
    DM,
    Attachment,
    Chat,
    Choice,
    OutgoingFile,
    Revision,
    deleted,
)
from hermes.gateway.platforms._shared.http import HttpApi, address_parts
from hermes.gateway.platforms._shared.receipt import keep
from hermes.gateway.platforms._shared.tasks import ApiAdapter
from hermes.gateway.platforms.discord.client import (
    API_BASE,
    GATEWAY_URL,
    INTENTS_ADVICE,
    TOKEN_ADVICE,
    DiscordClient,
    Incoming,
    Revised,
    buttons,
    clear,
    defer,
    our_errors,
    translated,
    write_menu,
)
from hermes.gateway.platforms.discord.incoming import (
    Seen,
    channel_id,
    chat_of,
    command_event,
    files,
    message_event,
    missed,
    press_event,
)
from hermes.gateway.platforms.discord.outgoing import LONGEST, to_discord

_TO_CONNECT = 60.0  # seconds
_LARGEST_FILE = 10_000_000  # bytes; a server with boosts takes more, direct messages do not
_ARCHIVE_AFTER: Literal[1440] = 1440  # minutes


class Discord(ApiAdapter[DiscordClient]):
    """Discord. Messages on their way are resumed or fetched again; a message is sent once, however often it is tried."""

    platform = "discord"
    title = "Discord"
    extra = "discord"
    settings = (
        Setting(
            "token", "the bot's token (Developer Portal → your application → Bot → Reset Token)",
            variable="DISCORD_BOT_TOKEN", secret=True, required=True,
        ),
        Setting("api_base", "where the API is", default=API_BASE),
        Setting("gateway_url", "where events come from", default=GATEWAY_URL),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=LONGEST, measure=utf16_units, edits=True, typing=True, threads=True, media=True, menu=True,
        idempotent=True, mention_needed=True, quotes=True, tells_edits=True, tells_deletions=True,
        files=True, largest_file=_LARGEST_FILE, longest_caption=LONGEST, choices=25,
        longest_choice=90,
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._link: Link | None = None
        self._seen: Seen | None = None
        self._established: asyncio.Future[None] | None = None
        self._queue: asyncio.Queue[Incoming | None] = asyncio.Queue()

    # ------------------------------------------------------------------------------------------ connecting

    async def check(self) -> str:
        """Return the bot's name. PlatformRefused for a wrong token, or when the bot may not read messages."""
        client = self.make_api()
        try:
            await self._log_in(client)
            flags = client.application.flags if client.application is not None else None
            if flags is not None and not (flags.gateway_message_content or flags.gateway_message_content_limited):
                raise PlatformRefused(INTENTS_ADVICE)
            return _identity(client)
        finally:
            await client.close()

    async def begin(self, link: Link, client: DiscordClient) -> None:
        """Log in and begin to receive."""
        self._link, self._queue = link, asyncio.Queue()
        self._established = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_TO_CONNECT):
                await self._log_in(client)
                self._tasks.start(self._run(client))
                await self._established
        except TimeoutError:
            raise PlatformUnreachable("Discord did not answer in time") from None

    async def disconnect(self) -> None:
        """Release everything."""
        await super().disconnect()
        if self._seen is not None:
            self._seen.save()

    def make_api(self) -> DiscordClient:
        """A client that is not logged in yet."""
        return DiscordClient(
            self.text("api_base"), self.text("gateway_url"), on_connected=self._on_connected,
            on_item=lambda item: self._queue.put_nowait(item),
        )  # fmt: skip

    async def _log_in(self, client: DiscordClient) -> None:
        token = self.text("token")
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise PlatformRefused(TOKEN_ADVICE)
        with our_errors("log in"):
            await client.login(token)

    async def _run(self, client: DiscordClient) -> None:
        """Receive until the connection is lost for good."""
        try:
            await client.connect(reconnect=False)
            error: PlatformError = PlatformUnreachable("Discord closed the connection")
        except Exception as trouble:
            error = translated(trouble, "receive messages")
        self._lost(error)

    def _lost(self, error: Exception) -> None:
        if self._established is not None and not self._established.done():
            self._established.set_exception(error)
        elif self._link is not None:
            self._link.lost(error)

    def _on_connected(self, resumed: bool) -> None:
        """The connection is established: resumed without a loss, or new; then missed messages are fetched first."""
        client, link = self._api, self._link
        if client is None or client.user is None or link is None:
            return
        if not resumed:
            self._queue.put_nowait(None)
        if self._seen is None:
            self._seen = Seen(self.home / "discord" / "seen.json", client.user.id)
        if self._established is not None and not self._established.done():
            self._established.set_result(None)
            self._tasks.start(self._take(client, link, self._seen))
        link.connected(_identity(client))

    # ------------------------------------------------------------------------------------------ receiving

    async def _take(self, client: DiscordClient, link: Link, seen: Seen) -> None:
        """Hand over queued items, one after the other."""
        while True:
            item = await self._queue.get()
            try:
                if item is None:
                    await self._take_missed(client, link, seen)
                elif isinstance(item, discord.Interaction):
                    await self._take_command(client, link, seen, item)
                elif isinstance(item, Revised):
                    await self._take_revised(client, link, item)
                else:
                    await self._take_message(client, link, item)
                    seen.note(item.id, item.channel.id if item.guild is None else None)
            except (OSError, aiohttp.ClientError) as trouble:
                self._lost(translated(trouble, "fetch what was missed"))
                return
            except Exception:
                link.log.exception("skipping an event of Discord that can't be read")

    async def _take_missed(self, client: DiscordClient, link: Link, seen: Seen) -> None:
        newest = 0
        async for message in missed(client, seen, link.log):
            await self._take_message(client, link, message)
            newest = max(newest, message.id)
        seen.note(newest)  # only after all channels were read: they share one mark

    async def _take_message(self, client: DiscordClient, link: Link, message: discord.Message) -> None:
        if client.user is None:
            return
        if message.guild is not None and isinstance(message.channel, discord.PartialMessageable):
            await _look_up_place(client, message)
        event = message_event(message, client.user)
        if event is not None:
            await keep(link, event)

    async def _take_revised(self, client: DiscordClient, link: Link, item: Revised) -> None:
        """An edit (Discord allows it to the author alone), or a deletion."""
        if isinstance(item, discord.RawBulkMessageDeleteEvent):
            for one in sorted(item.message_ids):
                await keep(link, deleted(f"{item.channel_id}:{one}"))
        elif isinstance(item, discord.RawMessageDeleteEvent):
            await keep(link, deleted(f"{item.channel_id}:{item.message_id}"))
        elif item.data.get("edited_timestamp") and client.user is not None:  # else only a preview was added
            event = message_event(item.message, client.user)
            if event is not None:
                words = hashlib.sha256(event.text.encode(errors="surrogatepass")).hexdigest()[:8]
                name = f"edited:{event.id}:{item.data['edited_timestamp']}:{words}"
                await keep(link, Revision(id=name, revises=event.id, event=event))

    async def _take_command(self, client: DiscordClient, link: Link, seen: Seen, item: discord.Interaction) -> None:
        """Store a command or a press, then acknowledge it. Discord shows the person one that was not acknowledged in time."""
        event = command_event(item) or press_event(item)
        if event is None:
            return
        try:
            await link.received(event)
        except Exception as error:
            why = "a slash command of Discord could not be stored (%s); Discord shows its sender that it failed"
            link.log.warning(why, type(error).__name__)
            return
        if event.chat.type == DM:
            seen.note(0, int(event.chat.chat_id))
        self._tasks.start(_acknowledge(client, link, item))

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message. For the same nonce Discord answers with the message it made the first time; it remembers
        nonces for "the past few minutes" (its documentation of Create Message, enforce_nonce)."""
        return await self._send(chat, text, nonce, reply_to)

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None,
        context: ReplyContext | None = None,
    ) -> str:  # fmt: skip
        """Send a message with buttons. What they say is in the message itself: a press works after a restart, too."""
        return await self._send(chat, text, nonce, reply_to, view=buttons(choices))

    async def _send(self, chat: Chat, text: str, nonce: str, reply_to: str | None, **more: Any) -> str:
        channel = self._channel(chat)
        reference = None
        if reply_to is not None and reply_to.isdecimal():
            reference = discord.MessageReference(
                message_id=int(reply_to), channel_id=channel.id, fail_if_not_exists=False
            )
        with our_errors("send this message"):
            sent = await channel.send(
                to_discord(text),
                nonce=_nonce(nonce),
                reference=reference,  # type: ignore[arg-type]
                suppress_embeds=True,  # a preview would fetch addresses that only the model knows of
                **more,
            )
        return str(sent.id)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Send a file as an attachment of a message; its nonce works as that of a text."""
        channel = self._channel(chat)
        with our_errors("send this file"):
            sent = await channel.send(
                to_discord(caption) or None,
                file=discord.File(io.BytesIO(file.data), filename=file.name),
                nonce=_nonce(nonce),
                suppress_embeds=True,
            )
        return str(sent.id)

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of one of the bot's messages."""
        message = self._channel(chat).get_partial_message(_number(message_id))
        with our_errors("change this message"):
            await message.edit(content=to_discord(text), allowed_mentions=discord.AllowedMentions.none())

    async def typing(self, chat: Chat) -> None:
        """Show for ten seconds, or until the next message, that a reply is being written."""
        channel = self._channel(chat)
        with our_errors("show that we are typing"):
            await self._connected().http.send_typing(channel.id)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file, at an address requested now: the one that came with the message expires."""
        reference = attachment.reference
        place = self._connected().get_partial_messageable(_number(reference.get("channel")))
        with our_errors("fetch this file"):
            message = await place.fetch_message(_number(reference.get("message")))
        url = next((one.url for one in files(message) if str(one.id) == reference.get("attachment")), None)
        if url is None:
            raise SendRefused("the file is no longer in its message on Discord")
        host = address_parts(url)[:2]
        api = HttpApi(
            self.title, "", timeout=60, trust_env=False
        )  # the library would read it whole, however large it is
        try:
            answer = await api.download(url, what="the file", trusted=lambda one: address_parts(one)[:2] == host)
        finally:
            await api.close()
        return answer.content

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """A public thread that is archived after a day of silence; in a forum, a post."""
        client = self._connected()
        title = " ".join(name.split())[:100] or "Conversation"
        with our_errors("open a thread"):
            number = _number(chat.chat_id)
            channel: Any = client.get_channel(number) or await client.fetch_channel(number)
            if isinstance(channel, discord.Thread):
                channel = channel.parent
            if isinstance(channel, discord.TextChannel):
                kind = discord.ChannelType.news_thread if channel.is_news() else discord.ChannelType.public_thread
                thread = await channel.create_thread(name=title, type=kind, auto_archive_duration=_ARCHIVE_AFTER)
            elif isinstance(channel, discord.ForumChannel):
                post = await channel.create_thread(name=title, content=title, auto_archive_duration=_ARCHIVE_AFTER)
                thread = post.thread
            else:
                raise SendRefused("there are no threads in this Discord chat: they need a text channel of a server")
        return chat_of(thread)

    async def show_menu(self, commands: Sequence[tuple[str, str]]) -> None:
        """Offer the commands when people type "/". Written only when Discord has others: it counts the changes."""
        client = self._connected()
        with our_errors("write the menu of commands"):
            await write_menu(client, commands)

    def _connected(self) -> DiscordClient:
        if self.api.is_closed():
            raise PlatformUnreachable("not connected to Discord")
        return self.api

    def _channel(self, chat: Chat) -> discord.PartialMessageable:
        try:
            number = channel_id(chat)
        except ValueError:
            raise SendRefused(f"{chat.chat_id!r} is not the id of a Discord channel") from None
        return self._connected().get_partial_messageable(number)


async def _acknowledge(client: DiscordClient, link: Link, item: discord.Interaction) -> None:
    """Acknowledge a command or a press, and remove the line that Discord shows for a command."""
    try:
        with our_errors("acknowledge a command"):
            await defer(client, item)
            if item.type is discord.InteractionType.application_command:
                await clear(client, item)
    except PlatformError as error:
        link.log.warning("a slash command is stored, but could not be acknowledged to Discord: %s", error)


async def _look_up_place(client: DiscordClient, message: discord.Message) -> None:
    """Fetch a channel that Discord did not announce (an archived thread): without its parent it has no session."""
    try:
        message.channel = await client.fetch_channel(message.channel.id)  # type: ignore[assignment]
    except discord.HTTPException:
        pass


def _identity(client: DiscordClient) -> str:
    return f"@{client.user.name}" if client.user is not None else "@?"


def _nonce(nonce: str) -> str:
    """Discord takes 25 characters; ours may be longer."""
    return hashlib.blake2b(nonce.encode(), digest_size=12).hexdigest()


def _number(text: object) -> int:
    if not isinstance(text, str) or not text.isdecimal():
        raise SendRefused(f"{text!r} is not an id of Discord")
    return int(text)

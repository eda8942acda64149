"""The Telegram adapter: settings, connecting and disconnecting, and sending.

Markdown becomes a text and its message entities, counted in UTF-16 units. Where the formatted text would be too long, the
Markdown text itself is sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from telegram import (
    Bot,
    BotCommand,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputFile,
    LinkPreviewOptions,
    Message,
    MessageEntity,
    ReplyParameters,
)
from telegram.constants import ChatAction
from telegram.error import BadRequest, ChatMigrated, InvalidToken

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting, utf16_units
from hermes.gateway.events import Attachment, Chat, Choice, Event, OutgoingFile
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import check_size
from hermes.gateway.platforms.telegram.client import (
    ALBUM_PAUSE,
    FAILURES,
    PollingReceiver,
    WebhookReceiver,
    open_bot,
    our_errors,
)
from hermes.gateway.platforms.telegram.incoming import PLATFORM, event_of, thread_of, topic_of

LONGEST = 4096  # UTF-16 units of a message, without its entities
_KINDS = {
    markup.BOLD: MessageEntity.BOLD,
    markup.ITALIC: MessageEntity.ITALIC,
    markup.STRIKE: MessageEntity.STRIKETHROUGH,
    markup.CODE: MessageEntity.CODE,
    markup.PRE: MessageEntity.PRE,
    markup.QUOTE: MessageEntity.BLOCKQUOTE,
    markup.LINK: MessageEntity.TEXT_LINK,
}
_ALIGNED = markup.Layout(
    links=markup.is_web, quotes=True, code_alone=True, table=lambda rows: markup.columns(rows) or markup.cells(rows)
)
_BARE = replace(_ALIGNED, table=lambda rows: "\n".join("|".join(row) for row in rows))


class Formatted(NamedTuple):
    """An outgoing message: the text that people see, and its entities."""

    text: str
    entities: tuple[MessageEntity, ...] = ()


def plain(text: str) -> Formatted:
    """A text as it is; halves of surrogate pairs, which JSON can't carry, are replaced."""
    return Formatted(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def formatted(text: str, longest: int = LONGEST) -> Formatted:
    """A Markdown text with its formatting; without, if that is too long or if nothing visible would be left."""
    whole = plain(text)
    for layout in (_ALIGNED, _BARE):  # aligned columns take more room than the bare cells
        marked = markup.marked(whole.text, layout)
        if marked.text.strip() and utf16_units(marked.text) <= longest:
            entities = [
                MessageEntity(_KINDS[span.kind], offset, length, url=span.url, language=span.language)
                for span, offset, length in marked.measured(utf16_units)
            ]
            return Formatted(marked.text, tuple(sorted(entities, key=lambda one: (one.offset, -one.length))))
    return whole


_SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}")  # what Telegram allows; a shorter one could be guessed
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")
_MOST_COMMANDS = 100
_LONGEST_HELP = 256
_LONGEST_TOPIC = 128
_LARGEST_PHOTO = 10_000_000  # bytes
_SHORT_LABEL, _IN_A_ROW = 16, 3  # letters of a button's label, and buttons, that fit beside each other
_GENERAL = 1  # the topic of a forum that messages without a topic are in
_STOPPING = 2.0  # seconds, twice
# Telegram fetches the page behind a link to show a piece of it. A reply may hold links that a prompt injection put there.
_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)

Answer = TypeVar("Answer")


class Telegram(Adapter):
    """A Telegram bot, in private chats, groups, their topics, and channels."""

    platform = PLATFORM
    title = "Telegram"
    extra = "telegram"
    settings = (
        Setting("token", "the token @BotFather gave you", variable="TELEGRAM_BOT_TOKEN", secret=True, required=True),
        Setting("base_url", "the Bot API server, if it is one of your own", default="https://api.telegram.org"),
        # a proxy may have a password in its address
        Setting("proxy", "a proxy to reach Telegram by (http://, https:// or socks5://)", secret=True),
        Setting(
            "webhook_url", "a public https address, if Telegram is to deliver messages by webhook instead of polling"
        ),
        Setting("webhook_secret", "letters and digits by which the webhook recognises Telegram", secret=True),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=LONGEST, measure=utf16_units, edits=True, typing=True, quotes=True, tells_edits=True, threads=True,
        media=True, menu=True, mention_needed=True, files=True, largest_file=50_000_000, longest_caption=1024, choices=12,
    )  # fmt: skip

    poll_failures = FAILURES  # in a row, before the connection counts as lost
    album_pause = ALBUM_PAUSE  # seconds to wait for more pictures of an album

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._bot: Bot | None = None
        self._receiving: PollingReceiver | WebhookReceiver | None = None
        self._commands: dict[str, str] = {}  # name in Telegram's menu → ours
        self._moved: dict[str, int] = {}  # chats that became supergroups, with their new ids
        self._forums: set[str] = set()  # groups with topics

    # ------------------------------------------------------------------------------------------ connecting

    def validate(self) -> None:
        self._webhook_secret()

    async def check(self) -> str:
        self._webhook_secret()
        bot = open_bot(self.values)
        try:
            return await _log_in(bot)
        finally:
            await bot.shutdown()

    async def connect(self, link: Link) -> None:
        await self.disconnect()
        secret = self._webhook_secret()
        self._bot = bot = open_bot(self.values)
        try:
            identity = await _log_in(bot)
            self._receiving = self._receiver(bot, link, identity, secret)
            await self._receiving.start()
        except BaseException:
            await self.disconnect()
            raise
        link.connected(identity)

    async def disconnect(self) -> None:
        receiving, self._receiving = self._receiving, None
        bot, self._bot = self._bot, None
        if receiving is not None:
            await _within(_STOPPING, receiving.stop())
        if bot is not None:
            await _within(_STOPPING, bot.shutdown())

    def _receiver(self, bot: Bot, link: Link, identity: str, secret: str | None) -> PollingReceiver | WebhookReceiver:
        def read(messages: Sequence[Message]) -> Event | None:
            chat = messages[0].chat
            if chat.is_forum and chat.type == "supergroup":
                self._forums.add(str(chat.id))
            try:
                return event_of(messages, bot.bot, self._commands)
            except Exception:
                # Telegram would redeliver it for ever, and nothing after it.
                link.log.exception("Telegram: skipping message %d, which can't be read", messages[0].message_id)
                return None

        if secret is None:
            return PollingReceiver(bot, link, identity, read, failures=self.poll_failures, album_pause=self.album_pause)
        url = self.text("webhook_url")
        return WebhookReceiver(bot, link, read, url=url, secret=secret, listen=self.listen)

    def _webhook_secret(self) -> str | None:
        """The secret of the webhook, which proves that a sender is Telegram; None where messages are polled."""
        if not self.setting("webhook_url"):
            return None
        secret = str(self.setting("webhook_secret") or "")
        if not _SECRET.fullmatch(secret):
            raise PlatformRefused(
                "a Telegram webhook needs webhook_secret: 16 to 256 letters, digits, _ and -; without it every sender"
                " would be taken for Telegram"
            )
        return secret

    # ------------------------------------------------------------------------------------------------- sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        answered = None
        if reply_to is not None and reply_to.isdecimal():
            answered = ReplyParameters(int(reply_to), allow_sending_without_reply=True)
        return await self._send(chat, text, reply_parameters=answered)

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None,
        context: ReplyContext | None = None,
    ) -> str:  # fmt: skip
        wide = any(len(one.label) > _SHORT_LABEL for one in choices)
        buttons = [InlineKeyboardButton(one.label, callback_data=one.says) for one in choices]
        rows = [[one] for one in buttons] if wide or len(buttons) > _IN_A_ROW else [buttons]
        return await self._send(chat, text, reply_markup=InlineKeyboardMarkup(rows))

    async def _send(self, chat: Chat, text: str, **more: Any) -> str:
        async def attempt(where: int | str, rendered: Formatted) -> Message:
            return await self._connected().send_message(
                where, rendered.text, entities=rendered.entities, message_thread_id=_topic(chat),
                link_preview_options=_NO_PREVIEW, **more,
            )  # fmt: skip

        return str((await self._formatted(chat, text, attempt)).message_id)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        how = _how(file)

        async def attempt(where: int | str, rendered: Formatted) -> Any:
            return await getattr(self._connected(), f"send_{how}")(
                where, InputFile(file.data, file.name), caption=rendered.text or None,
                caption_entities=rendered.entities or None, message_thread_id=_topic(chat),
            )  # fmt: skip

        try:
            message = await self._formatted(chat, caption, attempt)
        except SendRefused:  # it is no picture or recording that Telegram can show: the same bytes as a document
            if how == "document":
                raise
            how = "document"
            message = await self._formatted(chat, caption, attempt)
        return str(message.message_id)

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        async def attempt(where: int | str, rendered: Formatted) -> object:
            try:
                return await self._connected().edit_message_text(
                    rendered.text, where, int(message_id), entities=rendered.entities, link_preview_options=_NO_PREVIEW
                )
            except BadRequest as error:
                if "not modified" not in error.message.lower():
                    raise
                return None  # the message has this text already

        await self._formatted(chat, text, attempt)

    async def typing(self, chat: Chat) -> None:
        # In a forum this is shown in no topic unless one is named, even the general one that sending must not name.
        topic = topic_of(chat) or (_GENERAL if chat.chat_id in self._forums else None)
        await self._there(
            chat, lambda where: self._connected().send_chat_action(where, ChatAction.TYPING, message_thread_id=topic)
        )

    async def fetch(self, attachment: Attachment) -> bytes:
        name = attachment.name or "the file"
        with our_errors():
            try:
                found = await self._connected().get_file(str(attachment.reference.get("file_id") or ""))
            except BadRequest as error:
                if "too big" in error.message.lower():
                    raise SendRefused(f"{name} is too big: Telegram gives bots files of at most 20 MB") from error
                raise
            path = Path(found.file_path or "")
            if path.is_absolute() and path.is_file():  # a Bot API server on this machine
                check_size(path.stat().st_size)
            try:
                return bytes(await found.download_as_bytearray())
            except InvalidToken as error:  # the library's name for any "not found"
                raise SendRefused(f"{name} is no longer available on Telegram") from error

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        title = " ".join(plain(name).text.split())[:_LONGEST_TOPIC].rstrip() or "Hermes"
        made = await self._there(chat, lambda where: self._connected().create_forum_topic(where, title))
        return msgspec.structs.replace(chat, thread_id=thread_of(made.message_thread_id))

    async def show_menu(self, commands: Sequence[tuple[str, str]]) -> None:
        shown: list[BotCommand] = []
        for ours, help_text in commands:
            name = ours.lstrip("/").lower().replace("-", "_")
            if _COMMAND.fullmatch(name) and name not in (one.command for one in shown):
                self._commands[name] = ours.lstrip("/")
                shown.append(BotCommand(name, help_text.strip()[:_LONGEST_HELP] or name))
        with our_errors():
            await self._connected().set_my_commands(shown[:_MOST_COMMANDS])

    # ---------------------------------------------------------------------------------------------------- helpers

    def _connected(self) -> Bot:
        if self._bot is None:
            raise PlatformUnreachable("not connected to Telegram")
        return self._bot

    async def _formatted(
        self, chat: Chat, text: str, attempt: Callable[[int | str, Formatted], Awaitable[Answer]]
    ) -> Answer:
        """Try it with formatting; if Telegram refuses, with the plain Markdown text."""
        rendered = formatted(text)

        async def with_and_without(where: int | str) -> Answer:
            try:
                return await attempt(where, rendered)
            except BadRequest:
                if rendered == plain(text):
                    raise
                return await attempt(where, plain(text))

        return await self._there(chat, with_and_without)

    async def _there(self, chat: Chat, attempt: Callable[[int | str], Awaitable[Answer]]) -> Answer:
        """Do something in a chat; if it has become a supergroup, which has another id, do it there."""
        where: int | str = self._moved.get(chat.chat_id) or chat.chat_id
        if isinstance(where, str) and where.lstrip("-").isdecimal():
            where = int(where)
        with our_errors():
            try:
                return await attempt(where)
            except ChatMigrated as moved:
                self._moved[chat.chat_id] = moved.new_chat_id
                try:
                    return await attempt(moved.new_chat_id)
                except ChatMigrated as again:
                    raise SendRefused("Telegram refuses: this group has moved") from again


def _topic(chat: Chat) -> int | None:
    """The topic to send to; the general one must not be named."""
    topic = topic_of(chat)
    return None if topic == _GENERAL else topic


def _how(file: OutgoingFile) -> str:
    """The Bot API's word for a file: pictures up to 10 MB are shown, Ogg recordings are voice messages."""
    if (
        file.kind == "image"
        and file.mime in ("image/png", "image/jpeg", "image/webp")
        and len(file.data) <= _LARGEST_PHOTO
    ):
        return "photo"
    if file.mime in ("audio/ogg", "audio/opus"):
        return "voice"
    if file.mime in ("audio/mpeg", "audio/mp4", "audio/m4a", "audio/x-m4a"):
        return "audio"
    return "video" if file.mime == "video/mp4" else "document"


async def _log_in(bot: Bot) -> str:
    with our_errors(login=True):
        await bot.initialize()
    return f"@{bot.username}"


async def _within(seconds: float, stopping: Awaitable[None]) -> None:
    with suppress(Exception):
        async with asyncio.timeout(seconds):
            await stopping

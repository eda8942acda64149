"""The WeCom adapter: a bot by its WebSocket where bot_id is given, else an app by callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hermes.errors import PlatformRefused, SendRefused
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Attachment, Chat, OutgoingFile
from hermes.gateway.platforms._shared.receipt import Keeper
from hermes.gateway.platforms.wecom.bot import Bot
from hermes.gateway.platforms.wecom.client import key_of
from hermes.gateway.platforms.wecom.organisation_app import App
from hermes.gateway.platforms.wecom.outgoing import length

# A bot's message has 20,480 bytes at most, an app's 2,048.
_BOT = Capabilities(longest=20_000, measure=length, media=True, files=True, mention_needed=True)
_GROWING = replace(_BOT, edits=True)
_APP = Capabilities(longest=1_900, measure=length, media=True, files=True)


class WeCom(Adapter):
    """A bot or an app of an organisation."""

    platform = "wecom"
    title = "WeCom"
    extra = "wecom"
    local_ids = True
    one_connection = True
    settings = (
        Setting(name="bot_id", help="the AI bot's id; none for an app", variable="WECOM_BOT_ID"),
        Setting(name="corp_id", help="for an app: the organisation's id, as ww…", variable="WECOM_CORP_ID", unless="bot_id"),
        Setting(name="secret", help="the AI bot's secret", variable="WECOM_SECRET", secret=True, unless="corp_id"),
        Setting(name="agent_id", help="for an app: its AgentId", variable="WECOM_AGENT_ID", unless="bot_id"),
        Setting(name="corp_secret", help="for an app: its Secret", variable="WECOM_CORP_SECRET", secret=True, unless="bot_id"),
        Setting(
            name="token", help="for an app: the Token of its callbacks", variable="WECOM_TOKEN", secret=True, unless="bot_id"
        ),
        Setting(
            name="encoding_aes_key", help="for an app: the EncodingAESKey of its callbacks", variable="WECOM_ENCODING_AES_KEY",
            secret=True, unless="bot_id",
        ),
        Setting(name="markdown", help="for an app: send formatted replies as Markdown", kind=bool, default=True),
        Setting(name="base_url", help="where WeCom's API is", default="https://qyapi.weixin.qq.com"),
        Setting(name="websocket_url", help="where WeCom's bots connect", default="wss://openws.work.weixin.qq.com"),
    )  # fmt: skip
    capabilities = _BOT

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._road: Bot | App
        keeper = Keeper(home, self.platform)
        if self.text("bot_id"):
            self._road = Bot(self.text("websocket_url"), self.text("bot_id"), self.text("secret"), keeper)
        else:
            self.capabilities = _APP  # type: ignore[misc]  # an app has other limits than a bot
            self._road = App(
                self.text("base_url"), keeper, corp_id=self.text("corp_id"), corp_secret=self.text("corp_secret"),
                agent_id=self.text("agent_id"), token=self.text("token"), aes_key=self.text("encoding_aes_key"),
                markdown=bool(self.setting("markdown")),
            )  # fmt: skip

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse half a bot or half an app, and what can't be a key or an address."""
        is_app = isinstance(self._road, App)
        app = ("corp_id", "agent_id", "corp_secret", "token", "encoding_aes_key")
        if missing := [name for name in (app if is_app else ("secret",)) if not self.text(name)]:
            kinds = f"an AI bot needs bot_id and secret, an app {', '.join(app)}"
            raise PlatformRefused(f"wecom: {kinds}; missing: {', '.join(missing)}")
        for name, schemes in (("base_url", ("http", "https")), ("websocket_url", ("ws", "wss"))):
            parts = urlsplit(self.text(name))
            if parts.scheme not in schemes or not parts.hostname:
                raise PlatformRefused(f"wecom: {name} must be an address that begins with {schemes[1]}://")
        try:
            if is_app:
                key_of(self.text("encoding_aes_key"))
        except ValueError:
            told = "wecom: encoding_aes_key must have the 43 characters that the console shows"
            raise PlatformRefused(told) from None

    def doubts(self) -> str | None:
        """An app needs an address that WeCom can reach."""
        if isinstance(self._road, App) and self.webhook_address is None:
            return "gateway.listen.public_url is not set: WeCom must be able to call the gateway"
        return None

    async def check(self) -> str:
        """Log in and say who we are."""
        return await self._road.check()

    async def connect(self, link: Link) -> None:
        """Log in and begin to receive."""
        await self.disconnect()
        if isinstance(self._road, Bot) and self.cursor.strip():  # without one the end of a growing reply is not known
            self.capabilities = _GROWING  # type: ignore[misc]
        try:
            await self._road.connect(link, self.listen)
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        await self._road.disconnect()

    # ------------------------------------------------------------------------------------------ messages

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message."""
        return await self._road.send(chat, text, nonce=nonce, context=context, growing=self.is_growing(text))

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of a bot's answer that still grows."""
        if isinstance(self._road, App):
            raise SendRefused("messages of an app can't be changed")
        await self._road.edit(message_id, text, growing=self.is_growing(text))

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Send a picture or a file."""
        return await self._road.send_file(chat, file)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a picture or file."""
        return await self._road.fetch(attachment)

    def fetched_name(self, attachment: Attachment) -> str | None:
        """The name of a bot's file, which its message does not have."""
        return self._road.fetched_name(attachment) if isinstance(self._road, Bot) else None

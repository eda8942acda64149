"""The WeCom adapter: a bot by its WebSocket where bot_id is given, else an app by callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from hermes.errors import PlatformRefused
from hermes.gateway.adapter import Setting
from hermes.gateway.platforms._shared.receipt import Keeper
from hermes.gateway.platforms._shared.tasks import Api, ApiAdapter


def length(text: str) -> int:
    """A text's length in bytes as it is sent: cells of tables and mentions become longer."""
    return len(text.encode("utf-8", "surrogatepass")) + 2 * text.count("|") + 3 * text.count("<")


class WeCom(ApiAdapter[Api]):
    """A bot or an app of an organisation."""

    platform = "wecom"
    title = "WeCom"
    extra = "wecom"
    local_ids = True
    one_connection = True
    settings = (
        Setting("bot_id", "the AI bot's id; none for an app"),
        Setting("corp_id", "for an app: the organisation's id, as ww…", unless="bot_id"),
        Setting("secret", "the AI bot's secret", secret=True, unless="corp_id"),
        Setting("agent_id", "for an app: its AgentId", unless="bot_id"),
        Setting("corp_secret", "for an app: its Secret", secret=True, unless="bot_id"),
        Setting("token", "for an app: the Token of its callbacks", secret=True, unless="bot_id"),
        Setting("encoding_aes_key", "for an app: the EncodingAESKey of its callbacks", secret=True, unless="bot_id"),
        Setting("base_url", "where WeCom's API is", default="https://qyapi.weixin.qq.com"),
        Setting("websocket_url", "where WeCom's bots connect", default="wss://openws.work.weixin.qq.com"),
    )  # fmt: skip
    needed: ClassVar[tuple[str, ...]]  # the settings that a bot, or an app, can't do without

    def __new__(cls, values: Mapping[str, Any], home: Path) -> WeCom[Any]:
        """The adapter of a bot or of an app, by these settings."""
        from hermes.gateway.platforms.wecom.app import App
        from hermes.gateway.platforms.wecom.bot import Bot

        kind = Bot if str(values.get("bot_id") or "").strip() else App
        return super().__new__(cls if cls is not WeCom else kind)

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._keeper = Keeper(home, self.platform)

    def validate(self) -> None:
        """Refuse half a bot or half an app, and what can't be an address."""
        if missing := [name for name in self.needed if not self.text(name)]:
            kinds = "an AI bot needs bot_id and secret, an app corp_id, agent_id, corp_secret, token, encoding_aes_key"
            raise PlatformRefused(f"wecom: {kinds}; missing: {', '.join(missing)}")
        for name, schemes in (("base_url", ("http", "https")), ("websocket_url", ("ws", "wss"))):
            parts = urlsplit(self.text(name))
            if parts.scheme not in schemes or not parts.hostname:
                raise PlatformRefused(f"wecom: {name} must be an address that begins with {schemes[1]}://")

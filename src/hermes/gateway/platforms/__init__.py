"""The platforms: their names, and the modules of their adapters. An adapter is loaded when its platform is enabled.

Other packages add platforms by an entry point of the group `hermes.platforms`: its name is the platform's, its object
the adapter class.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from hermes.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from hermes.gateway.adapter import Adapter

# name → (module, class, extra)
BUILT_IN: dict[str, tuple[str, str, str | None]] = {
    "telegram": ("hermes.gateway.platforms.telegram.adapter", "Telegram", "telegram"),
    "discord": ("hermes.gateway.platforms.discord.adapter", "Discord", "discord"),
    "slack": ("hermes.gateway.platforms.slack.adapter", "Slack", "slack"),
    "matrix": ("hermes.gateway.platforms.matrix.adapter", "Matrix", "matrix"),
    "email": ("hermes.gateway.platforms.email.adapter", "Email", "email"),
    "homeassistant": ("hermes.gateway.platforms.homeassistant", "HomeAssistant", "homeassistant"),
    "signal": ("hermes.gateway.platforms.signal", "Signal", None),
    "whatsapp": ("hermes.gateway.platforms.whatsapp.adapter", "WhatsApp", "whatsapp"),
    "sms": ("hermes.gateway.platforms.sms", "Sms", "sms"),
    "mattermost": ("hermes.gateway.platforms.mattermost", "Mattermost", "mattermost"),
    "feishu": ("hermes.gateway.platforms.feishu.adapter", "Feishu", "feishu"),
    "dingtalk": ("hermes.gateway.platforms.dingtalk", "DingTalk", "dingtalk"),
    "wecom": ("hermes.gateway.platforms.wecom", "WeCom", "wecom"),
    "weixin": ("hermes.gateway.platforms.weixin", "Weixin", "weixin"),
    "bluebubbles": ("hermes.gateway.platforms.bluebubbles", "BlueBubbles", "bluebubbles"),
    "qqbot": ("hermes.gateway.platforms.qqbot", "QQBot", "qqbot"),
    "teams": ("hermes.gateway.platforms.teams.adapter", "Teams", "teams"),
}
GROUP = "hermes.platforms"
# What people write while no gateway is connected, where the platform may not deliver it later: `gateway status` shows it.
LOST_WHILE_DOWN = {
    "signal": "while no gateway is connected, messages are lost unless signal-cli runs with --receive-mode=on-connection",
    "wecom": "what people write while no gateway is connected is lost",
}


def known_platforms() -> list[str]:
    """The names allowed below `platforms:`."""
    return sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def adapter_class(name: str) -> type[Adapter]:
    """The adapter of a platform. ConfigError for an unknown name, MissingExtra when its library is not installed."""
    found = BUILT_IN.get(name)
    if found is not None:
        module, attribute, extra = found
        try:
            made: type[Adapter] = getattr(import_module(module), attribute)
        except ImportError as error:
            raise MissingExtra(name, extra or "all") from error
        return made
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            loaded: type[Adapter] = entry.load()
            return loaded
    from hermes.config import suggestion

    known = known_platforms()
    raise ConfigError(f"unknown platform: {name!r}" + (suggestion(name, known) or f"; known: {', '.join(known)}"))

"""The WhatsApp adapter: `mode: cloud` is a business number by Meta's Cloud API, `mode: bridge` a personal one by a bridge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes.errors import PlatformRefused
from hermes.gateway.adapter import Capabilities, Setting
from hermes.gateway.platforms._shared.tasks import Api, ApiAdapter
from hermes.gateway.platforms.whatsapp.outgoing import LONGEST

CLOUD, BRIDGE = "cloud", "bridge"


class WhatsApp(ApiAdapter[Api]):
    """A number on WhatsApp."""

    platform = "whatsapp"
    title = "WhatsApp"
    extra = "whatsapp"
    settings = (
        Setting("mode", "cloud (a business number at Meta) or bridge (a personal number)", asked=True, default=CLOUD),
        Setting("phone_number_id", "cloud: the number's id in Meta's console (not the number)", asked=True),
        Setting("access_token", "cloud: a system user's access token", secret=True, asked=True),
        Setting("app_secret", "cloud: the app's secret", secret=True, asked=True),
        Setting(
            "verify_token", "cloud: a word of your own, which you also enter in the console", secret=True, asked=True
        ),
        Setting("template", "cloud: an approved template for messages after 24 hours"),
        Setting("template_language", "cloud: the template's language", default="en_US"),
        Setting(
            "bridge_command", "bridge: the command that starts it, as node /opt/whatsapp-bridge/bridge.js", asked=True
        ),
        Setting("bridge_url", "bridge: its address, if it is started by something else"),
        Setting("bridge_token", "bridge: its token", secret=True),
        Setting("base_url", "cloud: where Meta's Graph API is", default="https://graph.facebook.com"),
        Setting("api_version", "cloud: the version of the Graph API", default="v24.0"),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=LONGEST, typing=True, media=True, quotes=True, files=True, largest_file=100_000_000,
        longest_caption=1024, choices=10, longest_choice=200, tells_edits=True,
        tells_deletions=True, mention_needed=True,
    )  # fmt: skip

    def __new__(cls, values: Mapping[str, Any], home: Path) -> WhatsApp[Any]:
        """The adapter for the `mode` of these settings."""
        from hermes.gateway.platforms.whatsapp.bridge import BridgedNumber
        from hermes.gateway.platforms.whatsapp.cloud import CloudNumber

        bridged = str(values.get("mode") or "").strip().lower() == BRIDGE
        return super().__new__(cls if cls is not WhatsApp else BridgedNumber if bridged else CloudNumber)

    def validate(self) -> None:
        """Refuse settings that can't work."""
        if self.text("mode").lower() not in (CLOUD, BRIDGE):
            raise PlatformRefused(f"{self.connection_name}: mode must be cloud or bridge, not {self.text('mode')!r}")

    logs_in = True

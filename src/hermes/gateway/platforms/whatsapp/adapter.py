"""The WhatsApp adapter: `mode: cloud` is a business number by Meta's Cloud API, `mode: bridge` a personal one by a bridge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes.errors import PlatformRefused
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Attachment, Chat, Choice, OutgoingFile
from hermes.gateway.platforms.whatsapp.bridge import BridgedNumber
from hermes.gateway.platforms.whatsapp.cloud import LONGEST_CAPTION, CloudNumber
from hermes.gateway.platforms.whatsapp.formatting import LONGEST

CLOUD, BRIDGE = "cloud", "bridge"


class WhatsApp(Adapter):
    """A number on WhatsApp."""

    platform = "whatsapp"
    title = "WhatsApp"
    extra = "whatsapp"
    settings = (
        Setting(name="mode", help="cloud (a business number at Meta) or bridge (a personal number)", default=CLOUD, asked=True),
        Setting(
            name="phone_number_id", help="cloud: the number's id in Meta's console (not the number)",
            variable="WHATSAPP_PHONE_NUMBER_ID", asked=True,
        ),
        Setting(
            name="access_token", help="cloud: a system user's access token", variable="WHATSAPP_ACCESS_TOKEN", secret=True,
            asked=True,
        ),
        Setting(name="app_secret", help="cloud: the app's secret", variable="WHATSAPP_APP_SECRET", secret=True, asked=True),
        Setting(
            name="verify_token", help="cloud: a word of your own, which you also enter in the console",
            variable="WHATSAPP_VERIFY_TOKEN", secret=True, asked=True,
        ),
        Setting(name="template", help="cloud: an approved template for messages after 24 hours"),
        Setting(name="template_language", help="cloud: the template's language", default="en_US"),
        Setting(
            name="bridge_command", help="bridge: the command that starts it, as node /opt/whatsapp-bridge/bridge.js", asked=True
        ),
        Setting(name="bridge_url", help="bridge: its address, if it is started by something else"),
        Setting(name="bridge_token", help="bridge: its token", variable="WHATSAPP_BRIDGE_TOKEN", secret=True),
        Setting(name="base_url", help="cloud: where Meta's Graph API is", default="https://graph.facebook.com"),
        Setting(name="api_version", help="cloud: the version of the Graph API", default="v24.0"),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=LONGEST, typing=True, media=True, quotes=True, files=True, largest_file=100_000_000,
        longest_caption=LONGEST_CAPTION, choices=10, longest_choice=200, tells_reactions=True, tells_edits=True,
        tells_deletions=True, mention_needed=True,
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        bridged = self.text("mode").lower() == BRIDGE
        self._number: CloudNumber | BridgedNumber = BridgedNumber(self) if bridged else CloudNumber(self)

    def validate(self) -> None:
        """Refuse settings that can't work."""
        if self.text("mode").lower() not in (CLOUD, BRIDGE):
            raise PlatformRefused(f"{self.connection_name}: mode must be cloud or bridge, not {self.text('mode')!r}")
        self._number.validate()

    logs_in = True

    async def login(self, show: Callable[[str], None]) -> Mapping[str, Any]:
        """Pair a bridge with the owner's phone by a QR code; the Cloud API needs no login."""
        self.validate()
        if isinstance(self._number, BridgedNumber):
            try:
                await self._number.login(show)
            finally:
                await self._number.disconnect()
        return {}

    async def check(self) -> str:
        """Log in and say which number we are."""
        self.validate()
        return await self._number.check()

    async def connect(self, link: Link) -> None:
        """Log in and begin to receive."""
        await self.disconnect()
        try:
            await self._number.connect(link)
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        await self._number.disconnect()

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a text; its id."""
        return await self._number.send(chat, text, nonce=nonce, reply_to=reply_to)

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None,
        context: ReplyContext | None = None,
    ) -> str:  # fmt: skip
        """Send a text with buttons, where this kind of number has them."""
        return await self._number.send_choices(chat, text, choices, nonce=nonce, reply_to=reply_to)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Send a file; the message's id."""
        return await self._number.send_file(chat, file, caption=caption, nonce=nonce)

    async def was_sent(self, chat: Chat, *, nonce: str) -> bool | None:
        """Whether a message was sent, where a bridge knows it."""
        return await self._number.was_sent(nonce) if isinstance(self._number, BridgedNumber) else None

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written."""
        await self._number.typing(chat)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file that a person sent."""
        return await self._number.fetch(attachment)

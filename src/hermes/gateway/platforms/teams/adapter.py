"""The Teams adapter: the Bot Framework posts activities to us, and replies go to the service that a conversation names.

https://learn.microsoft.com/microsoftteams/platform/bots/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Attachment, Chat, Event, OutgoingFile
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.receipt import (
    Keeper,
    MarkFile,
    dict_of,
    keep,
    parsed,
    put_last,
    read_object,
    text_of,
)
from hermes.gateway.platforms._shared.tasks import ApiAdapter
from hermes.gateway.platforms.teams.client import (
    CHANNEL,
    ISSUER,
    LARGEST,
    SERVICE_HOSTS,
    Connector,
    Offers,
    PublishedKeys,
    claims,
    info,
    is_allowed,
)
from hermes.gateway.platforms.teams.incoming import chat_of, conversation_of, understood

if TYPE_CHECKING:
    from hermes.gateway.platforms._shared.listener import PlatformRequest

_METADATA = "https://login.botframework.com/v1/.well-known/openidconfiguration"
_LOGIN = "https://login.microsoftonline.com"
_MOST = 5_000  # conversations whose service is remembered


class _State(msgspec.Struct):
    services: dict[str, str] = {}  # the service of each conversation, for messages that answer none


LONGEST = 26_000  # of the 28 KB of a message, counted by `length`
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def length(text: str) -> int:
    """The bytes of a text in a request, at most: two for a character of one byte, and what `shown` adds."""
    size = len(text.encode("utf-8", "surrogatepass"))
    plain = sum(1 for sign in text if sign < "\x80")
    return size + plain + 6 * text.count("<") + 10 * text.count("\n") + 4 * len(_CONTROL.findall(text))


class Teams(ApiAdapter[Connector]):
    """A bot in Microsoft Teams."""

    platform = "teams"
    title = "Microsoft Teams"
    extra = "teams"
    settings = (
        Setting("app_id", "the bot's Microsoft App ID", required=True),
        Setting("app_secret", "its client secret (the value)", secret=True, required=True),
        Setting(
            "tenant_id", "the tenant of a single-tenant bot; botframework.com for a multi-tenant one",
            asked=True, default="botframework.com",
        ),
        Setting("service_hosts", "hosts of the Bot Framework besides Microsoft's usual ones", kind=list),
        Setting("login_url", "where tokens come from", default=_LOGIN),
        Setting("metadata_url", "where the Bot Framework's keys are named", default=_METADATA),
        Setting("issuer", "who issues the Bot Framework's tokens, and whom ours are for", default=ISSUER),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=LONGEST, measure=length, edits=True, typing=True, media=True, files=True, largest_file=LARGEST,
        longest_caption=LONGEST // 2, tells_edits=True, tells_deletions=True, mention_needed=True,
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._mark = MarkFile(home / "teams.json", self.text("app_id"), _State)
        self._offers = Offers()
        self._keeper = Keeper(home, self.platform)

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse addresses that are none."""
        for name in ("login_url", "metadata_url"):
            parts = urlsplit(self.text(name))
            if not parts.hostname or (parts.scheme != "https" and parts.hostname not in self._own_hosts):
                raise PlatformRefused(f"platforms.teams.{name} must be an address with https")

    async def check(self) -> str:
        """Log in; the service does not say what the bot is called."""
        async with self.make_api() as connector:
            await connector.login()
            await connector.keys(self.text("metadata_url"))
        return self.text("app_id")

    async def begin(self, link: Link, connector: Connector) -> None:
        """Log in, read the published keys, and listen."""
        keys = PublishedKeys(lambda: connector.keys(self.text("metadata_url")))

        async def delivered(call: PlatformRequest) -> int:
            activity = read_object(call.body, self.title, link.log)
            if activity is not None:
                await self._happened(link, activity)
            return 200

        async def genuine(call: PlatformRequest) -> bool:
            return await self._is_genuine(keys, call)

        await connector.login()
        await keys.load()
        self.closing(await self.listen(link, delivered, signed=genuine, seconds=10))
        link.connected(self.webhook_address or self.webhook_path)
        self._tasks.start(self._keeper.restore(link), name="teams")

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        await super().disconnect()
        self._mark.save()

    @property
    def _own_hosts(self) -> tuple[str, ...]:
        hosts = self.setting("service_hosts") or ()
        return tuple(str(one).strip().lower() for one in ([hosts] if isinstance(hosts, str) else hosts))

    def make_api(self) -> Connector:
        """The API, with our login."""
        url = f"{self.text('login_url').rstrip('/')}/{self.text('tenant_id')}/oauth2/v2.0/token"
        secret, issuer = self.text("app_secret"), self.text("issuer")
        return Connector(self.text("app_id"), secret, url, self._own_hosts, issuer=issuer)

    # ------------------------------------------------------------------------------------------ receiving

    async def _is_genuine(self, keys: PublishedKeys, call: PlatformRequest) -> bool:
        """Whether the Bot Framework sent it: by its token first, and then by the service that token and activity name."""
        sent = call.headers.get("Authorization", "")
        proved = await claims(sent, self.text("app_id"), keys, self.text("issuer"))
        if proved is None:
            return False
        activity = parsed(call.body)
        service = text_of(activity.get("serviceUrl"))
        claimed = text_of(proved.get("serviceurl") or proved.get("serviceUrl"))
        return (
            bool(service)
            and service.rstrip("/") == claimed.rstrip("/")
            and activity.get("channelId") == CHANNEL
            and is_allowed(service, SERVICE_HOSTS, self._own_hosts)
        )

    async def _happened(self, link: Link, activity: dict[str, Any]) -> None:
        """Store an activity; the Bot Framework does not promise to send it again."""
        service, chat = text_of(activity.get("serviceUrl")), chat_of(activity)
        if chat is not None and service:
            self._remember(chat.chat_id, service)
        if chat is not None and activity.get("type") == "invoke" and activity.get("name") == "fileConsent/invoke":
            self._tasks.start(self._consented(link, chat, dict_of(activity.get("value"))))  # Teams waits for the answer
            return
        what = understood(activity, {"service": service})
        if isinstance(what, Event):
            await self._keeper.keep(link, what)
        elif what is not None:
            await keep(link, what)

    def _remember(self, chat_id: str, service: str) -> None:
        """Store the service of a conversation, if it is new."""
        services = self._mark.state.services
        if services.get(chat_id) != service:
            put_last(services, chat_id, service, _MOST)
            self._mark.changed()

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file."""
        reference = attachment.reference
        return await self.api.file(str(reference.get("url") or ""), open_to_all=bool(reference.get("open")))

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message; in a channel without a thread it is a new post."""
        return self._named(await self._act("POST", chat, _message(text), context=context))

    def _named(self, found: dict[str, Any]) -> str:
        message_id = text_of(found.get("id"))
        if not message_id:
            raise PlatformUnreachable("Teams has not named the message it sent", maybe_sent=True)
        return message_id

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Show a picture, or offer a file: it is uploaded when the person accepts it."""
        body = {"type": "message", "attachments": [self._offers.attachment(chat, file, nonce)]}
        if caption:
            body |= _message(caption)
        return self._named(await self._act("POST", chat, body, context=context))

    async def _consented(self, link: Link, chat: Chat, value: dict[str, Any]) -> None:
        """A person has accepted or declined a file."""
        try:
            accepted = self._offers.answered(chat, value)
            if accepted is None:
                return
            file, place = accepted
            await self.api.upload(text_of(place.get("uploadUrl")), file.data)
            self._offers.done(value)
            await self._act("POST", chat, {"type": "message", "attachments": [info(place)]})
        except HermesError as error:
            link.log.warning("a file could not be uploaded to Teams: %s", error)
            text = str(error) if isinstance(error, SendRefused) else "The file could not be uploaded. Please try again."
            with suppress(HermesError):
                await self._act("POST", chat, _message(text))

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of one of our messages."""
        await self._act("PUT", chat, {**_message(text), "id": message_id}, message_id=message_id)

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written."""
        await self._act("POST", chat, {"type": "typing"})

    async def _act(
        self, method: str, chat: Chat, body: dict[str, Any], *, context: ReplyContext | None = None, message_id: str | None = None
    ) -> dict[str, Any]:  # fmt: skip
        service = text_of((context or {}).get("service")) or self._mark.state.services.get(chat.chat_id, "")
        if not service:
            raise SendRefused(
                "Teams has not named the service of this conversation; someone has to write to the bot there first"
            )
        return await self.api.activity(method, service, conversation_of(chat), body, message_id)


def _message(text: str) -> dict[str, Any]:
    return {"type": "message", "textFormat": "markdown", "text": shown(text)}


__all__ = ["Teams"]


# ------------------------------------------------------------ Markdown as Teams shows it: no HTML, foreign pictures or tables

_TAG = re.compile(r"<(?=[/!]?[A-Za-z-])(?!https?://|mailto:)")
_PICTURE = re.compile(r"!(?=\[)")
_LINE = re.compile(r"(?<=[^\n ])\n(?=[^\n])")


def shown(text: str) -> str:
    """The text for a message: tags as they are written, pictures as links, tables as code."""
    return markup.outside_code(markup.tables_as_code(text), _plain)


def _plain(text: str) -> str:
    return _LINE.sub("  \n", _PICTURE.sub("", _TAG.sub("&lt;", text)))

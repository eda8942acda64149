"""The Teams adapter: the Bot Framework posts activities to us, and replies go to the service that a conversation names.

https://learn.microsoft.com/microsoftteams/platform/bots/
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Attachment, Chat, Event, OutgoingFile, Revision, deleted
from hermes.gateway.platforms.connections import Tasks, close_each
from hermes.gateway.platforms.frames import read_object
from hermes.gateway.platforms.intake import keep
from hermes.gateway.platforms.teams.client import SERVICE_HOSTS, Connector, is_allowed
from hermes.gateway.platforms.teams.deletions import Deletions
from hermes.gateway.platforms.teams.file_offers import LARGEST, Offers, info
from hermes.gateway.platforms.teams.formatting import LONGEST, length, shown
from hermes.gateway.platforms.teams.incoming import chat_of, conversation_of, dict_of, is_restored, text_of, understood
from hermes.gateway.platforms.teams.proof import CHANNEL, ISSUER, PublishedKeys, claims
from hermes.gateway.platforms.unkept import Keeper
from hermes.whole_files import write_whole

if TYPE_CHECKING:
    from hermes.gateway.platforms.listener import PlatformRequest, Registration

_METADATA = "https://login.botframework.com/v1/.well-known/openidconfiguration"
_LOGIN = "https://login.microsoftonline.com"
_MOST = 5_000  # conversations whose service is remembered


class Teams(Adapter):
    """A bot in Microsoft Teams."""

    platform = "teams"
    title = "Microsoft Teams"
    extra = "teams"
    settings = (
        Setting(name="app_id", help="the bot's Microsoft App ID", variable="TEAMS_APP_ID", required=True),
        Setting(name="app_secret", help="its client secret (the value)", variable="TEAMS_APP_SECRET", secret=True, required=True),
        Setting(
            name="tenant_id", help="the tenant of a single-tenant bot; botframework.com for a multi-tenant one",
            variable="TEAMS_TENANT_ID", default="botframework.com", asked=True,
        ),
        Setting(name="service_hosts", help="hosts of the Bot Framework besides Microsoft's usual ones", kind=list),
        Setting(name="login_url", help="where tokens come from", default=_LOGIN),
        Setting(name="metadata_url", help="where the Bot Framework's keys are named", default=_METADATA),
        Setting(name="issuer", help="who issues the Bot Framework's tokens, and whom ours are for", default=ISSUER),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=LONGEST, measure=length, edits=True, typing=True, media=True, files=True, largest_file=LARGEST,
        longest_caption=LONGEST // 2, tells_edits=True, tells_deletions=True, mention_needed=True,
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._connector: Connector | None = None
        self._registration: Registration | None = None
        self._state = home / "teams.json"  # the service of each conversation, for messages that answer none
        self._deletions = Deletions(home / "teams_deleted.json")
        self._services: dict[str, str] | None = None
        self._offers = Offers()
        self._tasks = Tasks()
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
        async with self._made() as connector:
            await connector.login()
            await connector.keys(self.text("metadata_url"))
        return self.text("app_id")

    async def connect(self, link: Link) -> None:
        """Log in, read the published keys, and listen."""
        await self.disconnect()
        self._connector = connector = self._made()
        keys = PublishedKeys(lambda: connector.keys(self.text("metadata_url")))

        async def delivered(call: PlatformRequest) -> int:
            activity = read_object(call.body, self.title, link.log)
            if activity is not None:
                await self._happened(link, activity)
            return 200

        async def genuine(call: PlatformRequest) -> bool:
            return await self._is_genuine(keys, call)

        try:
            await connector.login()
            await keys.load()
            self._registration = await self.listen(link, delivered, signed=genuine, seconds=10)
        except BaseException:
            await self.disconnect()
            raise
        link.connected(self.webhook_address or self.webhook_path)
        self._tasks.start(self._keeper.restore(link), name="teams")

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        await self._tasks.stop()
        registration, self._registration = self._registration, None
        connector, self._connector = self._connector, None
        await close_each(registration)
        await self._keeper.save()
        await close_each(connector)

    @property
    def _own_hosts(self) -> tuple[str, ...]:
        given = self.setting("service_hosts") or ()
        return tuple(str(one).strip().lower() for one in ([given] if isinstance(given, str) else given))

    def _made(self) -> Connector:
        url = f"{self.text('login_url').rstrip('/')}/{self.text('tenant_id')}/oauth2/v2.0/token"
        secret, issuer = self.text("app_secret"), self.text("issuer")
        return Connector(self.text("app_id"), secret, url, self._own_hosts, issuer=issuer)

    # ------------------------------------------------------------------------------------------ receiving

    async def _is_genuine(self, keys: PublishedKeys, call: PlatformRequest) -> bool:
        """Whether the Bot Framework sent it: by its token first, and then by the service that token and activity name."""
        sent = call.headers.get("Authorization", "")
        proved = await claims(sent, self.text("app_id"), keys, time.time(), self.text("issuer"))
        if proved is None:
            return False
        activity = _parsed(call.body)
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
            await self._revised(link, what, restored=is_restored(activity))

    async def _revised(self, link: Link, what: Revision, *, restored: bool) -> None:
        """Hand over an edit or a deletion. A message that was deleted and restored is a message of its own in the record:
        what was deleted there stays deleted, on every machine it was copied to."""
        name, gone = what.revises, self._deletions
        if restored and what.event is not None and gone.is_deleted(name):
            event = msgspec.structs.replace(what.event, id=f"{name}:{what.id}")
            await self._keeper.keep(link, event)
            gone.restored(name, event.id)
            return
        now = gone.current(name)
        if what.event is None:
            await keep(link, deleted(now))
            gone.deleted(name)
        else:
            event = msgspec.structs.replace(what.event, id=now)
            await keep(link, msgspec.structs.replace(what, revises=now, event=event))

    def _known(self) -> dict[str, str]:
        if self._services is None:
            try:
                found = json.loads(self._state.read_text("utf-8"))
            except (OSError, ValueError):
                found = {}
            self._services = {str(key): str(value) for key, value in dict_of(found).items()}
        return self._services

    def _remember(self, chat_id: str, service: str) -> None:
        """Write down where a conversation is served, if that is new."""
        services = self._known()
        if services.get(chat_id) == service:
            return
        services.pop(chat_id, None)
        services[chat_id] = service
        while len(services) > _MOST:
            del services[next(iter(services))]
        with suppress(OSError):  # without it only messages that answer none can't be sent after a restart
            self._state.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._state, json.dumps(services))

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file."""
        reference = attachment.reference
        return await self._asked().file(str(reference.get("url") or ""), open_to_all=bool(reference.get("open")))

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
            await self._asked().upload(text_of(place.get("uploadUrl")), file.data)
            self._offers.done(value)
            await self._act("POST", chat, {"type": "message", "attachments": [info(place)]})
        except HermesError as error:
            link.log.warning("a file could not be uploaded to Teams: %s", error)
            told = str(error) if isinstance(error, SendRefused) else "The file could not be uploaded. Please try again."
            with suppress(HermesError):
                await self._act("POST", chat, _message(told))

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of one of our messages."""
        await self._act("PUT", chat, {**_message(text), "id": message_id}, message_id=message_id)

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written."""
        await self._act("POST", chat, {"type": "typing"})

    async def _act(
        self, method: str, chat: Chat, body: dict[str, Any], *, context: ReplyContext | None = None, message_id: str | None = None
    ) -> dict[str, Any]:  # fmt: skip
        service = text_of((context or {}).get("service")) or self._known().get(chat.chat_id, "")
        if not service:
            raise SendRefused(
                "Teams has not said where this conversation is; someone has to write to the bot there first"
            )
        return await self._asked().activity(method, service, conversation_of(chat), body, message_id)

    def _asked(self) -> Connector:
        if self._connector is None:
            raise PlatformUnreachable("not connected to Teams")
        return self._connector


def _message(text: str) -> dict[str, Any]:
    return {"type": "message", "textFormat": "markdown", "text": shown(text)}


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        return dict_of(json.loads(body))
    except (ValueError, RecursionError):
        return {}


__all__ = ["Teams"]

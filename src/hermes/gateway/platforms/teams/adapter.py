"""The Teams adapter: the Bot Framework posts activities to us, and replies go to the service that a conversation names.

https://learn.microsoft.com/microsoftteams/platform/bots/
"""

from __future__ import annotations

import html
import mimetypes
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import (
    CHANNEL,
    DM,
    GROUP,
    Attachment,
    Chat,
    Event,
    Forwarded,
    OutgoingFile,
    Revision,
    Sender,
    deleted,
)
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import attachment
from hermes.gateway.platforms._shared.receipt import (
    Keeper,
    MarkFile,
    dict_of,
    dicts_of,
    iso_moment,
    keep,
    parsed,
    put_last,
    read_object,
    text_of,
)
from hermes.gateway.platforms._shared.tasks import ApiAdapter
from hermes.gateway.platforms.teams.client import (
    CHANNEL_ID,
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

if TYPE_CHECKING:
    from hermes.gateway.platforms._shared.listener import PlatformRequest

_TYPES = {"personal": DM, "groupChat": GROUP, "channel": CHANNEL}
_THREAD = ";messageid="
_FILE = "application/vnd.microsoft.teams.file.download.info"
_FORWARD = "schema.skype.com/Forward"  # the kind of a forwarded message in the HTML of a message
_VOID = frozenset("area br col embed hr img input link meta source track wbr".split())  # elements without an end
_AT = re.compile(r"<at\b[^>]*>(.*?)</at>", re.DOTALL)


def chat_of(activity: dict[str, Any]) -> Chat | None:
    """The chat of an activity. A post in a channel is a thread: its id is part of the conversation's."""
    conversation = dict_of(activity.get("conversation"))
    chat_id, _, thread = text_of(conversation.get("id")).partition(_THREAD)
    if not chat_id:
        return None
    kind = _TYPES.get(text_of(conversation.get("conversationType")), GROUP if conversation.get("isGroup") else DM)
    if thread:
        kind = CHANNEL
    return Chat(
        platform="teams",
        chat_id=chat_id,
        type=kind,
        thread_id=thread or None,
        name=text_of(conversation.get("name")) or None,
    )


def conversation_of(chat: Chat) -> str:
    """The id of the conversation that messages for a chat go to."""
    return chat.chat_id if chat.thread_id is None else f"{chat.chat_id}{_THREAD}{chat.thread_id}"


def understood(activity: dict[str, Any], context: dict[str, Any]) -> Event | Revision | None:
    """A message, or that one was edited or deleted; None for everything else."""
    kind, chat, message_id = activity.get("type"), chat_of(activity), text_of(activity.get("id"))
    if chat is None or not message_id or kind not in ("message", "messageUpdate", "messageDelete"):
        return None
    event_id = f"{chat.chat_id}:{message_id}"
    if kind == "messageDelete":
        return deleted(event_id)
    if dict_of(activity.get("channelData")).get("eventType") == "undeleteMessage":
        return None  # what was deleted stays deleted, on every machine it was copied to
    event = _event(activity, chat, message_id, event_id, context)
    if event is None or kind == "message":
        return event
    at = text_of(activity.get("timestamp")) or text_of(activity.get("localTimestamp"))
    return Revision(id=f"edit:{event_id}:{at}", revises=event_id, event=event)


def _event(
    activity: dict[str, Any], chat: Chat, message_id: str, event_id: str, context: dict[str, Any]
) -> Event | None:
    who, me = dict_of(activity.get("from")), text_of(dict_of(activity.get("recipient")).get("id"))
    user_id, stable_id = text_of(who.get("id")), text_of(who.get("aadObjectId"))
    if not user_id or user_id.startswith("28:") or who.get("role") == "bot" or user_id == me:
        return None  # programs
    text, addressed = _words(activity, me)
    text, forwarded = _apart(activity, me, text)
    quoted_id, quoted = _quoted(activity.get("attachments"))
    # Microsoft names the account, and its signature on the request was checked (client.py).
    name = text_of(who.get("name")) or None
    sender = Sender(user_id=user_id, stable_id=stable_id or None, name=name, proven=True)
    return Event(
        id=event_id, chat=chat, sender=sender, text=text, attachments=_attachments(activity.get("attachments")),
        message_id=message_id, reply_to=quoted_id or text_of(activity.get("replyToId")) or None, quoted=quoted,
        forwarded=forwarded, sent_at=iso_moment(activity.get("timestamp")),
        addressed=addressed or chat.type == DM, reply_context=context,
    )  # fmt: skip


def _words(activity: dict[str, Any], me: str) -> tuple[str, bool]:
    """The text without the mention of the bot and with the names of others, and whether it mentions the bot."""
    text, addressed = text_of(activity.get("text")), False
    for entity in dicts_of(activity.get("entities")):
        written = text_of(entity.get("text"))
        if entity.get("type") == "mention" and me and dict_of(entity.get("mentioned")).get("id") == me:
            addressed = True
            text = text.replace(written, "") if written else text
    text = _AT.sub(lambda found: f"@{found.group(1)}", text)
    if activity.get("textFormat") == "xml":
        text = html.unescape(text)
    return text.replace("&nbsp;", " ").replace("\xa0", " ").strip(), addressed


class _Apart(HTMLParser):
    """The words of a message, apart from those that it forwards, and without the mentions of these names."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.own, self.forwarded = "", ""
        self._names = names
        self._open: list[tuple[str, bool]] = []  # the elements around; whether each is forwarded, or inside of one
        self._mention: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = dict(attrs).get("itemtype") or ""
        if tag == "at" or kind.endswith("/Mention"):
            self._mention = ""
        if tag in _VOID:
            self._put("\n" if tag == "br" else "")
            return
        inside = bool(self._open) and self._open[-1][1]
        self._open.append((tag, inside or kind.endswith("/Forward")))

    def handle_endtag(self, tag: str) -> None:
        if self._mention is not None and tag in ("at", "span"):
            name, self._mention = self._mention, None
            self._put("" if name.strip() in self._names else f"@{name}")
        if tag not in [one for one, _ in self._open]:
            return
        if tag in ("p", "div", "li", "blockquote"):
            self._put("\n")
        while self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._mention is not None:
            self._mention += data
        else:
            self._put(data)

    def _put(self, text: str) -> None:
        if self._open and self._open[-1][1]:
            self.forwarded += text
        else:
            self.own += text


def _apart(activity: dict[str, Any], me: str, text: str) -> tuple[str, Forwarded | None]:
    """The sender's own words, and what the message forwards. Teams puts both into the text, and tells them apart in the HTML."""
    pages = [text_of(one.get("content")) for one in dicts_of(activity.get("attachments"))]
    page = next((one for one in pages if _FORWARD in one), None)
    if page is None:
        return text, None
    mentions = dicts_of(activity.get("entities"))
    ours = [text_of(one.get("text")) for one in mentions if dict_of(one.get("mentioned")).get("id") == me]
    reader = _Apart([re.sub(r"<[^>]*>", "", one) for one in ours])
    reader.feed(page)
    reader.close()
    return reader.own.replace("\xa0", " ").strip(), Forwarded(text=reader.forwarded.replace("\xa0", " ").strip())


def _quoted(listed: Any) -> tuple[str | None, str | None]:
    """The id and the text of a message that is quoted in a chat."""
    for one in dicts_of(listed):
        if one.get("contentType") == "messageReference":
            found = dict_of(one.get("content")) or parsed(one.get("content"))
            return text_of(found.get("messageId")) or None, text_of(found.get("messagePreview")).strip() or None
    return None, None


def _attachments(listed: Any) -> tuple[Attachment, ...]:
    found = []
    for item in dicts_of(listed):
        kind, name = text_of(item.get("contentType")), text_of(item.get("name")) or None
        if kind == _FILE:
            address = text_of(dict_of(item.get("content")).get("downloadUrl"))
            mime = mimetypes.guess_type(name or "")[0]
        else:
            address = text_of(item.get("contentUrl"))
            mime = "image/png" if kind == "image/*" else kind
        if address and not kind.startswith(("text/html", "application/vnd.microsoft.card")):
            # The address of a file itself lets everyone in for some minutes.
            found.append(attachment(name, mime, url=address, open=kind == _FILE))
    return tuple(found)


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
            and activity.get("channelId") == CHANNEL_ID
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

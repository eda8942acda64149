"""iMessage through a BlueBubbles server on a Mac: its webhook brings messages, its REST API sends them.

https://docs.bluebubbles.app/server/developer-guides/rest-api-and-webhooks
The webhook is registered at every connection. It is not signed, so its address contains a token. The server calls it once for a
message, whatever the answer is: what arrived while the gateway was down, or could not be stored, is fetched by time. Typing,
quotes and edits need the server's private API, and are left out without it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, OutgoingFile, Revision, Sender, deleted
from hermes.gateway.flow.turns import wait_first
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import HttpApi, attachment, checked_address, error_text
from hermes.gateway.platforms._shared.receipt import (
    SinceFile,
    dict_of,
    dicts_of,
    keep,
    moment_of,
    parsed,
    read_object,
)
from hermes.gateway.platforms._shared.tasks import ApiAdapter, Recent, Retries, loss_reported

if TYPE_CHECKING:
    from hermes.gateway.platforms._shared.listener import PlatformRequest

EVENTS = ["new-message", "updated-message"]
_LAYOUT = markup.Layout(bullet="• ")
_PHONE = re.compile(r"\+?[0-9 ()./\u00a0\u2010-\u2015-]*[0-9][0-9 ()./\u00a0\u2010-\u2015-]*")
_PAGE = 100  # messages requested at once
_OVERLAP = 60_000  # milliseconds that are requested again: messages may be stored out of order


class BlueBubbles(ApiAdapter["_BlueBubblesApi"]):
    """An Apple account on a Mac with a BlueBubbles server."""

    platform = "bluebubbles"
    title = "iMessage (BlueBubbles)"
    extra = "bluebubbles"
    settings = (
        Setting("url", "the server's address, as http://mac.local:1234", required=True),
        Setting("password", "the server's password", secret=True, required=True),
        Setting("webhook_url", "how the Mac reaches this gateway, if not by gateway.listen's address"),
        Setting(
            "trust_numbers", "believe the sender numbers of SMS, which can be forged; iMessage proves its senders",
            default=False, kind=bool,
        ),
        Setting("mention", "the word that addresses the agent in groups", default="hermes"),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=4_000, typing=True, media=True, files=True, largest_file=100_000_000, quotes=True, tells_edits=True,
        tells_deletions=True, mention_needed=True,
    )  # fmt: skip

    look_again = 60.0  # seconds between two questions for messages whose delivery was lost

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._news = asyncio.Event()  # a new message was pushed
        self._stored: Recent[str, bool] = Recent()
        self._private = False
        self._mark = SinceFile(home / "bluebubbles.json", self.text("url"))

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse an address that is none."""
        checked_address(self.text("url"), "bluebubbles: url", "http://mac.local:1234")

    async def check(self) -> str:
        """Ask the server who it is."""
        async with self.make_api() as api:
            return await self._identified(api)

    async def _identified(self, api: _BlueBubblesApi) -> str:
        info = dict_of(await api.data("GET", "/server/info"))
        self._private = bool(info.get("private_api")) and bool(info.get("helper_connected"))
        return str(info.get("detected_icloud") or info.get("computer_id") or "BlueBubbles")

    async def begin(self, link: Link, api: _BlueBubblesApi) -> None:
        """Log in, register the webhook, and read what arrived meanwhile."""

        async def delivered(call: PlatformRequest) -> int:
            item = read_object(call.body, self.title, link.log)
            if item is not None:
                await self._happened(link, item)
            return 200

        identity = await self._identified(api)
        self.closing(await self.listen(link, delivered, signed=self._is_ours, seconds=10))
        await self._register(api)
        if self._mark.state.since is None:
            await self._catch_up(link, api)
        self._news.set()  # what arrived meanwhile is read when we are connected: it may take long
        link.connected(identity)
        self._tasks.start(self._look_after(link, api, identity), name="bluebubbles")

    async def disconnect(self) -> None:
        """Stop receiving and close everything. The webhook stays registered: the next connection uses it again."""
        await super().disconnect()
        self._mark.save()

    def make_api(self) -> _BlueBubblesApi:
        """The API, with our login."""
        password = self.text("password")
        made = _BlueBubblesApi(
            self.title, f"{self.text('url').rstrip('/')}/api/v1", params={"password": password}, timeout=60
        )
        made.secrets = (password, self._token)
        return made

    @property
    def _token(self) -> str:
        """The part of the webhook's address that others can't know: made of the password, so that it stays the same."""
        return hmac.new(self.text("password").encode(), b"hermes webhook", hashlib.sha256).hexdigest()[:32]

    def _is_ours(self, call: PlatformRequest) -> bool:
        return hmac.compare_digest(call.query.get("token", "").encode(), self._token.encode())

    async def _register(self, api: _BlueBubblesApi) -> None:
        place = self.webhook_place
        base = (
            self.text("webhook_url") or self.webhook_address or f"http://{place.host}:{place.port}{self.webhook_path}"
        )
        address = f"{base}?token={self._token}"
        known = await api.data("GET", "/webhook")
        if not any(one.get("url") == address for one in dicts_of(known)):
            await api.data("POST", "/webhook", json={"url": address, "events": EVENTS})

    # ------------------------------------------------------------------------------------------ receiving

    async def _happened(self, link: Link, item: dict[str, Any]) -> None:
        """Handle a push: a new message makes us fetch the new ones in their order; an edit is stored as it comes."""
        if item.get("type") == "new-message":
            self._news.set()
        elif item.get("type") in EVENTS:
            what = self._understood(dict_of(item.get("data")), updated=True)
            if what is not None:
                await keep(link, what)

    async def _look_after(self, link: Link, api: _BlueBubblesApi, identity: str) -> None:
        """Fetch new messages, when one was pushed and now and then: a push may be lost."""
        retries = Retries(link, identity)
        with loss_reported(link, "BlueBubbles", "messages could not be asked for"):
            while True:
                await wait_first(self._news, self.look_again)
                self._news.clear()
                try:
                    await self._catch_up(link, api)
                    retries.succeeded()
                except (PlatformUnreachable, SlowDown) as error:
                    self._news.set()
                    await retries.failed(error)

    async def _catch_up(self, link: Link, api: _BlueBubblesApi) -> None:
        """Hand over messages since we last were up to date; on the very first connection none."""
        since = self._mark.state.since
        if since is None:
            newest = await self._messages(api, sort="DESC", limit=1)
            for data in newest:
                self._stored.put(str(data.get("guid")), True)
            self._mark.note(max((one.get("dateCreated") or 0 for one in newest), default=0) + _OVERLAP)
            return
        offset = 0
        while found := await self._messages(
            api, sort="ASC", limit=_PAGE, offset=offset, after=max(0, since - _OVERLAP)
        ):
            for data in found:
                what = self._understood(data, updated=False)
                if isinstance(what, Event) and what.id not in self._stored:
                    await keep(link, what)
                    self._stored.put(what.id, True)
                self._mark.note(data.get("dateCreated"))
            offset += len(found)

    async def _messages(self, api: _BlueBubblesApi, **query: Any) -> list[dict[str, Any]]:
        body = {"with": ["chats", "attachment", "handle"], **query}
        found = await api.data("POST", "/message/query", json=body)
        return dicts_of(found)

    def _understood(self, data: dict[str, Any], *, updated: bool) -> Event | Revision | None:
        """A message as an event or a revision; None for our own, for tapbacks and for changes that are no edits."""
        guid, chat = data.get("guid"), self._chat(data)
        handle = data.get("handle")
        address = str(handle.get("address") or "") if isinstance(handle, dict) else ""
        if not isinstance(guid, str) or not guid or chat is None or data.get("isFromMe") or not address:
            return None
        if data.get("associatedMessageGuid"):  # a tapback: "Liked …"
            return None
        if data.get("dateRetracted"):
            return deleted(guid) if updated else None
        text = str(data.get("text") or "").replace("\ufffc", "").strip()  # the mark of an attachment
        word = re.compile(rf"(?<!\w)@?{re.escape(self.text('mention'))}(?!\w)[:,]?\s*", re.IGNORECASE)
        addressed = chat.type == DM or word.search(text) is not None
        if chat.type != DM and (begins := word.match(text)):
            text = text[begins.end() :]
        event = Event(
            id=guid, chat=chat, sender=self._sender(address, handle, chat), text=text,
            attachments=_attachments(data), message_id=guid, reply_to=str(data.get("threadOriginatorGuid") or "") or None,
            sent_at=moment_of(data.get("dateCreated")), addressed=addressed,
        )  # fmt: skip
        if not updated:
            return event
        if not data.get("dateEdited"):
            return None  # delivered, read
        return Revision(id=f"edit:{guid}:{data['dateEdited']}", revises=guid, event=event)

    def _sender(self, address: str, handle: Any, chat: Chat) -> Sender:
        """The author. Apple proves addresses of iMessage; a Mac also relays SMS and RCS, whose numbers can be forged."""
        who = canonical(address)
        services = {str(handle.get("service") or ""), chat.chat_id.partition(";")[0]} - {"", "any"}
        if self.setting("trust_numbers") or {one.lower() for one in services} == {"imessage"}:
            return Sender(user_id=who, name=address, proven=True)
        return Sender(user_id=who, stable_id=f"unproven:{who}", name=address, proven=False)

    def _chat(self, data: dict[str, Any]) -> Chat | None:
        found = next(iter(dicts_of(data.get("chats"))), {})
        guid = str(found.get("guid") or "")
        if not guid:
            return None
        name = str(found.get("displayName") or "") or None
        return Chat(platform=self.platform, chat_id=guid, type=GROUP if ";+;" in guid else DM, name=name)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file."""
        guid = quote(str(attachment.reference.get("guid")), safe="")
        return (await self.api.request("GET", f"/attachment/{guid}/download")).content

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message; its guid."""
        body = {"chatGuid": chat.chat_id, "tempGuid": nonce, "message": markup.marked(text, _LAYOUT).text or text}
        body["method"] = "private-api" if self._private else "apple-script"
        if reply_to is not None and self._private:
            body["selectedMessageGuid"] = reply_to
        return _guid(await self.api.data("POST", "/message/text", json=body), nonce)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Send a file; its guid."""
        form = {"chatGuid": chat.chat_id, "tempGuid": nonce, "name": file.name}
        form["method"] = "private-api" if self._private else "apple-script"
        upload = {"attachment": (file.name, file.data, file.mime or "application/octet-stream")}
        return _guid(await self.api.data("POST", "/message/attachment", data=form, files=upload), nonce)

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written, where the server can."""
        if self._private:
            await self.api.data("POST", f"/chat/{quote(chat.chat_id, safe='')}/typing")


class _BlueBubblesApi(HttpApi):
    secrets: tuple[str, ...] = ()

    async def data(self, method: str, path: str, **options: Any) -> Any:
        """The `data` of an answer."""
        try:
            found = (await self.request(method, path, **options)).json()
        except ValueError:
            raise PlatformRefused("the server at url is not a BlueBubbles server; check url") from None
        return found.get("data") if isinstance(found, dict) else None

    def check(self, answer: httpx.Response) -> None:
        """Check an answer as usual; iMessage's own refusals come as server errors, and a retry would not help."""
        if answer.status_code >= 500 and _error(answer).get("type") == "iMessage Error":
            raise self.failure(answer)
        super().check(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error with the server's own words."""
        if answer.status_code in (401, 403):
            return PlatformRefused("BlueBubbles does not accept the password")
        reason = error_text(_error(answer).get("message") or f"HTTP {answer.status_code}", *self.secrets)
        if "already queued" in reason:  # our earlier request with this id still runs
            return PlatformUnreachable("BlueBubbles is still sending the message", maybe_sent=True)
        return SendRefused(f"BlueBubbles refuses: {reason}")


def _error(answer: httpx.Response) -> dict[str, Any]:
    return dict_of(parsed(answer.content).get("error"))


def canonical(address: str) -> str:
    """A person's id: an e-mail address in small letters, a phone number without spaces and signs, others as they are."""
    address = address.strip()
    if "@" in address:
        return address.lower()
    if not _PHONE.fullmatch(address):  # a company's name or number, as Shop24 or urn:biz:…
        return address
    return re.sub(r"[^0-9+]", "", address)


def _guid(data: Any, nonce: str) -> str:
    return str(data.get("guid") or nonce) if isinstance(data, dict) else nonce


def _attachments(data: dict[str, Any]) -> tuple[Attachment, ...]:
    found = []
    for one in dicts_of(data.get("attachments")):
        if one.get("guid") and not one.get("hideAttachment"):
            name, mime = one.get("transferName"), one.get("mimeType")
            found.append(attachment(name, mime, one.get("totalBytes"), guid=str(one["guid"])))
    return tuple(found)

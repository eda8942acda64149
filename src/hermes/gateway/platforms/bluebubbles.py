"""iMessage through a BlueBubbles server on a Mac: its webhook brings messages, its REST API sends them.

https://docs.bluebubbles.app/server/developer-guides/rest-api-and-webhooks
The webhook is registered at every connection. It is not signed, so its address contains a token. The server calls it once for a
message, whatever the answer is: what arrived while the gateway was down, or could not be stored, is asked for by time. Typing,
quotes and edits need the server's private API, and are left out without it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Adapter, Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, OutgoingFile, Revision, Sender, deleted
from hermes.gateway.platforms import markup
from hermes.gateway.platforms.connections import Retries, Tasks, close_each, loss_reported
from hermes.gateway.platforms.frames import read_object
from hermes.gateway.platforms.http import HttpApi, attachment_kind, error_text
from hermes.gateway.platforms.intake import hand_over, keep
from hermes.whole_files import write_whole

if TYPE_CHECKING:
    from hermes.gateway.platforms.listener import PlatformRequest, Registration

EVENTS = ["new-message", "updated-message"]
_LAYOUT = markup.Layout(bullet="• ")
_PHONE = re.compile(r"\+?[0-9 ()./\u00a0\u2010-\u2015-]*[0-9][0-9 ()./\u00a0\u2010-\u2015-]*")
_PAGE = 100  # messages asked for at once
_OVERLAP = 60_000  # milliseconds that are asked for again: messages may be stored out of order


class BlueBubbles(Adapter):
    """An Apple account on a Mac with a BlueBubbles server."""

    platform = "bluebubbles"
    title = "iMessage (BlueBubbles)"
    extra = "bluebubbles"
    settings = (
        Setting(name="url", help="the server's address, as http://mac.local:1234", variable="BLUEBUBBLES_URL", required=True),
        Setting(name="password", help="the server's password", variable="BLUEBUBBLES_PASSWORD", secret=True, required=True),
        Setting(name="webhook_url", help="how the Mac reaches this gateway, if not by gateway.listen's address"),
        Setting(
            name="trust_numbers", help="believe the sender numbers of SMS, which can be forged; iMessage proves its senders",
            kind=bool, default=False,
        ),
        Setting(name="mention", help="the word that addresses the agent in groups", default="hermes"),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=4_000, typing=True, media=True, files=True, largest_file=100_000_000, quotes=True, tells_edits=True,
        tells_deletions=True, mention_needed=True,
    )  # fmt: skip

    look_again = 60.0  # seconds between two questions for messages whose delivery was lost

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._api: _BlueBubblesApi | None = None
        self._registration: Registration | None = None
        self._tasks = Tasks()
        self._behind = asyncio.Event()  # a delivery was not stored, or left to the question by time
        self._asking = False  # messages are being asked for by time
        self._private = False
        self._state = home / "bluebubbles.json"  # when we last were up to date

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse an address that is none."""
        parts = urlsplit(self.text("url"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PlatformRefused("bluebubbles needs url in config.yaml, as http://mac.local:1234")

    async def check(self) -> str:
        """Ask the server who it is."""
        async with self._made() as api:
            return await self._identified(api)

    async def _identified(self, api: _BlueBubblesApi) -> str:
        info = await api.data("GET", "/server/info")
        info = info if isinstance(info, dict) else {}
        self._private = bool(info.get("private_api")) and bool(info.get("helper_connected"))
        return str(info.get("detected_icloud") or info.get("computer_id") or "BlueBubbles")

    async def connect(self, link: Link) -> None:
        """Log in, register the webhook, and read what arrived meanwhile."""
        await self.disconnect()
        self._api = api = self._made()

        async def delivered(call: PlatformRequest) -> int:
            item = read_object(call.body, self.title, link.log)
            if item is not None:
                await self._happened(link, item)
            return 200

        self._asking = True  # until what arrived meanwhile was read: newer messages come after it
        try:
            identity = await self._identified(api)
            self._registration = await self.listen(link, delivered, signed=self._is_ours, seconds=10)
            await self._register(api)
            await self._catch_up(link, api)
        except BaseException:
            await self.disconnect()
            raise
        link.connected(identity)
        self._tasks.start(self._look_after(link, api, identity), name="bluebubbles")

    async def disconnect(self) -> None:
        """Stop receiving and close everything. The webhook stays registered: the next connection uses it again."""
        await self._tasks.stop()
        registration, self._registration = self._registration, None
        api, self._api = self._api, None
        await close_each(registration, api)

    def _made(self) -> _BlueBubblesApi:
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
        if not any(isinstance(one, dict) and one.get("url") == address for one in known or ()):
            await api.data("POST", "/webhook", json={"url": address, "events": EVENTS})

    # ------------------------------------------------------------------------------------------ receiving

    async def _happened(self, link: Link, item: dict[str, Any]) -> None:
        """Store a pushed message. The server does not push it again: it is tried until it is stored, or by the next catch-up."""
        data = item.get("data")
        if not isinstance(data, dict) or item.get("type") not in EVENTS:
            return
        what = self._understood(data, updated=item["type"] == "updated-message")
        if what is None:
            return
        if isinstance(what, Event) and (self._asking or self._behind.is_set()):
            self._behind.set()  # earlier ones are on their way: the question by time brings this one in its order
            return
        try:
            await hand_over(link, what)
        except BaseException:
            if isinstance(what, Revision):  # the question by time brings messages alone
                self._tasks.start(keep(link, what))
            self._behind.set()
            raise

    async def _look_after(self, link: Link, api: _BlueBubblesApi, identity: str) -> None:
        """Ask for messages whose delivery was lost or not stored, now and then, and at once after a failure."""
        retries = Retries(link, identity)
        with loss_reported(link, "BlueBubbles", "messages could not be asked for"):
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.look_again):
                        await self._behind.wait()
                self._behind.clear()
                try:
                    await self._catch_up(link, api)
                    retries.succeeded()
                except (PlatformUnreachable, SlowDown) as error:
                    self._behind.set()
                    await retries.failed(error)

    async def _catch_up(self, link: Link, api: _BlueBubblesApi) -> None:
        """Hand over messages since we last were up to date; on the very first connection none."""
        self._asking = True
        try:
            await self._read_on(link, api)
        finally:
            self._asking = False

    async def _read_on(self, link: Link, api: _BlueBubblesApi) -> None:
        since = self._noted()
        if since is None:
            newest = await self._asked_for(api, sort="DESC", limit=1)
            self._note(max((one.get("dateCreated") or 0 for one in newest), default=0) or 1)
            return
        offset = 0
        while found := await self._asked_for(
            api, sort="ASC", limit=_PAGE, offset=offset, after=max(0, since - _OVERLAP)
        ):
            for data in found:
                what = self._understood(data, updated=False)
                if what is not None:
                    await keep(link, what)
                self._note(data.get("dateCreated"))
            offset += len(found)

    async def _asked_for(self, api: _BlueBubblesApi, **query: Any) -> list[dict[str, Any]]:
        body = {"with": ["chats", "attachment", "handle"], **query}
        found = await api.data("POST", "/message/query", json=body)
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

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
            sent_at=_seconds(data.get("dateCreated")), addressed=addressed,
        )  # fmt: skip
        if not updated:
            return event
        if not data.get("dateEdited"):
            return None  # delivered, read
        return Revision(id=f"edit:{guid}:{data['dateEdited']}", revises=guid, event=event)

    def _sender(self, address: str, handle: Any, chat: Chat) -> Sender:
        """The author. Apple proves addresses of iMessage; a Mac also relays SMS and RCS, whose numbers can be forged."""
        who = canonical(address)
        told = {str(handle.get("service") or ""), chat.chat_id.partition(";")[0]} - {"", "any"}
        if self.setting("trust_numbers") or {one.lower() for one in told} == {"imessage"}:
            return Sender(user_id=who, name=address, proven=True)
        return Sender(user_id=who, stable_id=f"unproven:{who}", name=address, proven=False)

    def _chat(self, data: dict[str, Any]) -> Chat | None:
        chats = data.get("chats")
        found = next((one for one in chats if isinstance(one, dict)), {}) if isinstance(chats, list) else {}
        guid = str(found.get("guid") or "")
        if not guid:
            return None
        name = str(found.get("displayName") or "") or None
        return Chat(platform=self.platform, chat_id=guid, type=GROUP if ";+;" in guid else DM, name=name)

    def _noted(self) -> int | None:
        try:
            return int(json.loads(self._state.read_text())["since"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _note(self, moment: Any) -> None:
        """Record that everything up to a moment of the server is stored. An older one costs only repetitions."""
        if isinstance(moment, bool) or not isinstance(moment, int) or moment <= (self._noted() or 0):
            return
        self._state.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._state, json.dumps({"since": moment}), sync=False)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file."""
        guid = quote(str(attachment.reference.get("guid")), safe="")
        return (await self._asked().request("GET", f"/attachment/{guid}/download")).content

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message; its guid."""
        body = {"chatGuid": chat.chat_id, "tempGuid": nonce, "message": markup.marked(text, _LAYOUT).text or text}
        body["method"] = "private-api" if self._private else "apple-script"
        if reply_to is not None and self._private:
            body["selectedMessageGuid"] = reply_to
        return _guid(await self._asked().data("POST", "/message/text", json=body), nonce)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Send a file; its guid."""
        form = {"chatGuid": chat.chat_id, "tempGuid": nonce, "name": file.name}
        form["method"] = "private-api" if self._private else "apple-script"
        upload = {"attachment": (file.name, file.data, file.mime or "application/octet-stream")}
        return _guid(await self._asked().data("POST", "/message/attachment", data=form, files=upload), nonce)

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written, where the server can."""
        if self._private:
            await self._asked().data("POST", f"/chat/{quote(chat.chat_id, safe='')}/typing")

    def _asked(self) -> _BlueBubblesApi:
        if self._api is None:
            raise PlatformUnreachable("not connected to BlueBubbles")
        return self._api


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
        """As usual; iMessage's own refusals come as server errors, and a retry would not help."""
        if answer.status_code >= 500 and _error(answer).get("type") == "iMessage Error":
            raise self.failure(answer)
        super().check(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error with the server's own words."""
        if answer.status_code in (401, 403):
            return PlatformRefused("BlueBubbles does not accept the password")
        told = error_text(_error(answer).get("message") or f"HTTP {answer.status_code}", *self.secrets)
        if "already queued" in told:  # our earlier request with this id still runs
            return PlatformUnreachable("BlueBubbles is still sending the message", maybe_sent=True)
        return SendRefused(f"BlueBubbles refuses: {told}")


def _error(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


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
    listed = data.get("attachments")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and one.get("guid") and not one.get("hideAttachment"):
            mime, size = str(one.get("mimeType") or "") or None, one.get("totalBytes")
            found.append(
                Attachment(
                    kind=attachment_kind(mime), name=str(one.get("transferName") or "") or None, mime=mime,
                    size=size if isinstance(size, int) and not isinstance(size, bool) else None,
                    reference={"guid": str(one["guid"])},
                )
            )  # fmt: skip
    return tuple(found)


def _seconds(value: Any) -> float | None:
    return value / 1000 if isinstance(value, int | float) and not isinstance(value, bool) else None

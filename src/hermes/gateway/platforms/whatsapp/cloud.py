"""A business number by Meta's Cloud API: its webhook brings messages, the Graph API sends them, with its error codes as ours.

https://developers.facebook.com/documentation/business-messaging/whatsapp
https://developers.facebook.com/documentation/business-messaging/whatsapp/support/error-codes
A person may be written to freely for 24 hours after their last message; after that only by a template that Meta has approved.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Link, ReplyContext
from hermes.gateway.events import GROUP, Attachment, Chat, Choice, Event, OutgoingFile
from hermes.gateway.platforms._shared.http import HttpApi, error_text, is_at, retry_after
from hermes.gateway.platforms._shared.receipt import dict_of, hand_over, parsed, read_object
from hermes.gateway.platforms._shared.tasks import Recent, SentMessages
from hermes.gateway.platforms.whatsapp.adapter import BUSINESS_SCOPED, WhatsApp, formatted, one_line

if TYPE_CHECKING:
    from hermes.gateway.platforms._shared.listener import PlatformRequest, PlatformResponse
    from hermes.gateway.platforms.whatsapp.adapter import DeliveryReader, Failed

_LOGIN = frozenset({0, 190})
_RIGHTS = frozenset({3, 10, 368, 131031, *range(200, 300)})
_SLOW = frozenset({4, 80007, 130429, 131048, 131056, 133016})
_FOR_NOW = frozenset({1, 2, 131000, 131016, 131057, 133004})
_WINDOW = frozenset({470, 131047})
_PARAMETERS = frozenset({100, 131009})
_LONGEST_PAUSE = 64.0
_MEDIA_HOSTS = (".fbsbx.com", ".facebook.com", ".fbcdn.net", ".whatsapp.net")
_HEX = re.compile(r"[0-9a-fA-F]{64}")


class WindowClosed(SendRefused):
    """More than 24 hours have passed since the person last wrote: only a template may be sent."""


class WrongParameter(SendRefused):
    """Something in the request is not accepted, perhaps the message that it quotes."""


def is_window(code: Any) -> bool:
    """Whether an error code says that the 24-hour window is closed."""
    return isinstance(code, int) and code in _WINDOW


class GraphApi(HttpApi):
    """One business number's API."""

    def __init__(self, base_url: str, token: str, version: str) -> None:
        super().__init__("WhatsApp", base_url, headers={"Authorization": f"Bearer {token}"}, timeout=40)
        self._token, self._version = token, version.strip("/")
        self._refusals = 0  # "wait" in a row: each wait is four times as long, as Meta asks

    async def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The answer of a request as an object."""
        found = await self.object(method, f"/{self._version}/{path}", **options)
        self._refusals = 0
        return found

    def check(self, answer: httpx.Response) -> None:
        """Raise the error of an unsuccessful answer: the code in it says more than its status."""
        if answer.status_code >= 300:
            raise self.failure(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error by Meta's own code."""
        found = dict_of(parsed(answer.content).get("error"))
        code = found["code"] if isinstance(found.get("code"), int) else None
        details = dict_of(found.get("error_data")).get("details")
        text = error_text(details or found.get("message") or "", self._token)
        why = f"WhatsApp refuses: {text or f'HTTP {answer.status_code}'}" + (f" (code {code})" if code else "")
        if code in _SLOW or answer.status_code == 429:
            self._refusals += 1
            wait = min(_LONGEST_PAUSE, 4.0 ** (self._refusals - 1))
            return SlowDown(f"WhatsApp asks us to wait (code {code})", retry_after(answer.headers, wait))
        if code in _FOR_NOW or answer.status_code >= 500:
            return PlatformUnreachable(
                f"WhatsApp answers HTTP {answer.status_code}" + (f" (code {code})" if code else "")
            )
        if code in _LOGIN or answer.status_code == 401:
            return PlatformRefused(
                "WhatsApp does not accept access_token: it has expired or was revoked; make one for a system user, which lasts"
            )
        if code in _RIGHTS or answer.status_code == 403:
            return PlatformRefused(why)
        if code in _WINDOW:
            return WindowClosed("more than 24 hours have passed since this person last wrote (code 131047)")
        return WrongParameter(why) if code in _PARAMETERS else SendRefused(why)

    async def media(self, media_id: str, number_id: str) -> bytes:
        """The bytes of a file that a person sent. Its address is valid for five minutes, so it is always requested again."""
        try:
            found = await self.call("GET", quote(media_id, safe=""), params={"phone_number_id": number_id})
        except SendRefused as error:
            raise SendRefused(f"the file is no longer at WhatsApp ({error})") from None
        address = str(found.get("url") or "")
        data = (await self.download(address, what="the file", trusted=self._is_trusted)).content
        digest = found.get("sha256")
        if isinstance(digest, str) and _HEX.fullmatch(digest) and hashlib.sha256(data).hexdigest() != digest.lower():
            raise PlatformUnreachable("the file did not arrive whole from WhatsApp")
        return data

    def _is_trusted(self, address: str) -> bool:
        """Whether our token may be sent there."""
        return is_at(address, _MEDIA_HOSTS, self.base_url)


_BUTTONS, _BUTTON_TITLE, _BUTTON_TEXT = 3, 20, 1024
_ROW_TITLE, _ROW_MORE = 24, 72
_TEMPLATE_TEXT = 900  # characters of a template's variable: its text and its variables have 1,024 together
_TYPING = 20.0  # seconds; it is shown for 25
_PICTURES = ("image/jpeg", "image/png")
_SOUNDS = ("audio/aac", "audio/amr", "audio/mpeg", "audio/mp4", "audio/ogg")
_FILMS = ("video/mp4", "video/3gpp")
_OFFICE = "application/vnd.openxmlformats-officedocument"
_DOCUMENTS = (
    "text/plain", "application/pdf", "application/msword", "application/vnd.ms-excel", "application/vnd.ms-powerpoint",
    f"{_OFFICE}.wordprocessingml.document", f"{_OFFICE}.spreadsheetml.sheet", f"{_OFFICE}.presentationml.presentation",
)  # fmt: skip
_LARGEST = {"image": 5_000_000, "audio": 16_000_000, "video": 16_000_000}


class CloudNumber(WhatsApp[GraphApi]):
    """One number of the Cloud API."""

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._link: Link | None = None
        self._reader: DeliveryReader | None = None
        self._number_id = self.text("phone_number_id")
        self._newest: Recent[str, str] = Recent()  # chat → the newest message there
        self._typed: Recent[str, tuple[str, float]] = Recent()
        self._sent: SentMessages[tuple[Chat, str]] = SentMessages(500)  # what may still turn out to be undelivered
        self._done: Recent[str, int] = Recent(500)  # nonce → how many of its several requests were sent

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse settings that can't work."""
        super().validate()
        needed = ("phone_number_id", "access_token", "app_secret", "verify_token")
        missing = [name for name in needed if not self.text(name)]
        if missing:
            raise PlatformRefused(
                f"{self.connection_name}: {', '.join(missing)} missing: the Cloud API needs them (or set mode: bridge)"
            )
        if not self._number_id.isdecimal():
            raise PlatformRefused(
                f"{self.connection_name}: phone_number_id is a number's id in Meta's console, as 106540352242922, "
                f"not {self._number_id!r}"
            )

    async def check(self) -> str:
        """Log in and say which number we are."""
        self.validate()
        async with self.make_api() as api:
            found = await api.call("GET", self._number_id, params={"fields": "display_phone_number,verified_name"})
            return str(found.get("display_phone_number") or self._number_id)

    async def begin(self, link: Link, api: GraphApi) -> None:
        """Log in and register the webhook."""
        from hermes.gateway.platforms.whatsapp.adapter import DeliveryReader

        self._link = link
        identity = await self.check()
        self._reader = self._reader or DeliveryReader(self._number_id, self.home)
        self.closing(await self.listen(link, self._called, methods=("GET", "POST"), signed=self._is_meta, seconds=10))
        link.connected(identity)

    def make_api(self) -> GraphApi:
        """The Graph API, with our token."""
        return GraphApi(self.text("base_url"), self.text("access_token"), self.text("api_version"))

    # ------------------------------------------------------------------------------------------ receiving

    def _is_meta(self, call: PlatformRequest) -> bool:
        from hermes.gateway.platforms._shared.listener import is_signed

        if call.method == "GET":
            token, wanted = call.query.get("hub.verify_token", ""), self.text("verify_token")
            return call.query.get("hub.mode") == "subscribe" and hmac.compare_digest(token.encode(), wanted.encode())
        return is_signed(self.text("app_secret"), call.body, call.headers.get("X-Hub-Signature-256", ""))

    async def _called(self, call: PlatformRequest) -> int | PlatformResponse:
        """Answer the console's verification, or store everything in a delivery."""
        from hermes.gateway.platforms._shared.listener import PlatformResponse

        link, reader = self._link, self._reader
        if call.method == "GET":
            return PlatformResponse(body=call.query.get("hub.challenge", ""))
        if link is None or reader is None:
            return 503
        payload = read_object(call.body, "WhatsApp", link.log)
        if payload is None:
            return 200
        found = reader.read(payload)
        for item in found.items:
            await hand_over(link, item)
            if isinstance(item, Event) and item.message_id:
                self._newest.put(item.chat.chat_id, item.message_id)
        for failure in found.failed:
            await self._undelivered(failure, link)
        for note in found.notes:
            link.log.warning("%s", note)
        for problem in found.problems:
            link.log.warning("%s", problem)
            link.troubled(problem)
        return 200

    async def _undelivered(self, failure: Failed, link: Link) -> None:
        """A message that was accepted has failed. Outside the 24 hours it is sent by the template, if there is one.

        While the template can't be sent this raises: then Meta reports the failure again.
        """
        known = await self._sent.find(failure.message_id) if is_window(failure.code) else None
        self._sent.pop(failure.message_id, None)
        why = f"a message to {failure.person or 'someone'} was not delivered: {failure.why}"
        if known is not None and is_window(failure.code) and self.text("template"):
            chat, text = known
            try:
                await self._by_template(chat, text, nonce=failure.message_id)
                return
            except SendRefused as error:
                why = f"{why}; nor by the template: {error}"
            except BaseException:
                self._sent.put(failure.message_id, known)
                raise
        elif is_window(failure.code):
            why = f"{why}; {_NO_TEMPLATE}"
        link.log.warning("%s", why)
        link.troubled(why)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file that a person sent."""
        return await self.api.media(str(attachment.reference.get("id")), self._number_id)

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a text; its id. Outside the 24 hours by the template."""
        body = formatted(text)
        content = {"type": "text", "text": {"body": body, "preview_url": False}}
        return await self._window(chat, text, content, nonce, reply_to)

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None,
        context: ReplyContext | None = None,
    ) -> str:  # fmt: skip
        """Send a text with buttons, or with a list where there are many or their labels are long."""
        body, labels = formatted(text), [one.label.strip() for one in choices]
        if len(set(labels)) < len(labels) or not all(labels):
            return await self.send(chat, text, nonce=nonce, reply_to=reply_to)
        action: dict[str, Any]
        if len(choices) <= _BUTTONS and max(map(len, labels)) <= _BUTTON_TITLE and len(body) <= _BUTTON_TEXT:
            kind = "button"
            action = {
                "buttons": [
                    {"type": "reply", "reply": {"id": one.says, "title": label}}
                    for one, label in zip(choices, labels, strict=True)
                ]
            }
        else:
            kind = "list"
            rows = [{"id": one.says, **_row(label)} for one, label in zip(choices, labels, strict=True)]
            action = {"button": "Choose", "sections": [{"title": "Choose", "rows": rows}]}
        content = {"type": "interactive", "interactive": {"type": kind, "body": {"text": body}, "action": action}}
        return await self._window(chat, text, content, nonce, reply_to)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a file and send it: as a picture, sound or film where WhatsApp shows it, else as a document."""
        api, kind, mime = self.api, _kind(file), file.mime.partition(";")[0].strip()
        if kind == "audio" and caption and not self._done.get(nonce):  # which has no caption
            await self._post(chat, {"type": "text", "text": {"body": formatted(caption), "preview_url": False}})
            self._done.put(nonce, 1)
        if kind == "document" and mime not in _DOCUMENTS:
            mime = "text/plain"  # Meta refuses an upload of any other type; people see the document by its name
        uploaded = await api.call(
            "POST", f"{self._number_id}/media", data={"messaging_product": "whatsapp", "type": mime},
            files={"file": (file.name, file.data, mime)},
        )  # fmt: skip
        inside: dict[str, Any] = {"id": str(uploaded.get("id"))}
        if kind == "document":
            inside["filename"] = file.name
        if caption and kind != "audio":
            inside["caption"] = formatted(caption, self.capabilities.longest_caption)
        try:
            return await self._post(chat, {"type": kind, kind: inside})
        except WindowClosed as error:
            raise SendRefused(f"{error}, and a template can't carry a file") from None

    async def typing(self, chat: Chat) -> None:
        """Mark the newest message there as read, and show for 25 seconds that a reply is being written."""
        message, now = self._newest.get(chat.chat_id), time.monotonic()
        before = self._typed.get(chat.chat_id)
        if message is None or (before is not None and before[0] == message and now - before[1] < _TYPING):
            return
        self._typed.put(chat.chat_id, (message, now))
        body = {"status": "read", "message_id": message, "typing_indicator": {"type": "text"}}
        await self.api.call("POST", f"{self._number_id}/messages", json={"messaging_product": "whatsapp", **body})

    async def _window(self, chat: Chat, text: str, content: dict[str, Any], nonce: str, reply_to: str | None) -> str:
        """Send something that is allowed within the 24 hours alone; after them its text by the template."""
        quote = {"context": {"message_id": reply_to}} if reply_to and reply_to.startswith("wamid.") else {}
        try:
            with self._sent.sending():
                try:
                    number = await self._post(chat, {**content, **quote})
                except WrongParameter:
                    if not quote:
                        raise
                    number = await self._post(chat, content)  # the quoted message is too old, or gone
                self._sent.put(number, (chat, text))
        except WindowClosed as error:
            if not self.text("template"):
                raise SendRefused(f"{error}; {_NO_TEMPLATE}") from None
            return await self._by_template(chat, text, nonce=nonce)
        if self._reader is not None:
            self._reader.texts.put(number, text[:300])
        return number

    async def _by_template(self, chat: Chat, text: str, *, nonce: str) -> str:
        """Send a text as the variable of the configured template; a long one as several. The id of the last."""
        plain, number = one_line(text), ""
        parts = [plain[at : at + _TEMPLATE_TEXT] for at in range(0, len(plain), _TEMPLATE_TEXT)]
        if not parts:
            raise SendRefused("a text without visible letters can't be sent by a template")
        for place, part in enumerate(parts):
            if place < (self._done.get(nonce) or 0) and place < len(parts) - 1:
                continue  # sent before the last try broke
            body = {"type": "body", "parameters": [{"type": "text", "text": part}]}
            template = {
                "name": self.text("template"), "language": {"code": self.text("template_language")},
                "components": [body],
            }  # fmt: skip
            number = await self._post(chat, {"type": "template", "template": template})
            self._done.put(nonce, place + 1)
        return number

    async def _post(self, chat: Chat, content: dict[str, Any]) -> str:
        """Send one message; its id."""
        to = {"to": chat.chat_id, "recipient_type": "group" if chat.type == GROUP else "individual"}
        if chat.type != GROUP and BUSINESS_SCOPED.fullmatch(chat.chat_id):
            to = {"recipient": chat.chat_id, "recipient_type": "individual"}
        body = {"messaging_product": "whatsapp", **to, **content}
        found = await self.api.call("POST", f"{self._number_id}/messages", json=body)
        try:
            return str(found["messages"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise PlatformUnreachable("WhatsApp did not say which message was sent", maybe_sent=True) from None


_NO_TEMPLATE = (
    "they must write first, or configure a template that Meta has approved (platforms.whatsapp.template in config.yaml)"
)


def _row(label: str) -> dict[str, str]:
    """A row of a list: a long label continues in its description."""
    if len(label) <= _ROW_TITLE:
        return {"title": label}
    return {"title": label[: _ROW_TITLE - 1] + "…", "description": label[:_ROW_MORE]}


def _kind(file: OutgoingFile) -> str:
    """The kind of message in which WhatsApp takes a file."""
    mime = file.mime.partition(";")[0].strip().lower()
    for kind, known in (("image", _PICTURES), ("audio", _SOUNDS), ("video", _FILMS)):
        if mime in known and len(file.data) <= _LARGEST[kind]:
            return kind
    return "document"

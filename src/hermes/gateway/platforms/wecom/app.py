"""An app of an organisation: WeCom calls our webhook for each message, and takes messages by its HTTP API.

https://developer.work.weixin.qq.com/document/path/90238
Callbacks are signed and encrypted (https://developer.work.weixin.qq.com/document/path/90968): 16 random bytes, the length of the
message, the message, and the id of its receiver. The signature is checked on the bytes, before anything is parsed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import mimetypes
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

import httpx

from hermes.errors import PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext
from hermes.gateway.events import Attachment, Chat, Event, Forwarded, OutgoingFile, Sender
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import (
    AccessToken,
    HttpApi,
    TokenRefused,
    attachment,
    error_text,
    json_object,
)
from hermes.gateway.platforms._shared.receipt import moment_of
from hermes.gateway.platforms.wecom.adapter import KINDS, WeCom, decrypted, key_of, length, media_kind

if TYPE_CHECKING:
    from hermes.gateway.platforms._shared.listener import PlatformRequest, PlatformResponse

LONGEST = 2048  # bytes of a text
_LAYOUT = markup.Layout(bullet="- ")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]+={0,2}")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")
SECONDS = 5.0  # WeCom waits so long, and sends a callback three times
_NEEDED = ("corp_id", "agent_id", "corp_secret", "token", "encoding_aes_key")
_STALE = frozenset({40014, 42001, 40001})
_LIMITS = frozenset({45009, 45011, 45033})
_PAUSE = 5.0


class App(WeCom["AppApi"]):
    """An app: its webhook and its API."""

    capabilities = Capabilities(longest=1_900, measure=length, media=True, files=True)  # a text has 2,048 bytes at most
    needed = _NEEDED

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._corp_id, self._agent_id, self._corp_secret, self._token, self._aes_key = map(self.text, _NEEDED)

    def validate(self) -> None:
        """Refuse half an app, and what can't be a key."""
        super().validate()
        try:
            key_of(self._aes_key)
        except ValueError:
            problem = "wecom: encoding_aes_key must have the 43 characters that the console shows"
            raise PlatformRefused(problem) from None

    def doubts(self) -> str | None:
        """An app needs an address that WeCom can reach."""
        if self.webhook_address is None:
            return "gateway.listen.public_url is not set: WeCom must be able to call the gateway"
        return None

    async def check(self) -> str:
        """Log in and say which app we are."""
        async with self.make_api() as api:
            await api.login()
            return self._identity

    async def begin(self, link: Link, api: AppApi) -> None:
        """Log in and register the webhook."""
        await api.login()

        async def called(call: PlatformRequest) -> int | PlatformResponse:
            return await self._called(link, call)

        methods = ("GET", "POST")
        self.closing(await self.listen(link, called, methods=methods, signed=self._is_wecom, seconds=SECONDS - 0.5))
        link.connected(self._identity)
        self._tasks.start(self._keeper.restore(link), name="wecom")

    @property
    def _identity(self) -> str:
        return f"{self._corp_id}/{self._agent_id}"

    def make_api(self) -> AppApi:
        """The API, with our login."""
        return AppApi(self.text("base_url"), self._corp_id, self._corp_secret)

    # ------------------------------------------------------------------------------------------ receiving

    def _is_wecom(self, call: PlatformRequest) -> bool:
        from hermes.gateway.platforms._shared.listener import in_window

        encrypted, query = _encrypted(call), call.query
        if encrypted is None or not in_window(query.get("timestamp")):
            return False
        parts = (query.get("msg_signature", ""), query.get("timestamp", ""), query.get("nonce", ""))
        return is_signed(parts[0], self._token, parts[1], parts[2], encrypted)

    async def _called(self, link: Link, call: PlatformRequest) -> int | PlatformResponse:
        from hermes.gateway.platforms._shared.listener import PlatformResponse

        try:
            content = opened(_encrypted(call) or "", key_of(self._aes_key), self._corp_id)
            if call.method == "GET":  # WeCom tries the address when it is saved in the console
                return PlatformResponse(body=content)
            fields = fields_of(content)
        except ValueError as error:
            why = f"a callback of WeCom can't be read ({error}); check encoding_aes_key and corp_id"
            link.log.error("%s", why)
            link.troubled(why)
            return 400
        if fields.get("AgentID", self._agent_id) != self._agent_id:
            link.log.warning("a callback of WeCom is for another app (%s)", error_text(fields["AgentID"]))
            return 200
        event = app_event(fields)
        if event is not None:
            await self._keeper.keep(link, event)  # WeCom gives up after three tries
        elif fields.get("MsgType") != "event":
            link.log.warning("a message of WeCom can't be read: it has no id or author")
        return 200

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message."""
        return await self._sent(chat, "text", {"content": plain(text)})

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a file and send it."""
        kind = media_kind(file)
        upload = {"media": (file.name, file.data, file.mime or "application/octet-stream")}
        found = await self.api.call("POST", "/cgi-bin/media/upload", {"type": kind}, files=upload)
        if not isinstance(media := found.get("media_id"), str):
            raise PlatformUnreachable("WeCom did not take the file")
        return await self._sent(chat, kind, {"media_id": media})

    async def _sent(self, chat: Chat, kind: str, content: dict[str, Any]) -> str:
        agent = int(self._agent_id) if self._agent_id.isdecimal() else self._agent_id
        body = {"touser": chat.chat_id, "msgtype": kind, "agentid": agent, kind: content}
        found = await self.api.call("POST", "/cgi-bin/message/send", json=body)
        if chat.chat_id.lower() in str(found.get("invaliduser") or "").lower().split("|"):
            raise SendRefused(f"{chat.chat_id} is not a member of the organisation, or may not use the app")
        return str(found.get("msgid") or "")

    async def fetch(self, attachment: Attachment) -> bytes:
        """Download a file, which WeCom keeps for three days."""
        return await self.api.media(str(attachment.reference.get("media_id")))


def plain(text: str) -> str:
    """A text for an app, without marks: people who read it in WeChat see no Markdown."""
    found = markup.marked(text, _LAYOUT).text or text
    return found if len(found.encode("utf-8", "surrogatepass")) <= LONGEST else text


class AppApi(HttpApi):
    """WeCom's HTTP API with an access token that is renewed in time."""

    def __init__(self, base_url: str, corp_id: str, corp_secret: str) -> None:
        super().__init__("WeCom", base_url, timeout=40)
        self._login = {"corpid": corp_id, "corpsecret": corp_secret}
        self._token = AccessToken(self._fetch, refusal="WeCom does not accept a new access token: {}")

    async def login(self) -> None:
        """Get a token; PlatformRefused where the organisation's id or the app's secret is wrong."""
        await self._token.get()

    async def _fetch(self) -> tuple[str, float]:
        found = _object(await self.request("GET", "/cgi-bin/gettoken", params=self._login))
        try:
            self._passed(found)
            return str(found["access_token"]), float(found.get("expires_in") or 7200)
        except (SendRefused, TokenRefused) as error:
            raise PlatformRefused(f"WeCom does not accept corp_id and corp_secret: {error}") from None
        except (KeyError, TypeError, ValueError):
            raise PlatformUnreachable("WeCom gave no access token") from None

    async def call(self, method: str, path: str, query: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
        """The object that the API answers; once more with a new token if the old one has ended."""
        return _object(await self._answer(method, path, query or {}, **options))

    async def media(self, media_id: str) -> bytes:
        """The bytes of a file."""
        answer = await self._answer("GET", "/cgi-bin/media/get", {"media_id": media_id})
        return answer.content

    async def _answer(self, method: str, path: str, query: dict[str, str], **options: Any) -> httpx.Response:
        async def attempt(token: str) -> httpx.Response:
            answer = await self.request(method, path, params={"access_token": token, **query}, **options)
            if "Content-Disposition" not in answer.headers and (found := json_object(answer)) is not None:
                self._passed(found)  # not a file
            return answer

        return await self._token.call(attempt)

    def _passed(self, found: dict[str, Any]) -> None:
        """Raise the error of an answer's errcode."""
        code = found.get("errcode", 0)
        if code == 0:
            return
        code = code if isinstance(code, int) else None
        reason = error_text(found.get("errmsg") or f"errcode {code}", self._login["corpsecret"])
        if code in _STALE:
            raise TokenRefused(reason)
        if code in _LIMITS:
            raise SlowDown("WeCom asks us to wait", _PAUSE)
        if code == -1:
            raise PlatformUnreachable("WeCom is busy")
        if code == 60020:
            raise PlatformRefused(
                "WeCom takes no requests from this machine's address; add it to the app's trusted IPs"
            )
        raise SendRefused(f"WeCom refuses: {reason}")


def _encrypted(call: PlatformRequest) -> str | None:
    if call.method == "GET":
        return call.query.get("echostr", "").replace(" ", "+") or None
    return encrypted_part(call.body)


def _object(answer: httpx.Response) -> dict[str, Any]:
    found = json_object(answer)
    if found is None:
        raise PlatformUnreachable("WeCom's answer can't be read", maybe_sent=True)
    return found


# ------------------------------------------------------------------------------------------ callbacks

Fields = dict[str, str]


def signature(token: str, timestamp: str, nonce: str, encrypted: str) -> str:
    """The signature of a callback."""
    return hashlib.sha1("".join(sorted([token, timestamp, nonce, encrypted])).encode()).hexdigest()


def is_signed(presented: str, token: str, timestamp: str, nonce: str, encrypted: str) -> bool:
    """Whether this is the signature of a callback; takes the same time either way."""
    wanted = signature(token, timestamp, nonce, encrypted)
    return hmac.compare_digest(presented.encode("utf-8", "replace"), wanted.encode())


def opened(encrypted: str, key: bytes, receiver: str) -> bytes:
    """The message of a callback for this receiver. ValueError where it can't be decrypted, or is for another one."""
    try:
        data = base64.b64decode(encrypted, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not Base64") from None
    plain = decrypted(data, key)
    if len(plain) < 20:
        raise ValueError("too short")
    (length,) = struct.unpack(">I", plain[16:20])
    if 20 + length > len(plain):
        raise ValueError("shorter than it says")
    if not hmac.compare_digest(plain[20 + length :], receiver.encode()):
        raise ValueError("for another receiver")
    return plain[20 : 20 + length]


def encrypted_part(body: bytes) -> str | None:
    """The encrypted part of a callback, found without parsing: its signature is checked first."""
    _, begins, rest = body.partition(b"<Encrypt>")
    inner, ends, _ = rest.partition(b"</Encrypt>")
    inner = inner.strip().removeprefix(b"<![CDATA[").removesuffix(b"]]>").strip()
    return inner.decode("ascii") if begins and ends and _BASE64.fullmatch(inner) else None


def fields_of(data: bytes) -> Fields:
    """The fields of a decrypted callback. ValueError where it is no XML, or declares a document type (and so entities)."""
    fields: Fields = {}
    path: list[str] = []

    def start(name: str, _: object) -> None:
        path.append(name)
        if len(path) == 2:
            fields[name] = ""

    def end(_: str) -> None:
        path.pop()

    def words(text: str) -> None:
        if len(path) >= 2:
            fields[path[1]] += text

    def refuse(*_: object) -> None:
        raise ValueError("a document type is not accepted")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, words
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(_CONTROL.sub("", data.decode("utf-8")), True)
    except expat.ExpatError as error:
        raise ValueError(f"not XML: {expat.errors.messages[error.code]}") from None
    return fields


def app_event(fields: Fields) -> Event | None:
    """A message to an app; None for events, and where it has no id or author."""
    number, user_id, kind = fields.get("MsgId", ""), fields.get("FromUserName", ""), fields.get("MsgType", "")
    if not number or not user_id or kind == "event":
        return None
    text, forwarded = "", None
    attachments: tuple[Attachment, ...] = ()
    if kind == "text":
        text = fields.get("Content", "").strip()
    elif kind in KINDS and fields.get("MediaId"):
        attachments = (_app_file(kind, fields),)
    elif kind == "link":
        card = (fields.get(one, "") for one in ("Title", "Description", "Url"))
        forwarded = Forwarded(text="\n".join(filter(None, card)))  # the words of the page
    elif kind == "location":
        place = fields.get("Label", "")
        text = f"[Location] {place} ({fields.get('Location_X', '')}, {fields.get('Location_Y', '')})"
    else:
        text = f"[{kind or 'a message'} that can't be read here]"
    return Event(
        id=number,
        chat=Chat(platform="wecom", chat_id=user_id),
        sender=Sender(user_id=user_id, name=user_id, proven=True),  # … and signed the callback (client.py)
        text=text,
        attachments=attachments,
        message_id=number,
        forwarded=forwarded,
        sent_at=moment_of(fields.get("CreateTime"), 1),
    )


def _app_file(kind: str, fields: Fields) -> Attachment:
    name = fields.get("FileName") or None
    mime = mimetypes.guess_type(name)[0] if name else None
    mime = mime or {"voice": "audio/amr", "video": "video/mp4", "shortvideo": "video/mp4"}.get(kind)
    return attachment(name, mime, kind=KINDS[kind], media_id=fields["MediaId"])

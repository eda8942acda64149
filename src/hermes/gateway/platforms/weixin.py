"""WeChat, by Tencent's iLink API for bots of personal accounts, polled.

https://github.com/Tencent/openclaw-weixin/blob/main/docs/protocol.md
A reply needs the context token of a message that it answers. The newest one of each person is kept besides the place in the
stream of messages, so that messages that answer nothing can be sent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import mimetypes
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from hermes.errors import HermesError, PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import Attachment, Chat, Event, OutgoingFile, Sender
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import HttpApi, attachment_kind, checked_address, error_text, is_at
from hermes.gateway.platforms._shared.receipt import MarkFile, dict_of, dicts_of, keep, moment_of, put_last, text_of
from hermes.gateway.platforms._shared.tasks import ApiAdapter, Recent, Retries, loss_reported

EXPIRED, TOO_OFTEN = -14, -2  # codes; the second is not in the vendor's documents
LOGIN_AGAIN = "WeChat's session has expired; log in again with `hermes gateway setup weixin`"
_BOT_TYPE = "3"
_VERSION = "2.4.8"  # of the protocol; as a header it has a byte for each of its numbers
_ABOUT = {"iLink-App-Id": "bot", "iLink-App-ClientVersion": str(2 << 16 | 4 << 8 | 8)}
_POLL = 35.0  # seconds that a long poll takes if the server does not say
_CODE_LASTS = 480.0  # seconds after which a QR code is abandoned; the server says earlier that it has expired
_CODES = 3  # QR codes shown before a login is abandoned
BLOCK = 16  # bytes of a key, and of what is encrypted at once
_DOMAINS = (".qq.com", ".wechat.com")


class Refused(SendRefused):
    """A request that the server refuses by a code of its own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"WeChat refuses: {text or f'code {code}'}")
        self.code = code


class ILink(HttpApi):
    """The API for one bot account; without a token for the login alone."""

    def __init__(self, base_url: str, *, token: str = "", cdn_url: str = "") -> None:
        super().__init__("WeChat", base_url.rstrip("/"), timeout=20)
        self._base, self._token, self._cdn = base_url.rstrip("/"), token, cdn_url.rstrip("/")
        self._poll = _POLL

    async def call(self, name: str, *, seconds: float = 20.0, **body: Any) -> dict[str, Any]:
        """The answer of an operation of the bot, such as "sendmessage"; the error for a code that is not 0."""
        info = {"channel_version": _VERSION, "bot_agent": "Hermes"}
        headers = {**self._posting(), "Authorization": f"Bearer {self._token}"}
        answer = await self.request(
            "POST", f"/ilink/bot/{name}", json={**body, "base_info": info}, headers=headers, timeout=seconds
        )
        return _successful(answer)

    async def updates(self, buffer: str) -> dict[str, Any]:
        """Long-poll for updates; an empty answer after the timeout."""
        try:
            async with asyncio.timeout(self._poll + 10):
                found = await self.call("getupdates", seconds=self._poll + 15, get_updates_buf=buffer)
        except TimeoutError:
            return {}
        except Refused as error:
            raise PlatformUnreachable(str(error)) from None
        wait = found.get("longpolling_timeout_ms")
        if isinstance(wait, int | float) and not isinstance(wait, bool) and 1_000 <= wait <= 120_000:
            self._poll = wait / 1000
        return found

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error for an answer of 300 to 499."""
        if answer.status_code in (401, 403):
            return PlatformRefused(LOGIN_AGAIN)
        return SendRefused(f"WeChat refuses (HTTP {answer.status_code})")

    def _posting(self) -> dict[str, str]:
        number = base64.b64encode(str(secrets.randbits(32)).encode()).decode()
        return {**_ABOUT, "AuthorizationType": "ilink_bot_token", "X-WECHAT-UIN": number}

    # ------------------------------------------------------------------------------------------ logging in

    async def log_in(self, show: Callable[[str], None], ask: Callable[[str], str], known: str = "") -> dict[str, Any]:
        """Show links to QR codes until one is confirmed; what the server gives then. {} if it says that `known` is still good."""
        for _ in range(_CODES):
            body = {"local_token_list": [known] if known else []}
            path = f"/ilink/bot/get_bot_qrcode?bot_type={_BOT_TYPE}"
            code = _successful(await self.request("POST", path, json=body, headers=self._posting()))
            name, content = code.get("qrcode"), code.get("qrcode_img_content")
            if not isinstance(name, str) or not name or not isinstance(content, str) or not content:
                raise PlatformRefused("WeChat has given no QR code; try again later")
            show(
                f"Open this link on a screen, scan the QR code there with WeChat on your phone, and confirm:\n{content}"
            )
            if (found := await self._confirmed(name, show, ask)) is not None:
                return found
            show("The QR code has expired; here is a new one.")
        raise PlatformRefused("no QR code was confirmed in time")

    async def _confirmed(
        self, code: str, show: Callable[[str], None], ask: Callable[[str], str]
    ) -> dict[str, Any] | None:
        """Wait until a code is confirmed; None when it has expired."""
        base, verification, seen = self._base, "", ""
        end = time.monotonic() + _CODE_LASTS
        while time.monotonic() < end:
            query = {"qrcode": code, **({"verify_code": verification} if verification else {})}
            found: dict[str, Any] = {}
            with suppress(PlatformUnreachable, SlowDown):  # as if nothing had happened yet
                address = f"{base}/ilink/bot/get_qrcode_status"
                found = _successful(await self.request("GET", address, params=query, headers=_ABOUT, timeout=_POLL + 5))
            status = str(found.get("status") or "wait")
            if status == "confirmed":
                return found
            if status == "binded_redirect":
                return {}
            if status in ("expired", "verify_code_blocked"):
                return None
            if status == "scaned" and seen != status:
                show("Scanned. Now confirm it on the phone.")
            if status == "scaned_but_redirect":
                base = self._redirected(str(found.get("redirect_host") or ""), base)
            if status == "need_verifycode":
                verification = await asyncio.to_thread(ask, "The code that WeChat shows on the phone: ")
            seen = status
            await asyncio.sleep(0.5 if found else 2.0)
        return None

    def _redirected(self, host: str, base: str) -> str:
        return f"https://{host}" if host and self.is_tencents(f"https://{host}") else base

    # ------------------------------------------------------------------------------------------ files

    def is_tencents(self, address: str) -> bool:
        """Whether an address is Tencent's, or one of those in config.yaml."""
        return is_at(address, _DOMAINS, self._base, self._cdn)

    async def file(self, url: str, param: str) -> bytes:
        """A file's encrypted bytes."""
        address = url or f"{self._cdn}/download?encrypted_query_param={quote(param, safe='')}"
        try:
            return (await self.download(address, what="the file", trusted=self.is_tencents)).content
        except httpx.InvalidURL:
            raise SendRefused("the address of the file can't be used") from None

    async def upload(self, data: bytes, kind: int, to: str) -> dict[str, Any]:
        """Put a file into the CDN; how a message refers to it."""
        key, name = secrets.token_bytes(16), secrets.token_hex(16)
        whole = encrypted(data, key)
        digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
        place = await self.call(
            "getuploadurl", filekey=name, media_type=kind, to_user_id=to, rawsize=len(data), rawfilemd5=digest,
            filesize=len(whole), no_need_thumb=True, aeskey=key.hex(),
        )  # fmt: skip
        address = place.get("upload_full_url")
        if not isinstance(address, str) or not address:
            param = quote(str(place.get("upload_param") or ""), safe="")
            address = f"{self._cdn}/upload?encrypted_query_param={param}&filekey={name}"
        if not self.is_tencents(address):
            raise SendRefused("WeChat's address for the file is not Tencent's; cdn_url allows another one")
        headers = {"Content-Type": "application/octet-stream"}
        try:
            answer = await self.request("POST", address, content=whole, headers=headers, timeout=120)
        except PlatformUnreachable as error:  # nothing was sent to anyone yet
            raise PlatformUnreachable(str(error)) from None
        param = answer.headers.get("x-encrypted-param")
        if not param:
            raise PlatformUnreachable("WeChat did not take the file")
        return {
            "encrypt_query_param": param, "aes_key": base64.b64encode(key.hex().encode()).decode(), "encrypt_type": 1,
        }  # fmt: skip


def _successful(answer: httpx.Response) -> dict[str, Any]:
    """The content of an answer without an error; a missing code is success."""
    try:
        found = answer.json() if answer.content.strip() else {}
    except ValueError:
        raise PlatformUnreachable("WeChat's answer can't be read; check base_url") from None
    if not isinstance(found, dict):
        raise PlatformUnreachable("WeChat's answer can't be read; check base_url")
    code = found.get("errcode") or found.get("ret") or 0
    if code == EXPIRED:
        raise PlatformRefused(LOGIN_AGAIN)
    if code != 0:
        raise Refused(code if isinstance(code, int) else -1, error_text(found.get("errmsg") or ""))
    return found


# ------------------------------------------------------------------------------------------ encrypted files
#
# The CDN keeps files encrypted with AES-128 (ECB, which is the vendor's choice, and PKCS #7), each with a key of its own.


def key_of(text: str) -> bytes | None:
    """The key that a message names: 32 hex digits, or base64 of them, or base64 of its 16 bytes. None if it is none of these."""
    if (found := _from_hex(text)) is not None:
        return found
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(decoded) == BLOCK:
        return decoded
    return _from_hex(decoded.decode("ascii", "replace"))


def _from_hex(text: str) -> bytes | None:
    try:
        return bytes.fromhex(text) if len(text) == 2 * BLOCK and text.isalnum() else None
    except ValueError:
        return None


def encrypted(data: bytes, key: bytes) -> bytes:
    """A file as the CDN keeps it."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    padder, worker = PKCS7(8 * BLOCK).padder(), Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return worker.update(padder.update(data) + padder.finalize()) + worker.finalize()


def decrypted(data: bytes, key: bytes) -> bytes:
    """The file; SendRefused if the key is not its key."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    unpadder, worker = PKCS7(8 * BLOCK).unpadder(), Cipher(algorithms.AES(key), modes.ECB()).decryptor()
    try:
        return unpadder.update(worker.update(data) + worker.finalize()) + unpadder.finalize()
    except ValueError:
        raise SendRefused("WeChat's file can't be decrypted: it is not whole, or its key does not fit") from None


# ------------------------------------------------------------------------------------------ messages
#
# A message consists of items: text, pictures, voice, files, videos.

TEXT, IMAGE, VOICE, FILE, VIDEO = 1, 2, 3, 4, 5
CONTEXT = "context_token"  # the key of Event.reply_context
_NAMES = {IMAGE: "image_item", VOICE: "voice_item", FILE: "file_item", VIDEO: "video_item"}
_BOT = 2  # message_type of our own
_VOICES = {5: "audio/amr", 6: "audio/silk", 7: "audio/mpeg", 8: "audio/ogg"}


def event_of(message: Any) -> Event | None:
    """A message as an event; None for our own, for those of groups, and for empty ones."""
    if not isinstance(message, dict) or message.get("message_type") == _BOT or is_in_group(message):
        return None
    who = text_of(message.get("from_user_id"))
    items = dicts_of(message.get("item_list"))
    text, attachments = _words(items), tuple(filter(None, map(_attachment, items)))
    if not who or not (text or attachments):
        return None
    number, token = _number(message), text_of(message.get("context_token"))
    quoted_id, quoted = _quote(items)
    return Event(
        id=number,
        chat=Chat(platform="weixin", chat_id=who),
        sender=Sender(user_id=who, proven=True),  # WeChat authenticated the account; we fetch with our own login
        text=text,
        attachments=attachments,
        message_id=number,
        reply_to=quoted_id,
        quoted=quoted,
        sent_at=moment_of(message.get("create_time_ms")),
        reply_context={CONTEXT: token} if token else None,
    )


def is_in_group(message: dict[str, Any]) -> bool:
    """Whether a message was written in a group, to which the API can't reply."""
    return bool(text_of(message.get("group_id")))


def _number(message: dict[str, Any]) -> str:
    """The lasting id of a message. The server's number is 64 bits; without one it is the client's, or made of the content."""
    for name in ("message_id", "client_id"):
        found = message.get(name)
        if (isinstance(found, str) and found) or (isinstance(found, int) and not isinstance(found, bool) and found):
            return str(found)
    written = json.dumps(message, sort_keys=True, default=str).encode("utf-8", "replace")
    return f"sha256:{hashlib.sha256(written).hexdigest()[:32]}"


def _words(items: list[dict[str, Any]]) -> str:
    """The text of a message, written or spoken: WeChat transcribes voice messages."""
    found = []
    for item in items:
        inner = item.get("text_item") if item.get("type") == TEXT else item.get("voice_item")
        if item.get("type") in (TEXT, VOICE) and isinstance(inner, dict) and text_of(inner.get("text")):
            found.append(text_of(inner.get("text")))
    return "\n".join(found)


def _attachment(item: dict[str, Any]) -> Attachment | None:
    kind = item.get("type")
    if not isinstance(kind, int) or kind not in _NAMES:
        return None
    inner = dict_of(item.get(_NAMES[kind]))
    media = dict_of(inner.get("media"))
    url, param = text_of(media.get("full_url")), text_of(media.get("encrypt_query_param"))
    if not (url or param) or (kind == VOICE and text_of(inner.get("text"))):
        return None
    key = text_of(inner.get("aeskey")) or text_of(media.get("aes_key"))
    reference = {name: value for name, value in (("url", url), ("param", param), ("key", key)) if value}
    name, mime = text_of(inner.get("file_name")) or None, None
    if kind == FILE:
        mime = mimetypes.guess_type(name or "")[0]
    elif kind == VIDEO:
        mime = "video/mp4"
    elif kind == VOICE:
        code = inner.get("encode_type")
        mime = _VOICES.get(code) if isinstance(code, int) else None
    of_kind = {IMAGE: "image", VOICE: "audio", VIDEO: "video"}.get(kind) or attachment_kind(mime)
    size = text_of(inner.get("len"))
    length = int(size) if size.isascii() and size.isdecimal() and len(size) < 16 else None
    return Attachment(kind=of_kind, name=name, mime=mime, size=length, reference=reference)


def _quote(items: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    """The quoted message: its id and its text, as far as WeChat sends them."""
    for item in items:
        reference = dict_of(item.get("ref_msg"))
        if reference:
            quoted = dict_of(reference.get("message_item"))
            number = quoted.get("msg_id") or reference.get("svr_id")
            text = text_of(dict_of(quoted.get("text_item")).get("text")) or text_of(reference.get("title"))
            return (str(number) if isinstance(number, str | int) and number else None), text or None
    return None, None


_LAYOUT = markup.Layout(bullet="• ")
_PATIENCE = 5  # how often a message is sent again after the code for "too often", which may also mean an old context
_UPLOADS = {"image": 1, "video": 2}  # media_type; everything else is a file
_SHORTEST = 1.0  # seconds of a poll that brings nothing
_MOST_CONTEXTS = 5_000  # people whose newest context token is kept


class _State(msgspec.Struct):
    buffer: str = ""  # the place in the stream of messages
    contexts: dict[str, str] = {}  # the newest context token of each person, the newest last


class Weixin(ApiAdapter[ILink]):
    """A bot of a personal WeChat account."""

    platform = "weixin"
    title = "WeChat"
    extra = "weixin"
    logs_in = True
    settings = (
        Setting("token", "the bot's token, which the login by QR code gives", secret=True, required=True),
        Setting("bot_id", "the bot's id, which the login gives"),
        Setting(
            "base_url", "where the API is; the login may give another one", default="https://ilinkai.weixin.qq.com"
        ),
        Setting("cdn_url", "where files are", default="https://novac2c.cdn.weixin.qq.com/c2c"),
    )  # fmt: skip
    capabilities = Capabilities(longest=4_000, typing=True, media=True, files=True, largest_file=25_000_000)

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        login = hashlib.sha256(self.text("token").encode()).hexdigest()[:16]  # another login's tokens are of no use
        self._mark = MarkFile(home / "weixin.json", login, _State)
        self._tickets: Recent[str, str] = Recent()
        self._refusals: Recent[str, int] = Recent()

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse addresses that are none."""
        for name in ("base_url", "cdn_url"):
            checked_address(self.text(name), f"weixin: {name}", "https://…")

    async def login(self, show: Callable[[str], None]) -> Mapping[str, Any]:
        """Show a link to a QR code until that is confirmed on the phone."""
        async with self.make_api() as api:
            found = await api.log_in(show, _ask_owner, self.text("token"))
        if not found:
            if not self.text("token"):
                raise PlatformRefused("this WeChat account has a bot already; remove it on the phone, and log in again")
            show("This account is logged in already.")
            return {}
        token, base = found.get("bot_token"), found.get("baseurl")
        if not isinstance(token, str) or not token:
            raise PlatformRefused("WeChat has given no token; log in again")
        values: dict[str, Any] = {"token": token, "bot_id": str(found.get("ilink_bot_id") or "")}
        if isinstance(base, str) and base:
            base = base if "://" in base else f"https://{base}"
            if not api.is_tencents(base):
                raise PlatformRefused("WeChat has named an address that is not Tencent's; log in again")
            values["base_url"] = base.rstrip("/")
        if found.get("ilink_user_id"):
            show(f"Your own user id is {found['ilink_user_id']}")
        return values

    async def check(self) -> str:
        """Ask for the bot's configuration: the token must be accepted."""
        async with self.make_api() as api:
            with suppress(SendRefused):  # it is about a person whom we do not name
                await api.call("getconfig", ilink_user_id="")
        return self._identity

    async def begin(self, link: Link, api: ILink) -> None:
        """Announce ourselves, and begin to poll."""
        with suppress(SendRefused):
            await api.call("msg/notifystart")
        link.connected(self._identity)
        self._tasks.start(self._receive(link, api), name="weixin")

    async def disconnect(self) -> None:
        """Stop polling and close everything."""
        await self._tasks.stop()
        if self._api is not None:
            with suppress(HermesError):
                await self._api.call("msg/notifystop", seconds=2.0)
        await super().disconnect()

    @property
    def _identity(self) -> str:
        return self.text("bot_id") or "a WeChat bot"

    def make_api(self) -> ILink:
        """The API, with our login."""
        return ILink(self.text("base_url"), token=self.text("token"), cdn_url=self.text("cdn_url"))

    # ------------------------------------------------------------------------------------------ receiving

    async def _receive(self, link: Link, api: ILink) -> None:
        """Poll, and advance in the stream of messages when everything before is stored."""
        retries = Retries(link, self._identity)
        with loss_reported(link, "WeChat", "messages could not be handled"):
            while True:
                started = time.monotonic()
                try:
                    found = await api.updates(self._mark.state.buffer)
                except (PlatformUnreachable, SlowDown) as error:
                    await retries.failed(error)
                    continue
                retries.succeeded()
                await self._take(link, found)
                if not found.get("msgs") and time.monotonic() - started < _SHORTEST:
                    await asyncio.sleep(_SHORTEST)  # a server that does not wait is not polled all the time

    async def _take(self, link: Link, found: dict[str, Any]) -> None:
        messages, state, changed = found.get("msgs"), self._mark.state, False
        for message in messages if isinstance(messages, list) else ():
            event = event_of(message)
            if event is None:
                if isinstance(message, dict) and is_in_group(message):
                    link.log.warning("a message in a group is skipped: the API can't reply there")
                continue
            await keep(link, event)
            if event.reply_context:
                put_last(state.contexts, event.chat.chat_id, event.reply_context[CONTEXT], _MOST_CONTEXTS)
                changed = True
        buffer = found.get("get_updates_buf")
        if isinstance(buffer, str) and buffer and buffer != state.buffer:
            state.buffer, changed = buffer, True
        if changed:
            self._mark.write()

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file, decrypted."""
        about = attachment.reference
        data = await self.api.file(str(about.get("url") or ""), str(about.get("param") or ""))
        if not about.get("key"):
            return data
        key = key_of(str(about["key"]))
        if key is None:
            raise SendRefused("WeChat's file can't be decrypted: its key has an unknown form")
        return await asyncio.to_thread(decrypted, data, key)

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message; the id that we give it."""
        words = markup.marked(text, _LAYOUT).text or text
        return await self._send(chat, {"type": TEXT, "text_item": {"text": words}}, nonce, context)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Put a file into the CDN, and send a message that refers to it."""
        self._token_for(chat, context)
        kind = _UPLOADS.get(file.kind, 3)
        media = await self.api.upload(file.data, kind, chat.chat_id)
        size = len(file.data) // 16 * 16 + 16  # encrypted
        if kind == 1:
            item: dict[str, Any] = {"type": IMAGE, "image_item": {"media": media, "mid_size": size}}
        elif kind == 2:
            item = {"type": VIDEO, "video_item": {"media": media, "video_size": size}}
        else:
            about = {"media": media, "file_name": file.name, "len": str(len(file.data))}
            item = {"type": FILE, "file_item": about}
        return await self._send(chat, item, nonce, context)

    async def _send(self, chat: Chat, item: dict[str, Any], nonce: str, context: ReplyContext | None) -> str:
        name = f"hermes-{nonce}"
        message = {
            "from_user_id": "", "to_user_id": chat.chat_id, "client_id": name, "message_type": 2, "message_state": 2,
            "item_list": [item], CONTEXT: self._token_for(chat, context),
        }  # fmt: skip
        try:
            await self.api.call("sendmessage", msg=message)
        except Refused as error:
            tries = self._refusals.put(nonce, (self._refusals.get(nonce) or 0) + 1)
            if error.code == TOO_OFTEN and tries < _PATIENCE:
                raise SlowDown("WeChat asks us to wait", 2.0 * tries) from None
            raise
        self._refusals.pop(nonce, None)
        return name

    def _token_for(self, chat: Chat, context: ReplyContext | None) -> str:
        found = (context or {}).get(CONTEXT) or self._mark.state.contexts.get(chat.chat_id)
        if not isinstance(found, str) or not found:
            raise SendRefused(
                "WeChat takes messages only to people who have written: there is no context token for this one"
            )
        return found

    async def typing(self, chat: Chat) -> None:
        """Show that a reply is being written."""
        api, who = self.api, chat.chat_id
        ticket = self._tickets.get(who)
        if ticket is None:
            token = self._mark.state.contexts.get(who)
            about: dict[str, Any] = {CONTEXT: token} if token else {}
            found = await api.call("getconfig", ilink_user_id=who, **about)
            ticket = self._tickets.put(who, str(found.get("typing_ticket") or ""))
        if ticket:
            try:
                await api.call("sendtyping", ilink_user_id=who, typing_ticket=ticket, status=1)
            except SendRefused:
                self._tickets.pop(who, None)  # it has expired: the next time brings a new one
                raise


def _ask_owner(question: str) -> str:
    """Ask the owner in the terminal, in setup."""
    try:
        return input(question).strip()
    except EOFError:
        raise PlatformRefused("WeChat wants the code that it shows on the phone") from None

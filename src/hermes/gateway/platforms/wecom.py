"""WeCom: an AI bot of an organisation, by its WebSocket.

https://developer.work.weixin.qq.com/document/path/101463
A message to a bot is answered once by its request id, on the connection it came by: by a stream, whose text is replaced until it
is finished. Further parts, files, and replies after a new connection are pushed to the chat, and can't be changed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import mimetypes
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, OutgoingFile, Sender
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import HttpApi, attachment, error_text, is_at
from hermes.gateway.platforms._shared.receipt import LOG, Keeper, Log, dict_of, moment_of, read_object, text_of
from hermes.gateway.platforms._shared.tasks import ApiAdapter, Recent, Retries, loss_reported
from hermes.gateway.platforms._shared.websocket import WebSocketClient


def length(text: str) -> int:
    """A text's length in bytes as it is sent: cells of tables and mentions become longer."""
    return len(text.encode("utf-8", "surrogatepass")) + 2 * text.count("|") + 3 * text.count("<")


REQUEST = "req_id"  # what a reply context has
KINDS = {"image": "image", "voice": "audio", "video": "video", "file": "file", "shortvideo": "video"}
_MENTION = re.compile(r"^\s*@\S+(\s+|$)")
_BOT = Capabilities(longest=20_000, measure=length, media=True, files=True, mention_needed=True)  # 20,480 bytes at most
_STREAM = "stream:"  # how the ids of answers begin
_FIRST_PAUSE, _LONGEST_PAUSE, _REMEMBERED = 60.0, 1800.0, 7200.0  # seconds, for another program with the same bot
_CHUNK = 512 * 1024  # bytes of a part of an upload
_STORES = (".qq.com", ".qpic.cn", ".myqcloud.com", ".wework.cn")  # where files are


class WeCom(ApiAdapter[HttpApi]):
    """The connection of a bot."""

    platform = "wecom"
    title = "WeCom"
    extra = "wecom"
    local_ids = True
    one_connection = True
    settings = (
        Setting("bot_id", "the AI bot's id", required=True),
        Setting("secret", "the AI bot's secret", secret=True, required=True),
        Setting("websocket_url", "where WeCom's bots connect", default="wss://openws.work.weixin.qq.com"),
    )  # fmt: skip
    capabilities = _BOT

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._keeper = Keeper(home, self.platform)
        self._bot_id = self.text("bot_id")
        self._socket: BotSocket | None = None
        self._open: Recent[str, bool] = Recent()  # requests of this connection that were not answered
        self._streams: Recent[str, str] = Recent()  # answers that still grow: the request of each
        self._endings: list[float] = []  # when other programs with this bot ended our connection
        self._names: Recent[str, str] = Recent()  # of fetched files, by their addresses

    def validate(self) -> None:
        """Refuse what can't be an address."""
        parts = urlsplit(self.text("websocket_url"))
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise PlatformRefused("wecom: websocket_url must be an address that begins with wss://")

    async def check(self) -> str:
        """Log in and say which bot we are. WeCom ends the bot's other connection."""
        socket = self._new_socket()
        try:
            await socket.open()
        finally:
            await socket.close()
        return self._bot_id

    def make_api(self) -> HttpApi:
        """A client for the files that people send."""
        return HttpApi("WeCom", "", timeout=60)

    async def begin(self, link: Link, api: HttpApi) -> None:
        """Subscribe and begin to receive."""
        if self.cursor.strip():  # without one the end of a growing reply is not known
            self.capabilities = replace(_BOT, edits=True)  # type: ignore[misc]
        socket = await self._connected(link)
        link.connected(self._bot_id)
        self._tasks.start(self._receive(link, socket), name="wecom")

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        await self._tasks.stop()
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
            while not socket.frames.empty():  # WeCom does not send them again
                if (frame := socket.frames.get_nowait()) is not None and (event := _message(frame)) is not None:
                    self._keeper.write(event)
        await super().disconnect()

    def _new_socket(self, log: Log = LOG) -> BotSocket:
        return BotSocket(self.text("websocket_url"), self._bot_id, self.text("secret"), log)

    async def _connected(self, link: Link) -> BotSocket:
        socket = self._new_socket(link.log)
        await socket.open()
        self._socket, self._open, self._streams = socket, Recent(), Recent()
        return socket

    async def _receive(self, link: Link, socket: BotSocket) -> None:
        """Hand over messages in order, from one connection after the other, until none can be opened."""
        retries = Retries(link, self._bot_id)
        with loss_reported(link, "WeCom", "a message could not be handled"):
            await self._keeper.restore(link)
            while True:
                while (frame := await socket.frames.get()) is not None:
                    retries.succeeded()
                    await self._happened(link, frame)
                await socket.close()
                await retries.failed(PlatformUnreachable("WeCom has closed the connection"))
                socket = await retries.opened(lambda: self._connected(link))

    def _displaced(self) -> float:
        """The seconds before we connect again: two programs that always do so at once end each other's connection for ever.

        The first time it is soon, since `hermes gateway setup` connects for a moment only.
        """
        now = time.monotonic()
        self._endings = [at for at in self._endings if now - at < _REMEMBERED] + [now]
        often = len(self._endings)
        return 0.0 if often == 1 else min(_FIRST_PAUSE * 2 ** (often - 2), _LONGEST_PAUSE)

    async def _happened(self, link: Link, frame: dict[str, Any]) -> None:
        if frame.get("cmd") == EVENT:
            body = frame.get("body")
            event = body.get("event") if isinstance(body, dict) else None
            if isinstance(event, dict) and event.get("eventtype") == "disconnected_event":
                why = "another program has connected with this bot, and WeCom allows one connection: end it, or use another bot"
                link.troubled(why)
                raise SlowDown(why, self._displaced())
            return
        if frame.get("cmd") != MESSAGE:
            return
        made = _message(frame)
        if made is None:
            link.log.warning("a message of WeCom can't be read: it has no id, chat or author")
            return
        if made.reply_context is not None:
            self._open.put(str(made.reply_context[REQUEST]), True)
        await self._keeper.keep(link, made)

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Answer by the request id if it can still be used, else push the message. SendRefused if that should grow."""
        content, growing = bot_markdown(text), self.is_growing(text)
        request = str((context or {}).get(REQUEST) or "")
        if request and self._open.get(request):
            self._open.pop(request, None)  # a second answer would replace the first one
            stream = hashlib.sha256(nonce.encode()).hexdigest()[:32]
            try:
                await self._answered(request, stream, content, growing)
                return f"{_STREAM}{stream}"
            except SendRefused:
                pass  # the request has expired, and nothing was sent
            except (SlowDown, PlatformUnreachable) as error:
                if isinstance(error, SlowDown) or not error.maybe_sent:
                    self._open.put(request, True)
                raise
        if growing:
            raise SendRefused("WeCom lets only the first answer to a message grow")
        return await self._pushed(chat, {"msgtype": "markdown", "markdown": {"content": content}})

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of an answer that still grows. SendRefused for others, and when WeCom has ended it."""
        stream = message_id.removeprefix(_STREAM)
        request = self._streams.get(stream)
        if request is None:
            raise SendRefused("this message of WeCom can't be changed any more")
        try:
            await self._answered(request, stream, bot_markdown(text), self.is_growing(text))
        except SendRefused:
            self._streams.pop(stream, None)
            raise

    async def _answered(self, request: str, stream: str, content: str, growing: bool) -> None:
        body = {"msgtype": "stream", "stream": {"id": stream, "finish": not growing, "content": content}}
        await self._connected_socket().request("aibot_respond_msg", body, request)
        if growing:
            self._streams.put(stream, request)
        else:
            self._streams.pop(stream, None)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a file in parts, and push it."""
        kind = media_kind(file)
        chunks = [file.data[place : place + _CHUNK] for place in range(0, len(file.data), _CHUNK)]
        about = {
            "type": kind, "filename": file.name, "total_size": len(file.data), "total_chunks": len(chunks),
            "md5": hashlib.md5(file.data, usedforsecurity=False).hexdigest(),
        }  # fmt: skip
        socket = self._connected_socket()
        upload = _part(await socket.request("aibot_upload_media_init", about), "upload_id")
        for number, chunk in enumerate(chunks):
            data = base64.b64encode(chunk).decode()
            body = {"upload_id": upload, "chunk_index": number, "base64_data": data}
            await socket.request("aibot_upload_media_chunk", body)
        media = _part(await socket.request("aibot_upload_media_finish", {"upload_id": upload}), "media_id")
        return await self._pushed(chat, {"msgtype": kind, kind: {"media_id": media}})

    async def _pushed(self, chat: Chat, message: dict[str, Any]) -> str:
        place = {"chatid": to_whom(chat.chat_id), "chat_type": 2 if chat.type == GROUP else 1}
        found = await self._connected_socket().request("aibot_send_msg", {**place, **message})
        body = found.get("body")
        return str(body.get("msgid") or "") if isinstance(body, dict) else ""

    async def fetch(self, attachment: Attachment) -> bytes:
        """Download a file, which is encrypted with a key of its own. Its address is good for five minutes."""
        address, key = str(attachment.reference.get("url")), str(attachment.reference.get("key") or "")
        answer = await self.api.download(address, what="the file", trusted=self._is_store)
        data, name = answer.content, _file_name(answer.headers.get("Content-Disposition", ""))
        if name:
            self._names.put(address, name)
        try:
            return decrypted(data, key_of(key)) if key else data
        except ValueError:
            raise SendRefused("the file can't be decrypted with the key that came with it") from None

    def fetched_name(self, attachment: Attachment) -> str | None:
        """The name of a file that was fetched: it comes with its bytes alone."""
        return self._names.get(str(attachment.reference.get("url")))

    def _is_store(self, address: str) -> bool:
        return is_at(address, _STORES, self.text("websocket_url").replace("ws", "http", 1))

    def _connected_socket(self) -> BotSocket:
        if self._socket is None:
            raise PlatformUnreachable("not connected to WeCom")
        return self._socket


def _message(frame: dict[str, Any]) -> Event | None:
    return bot_event(frame) if frame.get("cmd") == MESSAGE else None


def media_kind(file: OutgoingFile) -> str:
    """WeCom's kind of a file: pictures are PNG and JPEG, everything else is a file."""
    return "image" if file.kind == "image" and file.mime in ("image/png", "image/jpeg") else "file"


def _file_name(disposition: str) -> str:
    """The name in a Content-Disposition header, which WeCom encodes for addresses; "" without one. Never with a folder."""
    for pattern in (r"filename\*=UTF-8''([^;\s]+)", r'filename="?([^";]+)"?'):
        if found := re.search(pattern, disposition, re.IGNORECASE):
            return re.split(r"[/\\]", unquote(found[1]))[-1].strip()
    return ""


def _part(answer: dict[str, Any], name: str) -> str:
    body = answer.get("body")
    found = body.get(name) if isinstance(body, dict) else None
    if not isinstance(found, str) or not found:
        raise PlatformUnreachable("WeCom did not take the file")
    return found


# ------------------------------------------------------------------------------------------ the connection
#
# Requests and their answers share an id; messages are pushed in between.

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f]")
_PATIENCE = 15.0  # seconds for an answer
_HEARTBEAT = 30.0
_PAUSE = 3.0  # a chat takes thirty messages in a minute
_LIMITS = frozenset({45009, 45033, 45047, 846607})
_BUSY = frozenset({-1, 6000})
MESSAGE, EVENT = "aibot_msg_callback", "aibot_event_callback"

Frames = asyncio.Queue[dict[str, Any] | None]


class BotSocket(WebSocketClient):
    """One connection. `frames` gets what is pushed, and None when the connection has ended."""

    def __init__(self, url: str, bot_id: str, secret: str, log: Log = LOG) -> None:
        super().__init__("WeCom", log)
        self._url, self._bot_id, self._secret = url, bot_id, secret
        self.frames: Frames = asyncio.Queue()

    async def open(self) -> None:
        """Connect and subscribe. PlatformRefused where the bot's id or secret is wrong."""
        async with self.opening():
            socket = await self.connect(self._url, heartbeat=_HEARTBEAT)
            self._tasks.start(self._read(socket))
            try:
                await self.request("aibot_subscribe", {"bot_id": self._bot_id, "secret": self._secret})
            except SendRefused as error:
                raise PlatformRefused(f"WeCom does not accept bot_id and secret: {error}") from None
            self._tasks.start(self._beat())

    async def request(
        self, command: str, body: dict[str, Any] | None = None, req_id: str | None = None
    ) -> dict[str, Any]:
        """The answer to a request; the error that its errcode means."""
        name = req_id or f"{command}_{secrets.token_hex(12)}"
        frame: dict[str, Any] = {"cmd": command, "headers": {"req_id": name}}
        if body is not None:
            frame["body"] = body
        found = await self.exchange(name, frame, _PATIENCE)
        code = found.get("errcode", 0)
        if code != 0:
            raise self._failure(code if isinstance(code, int) else None, found.get("errmsg"))
        return found

    def _failure(self, code: int | None, reason: Any) -> PlatformError:
        if code in _LIMITS:
            return SlowDown("WeCom asks us to wait", _PAUSE)
        if code in _BUSY:
            return PlatformUnreachable("WeCom is busy")
        return SendRefused(f"WeCom refuses: {error_text(reason or f'errcode {code}', self._secret)}")

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    frame = read_object(message.data, "WeCom", self.log, parse=_parsed)
                    if frame is not None:
                        self._arrived(frame)
        finally:
            self.unanswered()
            self.frames.put_nowait(None)

    def _arrived(self, frame: dict[str, Any]) -> None:
        if frame.get("cmd"):
            self.frames.put_nowait(frame)
            return
        self.answered(text_of(dict_of(frame.get("headers")).get("req_id")), frame)

    async def _beat(self) -> None:
        """WeCom ends a connection without heartbeats; one without answers is dead."""
        while self._socket is not None and not self._socket.closed:
            await asyncio.sleep(_HEARTBEAT)
            try:
                await self.request("ping")
            except PlatformError:
                with suppress(Exception):
                    if self._socket is not None:
                        await self._socket.close()
                return


def _parsed(text: str) -> Any:
    """A frame. WeCom does not escape control characters in people's texts, which makes them invalid JSON to a strict parser."""
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return json.loads(_CONTROL.sub("", text))


# ------------------------------------------------------------------------------------------ messages


def bot_event(frame: dict[str, Any]) -> Event | None:
    """The message of a pushed frame; None where it has no id, chat or author."""
    body, headers = dict_of(frame.get("body")), dict_of(frame.get("headers"))
    author = dict_of(body.get("from"))
    number, user_id = text_of(body.get("msgid")), text_of(author.get("userid"))
    if not number or not user_id:
        return None
    if corp := text_of(author.get("corpid")):  # only where people of several organisations use the bot
        user_id = f"{corp}:{user_id}"
    group = body.get("chattype") == "group"
    chat_id = text_of(body.get("chatid")) if group else user_id
    if not chat_id:
        return None
    text, attachments = _bot_content(body, group)
    quote = dict_of(body.get("quote"))
    request = text_of(headers.get("req_id"))
    return Event(
        id=number,
        chat=Chat(platform="wecom", chat_id=chat_id, type=GROUP if group else DM),
        sender=Sender(
            user_id=user_id, name=user_id, proven=True
        ),  # WeCom authenticated the account; the connection is ours
        text=text,
        attachments=attachments,
        message_id=number,
        quoted=(_bot_content(quote, False)[0] or None) if quote else None,
        sent_at=moment_of(body.get("create_time"), 1),
        reply_context={REQUEST: request} if request else None,
    )


def to_whom(chat_id: str) -> str:
    """The id of a chat or person as WeCom's API takes it."""
    return chat_id.rpartition(":")[2]


def _bot_content(body: dict[str, Any], group: bool) -> tuple[str, tuple[Attachment, ...]]:
    kind = text_of(body.get("msgtype"))
    texts: list[str] = []
    files: list[Attachment] = []
    items = dict_of(body.get("mixed")).get("msg_item") if kind == "mixed" else [body]
    for item in items if isinstance(items, list) else []:
        item = dict_of(item)
        kind = text_of(item.get("msgtype"))
        content = dict_of(item.get(kind))
        if kind in ("text", "voice", "markdown"):
            texts.append(text_of(content.get("content")))
        elif kind in KINDS and text_of(content.get("url")):
            files.append(_bot_file(kind, content))
        else:
            texts.append(f"[{kind or 'a message'} that can't be read here]")
    text = "\n".join(one for one in texts if one.strip())
    # WeCom does not say what the bot is called: another mention may be the first one.
    if group and text.count("@") == 1:
        text = _MENTION.sub("", text, count=1)
    return text.strip(), tuple(files)


def _bot_file(kind: str, content: dict[str, Any]) -> Attachment:
    name = text_of(content.get("name")) or text_of(content.get("filename"))
    mime = mimetypes.guess_type(name)[0] if name else None
    mime = mime or ("video/mp4" if kind == "video" else None)
    return attachment(name, mime, kind=KINDS[kind], url=text_of(content.get("url")), key=text_of(content.get("aeskey")))


# ------------------------------------------------------------------------------------------ texts, and encrypted files

_AT = re.compile(r"<@(?=[^>\n]{0,100}>)")
_BLOCK = 32  # bytes that a padding may have


def bot_markdown(text: str) -> str:
    """Markdown for a bot: pictures become links, so that no client fetches them, and no user is mentioned."""
    return markup.outside_code(text, lambda part: _AT.sub("<\u200b@", markup.without_pictures(part)))


def key_of(encoded: str) -> bytes:
    """The AES key of a file's aeskey. ValueError if it is none."""
    text = encoded.strip()
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise ValueError("not a key of 32 bytes in Base64")
    return key


def decrypted(data: bytes, key: bytes) -> bytes:
    """The bytes of an encrypted file, without their padding. ValueError where they can't be decrypted."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if not data or len(data) % 16:
        raise ValueError("not a multiple of a block")
    reader = Cipher(algorithms.AES(key), modes.CBC(key[:16])).decryptor()
    plain = reader.update(data) + reader.finalize()
    padding = plain[-1]
    if not 1 <= padding <= _BLOCK or plain[-padding:] != bytes([padding]) * padding:
        raise ValueError("not encrypted with this key")
    return plain[:-padding]

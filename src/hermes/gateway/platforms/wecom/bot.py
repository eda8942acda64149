"""An AI bot: it reads and writes by one WebSocket.

A message is answered once by its request id, on the connection it came by: by a stream, whose text is replaced until it is
finished. Further parts, files, and replies after a new connection are pushed to the chat, and can't be changed.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from typing import Any
from urllib.parse import unquote

from hermes.errors import PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Link, ReplyContext
from hermes.gateway.events import GROUP, Attachment, Chat, Event, OutgoingFile
from hermes.gateway.platforms._shared.http import HttpApi, address_parts
from hermes.gateway.platforms._shared.receipt import Keeper
from hermes.gateway.platforms._shared.tasks import Recent, Retries, Tasks, loss_reported
from hermes.gateway.platforms.wecom.client import EVENT, MESSAGE, BotSocket, decrypted, key_of
from hermes.gateway.platforms.wecom.incoming import REQUEST, bot_event, to_whom
from hermes.gateway.platforms.wecom.outgoing import bot_markdown

_STREAM = "stream:"  # how the ids of answers begin
_FIRST_PAUSE, _LONGEST_PAUSE, _REMEMBERED = 60.0, 1800.0, 7200.0  # seconds, for another program with the same bot
_CHUNK = 512 * 1024  # bytes of a part of an upload
_STORES = (".qq.com", ".qpic.cn", ".myqcloud.com", ".wework.cn")  # where files are


class Bot:
    """The connection of a bot."""

    def __init__(self, url: str, bot_id: str, secret: str, keeper: Keeper) -> None:
        self._url, self._bot_id, self._secret, self._keeper = url, bot_id, secret, keeper
        self._socket: BotSocket | None = None
        self._http: HttpApi | None = None
        self._tasks = Tasks()
        self._open: Recent[str, bool] = Recent()  # requests of this connection that were not answered
        self._streams: Recent[str, str] = Recent()  # answers that still grow: the request of each
        self._endings: list[float] = []  # when other programs with this bot ended our connection
        self._names: Recent[str, str] = Recent()  # of fetched files, by their addresses

    async def check(self) -> str:
        """Log in and say which bot we are. WeCom ends the bot's other connection."""
        socket = BotSocket(self._url, self._bot_id, self._secret)
        try:
            await socket.open()
        finally:
            await socket.close()
        return self._bot_id

    async def connect(self, link: Link, listen: object) -> None:
        """Subscribe and begin to receive."""
        self._http = HttpApi("WeCom", "", timeout=60)
        socket = await self._opened(link)
        link.connected(self._bot_id)
        self._tasks.start(self._receive(link, socket), name="wecom")

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        await self._tasks.stop()
        socket, self._socket = self._socket, None
        http, self._http = self._http, None
        if socket is not None:
            await socket.close()
            while not socket.frames.empty():  # WeCom does not send them again
                if (frame := socket.frames.get_nowait()) is not None and (event := _message(frame)) is not None:
                    self._keeper.expect(event)
        await self._keeper.save()
        if http is not None:
            await http.close()

    async def _opened(self, link: Link) -> BotSocket:
        socket = BotSocket(self._url, self._bot_id, self._secret, link.log)
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
                socket = await retries.opened(lambda: self._opened(link))

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

    async def send(self, chat: Chat, text: str, *, nonce: str, context: ReplyContext | None, growing: bool) -> str:
        """Answer by the request id if it can still be used, else push the message. SendRefused if that should grow."""
        content = bot_markdown(text)
        request = str((context or {}).get(REQUEST) or "")
        if request and self._open.get(request):
            self._open.drop(request)  # a second answer would replace the first one
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

    async def edit(self, message_id: str, text: str, *, growing: bool) -> None:
        """Replace the text of an answer that still grows. SendRefused for others, and when WeCom has ended it."""
        stream = message_id.removeprefix(_STREAM)
        request = self._streams.get(stream)
        if request is None:
            raise SendRefused("this message of WeCom can't be changed any more")
        try:
            await self._answered(request, stream, bot_markdown(text), growing)
        except SendRefused:
            self._streams.drop(stream)
            raise

    async def _answered(self, request: str, stream: str, content: str, growing: bool) -> None:
        body = {"msgtype": "stream", "stream": {"id": stream, "finish": not growing, "content": content}}
        await self._asked().request("aibot_respond_msg", body, request)
        if growing:
            self._streams.put(stream, request)
        else:
            self._streams.drop(stream)

    async def send_file(self, chat: Chat, file: OutgoingFile) -> str:
        """Upload a file in parts, and push it."""
        kind = media_kind(file)
        chunks = [file.data[place : place + _CHUNK] for place in range(0, len(file.data), _CHUNK)]
        about = {
            "type": kind, "filename": file.name, "total_size": len(file.data), "total_chunks": len(chunks),
            "md5": hashlib.md5(file.data, usedforsecurity=False).hexdigest(),
        }  # fmt: skip
        socket = self._asked()
        upload = _part(await socket.request("aibot_upload_media_init", about), "upload_id")
        for number, chunk in enumerate(chunks):
            data = base64.b64encode(chunk).decode()
            body = {"upload_id": upload, "chunk_index": number, "base64_data": data}
            await socket.request("aibot_upload_media_chunk", body)
        media = _part(await socket.request("aibot_upload_media_finish", {"upload_id": upload}), "media_id")
        return await self._pushed(chat, {"msgtype": kind, kind: {"media_id": media}})

    async def _pushed(self, chat: Chat, message: dict[str, Any]) -> str:
        place = {"chatid": to_whom(chat.chat_id), "chat_type": 2 if chat.type == GROUP else 1}
        found = await self._asked().request("aibot_send_msg", {**place, **message})
        body = found.get("body")
        return str(body.get("msgid") or "") if isinstance(body, dict) else ""

    async def fetch(self, attachment: Attachment) -> bytes:
        """Download a file, which is encrypted with a key of its own. Its address is good for five minutes."""
        address, key = str(attachment.reference.get("url")), str(attachment.reference.get("key") or "")
        if self._http is None:
            raise PlatformUnreachable("not connected to WeCom")
        answer = await self._http.download(address, what="the file", trusted=self._is_store)
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
        parts, own = address_parts(address), address_parts(self._url)
        if own.scheme == "ws" and parts.scheme == "http" and parts.netloc == own.netloc:
            return True
        return parts.scheme == "https" and f".{parts.hostname}".endswith(_STORES)

    def _asked(self) -> BotSocket:
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

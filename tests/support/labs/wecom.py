"""WeCom's AI bots without WeCom: a server of our own that speaks the protocol of their WebSocket.

It checks every frame by the published reference: the subscription comes first, a request is answered once, lengths, chats,
uploads (size, parts, MD5). Files are encrypted here, independently of the adapter.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from aiohttp import WSMsgType, web
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.support.labs.base import before_the_last
from tests.support.labs.socket_lab import SocketLab

BOT, SECRET = "aib-lab-0001", "wecom-bot-secret-0001"
GROUP = "wrGroup0000000001"
LONGEST = 20_480  # bytes


class Lab(SocketLab):
    """An organisation of three people, and a group with a bot."""

    platform = "wecom"
    keeps = False  # WeCom does not push a bot's messages again
    places = frozenset({"dm", "group"})
    can = frozenset({"redeliver", "rate_limit", "fail", "drop", "attach", "files", "edits"})

    def _forget(self) -> None:
        self._said: dict[str, dict[str, Any]] = {}
        self._waiting: list[dict[str, Any]] = []  # said while the bot was not connected
        self._requests: dict[str, str] = {}  # of messages that were not answered: the chat
        self._streams: dict[str, tuple[str, int]] = {}  # answers that still grow, by request: their id, their place
        self._shown: list[tuple[str, str, Any]] = []
        self._uploads: dict[str, tuple[dict[str, Any], dict[int, bytes]]] = {}
        self._media: dict[str, tuple[str, str, bytes]] = {}
        self._stored: dict[str, tuple[str, bytes]] = {}
        self._runs: list[list[str]] = [[]]  # by connection: the messages that were written to it
        self.requests_ended = False  # requests are refused as expired
        self.streams_ended = False  # growing answers are not updated any more
        self.lost_answers = 0  # the next messages are shown, and the connection is cut before the answer
        self.by: list[str] = []  # "answer" or "push"
        self.connections = 0
        self.secret = SECRET
        self.odd: dict[str, Any] | None = None  # what every answer has instead

    # ------------------------------------------------------------------------------------------ what tests do

    @property
    def settings(self) -> dict[str, Any]:
        return {"bot_id": BOT, "secret": SECRET, "websocket_url": f"ws://127.0.0.1:{self.port}"}

    def user_id(self, who: str) -> str:
        return f"{who.title()}Zhang"

    def chat_id(self, where: str, who: str = "alice") -> str:
        return self.user_id(who) if where == "dm" else GROUP

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        words = f"@Hermes {text}" if where == "group" else text
        return self.push({"msgtype": "text", "text": {"content": words}}, who=who, where=where, **more)

    def push(self, content: dict[str, Any], *, who: str = "alice", where: str = "dm", **more: Any) -> str:
        """Any message, as the bot gets it."""
        number = f"msg{next(self._ids):020d}"
        body = {
            "msgid": number, "aibotid": BOT, "chattype": "group" if where == "group" else "single",
            "from": {"userid": self.user_id(who)}, "create_time": int(time.time()), **content, **more,
        }  # fmt: skip
        if where == "group":
            body["chatid"] = GROUP
        self._said[number] = body
        self.redeliver(number)
        return number

    def redeliver(self, message_id: str) -> None:
        body = self._said[message_id]
        request = f"request{next(self._ids):012d}"
        self._requests[request] = body.get("chatid") or body["from"].get("userid", "")
        self.frame({"cmd": "aibot_msg_callback", "headers": {"req_id": request}, "body": body})

    def frame(self, whole: Any) -> None:
        """Push any frame."""
        self._call(self._pushed(whole))

    async def _pushed(self, whole: Any) -> None:
        if self._socket is None:
            self._waiting.append(whole)
            return
        text = re.sub(r"\\u00(0[0-8bce-f]|1[0-9a-f])", lambda found: chr(int(found[1], 16)), json.dumps(whole))
        with suppress(Exception):
            await self._socket.send_str(text)  # WeCom does not escape control characters: its SDK removes them
            if isinstance(whole, dict):
                self._runs[-1].append(str(whole.get("body", {}).get("msgid")))

    def owed(self, kept: set[str]) -> set[str]:
        return before_the_last(self._runs, kept)

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        key, code = os.urandom(32), f"file{next(self._ids):08d}"
        self._stored[code] = (name, encrypted(data, key))
        about = {
            "url": f"http://127.0.0.1:{self.port}/stored/{code}",
            "aeskey": base64.b64encode(key).decode().rstrip("="),
        }
        if not mime.startswith("image/"):
            return self.push(
                {"msgtype": "file", "file": about}, who=who, where=where
            )  # its name comes with the download
        items = [{"msgtype": "text", "text": {"content": text}}, {"msgtype": "image", "image": about}]
        return self.push({"msgtype": "mixed", "mixed": {"msg_item": items}}, who=who, where=where)

    def _there(self, where: str, who: str) -> list[tuple[str, Any]]:
        return [(kind, what) for chat, kind, what in self._shown if chat == self.chat_id(where, who)]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [what for kind, what in self._there(where, who) if kind == "text"]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        return with_captions(self._there(where, who))

    async def _dropped(self) -> None:
        self._requests.clear()  # they are bound to the connection
        self._streams.clear()
        await super()._dropped()

    # ------------------------------------------------------------------------------------------ the server

    def _application(self) -> web.Application:
        app = web.Application()
        app.router.add_route("GET", "/", self._connected)
        app.router.add_route("GET", "/stored/{code}", self._download)
        return app

    async def _download(self, request: web.Request) -> web.Response:
        found = self._stored.get(request.match_info["code"])
        if found is None:
            return web.Response(status=404)
        named = f"attachment; filename=\"{quote(found[0])}\"; filename*=UTF-8''{quote(found[0])}"
        return web.Response(body=found[1], headers={"Content-Disposition": named})

    async def _connected(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        subscribed = False
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                continue
            frame = json.loads(message.data)
            command, name = frame.get("cmd"), frame.get("headers", {}).get("req_id")
            if not name or set(frame) - {"cmd", "headers", "body"}:
                self._problems.append(f"a bad frame {frame}")
            if command == "aibot_subscribe":
                subscribed = frame["body"] == {"bot_id": BOT, "secret": self.secret}
                code = 0 if subscribed else 853000
                await socket.send_json({"headers": {"req_id": name}, "errcode": code, "errmsg": f"bad {frame['body']}"})
                if subscribed:
                    await self._subscribed(socket)
                continue
            if not subscribed:
                self._problems.append(f"{command} before the subscription")
            answer = self.odd if self.odd is not None else self._answer(command, name, frame.get("body"))
            if self.lost_answers and command in ("aibot_respond_msg", "aibot_send_msg"):
                self.lost_answers -= 1
                await self._dropped()
                break
            with suppress(Exception):
                await socket.send_json({"headers": {"req_id": name}, "errcode": 0, "errmsg": "ok", **answer})
        return socket

    async def _subscribed(self, socket: web.WebSocketResponse) -> None:
        old, self._socket = self._socket, socket
        self.connections += 1
        self._runs.append([])
        if old is not None and not old.closed:
            event = {"msgtype": "event", "event": {"eventtype": "disconnected_event"}}
            with suppress(Exception):
                await old.send_json({"cmd": "aibot_event_callback", "headers": {"req_id": "e1"}, "body": event})
                await old.close()
        waiting, self._waiting = self._waiting, []
        for whole in waiting:
            await self._pushed(whole)

    def _answer(self, command: str, name: str, body: Any) -> dict[str, Any]:
        if command == "ping":
            return {}
        if command in ("aibot_respond_msg", "aibot_send_msg") and (held := self._held_up()):
            return held
        if command == "aibot_respond_msg":
            return self._responded(name, body)
        if command == "aibot_send_msg":
            return self._sent(body)
        if command.startswith("aibot_upload_media_"):
            return self._uploaded(command.removeprefix("aibot_upload_media_"), body)
        return self._wrong(f"an unknown command {command}")

    def _held_up(self) -> dict[str, Any] | None:
        if self._limited:
            self._limited -= 1
            return {"errcode": 846607, "errmsg": "aibot send msg frequency limit exceeded"}
        if self._failing:
            self._failing -= 1
            return {"errcode": -1, "errmsg": "system busy"}
        return None

    def _wrong(self, text: str, code: int = 40058) -> dict[str, Any]:
        self._problems.append(text)
        return {"errcode": code, "errmsg": text}

    def _responded(self, name: str, body: Any) -> dict[str, Any]:
        if self.requests_ended:
            return {"errcode": 846605, "errmsg": "invalid req_id"}
        if name not in self._requests and name not in self._streams:
            return self._wrong("a request that is not known, or was answered", 846605)
        if set(body) != {"msgtype", "stream"} or set(body["stream"]) != {"id", "finish", "content"}:
            return self._wrong(f"a bad answer {body}")
        stream = body["stream"]
        if body["msgtype"] != "stream" or not isinstance(stream["finish"], bool) or not stream["id"]:
            return self._wrong(f"a bad answer {body}")
        if not stream["content"].strip() or len(stream["content"].encode()) > LONGEST:
            return self._wrong("an empty answer, or one that is too long")
        if name in self._requests:
            self._streams[name] = (stream["id"], len(self._shown))
            self._shown.append((self._requests.pop(name), "text", ""))
            self.by.append("answer")
        known, place = self._streams[name]
        if known != stream["id"]:
            return self._wrong("a second answer to one request")
        if self.streams_ended:
            return {"errcode": 846608, "errmsg": "stream message update expired (>6 minutes), cannot update"}
        self._shown[place] = (self._shown[place][0], "text", stream["content"])
        if stream["finish"]:
            del self._streams[name]
        return {}

    def _sent(self, body: Any) -> dict[str, Any]:
        chat, kind = body.get("chatid"), body.get("msgtype")
        known = {self.user_id(who): 1 for who in ("alice", "bob", "mallory")} | {GROUP: 2}
        if chat not in known or body.get("chat_type", 0) not in (0, known[chat]):  # 0: WeCom finds out
            return self._wrong(f"no such chat {chat}")
        if set(body) | {"chat_type"} != {"chatid", "chat_type", "msgtype", kind}:
            return self._wrong(f"bad fields {sorted(body)}")
        if kind == "markdown":
            content = body["markdown"].get("content", "")
            if set(body["markdown"]) != {"content"} or not content.strip() or len(content.encode()) > LONGEST:
                return self._wrong("an empty message, or one that is too long")
            self._shown.append((chat, "text", content))
        else:
            media = self._media.get(body[kind].get("media_id"))
            if media is None or media[0] != kind:
                return self._wrong("no such media id")
            self._shown.append((chat, "file", media[1:]))
        self.by.append("push")
        return {}

    def _uploaded(self, step: str, body: Any) -> dict[str, Any]:
        if step == "init":
            if set(body) != {"type", "filename", "total_size", "total_chunks", "md5"} or body["total_chunks"] > 100:
                return self._wrong(f"a bad upload {body}")
            upload = f"upload{next(self._ids)}"
            self._uploads[upload] = (body, {})
            return {"body": {"upload_id": upload}}
        about, parts = self._uploads[body["upload_id"]]
        if step == "chunk":
            data = base64.b64decode(body["base64_data"], validate=True)
            if set(body) != {"upload_id", "chunk_index", "base64_data"} or len(data) > 512 * 1024:
                return self._wrong("a bad part of an upload")
            parts[body["chunk_index"]] = data
            return {}
        whole = b"".join(parts[number] for number in range(about["total_chunks"]))
        if len(whole) != about["total_size"] or hashlib.md5(whole).hexdigest() != about["md5"] or len(whole) < 5:
            return self._wrong("an upload that is not what it says")
        media = f"media{next(self._ids)}"
        self._media[media] = (about["type"], about["filename"], whole)
        return {"body": {"type": about["type"], "media_id": media, "created_at": "1"}}


def with_captions(items: list[tuple[str, Any]]) -> list[tuple[str, bytes, str]]:
    """Files with their captions: the message right after a file, unless it is the result of a tool."""
    found = []
    for number, (kind, what) in enumerate(items):
        if kind == "file":
            after = items[number + 1] if number + 1 < len(items) else ("", "")
            caption = after[1] if after[0] == "text" and "the tool said" not in after[1] else ""
            found.append((what[0], what[1], caption))
    return found


def encrypted(data: bytes, key: bytes) -> bytes:
    """AES-256-CBC as WeCom's documentation has it: the padding fills 32 bytes, the vector is the key's first half."""
    padding = 32 - len(data) % 32
    writer = Cipher(algorithms.AES(key), modes.CBC(key[:16])).encryptor()
    return writer.update(data + bytes([padding]) * padding) + writer.finalize()

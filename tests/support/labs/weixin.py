"""WeChat without Tencent: a server of our own that speaks the iLink API, with its CDN.

It checks every request by the published protocol: headers, fields, tokens, sizes and checksums of files.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from aiohttp import web
from cryptography.hazmat.primitives import padding
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.support.labs.base import PEOPLE
from tests.support.labs.socket_lab import SocketLab

TOKEN = "ilinkbot_token_0001@im.bot:0123456789"
LONGEST = 4_000
_MESSAGE = {
    "from_user_id", "to_user_id", "client_id", "message_type", "message_state", "item_list", "context_token", "run_id",
}  # fmt: skip
_ITEMS = {1: "text_item", 2: "image_item", 3: "voice_item", 4: "file_item", 5: "video_item"}
_UPLOAD = {
    "filekey", "media_type", "to_user_id", "rawsize", "rawfilemd5", "filesize", "no_need_thumb", "aeskey", "base_info",
}  # fmt: skip


def sealed(data: bytes, key: bytes) -> bytes:
    """A file as the CDN keeps it."""
    padder = padding.PKCS7(128).padder()
    worker = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return worker.update(padder.update(data) + padder.finalize()) + worker.finalize()


def opened(data: bytes, key: bytes) -> bytes:
    """The file again."""
    worker = Cipher(algorithms.AES(key), modes.ECB()).decryptor()
    remover = padding.PKCS7(128).unpadder()
    return remover.update(worker.update(data) + worker.finalize()) + remover.finalize()


class Lab(SocketLab):
    """A bot account and three people who write to it."""

    platform = "weixin"
    can = frozenset({"redeliver", "rate_limit", "fail", "drop", "attach", "files"})
    runner = {"handler_cancellation": True}

    first_id = 7_000_000_000_000_000_001  # more than a float holds

    def __init__(self) -> None:
        self._polls: list[web.Request] = []
        self._stream: list[dict[str, Any]] = []
        super().__init__()

    def _forget(self) -> None:
        self._stream.clear()
        self._epoch = next(self._ids)  # cursors of an earlier time begin anew
        self._said: dict[str, dict[str, Any]] = {}
        self._sent: list[dict[str, Any]] = []
        self._cdn: dict[str, bytes] = {}
        self._uploads: dict[str, dict[str, Any]] = {}
        self._typing: list[str] = []
        self.token = TOKEN
        self.statuses: list[dict[str, Any]] = []  # what the next questions about a QR code are answered
        self.codes = 0
        self.cursors: list[str] = []
        self.notified: list[str] = []
        self.refuses: list[tuple[int, str]] = []  # the codes that the next messages get
        self.full_urls = False

    # ------------------------------------------------------------------------------------------ what tests do

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"token": TOKEN, "bot_id": "b0t@im.bot", "base_url": self.base, "cdn_url": f"{self.base}/c2c"}

    def user_id(self, who: str) -> str:
        return f"o9cq80{who}@im.wechat"

    def chat_id(self, where: str, who: str = "alice") -> str:
        return self.user_id(who)

    def context(self, who: str) -> str:
        """The newest context token of a person."""
        (*_, newest) = [one for one in self._stream if one["from_user_id"] == self.user_id(who)]
        return str(newest["context_token"])

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        items = more.pop("item_list", [])
        items = [*items, {"type": 1, "text_item": {"text": text}}] if text else items
        number = next(self._ids)
        message = {
            "seq": len(self._stream) + 1, "message_id": number, "from_user_id": self.user_id(who), "to_user_id": "b0t@im.bot",
            "client_id": "", "create_time_ms": int(time.time() * 1000), "session_id": "s", "group_id": "", "message_type": 1,
            "message_state": 2, "item_list": items, "context_token": f"context-{number}", **more,
        }  # fmt: skip
        self._said[str(number)] = message
        self._call(self._put(message))
        return str(number)

    async def _put(self, message: dict[str, Any]) -> None:
        self._stream.append(message)
        async with self._news:
            self._news.notify_all()

    def redeliver(self, message_id: str) -> None:
        self._call(self._put(self._said[message_id]))

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        key = hashlib.md5(data).digest()
        param = f"param/{next(self._ids)}+="
        self._cdn[param] = sealed(data, key)
        media: dict[str, Any] = {"encrypt_query_param": param, "encrypt_type": 1}
        if self.full_urls:
            media["full_url"] = f"{self.base}/c2c/download?encrypted_query_param={quote(param, safe='')}"
        if mime.startswith("image/"):
            media["aes_key"] = base64.b64encode(key).decode()
            item = {"type": 2, "image_item": {"media": media, "aeskey": key.hex(), "mid_size": len(self._cdn[param])}}
        else:
            media["aes_key"] = base64.b64encode(key.hex().encode()).decode()
            item = {"type": 4, "file_item": {"media": media, "file_name": name, "len": str(len(data))}}
        return self.say(text, who=who, item_list=[item])

    def _items(self, who: str) -> list[dict[str, Any]]:
        return [one["item_list"][0] for one in self._sent if one["to_user_id"] == self.user_id(who)]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [one["text_item"]["text"] for one in self._items(who) if one["type"] == 1]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        """With the caption, which is the message after it. Pictures have no names here."""
        items, found = self._items(who), []
        for item, after in zip(items, [*items[1:], {}], strict=False):
            if item["type"] == 1:
                continue
            inner = item[_ITEMS[item["type"]]]
            key = bytes.fromhex(base64.b64decode(inner["media"]["aes_key"]).decode())
            data = opened(self._cdn[inner["media"]["encrypt_query_param"]], key)
            text = after.get("text_item", {}).get("text", "")
            found.append((inner.get("file_name", "dot.png"), data, text if text == "a dot" else ""))
        return found

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        return self._typing.count(self.user_id(who))

    async def _dropped(self) -> None:
        for request in list(self._polls):
            if request.transport is not None:
                request.transport.abort()

    # ------------------------------------------------------------------------------------------ the server

    def _application(self) -> web.Application:
        self._news = asyncio.Condition()
        app = web.Application(client_max_size=100_000_000)
        add = app.router.add_route
        add("POST", "/ilink/bot/get_bot_qrcode", self._code)
        add("GET", "/ilink/bot/get_qrcode_status", self._status)
        add("POST", "/ilink/bot/{name:.+}", self._operation)
        add("POST", "/c2c/upload", self._upload)
        add("GET", "/c2c/download", self._download)
        return app

    def _wrong(self, text: str) -> web.Response:
        self._problems.append(text)
        return web.json_response({"ret": -1, "errmsg": text})

    def _headers(self, request: web.Request) -> str | None:
        try:
            number = int(base64.b64decode(request.headers["X-WECHAT-UIN"], validate=True))
        except (KeyError, ValueError):
            return "X-WECHAT-UIN is missing or no number"
        if not 0 <= number < 2**32 or request.headers.get("AuthorizationType") != "ilink_bot_token":
            return "the headers are wrong"
        if (
            request.headers.get("iLink-App-Id") != "bot"
            or not request.headers.get("iLink-App-ClientVersion", "").isdigit()
        ):
            return "the application's headers are wrong"
        return None

    async def _code(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (problem := self._headers(request)) or request.query.get("bot_type") != "3":
            return self._wrong(problem or "bot_type must be 3")
        if "Authorization" in request.headers or not isinstance(body.get("local_token_list"), list):
            return self._wrong("a login has no token, and needs local_token_list")
        self.codes += 1
        content = f"https://liteapp.weixin.qq.com/q/7GiQu1?qrcode=code-{self.codes}&bot_type=3"
        return web.json_response({"ret": 0, "qrcode": f"code-{self.codes}", "qrcode_img_content": content})

    async def _status(self, request: web.Request) -> web.Response:
        if request.query.get("qrcode") != f"code-{self.codes}" or "Authorization" in request.headers:
            return self._wrong("another QR code, or a token")
        found = self.statuses.pop(0) if self.statuses else {"status": "wait"}
        wanted = found.pop("wants", None)
        if wanted is not None and request.query.get("verify_code") != wanted:
            return self._wrong(f"verify_code is {request.query.get('verify_code')}")
        return web.json_response({"ret": 0, **found})

    async def _operation(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.json()
        if problem := self._headers(request):
            return self._wrong(problem)
        if not {"channel_version", "bot_agent"} >= set(body.get("base_info") or {"": 1}):
            return self._wrong(f"{name} without base_info")
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"ret": -14, "errcode": -14, "errmsg": "session timeout"})
        if name in ("msg/notifystart", "msg/notifystop"):
            self.notified.append(name)
            return web.json_response({"ret": 0, "errmsg": ""})
        work = {
            "getupdates": self._updates, "sendmessage": self._message, "getconfig": self._config, "sendtyping": self._typed,
            "getuploadurl": self._upload_url,
        }.get(name)  # fmt: skip
        return await work(request, body) if work else self._wrong(f"there is no {name}")

    async def _updates(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if set(body) != {"get_updates_buf", "base_info"}:
            return self._wrong(f"getupdates with {sorted(body)}")
        self.cursors.append(body["get_updates_buf"])
        epoch, _, place = body["get_updates_buf"].partition(":")
        since = int(place) if epoch == str(self._epoch) else 0
        self._polls.append(request)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(5), self._news:
                    await self._news.wait_for(lambda: len(self._stream) > since)
        finally:
            self._polls.remove(request)
        found, cursor = self._stream[since:], f"{self._epoch}:{len(self._stream)}"
        return web.json_response({"msgs": found, "get_updates_buf": cursor, "longpolling_timeout_ms": 5000})

    async def _message(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        message = body.get("msg")
        if not isinstance(message, dict) or set(message) - _MESSAGE:
            return self._wrong("sendmessage without msg, or with unknown fields")
        if self._limited:
            self._limited -= 1
            return web.json_response({"ret": -2, "errmsg": "freq limit"})
        if self._failing:
            self._failing -= 1
            return web.Response(status=502)
        if self.refuses:
            code, text = self.refuses.pop(0)
            return web.json_response({"ret": code, "errmsg": text})
        known = {self.user_id(who) for who in PEOPLE}
        tokens = {one["context_token"] for one in self._stream if one["from_user_id"] == message.get("to_user_id")}
        if message.get("to_user_id") not in known or message.get("context_token") not in tokens:
            return self._wrong("a message to no one, or with a context token of another person")
        if message.get("message_type") != 2 or message.get("message_state") != 2 or not message.get("client_id"):
            return self._wrong("message_type, message_state or client_id is wrong")
        items = message.get("item_list") or []
        if len(items) != 1 or _ITEMS.get(items[0].get("type", 0), "?") not in items[0]:
            return self._wrong("a message must have one item")
        text = items[0].get("text_item", {}).get("text", "x")
        if not text.strip() or len(text) > LONGEST:
            return self._wrong(f"a text of {len(text)} characters")
        self._sent.append(message)
        self._lose(request)
        return web.json_response({})

    async def _config(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if set(body) - {"ilink_user_id", "context_token", "base_info"}:
            return self._wrong(f"getconfig with {sorted(body)}")
        ticket = base64.b64encode(f"ticket {body['ilink_user_id']}".encode()).decode()
        return web.json_response({"ret": 0, "typing_ticket": ticket})

    async def _typed(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if base64.b64decode(body["typing_ticket"]).decode() != f"ticket {body['ilink_user_id']}" or body[
            "status"
        ] not in (1, 2):
            return self._wrong("a wrong typing ticket or status")
        self._typing.append(body["ilink_user_id"])
        return web.json_response({"ret": 0})

    async def _upload_url(self, request: web.Request, body: dict[str, Any]) -> web.Response:
        if set(body) != _UPLOAD or body["media_type"] not in (1, 2, 3, 4) or len(bytes.fromhex(body["aeskey"])) != 16:
            return self._wrong(f"getuploadurl with {sorted(body)}")
        param = f"up/{next(self._ids)}+"
        self._uploads[param] = body
        if self.full_urls:
            address = f"{self.base}/c2c/upload?encrypted_query_param={quote(param, safe='')}&filekey={body['filekey']}"
            return web.json_response({"ret": 0, "upload_full_url": address})
        return web.json_response({"ret": 0, "upload_param": param})

    async def _upload(self, request: web.Request) -> web.Response:
        data, asked = await request.read(), self._uploads.get(request.query.get("encrypted_query_param", ""))
        if asked is None or request.query.get("filekey") != asked["filekey"] or "Authorization" in request.headers:
            self._problems.append("an upload that was not asked for, or with our token")
            return web.Response(status=400)
        plain = opened(data, bytes.fromhex(asked["aeskey"]))
        about = (len(data), len(plain), hashlib.md5(plain).hexdigest())
        if about != (asked["filesize"], asked["rawsize"], asked["rawfilemd5"]):
            self._problems.append(f"the file is not the one that was announced: {json.dumps(about)}")
            return web.Response(status=400)
        param = f"down/{next(self._ids)}="
        self._cdn[param] = data
        return web.Response(headers={"x-encrypted-param": param})

    async def _download(self, request: web.Request) -> web.Response:
        if "Authorization" in request.headers:
            self._problems.append("the CDN got our token")
        found = self._cdn.get(request.query.get("encrypted_query_param", ""))
        return web.Response(status=404) if found is None else web.Response(body=found)

"""Feishu without Feishu: a server of our own that speaks its API and its long connection.

It checks every request by the published API reference (fields, sizes, cards, login), sends one message for one uuid, and repeats events
that were not acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.labs.base import PEOPLE
from tests.support.labs.feishu_wire import card_problem, data_frame, parse_frame, pong_frame
from tests.support.labs.socket_lab import SocketLab

APP_ID, APP_SECRET = "cli_a1b2c3d4e5f60718", "feishu-app-secret-0001"
BOT = "ou_bot0000000000000000000000000000"
GROUP, ROOT = "oc_group", "om_threadroot"
CONFIG = {"ReconnectCount": -1, "ReconnectInterval": 1, "ReconnectNonce": 0, "PingInterval": 120}  # seconds
LARGEST_CARD = 30 * 1024


class Lab(SocketLab):
    """One tenant: direct chats with the bot, and a group with a thread."""

    platform = "feishu"
    places = frozenset({"dm", "group", "thread"})
    can = frozenset("redeliver rate_limit fail drop attach edits take_back files choices forward".split())

    def __init__(self) -> None:
        self._sockets: set[web.WebSocketResponse] = set()
        self._order = asyncio.Lock()
        super().__init__()

    def _forget(self) -> None:
        self.parts = 1  # into how many frames an event is cut
        self.names = True  # whether the app may read names
        self.refuses_markdown = False
        self.hangs_up = 0  # how many of the next long connections are cut at once
        self._said: dict[str, dict[str, Any]] = {}
        self._forwards: dict[str, list[dict[str, Any]]] = {}  # merged messages, as the API gives them
        self.sent: dict[str, dict[str, Any]] = {}
        self._uuids: dict[str, str] = {}
        self._edits: dict[str, list[float]] = {}
        self._files: dict[str, tuple[str, bytes]] = {}
        self._recalled: set[str] = set()
        self._waiting: dict[str, dict[str, Any]] = {}  # events that were not acknowledged
        self.token, self.tokens_issued, self.logins, self._tickets = "", 0, 0, set[str]()
        self.acknowledged: list[int] = []
        self.pings = 0
        self.answers_after = 0.0  # seconds after which a new message is confirmed

    # ------------------------------------------------------------------------------------------ what tests do

    @property
    def settings(self) -> dict[str, Any]:
        return {"app_id": APP_ID, "app_secret": APP_SECRET, "base_url": f"http://127.0.0.1:{self.port}"}

    def user_id(self, who: str) -> str:
        return f"on_{who}"

    def ids(self, who: str) -> dict[str, str]:
        """A person's ids as events have them."""
        return {"open_id": f"ou_{who}", "union_id": f"on_{who}", "user_id": ""}

    def chat_id(self, where: str, who: str = "alice") -> str:
        return f"oc_dm_{who}" if where == "dm" else GROUP

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        mentions = []
        if addressed and where != "dm":
            text = f"@_user_1 {text}"
            mentions = [{"key": "@_user_1", "id": {"open_id": BOT, "union_id": "on_bot"}, "name": "Hermes"}]
        return self.put("text", {"text": text}, who=who, where=where, mentions=mentions, **more)

    def forward(self, text: str, *, who: str = "alice", where: str = "dm") -> str:
        name = f"om_merged{next(self._ids):08d}"
        inner = {
            "message_id": f"{name}_1", "upper_message_id": name, "msg_type": "text",
            "sender": {"id": self.ids("bob")["open_id"], "id_type": "open_id", "sender_type": "user"},
            "body": {"content": json.dumps({"text": text})},
        }  # fmt: skip
        merged = "Merged and Forwarded Message"
        self._forwards[name] = [{"message_id": name, "msg_type": "merge_forward", "body": {"content": merged}}, inner]
        self.put("merge_forward", merged, who=who, where=where, message_id=name)
        return name

    def put(self, kind: str, content: Any, *, who: str = "alice", where: str = "dm", **more: Any) -> str:
        """A person sends a message of any type."""
        message_id = f"om_said{next(self._ids):08d}"
        message = {
            "message_id": message_id, "create_time": str(int(time.time() * 1000)), "chat_id": self.chat_id(where, who),
            "chat_type": "p2p" if where == "dm" else "group", "message_type": kind, "content": json.dumps(content), **more,
        }  # fmt: skip
        if where == "thread":
            message |= {"thread_id": "omt_1", "root_id": ROOT, "parent_id": ROOT}
        sender = {"sender_id": self.ids(who), "sender_type": "user", "tenant_key": "t"}
        self._said[message_id] = self.push("im.message.receive_v1", {"sender": sender, "message": message})
        return message_id

    def push(self, kind: str, event: dict[str, Any]) -> dict[str, Any]:
        """Send an event; it is repeated until it is acknowledged."""
        header = {
            "event_id": f"event{next(self._ids):08d}", "event_type": kind, "create_time": str(int(time.time() * 1000)),
            "token": "", "app_id": APP_ID, "tenant_key": "t",
        }  # fmt: skip
        whole = {"schema": "2.0", "header": header, "event": event}
        self._deliver(whole)
        return whole

    def _deliver(self, whole: dict[str, Any]) -> None:
        self._call(self._sent_to_one(whole))

    async def _sent_to_one(self, whole: dict[str, Any]) -> None:
        async with self._order:  # a connection that is opened at this moment gets it once
            self._waiting[whole["header"]["event_id"]] = whole
            for socket in list(self._sockets)[:1]:  # Feishu sends it to one of the connections
                with suppress(Exception):
                    await self._framed(socket, whole)

    async def _framed(self, socket: web.WebSocketResponse, whole: dict[str, Any]) -> None:
        payload, name = json.dumps(whole).encode(), whole["header"]["event_id"]
        size = -(-len(payload) // self.parts)
        for number in range(self.parts):
            await socket.send_bytes(data_frame(name, payload[number * size : (number + 1) * size], self.parts, number))

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        key = f"{'img' if mime.startswith('image/') else 'file'}_v3_{next(self._ids):08d}"
        self._files[key] = (name, data)
        if key.startswith("img"):
            lines = [[{"tag": "img", "image_key": key}], [{"tag": "text", "text": text}]]
            return self.put("post", {"title": "", "content": lines}, who=who, where=where)
        return self.put("file", {"file_key": key, "file_name": name}, who=who, where=where)

    def redeliver(self, message_id: str) -> None:
        self._deliver(self._said[message_id])

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        self._recalled.add(message_id)
        event = {"message_id": message_id, "chat_id": self.chat_id(where, who), "recall_type": "message_owner"}
        self.push("im.message.recalled_v1", {**event, "recall_time": str(int(time.time() * 1000))})

    def _ours(self, where: str, who: str) -> list[dict[str, Any]]:
        thread = ROOT if where == "thread" else None
        found = [one for one in self.sent.values() if one["chat_id"] == self.chat_id(where, who)]
        return [one for one in found if one["thread"] == thread or where == "dm"]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [_words(one) for one in self._ours(where, who) if one["msg_type"] == "interactive"]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        """With the caption, which is the message after it."""
        there, found = self._ours(where, who), []
        for one, after in zip(there, [*there[1:], None], strict=False):
            content = json.loads(one["content"])
            key = content.get("image_key") or content.get("file_key")
            if key is not None:
                text = _words(after) if after is not None and after["msg_type"] == "interactive" else ""
                found.append((*self._files[key], text if text == "a dot" else ""))
        return found

    def buttons(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        cards = [one for one in self._ours(where, who) if one["msg_type"] == "interactive"]
        found = [[one["text"]["content"] for one in _elements(card) if one["tag"] == "button"] for card in cards]
        return next((labels for labels in reversed(found) if labels), [])

    def press(self, label: str, *, who: str = "alice", where: str = "dm", which: int = -1) -> None:
        found = [
            (card, one)
            for card in self._ours(where, who)
            for one in (_elements(card) if card["msg_type"] == "interactive" else ())
            if one["tag"] == "button" and one["text"]["content"] == label
        ]
        card, one = found[which]
        place = {"open_message_id": card["message_id"], "open_chat_id": card["chat_id"]}
        action = {"value": one["behaviors"][0]["value"], "tag": "button"}
        self.push("card.action.trigger", {"operator": self.ids(who), "action": action, "context": place})

    def threads(self) -> list[str]:
        return [text.strip("*") for one in self.sent.values() if (text := _words(one)).startswith("**")]

    def drop(self) -> None:
        self._call(self._dropped())

    async def _dropped(self) -> None:
        sockets, self._sockets = self._sockets, set()
        for socket in sockets:
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()

    # ------------------------------------------------------------------------------------------ the server

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=100_000_000)
        add, im = app.router.add_route, "/open-apis/im/v1"
        add("POST", "/callback/ws/endpoint", self._endpoint)
        add("GET", "/ws", self._websocket)
        add("POST", "/open-apis/auth/v3/tenant_access_token/internal", self._login)
        add("GET", "/open-apis/bot/v3/info", self._bot)
        add("GET", "/open-apis/contact/v3/users/{id}", self._user)
        add("POST", f"{im}/messages", self._create)
        add("POST", f"{im}/messages/{{id}}/reply", self._create)
        add("PATCH", f"{im}/messages/{{id}}", self._patch)
        add("GET", f"{im}/messages/{{id}}", self._message)
        add("GET", f"{im}/messages/{{id}}/resources/{{key}}", self._resource)
        add("POST", f"{im}/images", self._upload)
        add("POST", f"{im}/files", self._upload)
        return app

    def _code(self, code: int, msg: str, status: int = 400, **headers: str) -> web.Response:
        return web.json_response({"code": code, "msg": msg}, status=status, headers=headers)

    def _wrong(self, text: str, code: int = 230001) -> web.Response:
        self._problems.append(text)
        return self._code(code, f"Your request contains an invalid request parameter, ext={text}")

    async def _login(self, request: web.Request) -> web.Response:
        body = await request.json()
        if set(body) != {"app_id", "app_secret"}:
            return self._wrong(f"fields of the login: {sorted(body)}", 10003)
        if (body["app_id"], body["app_secret"]) != (APP_ID, APP_SECRET):
            return self._code(10014, "app secret invalid", 200)
        self.logins += 1
        if not self.token:
            self.tokens_issued += 1
            self.token = f"t-{self.tokens_issued}{os.urandom(8).hex()}"
        return web.json_response({"code": 0, "msg": "ok", "tenant_access_token": self.token, "expire": 7200})

    def _refused(self, request: web.Request, *, limited: bool = False) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if not given:
            self._problems.append(f"no token: {request.path}")
            return self._code(99991661, "Missing access token for authorization.")
        if not self.token or given != f"Bearer {self.token}":
            return self._code(99991663, "Invalid access token for authorization.")
        if limited and self._limited:
            self._limited -= 1
            return self._code(
                99991400, "request trigger frequency limit", 429, **{"x-ogw-ratelimit-reset": str(self._seconds)}
            )
        if limited and self._failing:
            self._failing -= 1
            return self._code(2200, "Internal Error", 500)
        return None

    async def _endpoint(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (body.get("AppID"), body.get("AppSecret")) != (APP_ID, APP_SECRET):
            return web.json_response({"code": 514, "msg": "auth failed", "data": {}})  # Feishu's SDK reads data first
        ticket = os.urandom(8).hex()
        self._tickets.add(ticket)
        url = f"ws://127.0.0.1:{self.port}/ws?device_id=7&service_id=33554678&access_key=k&ticket={ticket}"
        return web.json_response({"code": 0, "msg": "", "data": {"URL": url, "ClientConfig": CONFIG}})

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("ticket") not in self._tickets:
            headers = {"handshake-status": "514", "handshake-msg": "auth failed"}
            return web.Response(status=400, headers=headers)
        self._tickets.discard(request.query["ticket"])
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.hangs_up:
            self.hangs_up -= 1
            await socket.close()
            return socket
        async with self._order:
            self._sockets.add(socket)
            for whole in list(self._waiting.values()):
                await self._framed(socket, whole)
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                await self._answered(socket, message.data)
        self._sockets.discard(socket)
        return socket

    async def _answered(self, socket: web.WebSocketResponse, data: bytes) -> None:
        frame = parse_frame(data)
        if frame["method"] == 0:
            self.pings += 1
            if frame["headers"].get("type") != "ping" or frame["service"] != 33554678:
                self._problems.append(f"a control frame {frame}")
            await socket.send_bytes(pong_frame({**CONFIG, "PingInterval": 90}))
            return
        answer = json.loads(frame["payload"])
        self.acknowledged.append(answer["code"])
        if answer["code"] == 200:
            self._waiting.pop(frame["headers"]["message_id"], None)

    async def _bot(self, request: web.Request) -> web.Response:
        bot = {"activate_status": 2, "app_name": "Hermes", "open_id": BOT}
        return self._refused(request) or web.json_response({"code": 0, "msg": "ok", "bot": bot})

    async def _user(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        if not self.names:
            return self._code(
                99991672, "Access denied. One of the following scopes is required: contact:user.base:readonly"
            )
        who = next((one for one in PEOPLE if f"ou_{one}" == request.match_info["id"]), None)
        return web.json_response({"code": 0, "msg": "", "data": {"user": {"name": str(who).title()}}})

    async def _create(self, request: web.Request) -> web.Response:
        if refused := self._refused(request, limited=True):
            return refused
        raw = await request.read()
        body, target = json.loads(raw), request.match_info.get("id")
        wanted = {"msg_type", "content", "uuid", "reply_in_thread" if target else "receive_id"}
        if set(body) != wanted or len(body["uuid"]) > 50:
            return self._wrong(f"fields of a message: {sorted(body)}")
        if target is None and request.query.get("receive_id_type") != "chat_id":
            return self._wrong("receive_id_type")
        if target in self._recalled:
            return self._code(230011, "The message is recalled.")
        if problem := self._content_problem(body["msg_type"], body["content"], raw):
            return problem
        if (known := self._uuids.get(body["uuid"])) is not None:
            return web.json_response({"code": 0, "msg": "success", "data": {"message_id": known}})
        place = self._place(body, target)
        if place is None:
            return self._wrong(f"there is no message {target}, or no chat")
        message_id = f"om_sent{next(self._ids):08d}"
        self._uuids[body["uuid"]] = message_id
        chat_id, thread = place
        self.sent[message_id] = {
            "message_id": message_id, "chat_id": chat_id, "thread": thread, "msg_type": body["msg_type"],
            "content": body["content"], "reply_to": target,
        }  # fmt: skip
        await asyncio.sleep(self.answers_after)
        return web.json_response({"code": 0, "msg": "success", "data": {"message_id": message_id, "chat_id": chat_id}})

    def _place(self, body: dict[str, Any], target: str | None) -> tuple[str, str | None] | None:
        """The chat and the thread of a new message."""
        if target is None:
            known = [GROUP, *(f"oc_dm_{who}" for who in PEOPLE)]
            return (body["receive_id"], None) if body["receive_id"] in known else None
        thread = target if body["reply_in_thread"] else None
        if target == ROOT:
            return GROUP, ROOT
        if target in self._said:
            return self._said[target]["event"]["message"]["chat_id"], thread
        return (self.sent[target]["chat_id"], thread) if target in self.sent else None

    def _content_problem(self, kind: str, content: str, raw: bytes) -> web.Response | None:
        try:
            found = json.loads(content)
        except ValueError:
            return self._wrong("content is not a string in json format", 230001)
        if kind == "interactive":
            if len(raw) > LARGEST_CARD:
                return self._wrong(f"a card of {len(raw)} bytes", 230025)
            if problem := card_problem(found):
                return self._wrong(problem, 230099)
            if self.refuses_markdown and found["body"]["elements"][0]["tag"] == "markdown":
                return self._code(
                    230099, "Failed to create card content, ext=ErrCode: 11310; ErrMsg: card table number over limit"
                )
        elif kind in ("image", "file", "audio"):
            key = found.get("image_key" if kind == "image" else "file_key")
            if len(found) != 1 or key not in self._files:
                return self._wrong(f"content of {kind}")
        else:
            return self._wrong(f"msg_type {kind}")
        return None

    async def _patch(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        raw = await request.read()
        body, message = json.loads(raw), self.sent.get(request.match_info["id"])
        if set(body) != {"content"} or message is None or message["msg_type"] != "interactive":
            return self._wrong("only cards that exist can be updated")
        now, times = time.monotonic(), self._edits.setdefault(message["message_id"], [])
        times[:] = [one for one in times if one > now - 1]
        if len(times) >= 5:
            return self._code(230020, "This operation triggers the frequency limit.", **{"x-ogw-ratelimit-reset": "1"})
        times.append(now)
        if problem := self._content_problem("interactive", body["content"], raw):
            return problem
        message["content"] = body["content"]
        return web.json_response({"code": 0, "msg": "success", "data": {}})

    async def _message(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        name = request.match_info["id"]
        if name in self._forwards:
            return web.json_response({"code": 0, "msg": "success", "data": {"items": self._forwards[name]}})
        if name in self.sent:
            words = [[{"tag": "text", "text": _words(self.sent[name])}]]
            item = {"msg_type": "interactive", "body": {"content": json.dumps({"title": "", "elements": words})}}
        elif name in self._said:
            message = self._said[name]["event"]["message"]
            item = {"msg_type": message["message_type"], "body": {"content": message["content"]}}
        else:
            return self._code(230001, "Your request contains an invalid request parameter, ext=invalid message_id.")
        return web.json_response({"code": 0, "msg": "success", "data": {"items": [{"message_id": name, **item}]}})

    async def _resource(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        key, message = request.match_info["key"], self._said.get(request.match_info["id"])
        if message is None or key not in message["event"]["message"]["content"] or key not in self._files:
            return self._wrong("no such file in the message", 234003)
        if request.query.get("type") != ("image" if key.startswith("img") else "file"):
            return self._wrong("type of a resource", 234001)
        return web.Response(body=self._files[key][1], content_type="application/json")

    async def _upload(self, request: web.Request) -> web.Response:
        if refused := self._refused(request, limited=True):
            return refused
        form = await request.post()
        field = "image" if request.path.endswith("images") else "file"
        wanted = {"image_type", "image"} if field == "image" else {"file_type", "file_name", "file"}
        upload = form.get(field)
        if set(form) != wanted or not isinstance(upload, web.FileField | bytes | bytearray):
            return self._wrong(f"fields of an upload: {sorted(form)}", 234001)
        data = upload.file.read() if isinstance(upload, web.FileField) else bytes(upload)  # the SDK's have no file name
        if not data or len(data) > (10 if field == "image" else 30) * 1_000_000:
            return self._wrong("the size of an upload", 234006)
        if field == "file" and form["file_type"] not in ("opus", "mp4", "pdf", "doc", "xls", "ppt", "stream"):
            return self._wrong("file_type", 234001)
        name = str(form.get("file_name") or getattr(upload, "filename", ""))
        key = f"{field[:4]}_v3_{next(self._ids):08d}"
        self._files[key] = (name, data)
        return web.json_response({"code": 0, "msg": "success", "data": {f"{field}_key": key}})


def _elements(message: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(message["content"]).get("body", {}).get("elements", [])
    return found


def _words(message: dict[str, Any]) -> str:
    """The visible text of a card."""
    texts = [one.get("content") or one.get("text", {}).get("content", "") for one in _elements(message)[:1]]
    return re.sub("&#60;", "<", "".join(texts))

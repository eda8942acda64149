"""DingTalk without DingTalk: its Stream mode, session webhooks, and the API of robots.

It checks every request by the published reference (login, fields, lengths, expired webhooks and tokens), pushes what was not
acknowledged again on the next connection, and wants every frame to be acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.labs.base import PEOPLE
from tests.support.labs.socket_lab import SocketLab

CLIENT, SECRET = "dinglab0client0id", "dingtalk-client-secret-0001"
CORP = "dingcorp0001"
GROUP = "cidGroup0000000000000001=="
TOPIC = "/v1.0/im/bot/messages/get"
LARGEST = 15_000  # bytes of msgParam
_PARAMETERS = {
    "sampleText": {"content"}, "sampleMarkdown": {"title", "text"}, "sampleImageMsg": {"photoURL"},
    "sampleFile": {"mediaId", "fileName", "fileType"},
}  # fmt: skip


class Lab(SocketLab):
    """An organisation of three people, and a group with a robot."""

    platform = "dingtalk"
    places = frozenset({"dm", "group"})
    can = frozenset({"redeliver", "rate_limit", "fail", "drop", "attach", "files"})

    def __init__(self) -> None:
        self._socket: web.WebSocketResponse | None = None
        self._tickets: set[str] = set()
        super().__init__()

    def _forget(self) -> None:
        self._said: dict[str, dict[str, Any]] = {}
        self._waiting: dict[str, dict[str, Any]] = {}  # frames that were not acknowledged
        self._shown: list[tuple[str, str, Any]] = []  # the chat, "text" or "file", what it is
        self._webhooks: dict[str, tuple[str, float]] = {}
        self._files: dict[str, tuple[str, bytes, str]] = {}
        self._tokens: set[str] = set()
        self.token_seconds = 7200
        self.tokens_given = 0
        self.webhook_seconds = 5400.0  # how long session webhooks of the next messages are good
        self.webhooks_ended = False  # they are refused before their time
        self.acknowledged: list[str] = []
        self.pongs: list[str] = []
        self.by: list[str] = []  # how each message came: "webhook", "person", "group"
        self.connections = 0
        self.limit_code: int | str = 90018
        self.odd: str | None = None  # the body of every answer but those to logins
        self.downloads: list[tuple[str, str | None]] = []

    # ------------------------------------------------------------------------------------------ what tests do

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "client_id": CLIENT,
            "client_secret": SECRET,
            "base_url": self.address,
            "old_url": f"{self.address}/old",
        }

    def user_id(self, who: str) -> str:
        return f"staff{who}"

    def chat_id(self, where: str, who: str = "alice") -> str:
        return self.user_id(who) if where == "dm" else GROUP

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        content = f" {text} " if where == "group" else text
        return self.push(
            {"msgtype": "text", "text": {"content": content}}, who=who, where=where, addressed=addressed, **more
        )

    def push(
        self, content: dict[str, Any], *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any
    ) -> str:
        """Any message, as the robot gets it."""
        number = f"msg{next(self._ids):020d}=="
        key = f"session{next(self._ids):08d}"
        until = time.time() + self.webhook_seconds
        self._webhooks[key] = (self.chat_id(where, who), until)
        message = {
            "conversationId": GROUP if where == "group" else f"cidDm{who}==", "atUsers": [{"dingtalkId": "$:LWCP_v1:$robot"}],
            "chatbotCorpId": CORP, "chatbotUserId": "$:LWCP_v1:$robot", "msgId": number, "senderNick": who.title(),
            "isAdmin": False, "senderStaffId": self.user_id(who), "sessionWebhookExpiredTime": int(until * 1000),
            "createAt": int(time.time() * 1000), "senderCorpId": CORP, "conversationType": "2" if where == "group" else "1",
            "senderId": f"$:LWCP_v1:${who}", "conversationTitle": "A group" if where == "group" else "", "robotCode": CLIENT,
            "isInAtList": addressed and where == "group",
            "sessionWebhook": f"{self.address}/old/robot/sendBySession?session={key}", **content, **more,
        }  # fmt: skip
        self._said[number] = message
        self.redeliver(number)
        return number

    def redeliver(self, message_id: str) -> None:
        self.frame({"type": "CALLBACK", "topic": TOPIC}, json.dumps(self._said[message_id]))

    def frame(self, headers: dict[str, Any], data: Any) -> str:
        """Push a frame; its id."""
        name = f"frame{next(self._ids):08d}"
        kind = headers.pop("type")
        whole = {
            "specVersion": "1.0", "type": kind, "data": data,
            "headers": {"appId": "app1", "connectionId": "c1", "contentType": "application/json", "messageId": name,
                        "time": str(int(time.time() * 1000)), **headers},
        }  # fmt: skip
        self._call(self._pushed(name, whole))
        return name

    async def _pushed(self, name: str, whole: dict[str, Any]) -> None:
        async with self._order:
            self._waiting[name] = whole
            if self._socket is not None:
                with suppress(Exception):
                    await self._socket.send_json(whole)

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        code = f"code{next(self._ids):08d}"
        self._files[code] = (name, data, mime)
        if mime.startswith("image/"):
            parts = [{"text": text}, {"type": "picture", "downloadCode": code, "pictureDownloadCode": code}]
            return self.push({"msgtype": "richText", "content": {"richText": parts}}, who=who, where=where)
        content = {"downloadCode": code, "fileName": name, "fileId": "1", "spaceId": "2"}
        return self.push({"msgtype": "file", "content": content}, who=who, where=where)

    def _there(self, where: str, who: str) -> list[tuple[str, Any]]:
        return [(kind, what) for chat, kind, what in self._shown if chat == self.chat_id(where, who)]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [what for kind, what in self._there(where, who) if kind == "text"]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        """A caption is the message right after its file; the tools' results of the model are none."""
        found, items = [], self._there(where, who)
        for number, (kind, what) in enumerate(items):
            if kind == "file":
                after = items[number + 1] if number + 1 < len(items) else ("", "")
                caption = after[1] if after[0] == "text" and "the tool said" not in after[1] else ""
                found.append((what[0], what[1], caption))
        return found

    def end_tokens(self) -> None:
        """All access tokens end now."""
        self._tokens.clear()

    # ------------------------------------------------------------------------------------------ the server

    def _application(self) -> web.Application:
        self._order = asyncio.Lock()
        app = web.Application(client_max_size=100_000_000, middlewares=[self._oddly])
        add = app.router.add_route
        add("POST", "/v1.0/oauth2/accessToken", self._token)
        add("POST", "/v1.0/gateway/connections/open", self._open)
        add("GET", "/connect", self._connected)
        add("POST", "/v1.0/robot/oToMessages/batchSend", self._to_person)
        add("POST", "/v1.0/robot/groupMessages/send", self._to_group)
        add("POST", "/v1.0/robot/messageFiles/download", self._download)
        add("POST", "/old/robot/sendBySession", self._by_session)
        add("GET", "/old/gettoken", self._old_token)
        add("POST", "/old/media/upload", self._upload)
        add("GET", "/stored/{code}", self._stored)
        return app

    @web.middleware
    async def _oddly(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.odd is not None and request.path not in ("/connect", "/v1.0/oauth2/accessToken"):
            return web.Response(text=self.odd, content_type="application/json")
        found: web.StreamResponse = await handler(request)
        return found

    def _wrong(self, code: str, text: str) -> web.Response:
        self._problems.append(text)
        return web.json_response({"requestid": "r1", "code": code, "message": text}, status=400)

    async def _token(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body != {"appKey": CLIENT, "appSecret": SECRET}:
            return web.json_response(
                {"code": "invalidClientIdOrSecret", "message": f"无效的clientId或者clientSecret {body}"}, status=400
            )
        self.tokens_given += 1
        token = f"token{next(self._ids):08d}"
        self._tokens.add(token)
        await asyncio.sleep(0.02)  # several requests may want one at the same time
        return web.json_response({"accessToken": token, "expireIn": self.token_seconds})

    async def _old_token(self, request: web.Request) -> web.Response:
        if (request.query.get("appkey"), request.query.get("appsecret")) != (CLIENT, SECRET):
            return web.json_response({"errcode": 40089, "errmsg": "不合法的corpid或corpsecret"})
        token = f"token{next(self._ids):08d}"
        self._tokens.add(token)
        return web.json_response({"errcode": 0, "access_token": token, "errmsg": "ok", "expires_in": 7200})

    async def _open(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (body.get("clientId"), body.get("clientSecret")) != (CLIENT, SECRET):
            return web.json_response({"code": "authFailed", "message": "鉴权失败"}, status=401)
        subscriptions = body.get("subscriptions")
        if not isinstance(subscriptions, list) or {"type": "CALLBACK", "topic": TOPIC} not in subscriptions:
            return self._wrong("subscriptions.empty", "no subscriptions")
        if "application/json" not in request.headers.get("Accept", ""):
            text = "<OpenConnectionResponse><endpoint>…</endpoint><ticket>…</ticket></OpenConnectionResponse>"
            return web.Response(text=text, content_type="application/xml")  # so say DingTalk's own SDKs
        ticket = f"ticket{next(self._ids):08d}"
        self._tickets.add(ticket)
        return web.json_response({"endpoint": f"ws://127.0.0.1:{self.port}/connect", "ticket": ticket})

    async def _connected(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("ticket") not in self._tickets:
            self._problems.append("a ticket that is not good")
            return web.Response(status=401)
        self._tickets.discard(request.query["ticket"])
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async with self._order:
            self._socket = socket
            self.connections += 1
            for frame in list(self._waiting.values()):
                await socket.send_json(frame)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                self._acknowledged(json.loads(message.data))
        return socket

    def _acknowledged(self, answer: dict[str, Any]) -> None:
        headers, data = answer.get("headers", {}), answer.get("data")
        whole = set(answer) == {"code", "headers", "message", "data"} and isinstance(data, str)
        if not whole or headers.get("contentType") != "application/json" or answer["code"] != 200:
            self._problems.append(f"a bad acknowledgement {answer}")
        frame = self._waiting.pop(headers.get("messageId"), None)
        if frame is not None:  # it may have been pushed twice
            self.acknowledged.append(headers["messageId"])
            self.pongs += [str(data)] if frame["headers"]["topic"] == "ping" else []

    def _held_up(self) -> web.Response | None:
        if self._failing:
            self._failing -= 1
            return web.json_response({"code": "ServiceUnavailable", "message": "busy"}, status=503)
        return None

    def _refused(self, request: web.Request) -> web.Response | None:
        token = request.headers.get("x-acs-dingtalk-access-token", "")
        if token not in self._tokens:
            return web.json_response({"code": "InvalidAuthentication", "message": "不合法的access_token"}, status=400)
        if self._limited:
            self._limited -= 1
            code = "Forbidden.AccessDenied.QpsLimitForApi"
            return web.json_response({"code": code, "message": "触发接口流控"}, status=403)
        return self._held_up()

    async def _by_session(self, request: web.Request) -> web.Response:
        chat, until = self._webhooks.get(request.query.get("session", ""), ("", 0.0))
        if not chat or until < time.time():
            self._problems.append("a session webhook after its end")
            return web.json_response({"errcode": 400101, "errmsg": "session is not exist"})
        if self.webhooks_ended:
            return web.json_response({"errcode": 400101, "errmsg": "session is not exist"})
        if self._limited:
            self._limited -= 1
            return web.json_response({"errcode": self.limit_code, "errmsg": "too fast"})
        if held := self._held_up():
            return held
        raw = await request.read()
        body = json.loads(raw)
        kind = body.get("msgtype")
        wanted = {"text": {"content"}, "markdown": {"title", "text"}}.get(kind)
        if wanted is None or set(body) - {"msgtype", kind, "at"} or set(body.get(kind, {})) != wanted:
            return self._errcode(40035, f"a bad message {body}")
        text = body[kind]["content" if kind == "text" else "text"]
        if not text.strip() or len(raw) > 20_000 or (kind == "markdown" and not body[kind]["title"]):
            return self._errcode(460101, f"a message of {len(raw)} bytes, or an empty one")
        self._shown.append((chat, "text", _visible(kind, text)))
        self.by.append("webhook")
        self._lose(request)
        return web.json_response({"errcode": 0, "errmsg": "ok"})

    def _errcode(self, code: int, text: str) -> web.Response:
        self._problems.append(text)
        return web.json_response({"errcode": code, "errmsg": text})

    async def _to_person(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        people = body.pop("userIds", None)
        if not isinstance(people, list) or not 1 <= len(people) <= 20:
            return self._wrong("miss.param", "userIds is missing")
        if problem := self._taken(people[0], body):
            return problem
        self.by.append("person")
        known = [self.user_id(who) for who in PEOPLE]
        invalid = [one for one in people if one not in known]
        key = f"key{next(self._ids)}"
        return web.json_response(
            {"processQueryKey": key, "invalidStaffIdList": invalid, "flowControlledStaffIdList": []}
        )

    async def _to_group(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        group = body.pop("openConversationId", None)
        if group != GROUP:
            return self._wrong("invalidParameter.openConversationId", f"no such conversation {group}")
        if problem := self._taken(group, body):
            return problem
        self.by.append("group")
        return web.json_response({"processQueryKey": f"key{next(self._ids)}"})

    def _taken(self, chat: str, body: dict[str, Any]) -> web.Response | None:
        if set(body) != {"robotCode", "msgKey", "msgParam"} or body["robotCode"] != CLIENT:
            return self._wrong("invalidParameter", f"bad fields {sorted(body)}")
        key, raw = body["msgKey"], body["msgParam"]
        if key not in _PARAMETERS or not isinstance(raw, str) or len(raw.encode()) > LARGEST:
            return self._wrong("invalidParameter.msgParam.invalid", f"a bad {key}")
        parameters = json.loads(raw)
        if set(parameters) != _PARAMETERS[key] or not all(parameters.values()):
            return self._wrong("invalidParameter.msgParam.invalid", f"{key} with {sorted(parameters)}")
        if key in ("sampleText", "sampleMarkdown"):
            text = parameters["content" if key == "sampleText" else "text"]
            self._shown.append((chat, "text", _visible("text" if key == "sampleText" else "markdown", text)))
            return None
        media = self._files.get(parameters.get("photoURL") or parameters["mediaId"])
        if media is None:
            return self._wrong("invalidParameter.mediaId", "no such media id")
        self._shown.append((chat, "file", (parameters.get("fileName") or media[0], media[1])))
        return None

    async def _upload(self, request: web.Request) -> web.Response:
        if request.query.get("access_token") not in self._tokens:
            return web.json_response({"errcode": 40014, "errmsg": "不合法的access_token"})
        form = await request.post()
        media = form.get("media")
        kind = form.get("type")
        if kind not in ("image", "voice", "video", "file") or not isinstance(media, web.FileField):
            return self._errcode(40004, f"a bad upload of the type {kind}")
        name = f"@media{next(self._ids):08d}"
        self._files[name] = (media.filename, media.file.read(), media.content_type)
        return web.json_response({"errcode": 0, "errmsg": "ok", "media_id": name, "type": kind})

    async def _download(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        if set(body) != {"downloadCode", "robotCode"} or body["robotCode"] != CLIENT:
            return self._wrong("invalidParameter", f"bad fields {sorted(body)}")
        code = body["downloadCode"]
        if code.startswith("http"):
            return web.json_response({"downloadUrl": code})
        if code not in self._files:
            return web.json_response({"code": "unknownDownloadCode", "message": "下载码无效"}, status=400)
        return web.json_response({"downloadUrl": f"{self.address}/stored/{code}"})

    async def _stored(self, request: web.Request) -> web.Response:
        self.downloads.append((request.path, request.headers.get("x-acs-dingtalk-access-token")))
        return web.Response(body=self._files[request.match_info["code"]][1])


def _visible(kind: str, text: str) -> str:
    """A message as people see it: in Markdown, two spaces at the end of a line break it."""
    return text if kind == "text" else text.replace("  \n", "\n")

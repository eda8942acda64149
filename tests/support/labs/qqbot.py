"""QQ without QQ: its token server, its REST API (version 2) and its gateway, in one server of our own.

It checks what QQ's documentation demands: the login, the fields, that a reply names a message of the last minutes with a number
that was not used for it, and how many replies a message may get.
"""

from __future__ import annotations

import base64
import itertools
import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.labs.socket_lab import SocketLab

APP, SECRET = "102000001", "qqbot-client-secret-0001"
GROUP = "GROUPOPENID0000000000000000000001"
MOST_REPLIES = 5
_FIELDS = {"content", "msg_type", "markdown", "media", "msg_id", "msg_seq", "event_id", "message_reference"}
_NAMES = ("openid", "group_openid")  # QQ's own SDK repeats them in the body, and sends null for what is not given


class Lab(SocketLab):
    """A bot with three people and a group."""

    platform = "qqbot"
    places = frozenset({"dm", "group"})
    can = frozenset({"redeliver", "rate_limit", "fail", "drop", "attach"})

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._socket: web.WebSocketResponse | None = None
        self._session = ""
        self._events: list[dict[str, Any]] = []
        super().__init__()

    def _forget(self) -> None:
        self.token, self.renewals = "", 0
        self._sent: list[dict[str, Any]] = []
        self._said: dict[str, tuple[str, dict[str, Any]]] = {}
        self._used: dict[str, set[int]] = {}
        self._files: dict[str, bytes] = {}
        self.no_tokens: list[int] = []  # with these statuses the token server fails
        self.resumed = self.identified = 0
        self.proactive: list[dict[str, Any]] = []
        self.beats = 0
        self._mute: web.WebSocketResponse | None = None

    @property
    def settings(self) -> dict[str, Any]:
        base = f"http://127.0.0.1:{self.port}"
        return {"app_id": APP, "client_secret": SECRET, "base_url": base, "token_url": f"{base}/app/getAppAccessToken"}

    def user_id(self, who: str) -> str:
        return f"OPENID{who.upper()}".ljust(32, "0")

    def chat_id(self, where: str, who: str = "alice") -> str:
        return GROUP if where == "group" else self.user_id(who)

    def say(
        self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, age: float = 0.0, **more: Any
    ) -> str:
        number = f"ROBOT1.0_{next(self._ids):020d}"
        author = {"member_openid": self.user_id(who)} if where == "group" else {"user_openid": self.user_id(who)}
        moment = datetime.fromtimestamp(time.time() - age, UTC).isoformat()
        data = {
            "id": number,
            "author": author,
            "content": f" {text} " if where == "group" else text,
            "timestamp": moment,
            **more,
        }
        if where == "group":
            data["group_openid"] = GROUP
        self._said[number] = ("GROUP_AT_MESSAGE_CREATE" if where == "group" else "C2C_MESSAGE_CREATE", data)
        self.redeliver(number)
        return number

    def redeliver(self, message_id: str) -> None:
        kind, data = self._said[message_id]
        self._call(self._dispatch(kind, data))

    async def _dispatch(self, kind: str, data: dict[str, Any]) -> None:
        item = {"op": 0, "s": len(self._events) + 1, "t": kind, "d": data, "id": f"{kind}:{data.get('id')}"}
        self._events.append(item)
        if self._socket is not None and self._socket is not self._mute:
            with suppress(Exception):
                await self._socket.send_json(item)

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        number = f"file{next(self._ids)}"
        self._files[number] = data
        url = f"http://127.0.0.1:{self.port}/download/{number}"
        return self.say(
            text,
            who=who,
            where=where,
            attachments=[{"content_type": mime, "filename": name, "size": len(data), "url": url}],
        )

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        chat = self.chat_id(where, who)
        return [one["content"] for one in self._sent if one["chat"] == chat and one["msg_type"] == 0]

    def pictures(self, who: str = "alice") -> list[bytes]:
        chat = self.chat_id("dm", who)
        return [
            self._files[one["media"]["file_info"]] for one in self._sent if one["chat"] == chat and one["msg_type"] == 7
        ]

    def close_with(self, code: int) -> None:
        """Close the connection with one of QQ's codes."""
        self._call(self._closed_with(code))

    async def _closed_with(self, code: int) -> None:
        socket, self._socket = self._socket, None
        assert socket is not None
        await socket.close(code=code)

    def use_up(self, message_id: str) -> None:
        """All the answers that a message gets were sent."""
        used = self._used.setdefault(message_id, set())
        used |= set(range(-MOST_REPLIES, 0))

    def mute(self) -> None:
        """The connection is dead without an end: nothing comes through it any more."""
        self._mute = self._socket

    def ask_again(self) -> None:
        """Have the client connect again (opcode 7)."""
        self._call(self._send({"op": 7}))

    async def _send(self, item: dict[str, Any]) -> None:
        if self._socket is not None:
            await self._socket.send_json(item)

    def forget_session(self) -> None:
        """The server no longer knows the session."""
        self._session = "another"

    def expire_token(self) -> None:
        self.token = "expired"

    def reset(self) -> None:
        super().reset()
        self._events.clear()
        self._session = ""

    # ------------------------------------------------------------------------------------------ the server

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=50_000_000)
        add = app.router.add_route
        add("POST", "/app/getAppAccessToken", self._token)
        add("GET", "/users/@me", self._me)
        add("GET", "/gateway", self._gateway)
        add("GET", "/gateway/bot", self._gateway)
        add("GET", "/websocket", self._websocket)
        add("GET", "/download/{id}", self._download)
        for kind in ("users", "groups"):
            add("POST", f"/v2/{kind}/{{id}}/messages", self._message)
            add("POST", f"/v2/{kind}/{{id}}/files", self._upload)
        return app

    async def _token(self, request: web.Request) -> web.Response:
        if await request.json() != {"appId": APP, "clientSecret": SECRET}:
            return _json({"code": 100016, "message": "invalid appid or secret"})
        if self.no_tokens:
            return web.Response(status=self.no_tokens.pop(0), text="<html>busy</html>", headers={"Retry-After": "0"})
        self.token = f"token-{next(self._tokens)}"
        self.renewals += 1
        return _json({"access_token": self.token, "expires_in": "7200"})

    def _refused(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") == f"QQBot {self.token}":
            return None
        return _json({"code": 11244, "message": "token not exist or expire"}, status=401)

    async def _me(self, request: web.Request) -> web.Response:
        return self._refused(request) or _json({"id": "1", "username": "hermes"})

    async def _gateway(self, request: web.Request) -> web.Response:
        found: dict[str, Any] = {"url": f"ws://127.0.0.1:{self.port}/websocket"}
        if request.path.endswith("/bot"):
            limit = {"total": 1000, "remaining": 999, "reset_after": 14400000, "max_concurrency": 10}
            found |= {"shards": 1, "session_start_limit": limit}
        return self._refused(request) or _json(found)

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"op": 10, "d": {"heartbeat_interval": 500}})
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await self._heard(socket, json.loads(message.data))
        return socket

    async def _heard(self, socket: web.WebSocketResponse, item: dict[str, Any]) -> None:
        data = item.get("d")
        if socket is self._mute:
            return
        if item["op"] == 1:
            self.beats += 1
            await socket.send_json({"op": 11})
        elif item["op"] in (2, 6) and data["token"] != f"QQBot {self.token}":
            await socket.close(code=4004)
        elif item["op"] == 2:
            if not data.get("intents") or data.get("shard") != [0, 1]:
                self._problems.append(f"a bad identification {data}")
            self.identified += 1
            self._session, self._socket = f"session-{next(self._ids)}", socket
            self._events.clear()
            await self._dispatch(
                "READY",
                {
                    "version": 1,
                    "session_id": self._session,
                    "user": {"id": "1", "username": "hermes", "bot": True},
                    "shard": [0, 1],
                },
            )
        elif item["op"] == 6 and data["session_id"] != self._session:
            await socket.send_json({"op": 9, "d": False})
        elif item["op"] == 6:
            self.resumed += 1
            for event in self._events[data["seq"] :]:
                await socket.send_json(event)
            await socket.send_json({"op": 0, "s": len(self._events), "t": "RESUMED", "d": ""})
            self._socket = socket
        else:
            self._problems.append(f"an unknown opcode {item['op']}")

    async def _download(self, request: web.Request) -> web.Response:
        if "Authorization" in request.headers:
            self._problems.append("our login went to the file server")
        return web.Response(body=self._files[request.match_info["id"]])

    async def _upload(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        by = [name for name in ("file_data", "url") if body.get(name)]
        if body.get("file_type") not in (1, 2, 3) or body.get("srv_send_msg") is not False or len(by) != 1:
            return self._wrong(850012, f"a bad file: {sorted(body)}")
        number = f"info{next(self._ids)}"
        known = self._files.get(str(body.get("url", "")).rpartition("/")[2], b"")  # QQ would fetch it from there
        self._files[number] = base64.b64decode(body["file_data"]) if by == ["file_data"] else known
        return _json({"file_uuid": number, "file_info": number, "ttl": 3600})

    async def _message(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        if self._limited:
            self._limited -= 1
            return _json({"code": 22009, "message": "msg limit exceed"}, status=429, headers={"Retry-After": "0"})
        if self._failing:
            self._failing -= 1
            return _json({"code": 500000, "message": "server error"}, status=500)
        body = {name: value for name, value in body.items() if value is not None and name not in _NAMES}
        if set(body) - _FIELDS or body.get("msg_type") not in (0, 2, 7):
            return self._wrong(11255, f"invalid request {sorted(body)}")
        if body["msg_type"] == 0 and not str(body.get("content", "")).strip():
            return self._wrong(11255, "the content is empty")
        if body["msg_type"] == 7 and not body.get("content"):
            return self._wrong(11255, "a message with a file needs a content, if only a space")
        answered = body.get("msg_id")
        if answered is None:
            self.proactive.append(body)  # QQ ended these in April 2025
            return self._wrong(40034102, "a message of the bot's own")
        else:
            used = self._used.setdefault(answered, set())
            if answered not in self._said:
                return self._wrong(40034024, "the message to be answered is not known")
            if body.get("msg_seq") in used:
                return _json({"code": 40054005, "message": "消息被去重，请检查请求msgseq"}, status=400)
            if not isinstance(body.get("msg_seq"), int):
                return self._wrong(11255, "a reply needs a msg_seq")
            if len(used) >= MOST_REPLIES:
                return _json({"code": 22009, "message": "msg limit exceed"}, status=400)
            used.add(body["msg_seq"])
        self._sent.append({**body, "chat": request.match_info["id"]})
        self._lose(request)
        return _json({"id": f"sent{next(self._ids)}", "timestamp": "2026-01-01T00:00:00+08:00"})

    def _wrong(self, code: int, text: str) -> web.Response:
        self._problems.append(text)
        return _json({"code": code, "message": text}, status=400)


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """An answer; QQ's own SDK takes JSON only by exactly this type."""
    named = {"Content-Type": "application/json", **(headers or {})}
    return web.Response(body=json.dumps(data).encode(), status=status, headers=named)

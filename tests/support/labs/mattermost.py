"""Mattermost without Mattermost: a server of our own that speaks version 4 of its REST API and its WebSocket.

It checks every request by the published API reference (fields, lengths, login), keeps the events of a broken connection, and resumes
it by its number as a real server does.
"""

from __future__ import annotations

import itertools
import json
import time
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.labs.base import PEOPLE
from tests.support.labs.socket_lab import SocketLab

TOKEN = "mattermost-bot-token-0001"
BOT = "bot00000000000000000000000"
CHANNELS = {"group": "G", "channel": "O", "thread": "O"}
LONGEST = 16_383
_POST_FIELDS = {"channel_id", "message", "root_id", "file_ids", "props", "metadata", "pending_post_id"}


def _id(number: int) -> str:
    return f"p{number:025d}"


class Lab(SocketLab):
    """A server with one team: direct channels with the bot, a group message, a channel."""

    platform = "mattermost"
    places = frozenset({"dm", "group", "channel", "thread"})
    can = frozenset("redeliver rate_limit fail drop attach edits change take_back files".split())

    def __init__(self) -> None:
        self._clock = itertools.count(int(time.time() * 1000))
        self._sockets: dict[str, web.WebSocketResponse] = {}
        super().__init__()

    def _forget(self) -> None:
        self._posts: dict[str, dict[str, Any]] = {}
        self._files: dict[str, tuple[str, bytes, str]] = {}
        self._typing: list[tuple[str, str]] = []
        self._kept: dict[str, list[dict[str, Any]]] = {}  # the events of each connection
        self.resumed = 0
        self._cut_off = False

    # ------------------------------------------------------------------------------------------ what tests do

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "url": f"http://127.0.0.1:{self.port}",
            "token": TOKEN,
            "reply_in_thread": self.reply_in_thread,
        }

    def user_id(self, who: str) -> str:
        return f"user{who}".ljust(26, "0")

    def chat_id(self, where: str, who: str = "alice") -> str:
        return (f"dm{who}" if where == "dm" else "group" if where == "group" else "channel").ljust(26, "0")

    @property
    def _root(self) -> str:
        return "threadroot".ljust(26, "0")

    def say(self, text: str, *, who: str = "alice", where: str = "dm", addressed: bool = True, **more: Any) -> str:
        words = f"@hermes {text}" if addressed and where != "dm" else text
        post = self._made(self.user_id(who), self.chat_id(where, who), words, **more)
        if where == "thread":
            post["root_id"] = self._root
        self._call(self._posted(post))
        return str(post["id"])

    def _made(self, user: str, channel: str, text: str, **more: Any) -> dict[str, Any]:
        now = next(self._clock)
        post = {
            "id": _id(next(self._ids)), "create_at": now, "update_at": now, "edit_at": 0, "delete_at": 0, "user_id": user,
            "channel_id": channel, "root_id": "", "message": text, "type": "", "props": {}, "file_ids": [], "metadata": {}, **more,
        }  # fmt: skip
        self._posts[post["id"]] = post
        return post

    async def _posted(self, post: dict[str, Any]) -> None:
        who = next((one for one in PEOPLE if self.user_id(one) == post["user_id"]), "hermes")
        mentions = [BOT] if "@hermes" in post["message"] else []
        data = {
            "channel_display_name": "A place", "channel_name": "place", "channel_type": _kind(post["channel_id"]),
            "post": json.dumps(post), "sender_name": f"@{who}", "team_id": "", "mentions": json.dumps(mentions),
        }  # fmt: skip
        await self._push("posted", data)

    async def _push(self, event: str, data: dict[str, Any]) -> None:
        for connection, kept in self._kept.items():
            item = {"event": event, "data": data, "broadcast": {}, "seq": len(kept)}
            kept.append(item)
            socket = self._sockets.get(connection)
            if socket is not None:
                with suppress(Exception):
                    await socket.send_json(item)

    def attach(
        self, data: bytes, name: str, mime: str, *, who: str = "alice", where: str = "dm", text: str = ""
    ) -> str:
        file_id = f"f{next(self._ids):025d}"
        self._files[file_id] = (name, data, mime)
        about = {"id": file_id, "name": name, "mime_type": mime, "size": len(data)}
        return self.say(text, who=who, where=where, file_ids=[file_id], metadata={"files": [about]})

    def redeliver(self, message_id: str) -> None:
        self._call(self._posted(self._posts[message_id]))

    def change(self, message_id: str, text: str, *, who: str = "alice", where: str = "dm") -> None:
        post = self._posts[message_id]
        post.update(message=text, edit_at=next(self._clock), update_at=next(self._clock))
        self._call(self._push("post_edited", {"post": json.dumps(post)}))

    def take_back(self, message_id: str, *, who: str = "alice", where: str = "dm") -> None:
        post = self._posts[message_id]
        post["delete_at"] = post["update_at"] = next(self._clock)
        self._call(self._push("post_deleted", {"post": json.dumps(post), "delete_by": post["user_id"]}))

    def _ours(self, where: str, who: str) -> list[dict[str, Any]]:
        channel = self.chat_id(where, who)
        root = self._root if where == "thread" else ""
        return [
            one
            for one in list(self._posts.values())
            if one["user_id"] == BOT and one["channel_id"] == channel and (one["root_id"] == root or where == "dm")
        ]

    def shown(self, where: str = "dm", *, who: str = "alice") -> list[str]:
        return [one["message"].replace("\u200b", "") for one in self._ours(where, who) if not one["file_ids"]]

    def sent_files(self, where: str = "dm", *, who: str = "alice") -> list[tuple[str, bytes, str]]:
        found = [
            (*self._files[one["file_ids"][0]][:2], one["message"]) for one in self._ours(where, who) if one["file_ids"]
        ]
        return [(name, data, caption) for name, data, caption in found]

    def typed(self, where: str = "dm", *, who: str = "alice") -> int:
        return sum(channel == self.chat_id(where, who) for channel, _ in self._typing)

    def threads(self) -> list[str]:
        return [
            one["message"].strip("*")
            for one in list(self._posts.values())
            if one["user_id"] == BOT and one["message"].startswith("**")
        ]

    def drop(self, *, forget: bool = False) -> None:
        """Cut the WebSocket. `forget`: the server does not remember the connection."""
        self._call(self._dropped(forget))

    async def _dropped(self, forget: bool) -> None:
        sockets, self._sockets = list(self._sockets.values()), {}
        if forget:
            self._kept.clear()
        for socket in sockets:
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()

    def cut_off(self, away: bool) -> None:
        """While `away`, the server accepts no WebSocket."""
        self._cut_off = away
        if away:
            self.drop(forget=True)

    def reset(self) -> None:
        super().reset()
        self.reply_in_thread = False
        self.token = TOKEN

    # ------------------------------------------------------------------------------------------ the server

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=100_000_000)
        add = app.router.add_route
        add("GET", "/api/v4/websocket", self._websocket)
        add("GET", "/api/v4/users/{id}", self._user)
        add("GET", "/api/v4/users/{id}/channels", self._channels)
        add("GET", "/api/v4/channels/{id}", self._channel)
        add("GET", "/api/v4/channels/{id}/posts", self._channel_posts)
        add("POST", "/api/v4/posts", self._create)
        add("PUT", "/api/v4/posts/{id}/patch", self._patch)
        add("POST", "/api/v4/files", self._upload)
        add("GET", "/api/v4/files/{id}", self._file)
        return app

    def _error(self, status: int, code: str, text: str) -> web.Response:
        return _json({"id": code, "message": text, "status_code": status}, status=status)

    def _refused(self, request: web.Request, *, limited: bool = False) -> web.Response | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if (scheme.lower(), token) != (
            "bearer",
            self.token,
        ):  # the server does not mind the case, and its client writes BEARER
            return self._error(
                401, "api.context.session_expired.app_error", "Invalid or expired session, please login again."
            )
        if limited and self._limited:
            self._limited -= 1
            return web.Response(status=429, text="limit exceeded", headers={"X-RateLimit-Reset": str(self._seconds)})
        if limited and self._failing:
            self._failing -= 1
            return self._error(500, "app.post.save.app_error", "Unable to save the Post.")
        return None

    def _wrong(self, text: str) -> web.Response:
        self._problems.append(text)
        return self._error(400, "api.context.invalid_body_param.app_error", text)

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        if self._cut_off:
            return web.Response(status=503)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        first = await socket.receive_json()
        if first.get("action") != "authentication_challenge" or first["data"].get("token") != self.token:
            await socket.send_json(
                {
                    "status": "FAIL",
                    "seq_reply": first.get("seq"),
                    "error": {"id": "api.web_socket_router.bad_seq.app_error"},
                }
            )
            await socket.close()
            return socket
        await socket.send_json({"status": "OK", "seq_reply": first["seq"]})
        name, number = request.query.get("connection_id", ""), int(request.query.get("sequence_number") or 0)
        hello = {
            "event": "hello",
            "data": {"connection_id": name, "server_version": "10.5.0"},
            "broadcast": {},
            "seq": 0,
        }
        if name in self._kept:
            self.resumed += 1
            for item in self._kept[name][number:]:
                await socket.send_json(item)
        else:
            name = f"connection{next(self._ids):016d}"
            hello["data"]["connection_id"] = name  # type: ignore[index]
            self._kept[name] = [hello]
            await socket.send_json(hello)
        self._sockets[name] = socket
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_json(self._acted(json.loads(message.data)))
        return socket

    def _acted(self, item: dict[str, Any]) -> dict[str, Any]:
        """The answer to an action that came by the WebSocket."""
        answer = {"status": "OK", "seq_reply": item.get("seq")}
        if item.get("action") == "ping":
            return answer | {
                "data": {"text": "pong", "version": "10.5.0", "server_time": next(self._clock), "node_id": ""}
            }
        if item.get("action") == "user_typing":
            self._typing.append((item["data"]["channel_id"], item["data"]["parent_id"]))
            return answer
        self._problems.append(f"an unknown action {item.get('action')}")
        return {
            "status": "FAIL",
            "seq_reply": item.get("seq"),
            "error": {"id": "api.web_socket_router.bad_action.app_error"},
        }

    async def _user(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        wanted = request.match_info["id"]
        if wanted in ("me", BOT):
            return _json({"id": BOT, "username": "hermes", "is_bot": True})
        who = next((one for one in PEOPLE if self.user_id(one) == wanted), None)
        if who is None:
            return self._error(404, "app.user.missing_account.const", "Unable to find the user.")
        return _json({"id": wanted, "username": who})

    async def _channels(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        names = [*(self.chat_id("dm", who) for who in PEOPLE), self.chat_id("group"), self.chat_id("channel")]
        return _json([self._about(name) for name in names])

    def _about(self, name: str) -> dict[str, Any]:
        last = max((one["create_at"] for one in list(self._posts.values()) if one["channel_id"] == name), default=0)
        return {"id": name, "type": _kind(name), "display_name": "A place", "last_post_at": last}

    async def _channel(self, request: web.Request) -> web.Response:
        return self._refused(request) or _json(self._about(request.match_info["id"]))

    async def _channel_posts(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        since = int(request.query.get("since", 0))
        found = [one for one in list(self._posts.values()) if one["channel_id"] == request.match_info["id"]]
        found = [one for one in found if one["update_at"] > since]
        threads = {"skipFetchThreads", "collapsedThreads", "collapsedThreadsExtended"}  # the vendor's client sends them
        if unknown := set(request.query) - {"since", "before", "page", "per_page"} - threads:
            return self._wrong(f"unknown parameters of a channel's posts: {sorted(unknown)}")
        if since:  # the server gives a thousand of them, in no order
            found = found[-1000:]
        else:  # a page, the first has the newest
            if before := request.query.get("before"):
                found = found[: next(place for place, one in enumerate(found) if one["id"] == before)]
            size, page = min(200, int(request.query.get("per_page", 60))), int(request.query.get("page", 0))
            found = found[::-1][page * size : (page + 1) * size][::-1]
        return _json({"order": [one["id"] for one in reversed(found)], "posts": {one["id"]: one for one in found}})

    async def _create(self, request: web.Request) -> web.Response:
        if refused := self._refused(request, limited=True):
            return refused
        body = await request.json()
        if set(body) - _POST_FIELDS:
            return self._wrong(f"a post has no {sorted(set(body) - _POST_FIELDS)}")
        if not isinstance(body.get("channel_id"), str) or len(body["channel_id"]) != 26:
            return self._wrong("channel_id is missing or no id")
        if not isinstance(body.get("message"), str) or not (body["message"].strip() or body.get("file_ids")):
            return self._wrong("message is missing")
        if len(body["message"]) > LONGEST:
            return self._wrong(f"a message of {len(body['message'])} characters")
        root = body.get("root_id") or ""
        if root and len(root) != 26:
            return self._wrong("root_id is no id")
        post = self._made(BOT, body["channel_id"], body["message"])
        post.update(root_id=root, props=body.get("props", {}), file_ids=body.get("file_ids", []))
        self._lose(request)
        await self._posted(post)
        return _json(post, status=201)

    async def _patch(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        body, post = await request.json(), self._posts.get(request.match_info["id"])
        if post is None or post["user_id"] != BOT:
            return self._wrong("no such post of the bot")
        if body.pop("id", post["id"]) != post["id"]:
            return self._wrong("the patch of another post")
        if set(body) - {"message", "props", "file_ids", "is_pinned", "has_reactions"} or len(body["message"]) > LONGEST:
            return self._wrong("a bad patch")
        now = next(self._clock)
        post.update(message=body["message"], edit_at=now, update_at=now)
        await self._push("post_edited", {"post": json.dumps(post)})
        return _json(post)

    async def _upload(self, request: web.Request) -> web.Response:
        if refused := self._refused(request, limited=True):
            return refused
        form = await request.post()
        file = form.get("files")
        if "channel_id" not in form or not isinstance(file, web.FileField):
            return self._wrong("an upload needs channel_id and files")
        file_id = f"f{next(self._ids):025d}"
        self._files[file_id] = (file.filename, file.file.read(), file.content_type)
        return _json({"file_infos": [{"id": file_id, "name": file.filename}], "client_ids": []}, status=201)

    async def _file(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        found = self._files.get(request.match_info["id"])
        if found is None:
            return self._error(404, "app.file_info.get.app_error", "Unable to find the file.")
        return web.Response(body=found[1], content_type=found[2])


def _json(data: Any, status: int = 200) -> web.Response:
    """An answer; Mattermost's own client takes JSON only by exactly this type."""
    return web.Response(body=json.dumps(data).encode(), status=status, headers={"Content-Type": "application/json"})


def _kind(channel: str) -> str:
    return "D" if channel.startswith("dm") else "G" if channel.startswith("group") else "O"

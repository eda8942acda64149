"""A small Discord: its gateway (a websocket) and its REST API on one port, with one server, one channel and a few people.

It keeps to what a client can see: sequence numbers, resuming, invalid sessions, compression of the stream, rate limit
answers, nonces that are enforced, addresses of files that expire. Every request is held against Discord's own schema.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import zstandard
from aiohttp import web

from tests.support.labs.discord_schema import Schema
from tests.support.loop_thread import LoopThread

TOKEN = "MTAw.lab-token.c2VjcmV0LW9mLXRoZS1sYWI"
EPOCH = 1420070400000
MESSAGE_CONTENT = 1 << 15
JSON = {"Content-Type": "application/json"}  # discord.py compares the whole header
FEW_MINUTES = 180.0
LARGEST_FILES = 10 << 20


class Ids:
    """Snowflakes: times with a counter below."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> str:
        self._last = max(self._last + 1, (int(time.time() * 1000) - EPOCH) << 22)
        return str(self._last)


class Refusal(Exception):
    """An error answer of the API."""

    def __init__(self, status: int, code: int, message: str) -> None:
        self.status, self.code, self.message = status, code, message


class Session:
    """A gateway session; it outlives its socket, and events it missed are replayed."""

    def __init__(self, number: int) -> None:
        self.id = f"session-{number}"
        self.events: list[dict[str, Any]] = []
        self.socket: Socket | None = None

    async def dispatch(self, name: str, data: Any) -> None:
        event = {"op": 0, "t": name, "s": len(self.events) + 1, "d": data}
        self.events.append(event)
        if self.socket is not None:
            await self.socket.send(event)


class Socket:
    """One websocket, compressed as the client asked."""

    def __init__(self, ws: web.WebSocketResponse, compress: str) -> None:
        self.ws = ws
        if compress == "zstd-stream":
            stream = zstandard.ZstdCompressor().compressobj()
            self._pack = lambda data: stream.compress(data) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        else:
            flate = zlib.compressobj()
            self._pack = lambda data: flate.compress(data) + flate.flush(zlib.Z_SYNC_FLUSH)

    async def send(self, payload: dict[str, Any]) -> None:
        if not self.ws.closed:
            try:
                await self.ws.send_bytes(self._pack(json.dumps(payload).encode()))
            except (ConnectionError, aiohttp.ClientError):
                pass  # the session keeps it


class DiscordServer:
    """The whole of it, in a thread of its own. Methods may be called from any thread unless they are coroutines."""

    def __init__(self) -> None:
        self.port = 0
        self.new_id = Ids()
        self.schema = Schema()
        self.bot = person("lab_bot", "Lab Bot", self.new_id(), bot=True)
        self.bot_role, self.guild_id = self.new_id(), self.new_id()
        self.channels: dict[str, dict[str, Any]] = {}
        self.people: dict[str, dict[str, Any]] = {}  # by id
        self.content_allowed = True
        self.identified = self.resumed = 0
        self.requests: list[tuple[str, float]] = []  # operation, when
        self.sessions: dict[str, Session] = {}
        self._numbers = 0
        self.clear()
        self._thread = LoopThread()
        self.call(self._open())

    def clear(self) -> None:
        """Forget what was said and done, and every misbehaviour."""
        self.messages: dict[str, list[dict[str, Any]]] = {}
        self.files: dict[str, tuple[bytes, str]] = {}
        self.link_age = 0
        self.typed: Counter[str] = Counter()
        self.threads_made: list[str] = []
        self.interactions: dict[str, str] = {}  # token → waiting, thinking or gone
        self.pressed: dict[str, str] = {}  # token → the message with the button
        self.commands: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.nonces: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}
        self.misbehaviour: list[Callable[[], web.Response | None]] = []  # for the next sends, one each
        self.moody = False  # throw everybody out who has just come in
        self.swallow = 0  # sends that are done, with the connection cut before the answer
        self.forbidden: set[str] = set()  # channels we may not write in
        for channel in [one for one in self.channels.values() if one.get("made")]:
            del self.channels[channel["id"]]

    # ------------------------------------------------------------------------------------------ the thread

    def call(self, work: Any) -> Any:
        """Run a coroutine in the server's loop and wait for it."""
        return self._thread.call(work)

    def later(self, work: Callable[[], Any]) -> None:
        """Run something in the server's loop, without waiting for it."""
        self._thread.loop.call_soon_threadsafe(work)

    def close(self) -> None:
        if self._thread.loop.is_running():
            self.call(self._runner.cleanup())
        self._thread.stop()

    async def _open(self) -> None:
        app = web.Application(client_max_size=30_000_000)
        app.router.add_get("/gateway/", self._gateway)
        app.router.add_get("/attachments/{id}", self._file)
        app.router.add_route("*", "/api/v10{path:/.*}", self._api)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await self.listen()

    async def listen(self) -> None:
        """Take connections, the second time at the same port."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def stop_listening(self) -> None:
        """Take no more connections, and cut those there are."""
        await self._site.stop()
        await self.cut()

    async def cut(self) -> None:
        """Cut every connection, without a goodbye."""
        for session in self.sessions.values():
            session.socket = None
        server = self._runner.server
        assert server is not None
        for connection in list(server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    # ------------------------------------------------------------------------------------------ the gateway

    async def dispatch(self, name: str, data: Any) -> None:
        for session in list(self.sessions.values()):
            await session.dispatch(name, data)

    async def tell(self, payload: dict[str, Any]) -> None:
        """An order of the gateway to every client: reconnect, invalid session."""
        for session in list(self.sessions.values()):
            if session.socket is not None:
                await session.socket.send(payload)

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse(max_msg_size=0)
        await ws.prepare(request)
        socket = Socket(ws, request.query.get("compress", ""))
        session: Session | None = None
        await socket.send({"op": 10, "d": {"heartbeat_interval": 41250}})
        async for message in ws:
            payload = json.loads(message.data)
            if self.moody:
                await ws.close(code=4000)
            if payload["op"] == 1:
                await socket.send({"op": 11})
            elif payload["op"] == 2:
                session = await self._identify(socket, payload["d"])
            elif payload["op"] == 6:
                session = await self._resume(socket, payload["d"])
        if session is not None and session.socket is socket:
            session.socket = None
            if ws.close_code in (1000, 1001):
                self.sessions.pop(session.id, None)
        return ws

    async def _identify(self, socket: Socket, said: dict[str, Any]) -> Session | None:
        if said["token"] != TOKEN:
            await socket.ws.close(code=4004, message=b"Authentication failed.")
            return None
        if said["intents"] & MESSAGE_CONTENT and not self.content_allowed:
            await socket.ws.close(code=4014, message=b"Disallowed intent(s).")
            return None
        self.identified += 1
        self._numbers += 1
        session = self.sessions[f"session-{self._numbers}"] = Session(self._numbers)
        session.socket = socket
        ready = {
            "v": 10, "user": self.bot, "guilds": [{"id": self.guild_id, "unavailable": True}], "session_id": session.id,
            "resume_gateway_url": f"ws://127.0.0.1:{self.port}/gateway/", "private_channels": [],
            "application": {"id": self.bot["id"], "flags": 1 << 19},
        }  # fmt: skip
        await session.dispatch("READY", ready)
        await session.dispatch("GUILD_CREATE", self._guild())
        return session

    async def _resume(self, socket: Socket, said: dict[str, Any]) -> Session | None:
        session = self.sessions.get(said["session_id"])
        if session is None or said["token"] != TOKEN:
            await socket.send({"op": 9, "d": False})
            return None
        self.resumed += 1
        session.socket = socket
        for event in session.events[said["seq"] :]:
            await socket.send(event)
        await session.dispatch("RESUMED", {})
        return session

    def _guild(self) -> dict[str, Any]:
        everyone = {"id": self.guild_id, "name": "@everyone", "permissions": str(1 << 10 | 1 << 11), "position": 0}
        ours = {"id": self.bot_role, "name": "Lab Bot", "permissions": "0", "position": 1, "managed": True}
        ours["tags"] = {"bot_id": self.bot["id"]}
        common = {"color": 0, "hoist": False, "mentionable": True, "flags": 0}
        places = [one for one in self.channels.values() if one.get("guild_id")]
        return {
            "id": self.guild_id, "name": "The Lab", "owner_id": next(iter(self.people), self.bot["id"]),
            "unavailable": False, "member_count": len(self.people) + 1, "large": False, "joined_at": stamp(),
            "roles": [common | {"managed": False} | everyone, common | ours], "emojis": [], "stickers": [],
            "features": [], "members": [], "presences": [], "voice_states": [], "stage_instances": [],
            "guild_scheduled_events": [], "soundboard_sounds": [], "preferred_locale": "en-US", "premium_tier": 0,
            "verification_level": 0, "default_message_notifications": 0, "explicit_content_filter": 0,
            "mfa_level": 0, "nsfw_level": 0, "system_channel_flags": 0, "premium_progress_bar_enabled": False,
            "channels": [self._with_last(one) for one in places if one["type"] in (0, 15)],
            "threads": [self._with_last(one) for one in places if one["type"] == 11],
        }  # fmt: skip

    def _with_last(self, channel: dict[str, Any]) -> dict[str, Any]:
        said = self.messages.get(channel["id"])
        return channel | {"last_message_id": said[-1]["id"] if said else None}

    # ------------------------------------------------------------------------------------------ messages

    def message(self, channel_id: str, author: dict[str, Any], content: str, **more: Any) -> dict[str, Any]:
        """A new message in a channel, as REST shows it."""
        made = {
            "id": self.new_id(), "channel_id": channel_id, "type": 0, "content": content, "author": author,
            "timestamp": stamp(), "edited_timestamp": None, "tts": False, "mention_everyone": False, "mentions": [],
            "mention_roles": [], "attachments": [], "embeds": [], "pinned": False, "flags": 0, "components": [],
            **more,
        }  # fmt: skip
        self.messages.setdefault(channel_id, []).append(made)
        return made

    def event(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message as the gateway sends it: with its server, and its author's membership there."""
        message = self._with_links(message)
        guild = self.channels[message["channel_id"]].get("guild_id")
        if guild is None:
            return message
        member = {"roles": [], "joined_at": stamp(), "deaf": False, "mute": False, "flags": 0}
        member["nick"] = message["author"].get("nick_in_lab")
        return message | {"guild_id": guild, "member": member}

    def find(self, message_id: str, channel_id: str | None = None) -> dict[str, Any]:
        for place, said in self.messages.items():
            for one in said:
                if one["id"] == message_id and channel_id in (None, place):
                    return one
        raise Refusal(404, 10008, "Unknown Message")

    def _with_links(self, message: dict[str, Any]) -> dict[str, Any]:
        """Addresses of files are made anew with every answer, and expire."""
        files = [one | self._links(one["id"]) for one in message["attachments"]]
        return message | {"attachments": files}

    def _links(self, number: str) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.port}/attachments/{number}?ex={self.link_age}"
        return {"url": url, "proxy_url": url}

    async def _file(self, request: web.Request) -> web.Response:
        kept = self.files.get(request.match_info["id"])
        if kept is None or request.query.get("ex") != str(self.link_age):
            return web.Response(status=404, text="This content is no longer available.")
        return web.Response(body=kept[0], headers={"Content-Type": kept[1]})

    # ------------------------------------------------------------------------------------------ the API

    async def _api(self, request: web.Request) -> web.StreamResponse:
        operation = self.schema.operation(request.method, request.match_info["path"])
        if operation is None:
            self.problems.append(f"no such operation: {request.method} {request.match_info['path']}")
            return answer(404, {"message": "404: Not Found", "code": 0})
        self.requests.append((operation.name, time.monotonic()))
        body, files = await _read(request)
        self.problems += self.schema.problems(operation, request.query, body)
        open_to_all = "interaction_token" in operation.path or "webhook_token" in operation.path
        if not open_to_all and request.headers.get("Authorization") != f"Bot {TOKEN}":
            return answer(401, {"message": "401: Unauthorized", "code": 0})
        if operation.name in ("create_message", "update_message") and self.misbehaviour:
            wrong = self.misbehaviour.pop(0)()
            if wrong is not None:
                return wrong
        try:
            with_files = {"files": files} if files else {}
            given = await getattr(self, f"do_{operation.name}")(operation.path, body, request.query, **with_files)
        except Refusal as refusal:
            return answer(refusal.status, {"message": refusal.message, "code": refusal.code})
        if operation.name == "create_message" and self.swallow:
            self.swallow -= 1
            assert request.transport is not None
            request.transport.abort()
        return answer(204) if given is None else answer(200, given)

    async def do_get_my_user(self, path: dict[str, str], body: Any, query: Any) -> Any:
        return self.bot

    async def do_get_my_oauth2_application(self, path: dict[str, str], body: Any, query: Any) -> Any:
        return {
            "id": self.bot["id"], "name": "Lab Bot", "icon": None, "description": "", "bot_public": False,
            "bot_require_code_grant": False, "verify_key": "0" * 64, "flags": (1 << 19) if self.content_allowed else 0,
            "owner": next(iter(self.people.values()), self.bot), "team": None, "summary": "", "hook": True,
        }  # fmt: skip

    async def do_get_channel(self, path: dict[str, str], body: Any, query: Any) -> Any:
        return self._channel(path)

    def _channel(self, path: dict[str, str]) -> dict[str, Any]:
        channel = self.channels.get(path["channel_id"])
        if channel is None:
            raise Refusal(404, 10003, "Unknown Channel")
        return channel

    async def do_list_messages(self, path: dict[str, str], body: Any, query: Any) -> Any:
        said = self.messages.get(self._channel(path)["id"], [])
        if "after" in query:
            said = [one for one in said if int(one["id"]) > int(query["after"])][: int(query.get("limit", 50))]
        return [self._with_links(one) for one in reversed(said[-int(query.get("limit", 50)) :])]

    async def do_get_message(self, path: dict[str, str], body: Any, query: Any) -> Any:
        return self._with_links(self.find(path["message_id"], self._channel(path)["id"]))

    async def do_create_message(
        self, path: dict[str, str], body: Any, query: Any, files: Sequence[tuple[str, bytes, str]] = ()
    ) -> Any:
        channel = self._channel(path)["id"]
        if channel in self.forbidden:
            raise Refusal(403, 50013, "Missing Permissions")
        content = body.get("content") or ""
        if sum(len(data) for _, data, _ in files) > LARGEST_FILES:
            raise Refusal(413, 40005, "Request entity too large")
        if not content.strip() and not files:
            raise Refusal(400, 50006, "Cannot send an empty message")
        if len(content) > 2000:
            raise Refusal(400, 50035, "Invalid Form Body")
        if body.get("allowed_mentions", {}).get("parse") != []:
            self.problems.append("create_message: this message may ping people")
        nonce = (channel, str(body.get("nonce")))
        at, before = self.nonces.get(nonce, (0.0, {}))
        if body.get("enforce_nonce") and before and time.monotonic() - at < FEW_MINUTES:
            return before
        more = {"message_reference": body["message_reference"]} if body.get("message_reference") else {}
        more["flags"] = body.get("flags") or 0
        if body.get("components"):
            more["components"] = body["components"]
        if files:
            more["attachments"] = [self._kept(*one) for one in files]
        made = self.message(channel, self.bot, content, nonce=body.get("nonce"), **more)
        self.nonces[nonce] = (time.monotonic(), made)
        await self.dispatch("MESSAGE_CREATE", self.event(made))
        return made

    def _kept(self, name: str, data: bytes, mime: str) -> dict[str, Any]:
        """An uploaded file. Discord keeps the name's plain characters alone, and the whole name as its title."""
        number = self.new_id()
        self.files[number] = (data, mime)
        plain = re.sub(r"[^A-Za-z0-9._-]", "", name.replace(" ", "_"))
        about = {"id": number, "filename": plain, "size": len(data), "content_type": mime}
        return about | self._links(number) | ({"title": name} if plain != name else {})

    async def do_update_message(self, path: dict[str, str], body: Any, query: Any) -> Any:
        message = self.find(path["message_id"], self._channel(path)["id"])
        if message["author"]["id"] != self.bot["id"]:
            raise Refusal(403, 50005, "Cannot edit a message authored by another user")
        if not (body.get("content") or "").strip() or len(body["content"]) > 2000:
            raise Refusal(400, 50035, "Invalid Form Body")
        if body.get("allowed_mentions", {}).get("parse") != []:
            self.problems.append("update_message: this message may ping people")
        flags = body.get("flags", message["flags"])
        message |= {"content": body["content"], "edited_timestamp": stamp(), "flags": flags}
        await self.dispatch("MESSAGE_UPDATE", self.event(message))
        return message

    async def do_trigger_typing_indicator(self, path: dict[str, str], body: Any, query: Any) -> Any:
        self.typed[self._channel(path)["id"]] += 1

    async def do_create_thread(self, path: dict[str, str], body: Any, query: Any) -> Any:
        parent = self._channel(path)
        if parent["type"] not in (0, 15):
            raise Refusal(400, 50024, "Cannot execute action on this channel type")
        if parent["id"] in self.forbidden:
            raise Refusal(403, 50013, "Missing Permissions")
        thread = self.thread(body["name"], parent, body["auto_archive_duration"]) | {"made": True}
        self.channels[thread["id"]] = thread
        self.threads_made.append(thread["name"])
        if parent["type"] == 15:
            first = self.message(thread["id"], self.bot, body["message"]["content"])
            return thread | {"message": first}
        await self.dispatch("THREAD_CREATE", thread)
        return thread

    def thread(self, name: str, parent: dict[str, Any], archive_after: int = 1440) -> dict[str, Any]:
        about = {
            "archived": False,
            "auto_archive_duration": archive_after,
            "archive_timestamp": stamp(),
            "locked": False,
        }
        return {
            "id": self.new_id(), "type": 11, "name": name, "guild_id": self.guild_id, "parent_id": parent["id"],
            "owner_id": self.bot["id"], "message_count": 0, "member_count": 1, "thread_metadata": about,
            "rate_limit_per_user": 0, "flags": 0, "last_message_id": None,
        }  # fmt: skip

    async def do_list_application_commands(self, path: dict[str, str], body: Any, query: Any) -> Any:
        return self.commands

    async def do_bulk_set_application_commands(self, path: dict[str, str], body: Any, query: Any) -> Any:
        common = {"application_id": self.bot["id"], "version": "1", "default_member_permissions": None}
        self.commands = [one | common | {"id": self.new_id()} for one in body]
        return self.commands

    async def do_create_interaction_response(self, path: dict[str, str], body: Any, query: Any) -> Any:
        token = path["interaction_token"]
        if self.interactions.get(token) != "waiting":
            raise Refusal(404, 10062, "Unknown interaction")
        self.interactions[token] = "thinking" if body["type"] == 5 else f"answered with type {body['type']}"
        if body["type"] == 7:
            self.find(self.pressed[token])["components"] = body["data"]["components"]

    async def do_delete_original_webhook_message(self, path: dict[str, str], body: Any, query: Any) -> Any:
        if self.interactions.get(path["webhook_token"]) != "thinking":
            raise Refusal(404, 10015, "Unknown Webhook")
        self.interactions[path["webhook_token"]] = "gone"


async def _read(request: web.Request) -> tuple[Any, list[tuple[str, bytes, str]]]:
    """The JSON of a request, and the files that came with it."""
    if request.content_type != "multipart/form-data":
        return (json.loads(raw) if (raw := await request.read()) else None), []
    form = await request.post()
    body = json.loads(str(form["payload_json"]))
    files = [one for name, one in form.items() if name.startswith("files[") and isinstance(one, web.FileField)]
    return body, [(one.filename, one.file.read(), one.content_type) for one in files]


def answer(status: int, body: Any = None, **headers: str) -> web.Response:
    """An answer as Discord's front gives it."""
    data = b"" if body is None else json.dumps(body).encode()
    kind = JSON if data else {}
    return web.Response(status=status, body=data, headers={**kind, "Via": "1.1 google", **headers})


def person(name: str, shown_name: str, number: str, *, bot: bool = False) -> dict[str, Any]:
    """Somebody with an account."""
    return {
        "id": number, "username": name, "global_name": shown_name, "discriminator": "0", "avatar": None, "bot": bot,
        "public_flags": 0, "flags": 0,
    }  # fmt: skip


def stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000+00:00", time.gmtime())

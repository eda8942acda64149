"""A small Slack: the Web API, Socket Mode and files over real sockets, in a thread of its own.

Every request is held against Slack's own description (slack_schema). Envelopes that are not acknowledged when their
connection ends are sent again on the next one, as Slack does. The Lab tells it what people say and what goes wrong.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, TypeVar

from aiohttp import WSMsgType, web

from tests.support.environments import at_hand
from tests.support.labs.slack_schema import FOLDER, methods, problems_of
from tests.support.loop_thread import LoopThread

BOT, BOT_ID, TEAM, APP = "UHERMES01", "BHERMES01", "TLAB00001", "ALAB00001"
SENDS = ("chat.postMessage", "chat.update")
_PING = re.compile(r"<!(channel|here|everyone|group|subteam)|<@\w", re.IGNORECASE)
Result = TypeVar("Result")


@dataclass
class Said:
    """A message as it stands now."""

    ts: str
    chat: str
    user: str
    thread: str | None
    text: str
    blocks: list[dict[str, Any]] | None = None


@dataclass
class State:
    """The state that changes while people talk."""

    messages: list[Said] = field(default_factory=list)
    files: dict[str, tuple[dict[str, Any], bytes]] = field(default_factory=dict)
    sent: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # message → envelopes it came in
    queue: list[dict[str, Any]] = field(default_factory=list)  # envelopes nobody was there for
    unacknowledged: dict[str, tuple[dict[str, Any], web.WebSocketResponse]] = field(default_factory=dict)
    acknowledged: list[str] = field(default_factory=list)
    faults: list[tuple[str, Callable[[], web.StreamResponse]]] = field(default_factory=list)  # (method, its answer)
    answers_lost: int = 0  # the next sends are done, and the connection breaks before the answer
    statuses: list[tuple[str, str, str]] = field(default_factory=list)  # (chat, thread, status)
    problems: list[str] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    elsewhere: list[dict[str, str]] = field(default_factory=list)  # headers that came to a host that is not Slack's
    deaf: bool = False  # new connections stay open and answer nothing
    uploads: dict[str, tuple[str, int, bytes | None]] = field(default_factory=dict)  # name, length, bytes
    shared: list[tuple[str, str | None, str, bytes, str]] = field(
        default_factory=list
    )  # chat, thread, name, bytes, text
    pings: list[str] = field(default_factory=list)  # texts that would have pinged people


class Server:
    """The running server. Everything happens in its loop; `do` takes work there from outside."""

    def __init__(self, users: dict[str, dict[str, Any]], chats: dict[str, dict[str, Any]]) -> None:
        if at_hand(FOLDER):
            methods()  # fetched before anything is asked
        self.users, self.chats = users, chats
        self.bot_token, self.app_token = f"xoxb-{uuid.uuid4().hex}", f"xapp-{uuid.uuid4().hex}"
        self.state = State()
        self.past: set[str] = set()  # envelopes of an earlier test; their acknowledgements may be on the way
        self.connections = 0  # that were ever opened
        self._clock = 1_700_000_000
        self.page_size = 1000  # the most that a page of a list has
        self._tickets: set[str] = set()
        self._sockets: dict[web.WebSocketResponse, web.Request] = {}
        self._leaving: set[web.WebSocketResponse] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = LoopThread()
        self.port, self.other_port = self.wait(self._begin())

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/"

    async def _begin(self) -> tuple[int, int]:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/api/{method}", self._api)
        app.router.add_get("/link", self._link)
        app.router.add_get("/files-pri/{id}/{name}", self._file)
        app.router.add_post("/upload/{id}", self._upload)
        app.router.add_get("/login", self._login)
        app.router.add_get("/elsewhere/{name}", self._elsewhere)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2, access_log=None)
        await self._runner.setup()
        ports = []
        for _ in range(2):  # the second is another origin: the token must not go there
            site = web.TCPSite(self._runner, "127.0.0.1", 0)
            await site.start()
            ports.append(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
        return ports[0], ports[1]

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.call(work)

    def do(self, work: Callable[[], Result]) -> Result:
        async def inside() -> Result:
            return work()

        return self.wait(inside())

    def close(self) -> None:
        self.wait(self._leave())
        self._thread.stop()

    async def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.cleanup()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._thread.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def now(self) -> str:
        self._clock += 1
        return f"{self._clock}.{self._clock % 1_000_000:06d}"

    # ------------------------------------------------------------------------------------------ Socket Mode

    async def _link(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("ticket") not in self._tickets:
            return web.Response(status=403)
        self._tickets.discard(request.query["ticket"])
        socket = web.WebSocketResponse(autoping=not self.state.deaf)
        await socket.prepare(request)
        self.connections += 1
        self._sockets[socket] = request
        hello = {"type": "hello", "num_connections": len(self._sockets), "connection_info": {"app_id": APP}}
        await socket.send_json(hello)
        waiting, self.state.queue = self.state.queue, []
        for envelope in waiting:
            await self._pass_on(envelope, socket)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    self._acknowledge(json.loads(message.data))
        finally:
            self._gone(socket)
        return socket

    def _acknowledge(self, answer: dict[str, Any]) -> None:
        if answer.get("envelope_id") in self.past:
            return
        if self.state.unacknowledged.pop(answer.get("envelope_id", ""), None) is None:
            self.state.problems.append(f"an acknowledgement of nothing: {answer}")
        else:
            self.state.acknowledged.append(answer["envelope_id"])
        if set(answer) - {"envelope_id", "payload"}:
            self.state.problems.append(f"an acknowledgement with {sorted(answer)}")

    def _gone(self, socket: web.WebSocketResponse) -> None:
        self._sockets.pop(socket, None)
        self._leaving.discard(socket)
        self.send_again(lambda through: through is socket)

    def send_again(self, which: Callable[[web.WebSocketResponse], bool] = lambda socket: True) -> None:
        """Send the events that were not acknowledged once more."""
        for name, (envelope, through) in list(self.state.unacknowledged.items()):
            if which(through):
                del self.state.unacknowledged[name]
                self.deliver({**envelope, "retry_attempt": envelope["retry_attempt"] + 1, "retry_reason": "timeout"})

    def deliver(self, envelope: dict[str, Any]) -> None:
        """To whoever is connected, or who comes next."""
        open_ones = [one for one in self._sockets if one not in self._leaving and not one.closed]
        if not open_ones:
            self.state.queue.append(envelope)
        else:
            self.state.unacknowledged[envelope["envelope_id"]] = (envelope, open_ones[-1])
            self._start(self._pass_on(envelope, open_ones[-1]))

    async def _pass_on(self, envelope: dict[str, Any], socket: web.WebSocketResponse) -> None:
        self.state.unacknowledged[envelope["envelope_id"]] = (envelope, socket)
        try:
            await socket.send_json(envelope)
        except OSError:
            pass  # it comes again when the socket is found to be gone

    async def refresh(self, reason: str) -> None:
        """Slack says that it will end the connections, and does when nothing is under way on them any more."""
        for socket in list(self._sockets):
            self._leaving.add(socket)
            await socket.send_json({"type": "disconnect", "reason": reason, "debug_info": {"host": "lab"}})
            self._start(self._end(socket))

    async def _end(self, socket: web.WebSocketResponse) -> None:
        while any(through is socket for _, through in self.state.unacknowledged.values()):
            await asyncio.sleep(0.01)
        if len(self._sockets) == 1:
            await asyncio.sleep(0.3)
        await socket.close()

    async def alone(self) -> None:
        """Wait until every connection that was left has ended; those that nobody ends are cut."""
        for _ in range(300):
            if not self._sockets:
                return
            await asyncio.sleep(0.01)
        self.drop()
        while self._sockets:
            await asyncio.sleep(0.01)

    def drop(self) -> None:
        for request in self._sockets.values():
            if request.transport is not None:
                request.transport.abort()

    # ------------------------------------------------------------------------------------------ the Web API

    async def _api(self, request: web.Request) -> web.StreamResponse:
        method, state = request.match_info["method"], self.state
        given: dict[str, Any] = dict(request.query)
        as_json = request.content_type == "application/json"
        given.update(await request.json() if as_json else dict(await request.post()))
        state.calls.append((method, given))
        if "token" in given:
            state.problems.append(f"{method}: the token stands in the address or body")
        state.problems += problems_of(method, given, as_json=as_json)
        token = self.app_token if method == "apps.connections.open" else self.bot_token
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.json_response({"ok": False, "error": "invalid_auth"})
        for number, (fault, answer) in enumerate(state.faults):
            if fault == method or (fault == "send" and method in SENDS):
                del state.faults[number]
                return answer()
        answer_to = getattr(self, "_" + method.replace(".", "_"), None)
        data = answer_to(given) if answer_to else {"error": "unknown_method"}
        if method in SENDS and state.answers_lost > 0 and request.transport is not None:
            state.answers_lost -= 1
            request.transport.abort()
        now = formatdate(self._clock, usegmt=True)
        return web.json_response({"ok": "error" not in data, **data}, headers={"Date": now})

    def _auth_test(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"url": "https://lab.slack.com/", "team": "Lab", "user": "hermes", "team_id": TEAM, "user_id": BOT, "bot_id": BOT_ID}  # fmt: skip

    def _apps_connections_open(self, given: dict[str, Any]) -> dict[str, Any]:
        ticket = uuid.uuid4().hex
        self._tickets.add(ticket)
        return {"url": f"ws://127.0.0.1:{self.port}/link?ticket={ticket}&app_id={APP}"}

    def _users_info(self, given: dict[str, Any]) -> dict[str, Any]:
        user = self.users.get(given["user"])
        return {"user": user} if user else {"error": "user_not_found"}

    def _conversations_info(self, given: dict[str, Any]) -> dict[str, Any]:
        chat = self.chats.get(given["channel"])
        return {"channel": chat} if chat else {"error": "channel_not_found"}

    def _conversations_open(self, given: dict[str, Any]) -> dict[str, Any]:
        found = [one["id"] for one in self.chats.values() if one.get("user") == given.get("users")]
        return {"channel": {"id": found[0]}} if found else {"error": "user_not_found"}

    def _users_conversations(self, given: dict[str, Any]) -> dict[str, Any]:
        kinds = {"im": "im", "mpim": "mpim", "group": "private_channel", "channel": "public_channel"}
        found = [one for one in self.chats.values() if kinds[_type(one)] in str(given.get("types")).split(",")]
        found = [one for one in found if one.get("is_member", True) and not one.get("is_archived")]
        begin, size = int(given.get("cursor") or 0), min(int(given.get("limit", 100)), self.page_size)
        more = str(begin + size) if begin + size < len(found) else ""
        return {"channels": found[begin : begin + size], "response_metadata": {"next_cursor": more}}

    def _conversations_history(self, given: dict[str, Any]) -> dict[str, Any]:
        """The newest first, without answers in threads."""
        inside = [one for one in self.state.messages if one.chat == given["channel"]]
        found = [one for one in inside if not one.thread and float(one.ts) > float(given.get("oldest") or 0)]
        told: list[dict[str, Any]] = []
        for one in reversed(found):
            replies = [other for other in inside if other.thread == one.ts]
            message = {"type": "message", "user": one.user, "text": one.text, "ts": one.ts}
            if one.user == BOT:
                message["bot_id"] = BOT_ID
            if replies:
                users = list(dict.fromkeys(other.user for other in replies))
                message |= {
                    "thread_ts": one.ts, "reply_users": users, "reply_users_count": len(users), "reply_count": len(replies),
                    "latest_reply": replies[-1].ts,
                }  # fmt: skip
            told.append(message)
        begin, size = int(given.get("cursor") or 0), min(int(given.get("limit", 100)), self.page_size)
        more = str(begin + size) if begin + size < len(told) else ""
        found_more = {"has_more": bool(more), "response_metadata": {"next_cursor": more}}
        return {"messages": told[begin : begin + size], **found_more}

    def _conversations_replies(self, given: dict[str, Any]) -> dict[str, Any]:
        inside = [one for one in self.state.messages if one.chat == given["channel"]]
        found = [one for one in inside if given["ts"] in (one.ts, one.thread)]
        if not any(one.ts == given["ts"] for one in found):
            return {"error": "thread_not_found"}
        answers = list(dict.fromkeys(one.user for one in found if one.thread))
        told: list[dict[str, Any]] = [
            {"type": "message", "user": one.user, "text": one.text, "ts": one.ts}
            | ({"thread_ts": one.thread, "parent_user_id": found[0].user} if one.thread else {})
            | ({"bot_id": BOT_ID} if one.user == BOT else {})
            for one in found
        ]
        if answers:
            told[0] |= {"thread_ts": given["ts"], "reply_users": answers, "reply_count": len(found) - 1}
        return {
            "messages": told[: int(given.get("limit", 1000))],
            "has_more": len(told) > int(given.get("limit", 1000)),
        }

    def _files_info(self, given: dict[str, Any]) -> dict[str, Any]:
        found = self.state.files.get(given["file"])
        return {"file": found[0]} if found else {"error": "file_not_found"}

    def _files_getUploadURLExternal(self, given: dict[str, Any]) -> dict[str, Any]:
        number = f"F{uuid.uuid4().hex[:9].upper()}"
        self.state.uploads[number] = (given["filename"], int(given["length"]), None)
        return {"upload_url": f"http://127.0.0.1:{self.port}/upload/{number}", "file_id": number}

    def _files_completeUploadExternal(self, given: dict[str, Any]) -> dict[str, Any]:
        chat = self.chats.get(given.get("channel_id", ""))
        if chat is None or chat.get("is_archived"):
            return {"error": "invalid_channel"}
        for one in json.loads(given["files"]) if isinstance(given["files"], str) else given["files"]:
            name, length, data = self.state.uploads[one["id"]]
            if data is None or len(data) != length:
                return {"error": "file_not_found"}
            place = (chat["id"], given.get("thread_ts"))
            self.state.shared.append((*place, name, data, given.get("initial_comment", "")))
        return {"files": [{"id": one} for one in self.state.uploads]}

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        name, length, _ = self.state.uploads[request.match_info["id"]]
        self.state.uploads[request.match_info["id"]] = (name, length, await request.read())
        if "Authorization" in request.headers:
            self.state.problems.append("upload: the token is not for this address")
        return web.Response(text="OK")

    def _assistant_threads_setStatus(self, given: dict[str, Any]) -> dict[str, Any]:
        self.state.statuses.append((given["channel_id"], given["thread_ts"], given["status"]))
        return {}

    def _chat_postMessage(self, given: dict[str, Any]) -> dict[str, Any]:
        chat = self.chats.get(given.get("channel", ""))
        if chat is None:
            return {"error": "channel_not_found"}
        if chat.get("is_archived") or not chat.get("is_member", True):
            return {"error": "is_archived" if chat.get("is_archived") else "not_in_channel"}
        problem = self._unfit(given, 40_000)
        if problem:
            return {"error": problem}
        said = Said(self.now(), chat["id"], BOT, given.get("thread_ts"), given.get("text", ""), given.get("blocks"))
        self.state.messages.append(said)
        self.hear(said, bot_id=BOT_ID)
        return {"channel": said.chat, "ts": said.ts, "message": {"type": "message", "text": said.text, "ts": said.ts}}

    def _chat_update(self, given: dict[str, Any]) -> dict[str, Any]:
        found = [one for one in self.state.messages if (one.chat, one.ts) == (given.get("channel"), given.get("ts"))]
        if not found or found[0].user != BOT:
            return {"error": "cant_update_message" if found else "message_not_found"}
        problem = self._unfit(given, 4_000)
        if problem:
            return {"error": problem}
        found[0].text, found[0].blocks = given.get("text", ""), given.get("blocks")
        return {"channel": found[0].chat, "ts": found[0].ts, "text": found[0].text}

    def _unfit(self, given: dict[str, Any], longest: int) -> str | None:
        """Why Slack would not take a message. It looks for mentions where it interprets text, also in Markdown."""
        texts = [given.get("text", "")]
        blocks = given.get("blocks") or []
        texts += [block["text"] for block in blocks if block["type"] == "markdown"]
        for text in texts:
            if _PING.search(text):
                self.state.pings.append(text)
        if not any(text.strip() for text in texts) and not blocks:
            return "no_text"
        return "msg_too_long" if len(texts[0]) > longest or sum(map(len, texts[1:])) > 12_000 else None

    # ------------------------------------------------------------------------------------------ what people do

    def hear(self, said: Said, *, kinds: tuple[str, ...] = ("message",), **more: Any) -> None:
        """The events of a message, each in its envelope."""
        chat = self.chats[said.chat]
        thread = {} if said.thread is None else {"thread_ts": said.thread, "parent_user_id": self._author(said.thread)}
        for kind in kinds:
            event = {"type": kind, "user": said.user, "ts": said.ts, "text": said.text, "team": TEAM, "channel": said.chat, "event_ts": said.ts, **thread, **more}  # fmt: skip
            if kind == "message":
                event["channel_type"] = _type(chat)
            self.announce(event, said.ts)

    def _author(self, ts: str) -> str:
        return next((one.user for one in self.state.messages if one.ts == ts), "")

    def announce(self, event: dict[str, Any], about: str = "") -> None:
        payload = {"team_id": TEAM, "api_app_id": APP, "type": "event_callback", "event_id": f"Ev{uuid.uuid4().hex[:9]}", "event_time": self._clock, "event": event}  # fmt: skip
        self.envelope("events_api", payload, about)

    def envelope(self, kind: str, payload: dict[str, Any], about: str = "") -> None:
        made = {"envelope_id": str(uuid.uuid4()), "type": kind, "payload": payload, "accepts_response_payload": kind == "slash_commands", "retry_attempt": 0, "retry_reason": ""}  # fmt: skip
        self.state.sent.setdefault(about, []).append(made)
        self.deliver(made)

    # ------------------------------------------------------------------------------------------ files

    async def _file(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.bot_token}":
            raise web.HTTPFound("/login")
        for number, (fault, answer) in enumerate(self.state.faults):
            if fault == "file":
                del self.state.faults[number]
                return answer()
        found = self.state.files.get(request.match_info["id"])
        if found is None:
            return web.Response(status=404)
        return web.Response(body=found[1], content_type=found[0]["mimetype"])

    async def _login(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>Sign in</html>", content_type="text/html")

    async def _elsewhere(self, request: web.Request) -> web.StreamResponse:
        self.state.elsewhere.append(dict(request.headers))
        return web.Response(body=b"not Slack's")


def _type(chat: dict[str, Any]) -> str:
    if chat.get("is_im"):
        return "im"
    return "mpim" if chat.get("is_mpim") else "group" if chat.get("is_private") else "channel"

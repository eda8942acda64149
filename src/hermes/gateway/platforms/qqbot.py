"""QQ bots, by the official gateway (WebSocket) and the REST API, version 2: messages of people, and of groups that mention it.

https://bot.q.qq.com/wiki/develop/api-v2/
A reply belongs to the message it answers: it names that message's id within a time window, five times at most, with a number of
its own (`msg_seq`), by which QQ recognises a repetition. Messages of the bot's own QQ ended in April 2025: what answers nothing,
or comes too late, is refused here.
"""

from __future__ import annotations

import asyncio
import base64
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec

from hermes.config.settings_schema import ANSWERS_ONLY
from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, OutgoingFile, Sender
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import (
    AccessToken,
    HttpApi,
    TokenRefused,
    attachment,
    error_text,
    is_at,
    json_object,
)
from hermes.gateway.platforms._shared.receipt import Log, MarkFile, dict_of, dicts_of, iso_moment, keep
from hermes.gateway.platforms._shared.tasks import ApiAdapter, Recent, Retries, loss_reported
from hermes.gateway.platforms._shared.websocket import WebSocketClient

DISPATCH, HEARTBEAT, IDENTIFY, RESUME, RECONNECT, INVALID, HELLO, ACKNOWLEDGED = 0, 1, 2, 6, 7, 9, 10, 11
INTENTS = 1 << 25  # messages of people and groups
WINDOW = {DM: 3_600.0, GROUP: 300.0}  # seconds in which a message can be answered
MOST_REPLIES = 5  # how often a message can be answered
_KINDS = {"image": 1, "video": 2, "audio": 3}
_REPEATED = 40054005  # QQ's code: a message with this number was sent already
_TOO_MANY = {22009, 22010, 20028, 40034100}  # too fast; and, for good, a sixth reply to a message
_MOST_WAITS = 12  # after so many of these codes for one reply, in a minute, QQ means that none is left
_EXPIRED = {11243, 11244, 11251}  # codes for a token that is no longer valid
_NONE_LEFT = f"QQ takes {MOST_REPLIES} answers to a message, and they are used up"
_LAYOUT = markup.Layout(bullet="• ")
_FILE_HOSTS = (".qq.com", ".qq.com.cn", ".qpic.cn")


class _Session(msgspec.Struct):
    """The session and the number of its last stored event, to resume after a restart."""

    session_id: str = ""
    seq: int = 0


class QQBot(ApiAdapter["_QQApi"]):
    """A bot of QQ's open platform."""

    platform = "qqbot"
    title = "QQ"
    extra = "qqbot"
    settings = (
        Setting(name="app_id", help="the bot's AppID", variable="QQBOT_APP_ID", required=True),
        Setting(name="client_secret", help="the bot's AppSecret", variable="QQBOT_CLIENT_SECRET", secret=True, required=True),
        Setting(name="base_url", help="where the API is", default="https://api.sgroup.qq.com"),
        Setting(name="token_url", help="where tokens come from", default="https://bots.qq.com/app/getAppAccessToken"),
    )  # fmt: skip
    capabilities = Capabilities(
        longest=3_000, most_parts=MOST_REPLIES - 1, media=True, files=True, largest_file=10_000_000
    )  # one reply is left for a notice or a question

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._replies: Recent[str, int] = Recent()  # the id of a message → how often it was answered
        self._waits: Recent[str, int] = Recent()  # the nonce of a message → how often QQ asked us to wait with it
        self._mark = MarkFile(home / "qqbot.json", self.text("app_id"), _Session)

    # ------------------------------------------------------------------------------------------ login

    async def check(self) -> str:
        """Log in and say who we are."""
        async with self.make_api() as api:
            return await self._identified(api)

    async def _identified(self, api: _QQApi) -> str:
        return str((await api.ask("GET", "/users/@me")).get("username") or self.text("app_id"))

    async def begin(self, link: Link, api: _QQApi) -> None:
        """Log in and open the gateway."""
        socket = self.closing(_QQSocket(api, self._mark.state, link.log))
        identity = await self._identified(api)
        await socket.open()
        link.connected(identity)
        self._tasks.start(self._receive(link, socket, identity), name="qqbot")

    def make_api(self) -> _QQApi:
        """The API, with our login."""
        return _QQApi(
            self.title, self.text("base_url").rstrip("/"), self.text("token_url"), self.text("app_id"), self.text("client_secret")
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ receiving

    async def _receive(self, link: Link, socket: _QQSocket, identity: str) -> None:
        retries = Retries(link, identity)
        with loss_reported(link, "QQ"):
            while True:
                try:
                    async for kind, data in socket.events():
                        retries.succeeded()
                        event = understood(kind, data)
                        if event is not None:
                            await keep(link, event)
                        socket.stored()
                        self._mark.write(sync=False)
                except (PlatformUnreachable, SlowDown) as error:
                    await retries.failed(error)
                    with suppress(PlatformUnreachable, SlowDown):  # the next round fails again, and counts
                        await socket.open()

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file. Its address holds its own permission: our login goes nowhere."""
        address = str(attachment.reference.get("url") or "")
        address = f"https:{address}" if address.startswith("//") else address
        found = await self.api.download(
            address, what="the file", trusted=lambda one: is_at(one, _FILE_HOSTS, self.text("base_url"))
        )
        return found.content

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message as a reply; SendRefused where QQ allows none (any more)."""
        body = {"content": markup.marked(text, _LAYOUT).text or text, "msg_type": 0}
        return await self._sent(chat, body, nonce, context)

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a picture, a video or a recording, and send it. QQ takes no other files."""
        kind = _KINDS.get(file.kind)
        if kind is None:
            raise SendRefused(f"QQ takes pictures, videos and recordings, not {file.name}")
        upload = {"file_type": kind, "file_data": base64.b64encode(file.data).decode(), "srv_send_msg": False}
        media = await self.api.ask("POST", f"{_place(chat)}/files", json=upload)
        body = {"content": " ", "msg_type": 7, "media": {"file_info": media.get("file_info")}}  # QQ demands a content
        return await self._sent(chat, body, nonce, context)

    async def _sent(self, chat: Chat, body: dict[str, Any], nonce: str, context: ReplyContext | None) -> str:
        answers = dict(context or {})
        question_id = str(answers.get("msg_id") or "")
        if not question_id:
            raise SendRefused(ANSWERS_ONLY[self.platform])
        if time.time() >= float(answers.get("until") or 0):
            raise SendRefused(
                "QQ takes an answer only within an hour, in a group within five minutes; this one is later"
            )
        used = self._replies.get(question_id) or 0
        if used >= MOST_REPLIES:
            raise SendRefused(_NONE_LEFT)
        number = zlib.crc32(nonce.encode("utf-8", "replace")) & 0x7FFFFFFF or 1
        try:
            found = await self.api.ask(
                "POST", f"{_place(chat)}/messages", json={**body, "msg_id": question_id, "msg_seq": number}
            )
        except Repeated:
            found = {}
        except TooMany:  # too fast, or a process that ended has used the replies
            if self._waits.put(nonce, (self._waits.get(nonce) or 0) + 1) < _MOST_WAITS:
                raise
            self._replies.put(question_id, MOST_REPLIES)
            raise SendRefused(_NONE_LEFT) from None
        self._replies.put(question_id, used + 1)
        return str(found.get("id") or nonce)


def _place(chat: Chat) -> str:
    return f"/v2/{'groups' if chat.type == GROUP else 'users'}/{chat.chat_id}"


def understood(kind: str, data: Any) -> Event | None:
    """A dispatched event as a message to the bot; None for everything else."""
    if not isinstance(data, dict) or kind not in ("C2C_MESSAGE_CREATE", "GROUP_AT_MESSAGE_CREATE"):
        return None
    author = dict_of(data.get("author"))
    in_group = kind == "GROUP_AT_MESSAGE_CREATE"
    who = author.get("member_openid") if in_group else author.get("user_openid")
    where = data.get("group_openid") if in_group else who
    number = data.get("id")
    if not (isinstance(who, str) and isinstance(where, str) and isinstance(number, str) and who and where and number):
        return None
    chat = Chat(platform="qqbot", chat_id=where, type=GROUP if in_group else DM)
    sent_at = iso_moment(data.get("timestamp"))
    # QQ authenticated the account, and the connection is ours.
    sender = Sender(user_id=who, name=str(author.get("username") or "") or who[:8], proven=True)
    return Event(
        id=number, chat=chat, sender=sender,
        text=str(data.get("content") or "").strip(), attachments=_attachments(data), message_id=number, sent_at=sent_at,
        reply_context={"msg_id": number, "until": (sent_at or time.time()) + WINDOW[chat.type]},
    )  # fmt: skip


def _attachments(data: dict[str, Any]) -> tuple[Attachment, ...]:
    found = []
    for one in dicts_of(data.get("attachments")):
        if isinstance(one.get("url"), str):
            mime = "audio/silk" if one.get("content_type") == "voice" else one.get("content_type")
            found.append(attachment(one.get("filename"), mime, one.get("size"), url=one["url"]))
    return tuple(found)


class Repeated(SendRefused):
    """QQ has a message with this number already."""


class TooMany(SlowDown):
    """QQ takes no more messages now, or no more replies to this message."""


class _QQApi(HttpApi):
    """The REST API; its token is renewed before it expires, and once more when QQ refuses it."""

    def __init__(self, title: str, base_url: str, token_url: str, app_id: str, secret: str) -> None:
        super().__init__(title, base_url, timeout=40)
        self._token_url, self._login = token_url, {"appId": app_id, "clientSecret": secret}
        self._secret = secret
        # QQ gives the same token again until a minute before its end.
        self._token = AccessToken(self._fetch, refusal="QQ does not accept the token", early=60.0)

    async def token(self) -> str:
        """The access token."""
        return await self._token.get()

    async def _fetch(self) -> tuple[str, float]:
        try:
            answer = await self.fetch("POST", self._token_url, json=self._login)
            if answer.status_code == 429 or answer.status_code >= 500:
                self.check(answer)
        except httpx.HTTPError as error:  # nothing was sent to anyone yet
            raise PlatformUnreachable(f"QQ gives no token ({type(error).__name__})") from None
        found = json_object(answer) or {}
        if not found.get("access_token"):
            reason = error_text(found.get("message", ""), self._secret)
            raise PlatformRefused(f"QQ does not accept app_id and client_secret {reason}".rstrip())
        life = str(found.get("expires_in") or "7200")
        return str(found["access_token"]), float(life) if life.isdecimal() else 7200.0

    async def ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The JSON of an answer."""

        async def attempt(token: str) -> httpx.Response:
            return await self.request(method, path, headers={"Authorization": f"QQBot {token}"}, **options)

        return json_object(await self._token.call(attempt)) or {}

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error by QQ's own code."""
        found = json_object(answer) or {}
        code, reason = found.get("code"), error_text(found.get("message") or f"HTTP {answer.status_code}", self._secret)
        if answer.status_code == 401 or code in _EXPIRED:
            return TokenRefused("QQ does not accept the token")
        if code == _REPEATED:
            return Repeated("QQ has this message already")
        if code in _TOO_MANY:
            return TooMany("QQ asks us to wait", 5.0)
        return SendRefused(f"QQ refuses: {reason}")


class _QQSocket(WebSocketClient):
    """The WebSocket: it resumes its session after the last event that was stored."""

    def __init__(self, api: _QQApi, session: _Session, log: Log) -> None:
        super().__init__("QQ", log)
        self._api, self._state = api, session
        self._seen = session.seq
        self._unanswered = False  # a heartbeat was sent, and not acknowledged yet
        self._reading = False  # we wait for QQ, and not for the store
        self._early: list[dict[str, Any]] = []  # the first dispatched event

    async def open(self) -> None:
        """Connect, and identify or resume; returns when the server has greeted us."""
        await self.close()
        address = str((await self._api.ask("GET", "/gateway")).get("url") or "")
        token = await self._api.token()
        async with self.opening():
            await self.connect(address)
            hello = await self.receive()
            if hello.get("op") != HELLO:
                raise PlatformUnreachable("QQ's gateway does not greet")
            pause = float((hello.get("d") or {}).get("heartbeat_interval") or 30_000) / 1000
            await self._log_in(f"QQBot {token}")
        self._tasks.start(self._beat(pause))

    async def _log_in(self, token: str) -> None:
        """Resume the session, or begin one; returns when the server has begun to dispatch."""
        assert self._socket is not None
        session = self._state
        self._seen, self._early = session.seq, []
        if session.session_id:
            again = {"token": token, "session_id": session.session_id, "seq": session.seq}
            await self._socket.send_json({"op": RESUME, "d": again})
        else:
            login = {"token": token, "intents": INTENTS, "shard": [0, 1], "properties": {}}
            await self._socket.send_json({"op": IDENTIFY, "d": login})
        while True:
            item = await self.receive()
            if item.get("op") == INVALID:
                raise self._forgotten()
            if item.get("op") == DISPATCH:
                self._early.append(item)
                return

    async def events(self) -> Any:
        """Dispatched events (name, data) in order; PlatformUnreachable when the connection ends."""
        while True:
            self._reading = True
            item = self._early.pop(0) if self._early else await self.receive()
            self._reading = False
            kind = item.get("op")
            if kind == ACKNOWLEDGED:
                self._unanswered = False
            if kind == INVALID:
                raise self._forgotten()
            if kind == RECONNECT:
                raise PlatformUnreachable("QQ asks us to connect again")
            if kind != DISPATCH:
                continue
            number = item.get("s")
            if isinstance(number, int):
                self._seen = number
            data = item.get("d")
            if item.get("t") == "READY" and isinstance(data, dict):
                self._state.session_id = str(data.get("session_id") or "")
            yield str(item.get("t")), data

    def stored(self) -> None:
        """Note that the last event is stored."""
        self._state.seq = self._seen

    def _forgotten(self) -> PlatformUnreachable:
        self._state.session_id, self._state.seq = "", 0
        return PlatformUnreachable("QQ does not resume the session")

    def ended(self, code: int | None) -> PlatformError:
        """The error by QQ's close code."""
        if code in (4004, 4914, 4915):  # a bad token; a bot that is offline or banned
            return PlatformRefused(f"QQ does not let the bot in (close code {code})")
        if code in (4006, 4007):  # the session can't be resumed; after 4009 (the connection is too old) it can
            return self._forgotten()
        return super().ended(code)

    async def _beat(self, pause: float) -> None:
        """Send heartbeats. A connection on which one was not acknowledged until the next is due is dead, and closed."""
        self._unanswered = False
        with suppress(Exception):
            while (socket := self._socket) is not None and not socket.closed:
                await asyncio.sleep(pause)
                if self._unanswered and self._reading:
                    self.log.warning("QQ does not acknowledge the heartbeats; connecting again")
                    await socket.close()
                    return
                self._unanswered = True
                await socket.send_json({"op": HEARTBEAT, "d": self._seen or None})

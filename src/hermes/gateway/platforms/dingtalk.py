"""DingTalk: a robot of an organisation's own app reads by the Stream mode, and answers by session webhooks.

https://open.dingtalk.com/document/orgapp/robot-overview
A stream is a WebSocket that pushes frames, each of which is acknowledged by its id. It is opened with a ticket that is good for
one time. DingTalk asks us to leave it when it moves ("disconnect").
https://open.dingtalk.com/document/direction/stream-mode-protocol-access-description

A session webhook comes with each message and is good for about ninety minutes. Later replies, files and messages that answer
nothing go by the API: to members of the organisation by their user id, to groups by the conversation's id.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from hermes.errors import HermesError, PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, OutgoingFile, Sender
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import (
    AccessToken,
    HttpApi,
    TokenRefused,
    address_parts,
    attachment,
    checked_address,
    connection_trouble,
    error_text,
    is_at,
    json_object,
    retry_after,
)
from hermes.gateway.platforms._shared.receipt import LOG, Keeper, Log, dict_of, dicts_of, moment_of, parsed, text_of
from hermes.gateway.platforms._shared.tasks import ApiAdapter, Retries, loss_reported
from hermes.gateway.platforms._shared.websocket import WebSocketClient

_TOKEN = "x-acs-dingtalk-access-token"
_STALE = frozenset({"InvalidAuthentication", "invalidAuthentication", "AccessTokenInvalid", "40014", "42001", "40001"})
_LIMITS = ("QpsLimit", "Throttling", "FlowControl", "flowControl", "TooManyRequests", "too.fast")
_QPS_PAUSE = 1.0  # the limits of the API count by the second
_MINUTE_PAUSE = 20.0  # a chat takes twenty messages of a robot in a minute
TOO_FAST = 130101
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_HEARTBEAT = 30.0
SYSTEM, CALLBACK = "SYSTEM", "CALLBACK"
PING, DISCONNECT = "ping", "disconnect"
_STORES = (".dingtalk.com", ".aliyuncs.com", ".alicdn.com")  # where files are


class DingTalkApi(HttpApi):
    """The API at api.dingtalk.com, the older one at oapi.dingtalk.com, and session webhooks."""

    def __init__(self, base_url: str, old_url: str, client_id: str, client_secret: str) -> None:
        # Without this header DingTalk gives the address of a stream as XML: its own SDKs send it, too.
        super().__init__("DingTalk", base_url, timeout=40, headers={"Accept": "application/json"})
        self._base, self._old = base_url.rstrip("/"), old_url.rstrip("/")
        self._login = (client_id, client_secret)
        self._token = AccessToken(self._fetch, refusal="DingTalk does not accept a new access token: {}")

    async def login(self) -> None:
        """Get a token; PlatformRefused where the client's id or secret is wrong."""
        await self._token.get()

    async def _fetch(self) -> tuple[str, float]:
        body = {"appKey": self._login[0], "appSecret": self._login[1]}
        try:
            found = await self.object("POST", "/v1.0/oauth2/accessToken", json=body)
            return str(found["accessToken"]), float(found.get("expireIn") or 7200)
        except (SendRefused, TokenRefused) as error:
            raise PlatformRefused(f"DingTalk does not accept client_id and client_secret: {error}") from None
        except (KeyError, TypeError, ValueError):
            raise PlatformUnreachable("DingTalk gave no access token") from None

    async def open_stream(self, topic: str) -> tuple[str, str]:
        """The address of a new stream, and its ticket."""
        subscriptions = [{"type": "CALLBACK", "topic": topic}]
        body = {
            "clientId": self._login[0],
            "clientSecret": self._login[1],
            "subscriptions": subscriptions,
            "ua": "hermes",
        }
        try:
            found = await self.object("POST", "/v1.0/gateway/connections/open", json=body)
            endpoint, ticket = str(found["endpoint"]), str(found["ticket"])
        except (SendRefused, TokenRefused) as error:
            raise PlatformRefused(f"DingTalk opens no stream: {error}") from None
        except KeyError:
            raise PlatformUnreachable("DingTalk gave no address for its stream") from None
        parts, own = address_parts(endpoint), address_parts(self._base)
        if parts.scheme != "wss" and not (parts.scheme == "ws" and own.scheme == "http"):
            raise PlatformRefused("DingTalk's stream is not encrypted; nothing is sent there")
        return endpoint, ticket

    async def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the API with the token; once more with a new one if it is refused."""

        async def attempt(token: str) -> dict[str, Any]:
            return await self.object("POST", path, json=body, headers={_TOKEN: token})

        return await self._token.call(attempt)

    async def upload(self, kind: str, name: str, data: bytes, mime: str) -> str:
        """Upload a file; its media id."""

        async def uploaded(token: str) -> dict[str, Any]:
            options: dict[str, Any] = {"params": {"access_token": token}, "data": {"type": kind}}
            files = {"media": (name, data, mime)}
            found = await self.object("POST", f"{self._old}/media/upload", files=files, **options)
            self._passed(found)
            return found

        try:
            return str((await self._token.call(uploaded))["media_id"])
        except KeyError:
            raise PlatformUnreachable("DingTalk did not take the file") from None

    def is_webhook(self, address: str) -> bool:
        """Whether an address is one of DingTalk's, to which a message may go."""
        return is_at(address, (".dingtalk.com",), self._old)

    async def reply(self, webhook: str, body: dict[str, Any]) -> None:
        """Send by a session webhook. SendRefused where it takes no messages any more: nothing was sent then."""
        found = await self.object("POST", webhook, json=body)
        self._passed(found)

    async def file(self, code: str, robot_code: str) -> bytes:
        """The bytes of a file that a person has sent."""
        found = await self.call("/v1.0/robot/messageFiles/download", {"downloadCode": code, "robotCode": robot_code})
        address = found.get("downloadUrl")
        if not isinstance(address, str) or not address:
            raise SendRefused("DingTalk no longer has the file")
        return (await self.download(address, what="the file", trusted=self._is_store)).content

    def _is_store(self, address: str) -> bool:
        return is_at(address, _STORES, self._base, schemes=("https", "http"))

    def check(self, answer: httpx.Response) -> None:
        """Check an answer as usual; a limit by the second has no header that says how long to wait."""
        if answer.status_code == 429:
            raise SlowDown("DingTalk asks us to wait", retry_after(answer.headers, _QPS_PAUSE))
        super().check(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error by DingTalk's own code."""
        found = json_object(answer) or {}
        code, reason = str(found.get("code") or ""), str(found.get("message") or f"HTTP {answer.status_code}")
        if answer.status_code == 401 or code in _STALE:
            return TokenRefused(error_text(reason, *self._login))
        if any(one in code for one in _LIMITS):
            return SlowDown("DingTalk asks us to wait", retry_after(answer.headers, _QPS_PAUSE))
        return SendRefused(f"DingTalk refuses: {error_text(reason, *self._login)}")

    def _passed(self, found: dict[str, Any]) -> None:
        """Raise the error of an answer with an errcode, as the older API and webhooks give it."""
        code = found.get("errcode", 0)
        if code in (0, "0"):
            return
        number = int(code) if isinstance(code, int) or _NUMBER.fullmatch(str(code)) else -2
        reason = error_text(found.get("errmsg") or f"errcode {number}", *self._login)
        if str(number) in _STALE:
            raise TokenRefused(reason)
        if number == TOO_FAST:
            raise SlowDown("DingTalk takes twenty messages in a minute", _MINUTE_PAUSE)
        if 90001 <= number <= 90020 or number == 88:
            raise SlowDown("DingTalk asks us to wait", _QPS_PAUSE)
        if number == -1:
            raise PlatformUnreachable("DingTalk is busy")
        raise SendRefused(f"DingTalk refuses: {reason}")


class Stream(WebSocketClient):
    """One connection. It is used until it breaks, or until DingTalk asks for another one."""

    def __init__(self, log: Log = LOG) -> None:
        super().__init__("DingTalk", log)

    async def open(self, endpoint: str, ticket: str) -> None:
        """Connect."""
        async with self.opening():
            await self.connect(endpoint, params={"ticket": ticket}, heartbeat=_HEARTBEAT)

    def explained(self, error: Exception) -> HermesError:
        """The error for a stream that can't be opened: a refused ticket is requested again."""
        return PlatformUnreachable(f"DingTalk's stream can't be reached: {connection_trouble(error)}")

    async def acknowledge(self, frame: dict[str, Any], data: str = '{"response": null}') -> None:
        """Tell DingTalk that a frame has arrived. If the connection is gone the frame comes again."""
        headers = {"messageId": header(frame, "messageId"), "contentType": "application/json"}
        answer = {"code": 200, "headers": headers, "message": "OK", "data": data}
        if self._socket is not None and not self._socket.closed:
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.send_json(answer)


def header(frame: dict[str, Any], name: str) -> str:
    """A header of a frame; "" without one."""
    return text_of(dict_of(frame.get("headers")).get(name))


# ------------------------------------------------------------
# DingTalk's messages to a robot as events. A message is named by its msgId, which a redelivery has again.

_KINDS = {"picture": "image", "audio": "audio", "video": "video", "file": "file"}
WEBHOOK, EXPIRES = "webhook", "expires"  # what a reply context has: the address, and its end in milliseconds


def message_of(frame: dict[str, Any]) -> dict[str, Any] | None:
    """The message of a pushed frame: it is JSON in a text. None where it is none, or has no id, chat or author."""
    found = parsed(frame.get("data"))
    if not all(text_of(found.get(one)) for one in ("msgId", "conversationId")):
        return None
    return found if _author(found) else None


def event_of(message: dict[str, Any]) -> Event:
    """A message as an event."""
    author = _author(message)
    group = text_of(message.get("conversationType")) != "1"
    text, attachments = _content(message)
    chat = Chat(
        platform="dingtalk",
        chat_id=text_of(message["conversationId"]) if group else author,
        type=GROUP if group else DM,
        name=text_of(message.get("conversationTitle")) or None,
    )
    replied, quoted = _quote(message)
    return Event(
        id=text_of(message["msgId"]),
        chat=chat,
        # DingTalk authenticated the account, and the connection is ours.
        sender=Sender(user_id=author, name=text_of(message.get("senderNick")) or None, proven=True),
        text=text,
        attachments=attachments,
        message_id=text_of(message["msgId"]),
        reply_to=replied,
        quoted=quoted,
        sent_at=moment_of(message.get("createAt")),
        addressed=not group or message.get("isInAtList") is True,
        reply_context=_context(message),
    )


def is_member(user_id: str) -> bool:
    """Whether this is a user id of our organisation, to whom the robot can write on its own account."""
    return bool(user_id) and not user_id.startswith("$:")


def _author(message: dict[str, Any]) -> str:
    """The user id, which is unique in its organisation; people of others, or without one, have an encrypted id."""
    member, other = text_of(message.get("senderStaffId")), text_of(message.get("senderId"))
    ours, theirs = text_of(message.get("chatbotCorpId")), text_of(message.get("senderCorpId"))
    foreign = bool(ours and theirs and ours != theirs)
    if is_member(member) and not foreign:
        return member
    return other if other.startswith("$:") else f"$:{other or member}" if other or member else ""


def _context(message: dict[str, Any]) -> dict[str, Any] | None:
    webhook, expires = text_of(message.get("sessionWebhook")), message.get("sessionWebhookExpiredTime")
    if isinstance(expires, str) and expires.isdecimal() and len(expires) < 20:
        expires = int(expires)
    if not webhook or not isinstance(expires, int) or isinstance(expires, bool):
        return None
    return {WEBHOOK: webhook, EXPIRES: expires}


def _content(message: dict[str, Any]) -> tuple[str, tuple[Attachment, ...]]:
    """The text and the files of a message."""
    kind, content = text_of(message.get("msgtype")), dict_of(message.get("content"))
    if kind == "text":
        return text_of(dict_of(message.get("text")).get("content")).strip(), ()
    if kind == "richText":
        parts = dicts_of(content.get("richText"))
        text = "".join(text_of(one.get("text")) for one in parts).strip()
        return text, tuple(made for one in parts if (made := _file("picture", one)) is not None)
    if kind in _KINDS:
        made = _file(kind, content)
        return text_of(content.get("recognition")).strip(), (made,) if made is not None else ()
    summary = text_of(content.get("summary")) or text_of(content.get("title"))
    return f"[{kind or 'a message'} that can't be read here] {summary}".strip(), ()


def _file(kind: str, content: dict[str, Any]) -> Attachment | None:
    code = text_of(content.get("downloadCode")) or text_of(content.get("pictureDownloadCode"))
    if not code:
        return None
    name = text_of(content.get("fileName"))
    mime = mimetypes.guess_type(name)[0] if name else None
    mime = mime or {"audio": "audio/amr", "video": "video/mp4"}.get(kind)
    return attachment(name, mime, kind=_KINDS[kind], code=code)


def _quote(message: dict[str, Any]) -> tuple[str | None, str | None]:
    replied = dict_of(dict_of(message.get("text")).get("repliedMsg"))
    content = dict_of(replied.get("content"))
    quoted = text_of(content.get("text")) or text_of(content.get("content"))
    return text_of(replied.get("msgId")) or text_of(message.get("originalMsgId")) or None, quoted or None


# ------------------------------------------------------------
# Texts as DingTalk shows them: its Markdown has no tables, ignores single line breaks, and fetches pictures.
# A text without any markup is sent as text, which is shown as it is.

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_TITLE = 40  # characters of a message's title, which is shown in the list of chats
_PLAIN = markup.Layout(bullet="- ")


def length(text: str) -> int:
    """A text's length as it is sent: bytes in JSON, with two spaces at each line break, and tables as code."""
    added = 2 * text.count("\n") + 10 * text.count("|")
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2 + added


def is_plain(text: str) -> bool:
    """Whether a text has no markup to be shown."""
    return not markup.html(text)[1]


def title_of(text: str) -> str:
    """The first words of a text: what a notification shows."""
    words = " ".join((markup.marked(text, _PLAIN).text or text).split())
    return words if len(words) <= _TITLE else f"{words[: _TITLE - 1]}…"


def markdown(text: str) -> str:
    """A Markdown text in DingTalk's Markdown."""
    return _broken(markup.tables_as_code(markup.outside_code(text, markup.without_pictures)).split("\n"))


def _broken(lines: list[str]) -> str:
    """The lines with breaks that DingTalk shows; those of code stay."""
    made, in_code = [], False
    for number, line in enumerate(lines):
        fence = bool(_FENCE.match(line))
        in_code = in_code != fence
        following = lines[number + 1] if number + 1 < len(lines) else ""
        breaks = line.strip() and following.strip() and not in_code and not fence and not _FENCE.match(following)
        made.append(f"{line.rstrip()}  " if breaks else line.rstrip() if not in_code else line)
    return "\n".join(made)


TOPIC = "/v1.0/im/bot/messages/get"
_SPARE = 10.0  # seconds before its end from which on a session webhook is not used
_BRIEF = 5.0  # a connection that DingTalk ends so soon counts as broken
_SUFFIX = {"image/png": ".png", "image/jpeg": ".jpg"}

Waiting = asyncio.Queue[tuple[Stream, dict[str, Any], Event | None, Path | None]]  # with the file of a message


class DingTalk(ApiAdapter[DingTalkApi]):
    """A robot of an app of an organisation."""

    platform = "dingtalk"
    title = "DingTalk"
    extra = "dingtalk"
    local_ids = True
    settings = (
        Setting("client_id", "the app's Client ID (AppKey)", required=True),
        Setting("client_secret", "the app's Client Secret (AppSecret)", secret=True, required=True),
        Setting("robot_code", "the robot's code, if it is not the Client ID"),
        Setting("base_url", "where DingTalk's API is", default="https://api.dingtalk.com"),
        Setting("old_url", "where DingTalk's older API is", default="https://oapi.dingtalk.com"),
    )
    # The parameters of a message have 15,000 bytes at most, its title included.
    capabilities = Capabilities(
        longest=12_000, measure=length, media=True, files=True, largest_file=20_000_000, mention_needed=True
    )

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._keeper = Keeper(home, self.platform)

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse addresses that are none."""
        for name in ("base_url", "old_url"):
            checked_address(self.text(name), f"dingtalk: {name}", "https://api.dingtalk.com")

    async def check(self) -> str:
        """Log in and say which robot we are."""
        async with self.make_api() as api:
            await api.login()
            return self._robot

    async def begin(self, link: Link, api: DingTalkApi) -> None:
        """Log in and open the stream."""
        await api.login()
        stream = await self._new_stream(api, link)
        link.connected(self._robot)
        waiting: Waiting = asyncio.Queue()
        self._tasks.start(self._hand_over(link, waiting), name="dingtalk messages")
        self._tasks.start(self._receive(api, link, stream, waiting), name="dingtalk")

    def make_api(self) -> DingTalkApi:
        """The API, with our login."""
        return DingTalkApi(
            self.text("base_url"), self.text("old_url"), self.text("client_id"), self.text("client_secret")
        )

    @property
    def _robot(self) -> str:
        return self.text("robot_code") or self.text("client_id")

    # ------------------------------------------------------------------------------------------ receiving

    async def _new_stream(self, api: DingTalkApi, link: Link) -> Stream:
        stream = Stream(link.log)
        await stream.open(*await api.open_stream(TOPIC))
        return self.closing(stream)

    async def _receive(self, api: DingTalkApi, link: Link, stream: Stream, waiting: Waiting) -> None:
        """Read frames, from one connection after the other, until none can be opened."""
        retries = Retries(link, self._robot)
        with loss_reported(link, "DingTalk", "a frame could not be handled"):
            while True:
                since = time.monotonic()
                try:
                    is_last = False
                    while not is_last:
                        frame = await stream.receive()
                        retries.succeeded()
                        is_last = await self._is_last(stream, frame, waiting)
                    if time.monotonic() - since < _BRIEF:
                        await retries.failed(PlatformUnreachable("DingTalk has ended a new stream"))
                except (PlatformUnreachable, SlowDown) as error:
                    await retries.failed(error)
                await stream.close()
                stream = await retries.opened(lambda: self._new_stream(api, link))

    async def _is_last(self, stream: Stream, frame: dict[str, Any], waiting: Waiting) -> bool:
        """Answer DingTalk's own frames at once, put messages into the queue. True if the connection is to be left."""
        topic = header(frame, "topic")
        if frame.get("type") == CALLBACK and topic == TOPIC:
            message = message_of(frame)
            event = event_of(message) if message is not None else None
            file = None if event is None else await asyncio.to_thread(self._keeper.write, event)
            waiting.put_nowait((stream, frame, event, file))
        elif frame.get("type") == SYSTEM and topic == PING:
            data = frame.get("data")
            await stream.acknowledge(frame, data if isinstance(data, str) else "{}")
        else:
            await stream.acknowledge(frame)
        return frame.get("type") == SYSTEM and topic == DISCONNECT

    async def _hand_over(self, link: Link, waiting: Waiting) -> None:
        """Store messages in order; each is acknowledged when it is stored."""
        await self._keeper.restore(link)
        while True:
            stream, frame, event, file = await waiting.get()
            if event is None:
                link.log.warning("a message of DingTalk can't be read: it has no id, chat or author")
            else:
                await self._keeper.keep(link, event, file)
            await stream.acknowledge(frame)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a picture or file."""
        return await self.api.file(str(attachment.reference.get("code")), self._robot)

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message: by the session webhook while it is good, else by the API."""
        plain = is_plain(text)
        webhook = self._webhook(context)
        if webhook is not None:
            body: dict[str, Any] = {"msgtype": "text", "text": {"content": text}}
            if not plain:
                body = {"msgtype": "markdown", "markdown": {"title": title_of(text), "text": markdown(text)}}
            try:
                await self.api.reply(webhook, body)
                return f"session:{nonce}"
            except (SendRefused, TokenRefused):
                pass  # the webhook has ended early, and nothing was sent
        if plain:
            return await self._sent(chat, "sampleText", {"content": text})
        return await self._sent(chat, "sampleMarkdown", {"title": title_of(text), "text": markdown(text)})

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a file and send it by the API: session webhooks take none."""
        self._reachable(chat)
        picture = file.kind == "image" and file.mime in _SUFFIX
        kind, mime = "image" if picture else "file", file.mime or "application/octet-stream"
        media = await self.api.upload(kind, file.name, file.data, mime)
        if picture:
            return await self._sent(chat, "sampleImageMsg", {"photoURL": media})
        suffix = Path(file.name).suffix.lstrip(".").lower() or "txt"
        return await self._sent(chat, "sampleFile", {"mediaId": media, "fileName": file.name, "fileType": suffix})

    async def _sent(self, chat: Chat, key: str, parameters: dict[str, Any]) -> str:
        self._reachable(chat)
        body: dict[str, Any] = {
            "robotCode": self._robot,
            "msgKey": key,
            "msgParam": json.dumps(parameters, ensure_ascii=False),
        }
        if chat.type == DM:
            found = await self.api.call("/v1.0/robot/oToMessages/batchSend", {**body, "userIds": [chat.chat_id]})
            if chat.chat_id in _names(found.get("flowControlledStaffIdList")):
                raise SlowDown("DingTalk limits messages to this person", 20.0)
            if chat.chat_id in _names(found.get("invalidStaffIdList")):
                raise SendRefused(f"{chat.chat_id} is not a member of the organisation, or may not use the app")
        else:
            path = "/v1.0/robot/groupMessages/send"
            found = await self.api.call(path, {**body, "openConversationId": chat.chat_id})
        return str(found.get("processQueryKey") or "")

    def _reachable(self, chat: Chat) -> None:
        if chat.type == DM and not is_member(chat.chat_id):
            raise SendRefused(
                "DingTalk's API reaches members of the organisation only, and the session webhook has ended"
            )

    def _webhook(self, context: ReplyContext | None) -> str | None:
        """The session webhook of a reply context, if it is DingTalk's and still good."""
        address, expires = (context or {}).get(WEBHOOK), (context or {}).get(EXPIRES)
        if not isinstance(address, str) or not isinstance(expires, int) or expires / 1000 - _SPARE < time.time():
            return None
        return address if self.api.is_webhook(address) else None


def _names(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []

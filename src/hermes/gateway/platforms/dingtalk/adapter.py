"""The DingTalk adapter: a robot of an organisation's own app reads by the Stream mode, and answers by session webhooks.

https://open.dingtalk.com/document/orgapp/robot-overview
A session webhook comes with each message and is good for about ninety minutes. Later replies, files and messages that answer
nothing go by the API: to members of the organisation by their user id, to groups by the conversation's id.

Texts as DingTalk shows them: its Markdown has no tables, ignores single line breaks, and fetches pictures.

A text without any markup is sent as text, which is shown as it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes.errors import PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import DM, Attachment, Chat, Event, OutgoingFile
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import TokenRefused, checked_address
from hermes.gateway.platforms._shared.receipt import Keeper
from hermes.gateway.platforms._shared.tasks import ApiAdapter, Retries, loss_reported
from hermes.gateway.platforms.dingtalk.client import CALLBACK, DISCONNECT, PING, SYSTEM, DingTalkApi, Stream, header
from hermes.gateway.platforms.dingtalk.incoming import EXPIRES, WEBHOOK, event_of, is_member, message_of

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_ROW = re.compile(r"^ {0,3}\|?.*\|")
_RULE = re.compile(r"^ {0,3}\|?(\s*:?-+:?\s*\|)+\s*(:?-+:?)?\s*$")
_PICTURE = re.compile(r"!\[([^\]\n]{0,500})\]\(([^)\s]{0,2000})(?:\s[^)\n]{0,500})?\)")  # bounded: the text may be long
_CODE = re.compile(r"(`[^`\n]*`)")
_TITLE = 40  # characters of a message's title, which is shown in the list of chats
_PLAIN = markup.Layout(bullet="- ")


def length(text: str) -> int:
    """A text's length as it is sent: bytes in JSON, with two spaces at each line break and cell of a table."""
    added = 2 * (text.count("\n") + text.count("|"))
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2 + added


def is_plain(text: str) -> bool:
    """Whether a text has no markup to be shown."""
    return not markup.html(text)[1]


def title_of(text: str) -> str:
    """The first words of a text: what a notification shows."""
    words = " ".join((markup.marked(text, _PLAIN).text or text).split())
    return words if len(words) <= _TITLE else f"{words[: _TITLE - 1]}…"


def card(text: str) -> str:
    """The data of a card with a Markdown text, in JSON."""
    header = {"title": {"type": "text", "text": title_of(text)}}
    contents = [{"type": "markdown", "text": markdown(text), "id": "text"}]
    data = {"config": {"autoLayout": True, "enableForward": True}, "header": header, "contents": contents}
    return json.dumps(data, ensure_ascii=False)


def markdown(text: str) -> str:
    """A Markdown text in DingTalk's Markdown."""
    made: list[str] = []
    lines, place, in_code = text.split("\n"), 0, False
    while place < len(lines):
        line = lines[place]
        if _FENCE.match(line):
            in_code = not in_code
            made.append(line)
        elif in_code:
            made.append(line)
        elif place + 1 < len(lines) and _ROW.match(line) and _RULE.match(lines[place + 1]):
            end = place + 2
            while end < len(lines) and _ROW.match(lines[end]):
                end += 1
            made += [_row(one) for number, one in enumerate(lines[place:end]) if number != 1]
            place = end
            continue
        else:
            made.append(_without_pictures(line))
        place += 1
    return _broken(made)


def _row(line: str) -> str:
    cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    return " | ".join(_without_pictures(cell.strip().replace("\\|", "|")) for cell in cells) + "  "


def _without_pictures(line: str) -> str:
    """A picture becomes a link: no client fetches it."""
    parts = _CODE.split(line)
    shown = (part if number % 2 else _PICTURE.sub(_link, part) for number, part in enumerate(parts))
    return "".join(shown)


def _link(found: re.Match[str]) -> str:
    return f"[{found[1]}]({found[2]})" if found[1] and found[2] else found[1] or found[2]


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
_CARD = "card:"  # how the ids of cards begin
_SUFFIX = {"image/png": ".png", "image/jpeg": ".jpg"}

Waiting = asyncio.Queue[tuple[Stream, dict[str, Any], Event | None]]


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
        Setting("cards", "show replies while they are written, as cards", default=False, kind=bool),
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
        if self.setting("cards") and self.cursor.strip():  # only what is known to grow is a card
            self.capabilities = replace(type(self).capabilities, edits=True)  # type: ignore[misc]
        link.connected(self._robot)
        waiting: Waiting = asyncio.Queue()
        self._tasks.start(self._hand_over(link, waiting), name="dingtalk messages")
        self._tasks.start(self._receive(api, link, stream, waiting), name="dingtalk")

    async def disconnect(self) -> None:
        """Stop receiving and close everything. What was not stored is written to the spool."""
        await super().disconnect()
        await self._keeper.save()

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
                    async for frame in stream.frames():
                        retries.succeeded()
                        if await self._is_last(stream, frame, waiting):
                            break
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
            if event is not None:
                self._keeper.expect(event)
            waiting.put_nowait((stream, frame, event))
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
            stream, frame, event = await waiting.get()
            if event is None:
                link.log.warning("a message of DingTalk can't be read: it has no id, chat or author")
            else:
                await self._keeper.keep(link, event)
            await stream.acknowledge(frame)

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a picture or file."""
        return await self.api.file(str(attachment.reference.get("code")), self._robot)

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message: by the session webhook while it is good, else by the API. One that still grows is a card."""
        if self.is_growing(text):
            return await self._begun(chat, text, nonce)
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

    async def _begun(self, chat: Chat, text: str, nonce: str) -> str:
        """Send a card. SendRefused where it can't be: the reply is then sent when it is complete."""
        self._reachable(chat)
        name = hashlib.sha256(nonce.encode()).hexdigest()
        body: dict[str, Any] = {
            "cardTemplateId": "StandardCard", "robotCode": self._robot, "cardBizId": name, "cardData": card(text),
            "sendOptions": {"atAll": False},
        }  # fmt: skip
        if chat.type == DM:
            body["singleChatReceiver"] = json.dumps({"userId": chat.chat_id})
        else:
            body["openConversationId"] = chat.chat_id
        await self.api.call("/v1.0/im/v1.0/robot/interactiveCards/send", body)
        return f"{_CARD}{name}"

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of a card; other messages can't be changed."""
        if not message_id.startswith(_CARD):
            raise SendRefused("this message of DingTalk can't be changed")
        body = {"cardBizId": message_id.removeprefix(_CARD), "cardData": card(text)}
        await self.api.call("/v1.0/im/robots/interactiveCards", body, "PUT")

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

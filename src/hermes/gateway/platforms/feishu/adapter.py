"""The Feishu adapter: events come by the long connection or by webhooks, replies go out as cards that grow by edits.

https://open.feishu.cn/document (Feishu), https://open.larksuite.com/document (Lark)

A card (JSON 2.0) is edited as often as needed, a text message 20 times at most: so all replies are cards. A card has Markdown
in one element, without what would call people, show foreign pictures or break the card.
https://open.feishu.cn/document/feishu-cards/card-json-v2-components/content-components/rich-text
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.adapter import Capabilities, Link, ReplyContext, Setting
from hermes.gateway.events import (
    DM,
    GROUP,
    Attachment,
    Chat,
    Choice,
    Event,
    Forwarded,
    OutgoingFile,
    Revision,
    Sender,
    deleted,
)
from hermes.gateway.platforms._shared import markup
from hermes.gateway.platforms._shared.http import attachment_kind, checked_address
from hermes.gateway.platforms._shared.receipt import dict_of, dicts_of, hand_over, moment_of, parsed, text_of
from hermes.gateway.platforms._shared.tasks import ApiAdapter, Recent, Retries, loss_reported
from hermes.gateway.platforms.feishu.client import BAD_CARD, RECALLED, FeishuApi, FeishuRefused, LongConnection

MESSAGE, RECALL = "im.message.receive_v1", "im.message.recalled_v1"
PRESSED = "card.action.trigger"
MERGED = "merge_forward"  # the type of a message that forwards others; one that forwards a single message is not marked
_KINDS = {"image": "image", "audio": "audio", "media": "video", "file": "file"}
_MIMES = {"image": "image/png", "audio": "audio/ogg", "media": "video/mp4"}


def sender_of(ids: Any, name: str | None = None) -> Sender | None:
    """A person: the open_id is of this app, the union_id of all apps of a developer."""
    found = dict_of(ids)
    open_id, union_id = text_of(found.get("open_id")), text_of(found.get("union_id"))
    if not open_id and not union_id:
        return None
    # Feishu authenticated the account; the connection is ours, or its callback was checked (client.EventProof).
    return Sender(user_id=open_id or union_id, stable_id=union_id or None, name=name, proven=True)


class EventReader:
    """Reads events for the bot with this open_id."""

    def __init__(self, bot: str) -> None:
        self._bot = bot

    def event(
        self, content: dict[str, Any], name: str | None = None, *, own: bool = False, quoted: str | None = None,
        forwarded: str | None = None,
    ) -> Event | None:  # fmt: skip
        """A message; None if it is not one of a person. `own`: it answers a message of the bot, `quoted`: whose text this is,
        `forwarded`: the text of the messages it forwards."""
        message, sender = dict_of(content.get("message")), dict_of(content.get("sender"))
        message_id, chat_id = text_of(message.get("message_id")), text_of(message.get("chat_id"))
        who = sender_of(sender.get("sender_id"), name)
        if not message_id or not chat_id or who is None or sender.get("sender_type", "user") != "user":
            return None
        kind, body = text_of(message.get("message_type")), parsed(message.get("content"))
        chat = self._chat(message, chat_id, message_id)
        mentions = dicts_of(message.get("mentions"))
        text, files = _read(kind, body, message_id)
        text, addressed = self._addressed(text, mentions)
        passed_on = None
        if kind == MERGED:
            text, passed_on = "", Forwarded(text=forwarded or text)
        return Event(
            id=message_id, chat=chat, sender=who, text=text, forwarded=passed_on, attachments=tuple(files), message_id=message_id,
            reply_to=text_of(message.get("parent_id")) or None, quoted=quoted, sent_at=moment_of(message.get("create_time")),
            addressed=addressed or own or chat.type == DM,
        )  # fmt: skip

    def _chat(self, message: dict[str, Any], chat_id: str, message_id: str) -> Chat:
        """The chat. A thread is named by its first message, which a reply needs."""
        kind = DM if message.get("chat_type") == "p2p" else GROUP
        thread = (text_of(message.get("root_id")) or message_id) if text_of(message.get("thread_id")) else None
        return Chat(platform="feishu", chat_id=chat_id, type=kind, thread_id=thread)

    def _addressed(self, text: str, mentions: list[dict[str, Any]]) -> tuple[str, bool]:
        """The text with names instead of placeholders and without the bot's, and whether it mentions the bot."""
        addressed = False
        # the longest placeholder first: @_user_1 is the beginning of @_user_10
        for one in sorted(mentions, key=lambda one: len(text_of(one.get("key"))), reverse=True):
            key, name = text_of(one.get("key")), text_of(one.get("name"))
            ours = bool(self._bot) and dict_of(one.get("id")).get("open_id") == self._bot
            addressed = addressed or ours
            if key:
                text = text.replace(f"{key} ", "").replace(key, "") if ours else text.replace(key, f"@{name or key}")
        return text.replace("@_all", "@all").strip(), addressed

    def recall(self, content: dict[str, Any]) -> Revision | None:
        """A message was recalled, by its author or by one who may."""
        message_id = text_of(content.get("message_id"))
        return deleted(message_id) if message_id else None

    def press(self, content: dict[str, Any], event_id: str) -> Event | None:
        """A button was pressed: its value has what it says, and where it is."""
        value, place = dict_of(dict_of(content.get("action")).get("value")), dict_of(content.get("context"))
        who, chat_id, says = sender_of(content.get("operator")), text_of(place.get("open_chat_id")), value.get("says")
        if who is None or not chat_id or not isinstance(says, str) or not event_id:
            return None
        kind = DM if value.get("type") == DM else GROUP
        chat = Chat(platform="feishu", chat_id=chat_id, type=kind, thread_id=text_of(value.get("thread")) or None)
        return Event(id=f"press:{event_id}", chat=chat, sender=who, text=says)


def quoted_text(item: dict[str, Any]) -> str | None:
    """The text of a message as the API gives it back; of a card what is written on it."""
    body = parsed(dict_of(item.get("body")).get("content"))
    if item.get("msg_type") == "interactive":
        body = {"title": body.get("title"), "content": body.get("elements")}
    kind = "post" if item.get("msg_type") == "interactive" else text_of(item.get("msg_type"))
    text = _read(kind, body, "")[0]
    for one in dicts_of(item.get("mentions")):
        key, name = text_of(one.get("key")), text_of(one.get("name"))
        text = text.replace(key, f"@{name}") if key and name else text
    return text.strip() or None


def _read(kind: str, body: dict[str, Any], message_id: str) -> tuple[str, list[Attachment]]:
    """The text and the files of a message's content."""
    if kind == "text":
        return text_of(body.get("text")), []
    if kind == "post":
        return _post(body, message_id)
    if kind in _KINDS:
        return "", _file(kind, body, message_id)
    return _described(kind, body), []


def _post(body: dict[str, Any], message_id: str) -> tuple[str, list[Attachment]]:
    """The text and the files of a rich text."""
    if "content" not in body:  # some senders wrap it in languages
        body = next((one for one in body.values() if isinstance(one, dict) and "content" in one), {})
    lines, files = [text_of(body.get("title"))], []
    paragraphs = body.get("content")
    for paragraph in paragraphs if isinstance(paragraphs, list) else ():
        words = []
        for piece in dicts_of(paragraph):
            tag = text_of(piece.get("tag"))
            if tag in ("img", "media"):
                files += _file("image" if tag == "img" else "media", piece, message_id)
            elif tag == "at":
                words.append(text_of(piece.get("user_id")) or f"@{text_of(piece.get('user_name'))}")
            elif tag == "a" and text_of(piece.get("href")) not in ("", text_of(piece.get("text"))):
                words.append(f"{text_of(piece.get('text'))} ({piece['href']})")
            elif tag == "code_block":
                words.append(f"```{text_of(piece.get('language')).lower()}\n{text_of(piece.get('text'))}\n```")
            elif tag == "emotion":
                words.append(f"[{text_of(piece.get('emoji_type'))}]")
            else:
                words.append("---" if tag == "hr" else text_of(piece.get("text")))
        lines.append("".join(words))
    return "\n".join(lines).strip("\n"), files


def _file(kind: str, body: dict[str, Any], message_id: str) -> list[Attachment]:
    key = text_of(body.get("image_key" if kind == "image" else "file_key"))
    if not key:
        return []
    name, mime = text_of(body.get("file_name")) or None, _MIMES.get(kind)
    if kind == "file":
        import mimetypes

        mime = mimetypes.guess_type(name or "")[0]
    reference = {"message": message_id, "key": key, "type": "image" if kind == "image" else "file"}
    found = attachment_kind(mime) if kind == "file" else _KINDS[kind]
    return [Attachment(kind=found, name=name, mime=mime, reference=reference)]


def _described(kind: str, body: dict[str, Any]) -> str:
    """Describe in words what is neither text nor a file."""
    if kind == "location":
        return f"[location: {text_of(body.get('name'))} {body.get('latitude')}, {body.get('longitude')}]"
    return f"[a message of the type {kind or 'unknown'}, which can't be shown here]"


LONGEST = 27_000  # of the 30 KB of a card's request, counted by `length`
TABLES = 5  # that one card may have
_TAG = re.compile(r"<(?=/?[A-Za-z])(?!https?://|mailto:)")
_PICTURE = re.compile(r"!(?=\[)")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def length(text: str) -> int:
    """The bytes of a text in a request, at most: a card is JSON inside JSON, a tag's < becomes an entity, tables become code."""
    more = 3 * (text.count('"') + text.count("\\")) + 8 * text.count("\n") + 6 * text.count("<")
    return len(text.encode("utf-8", "surrogatepass")) + more + 6 * len(_CONTROL.findall(text))


def shown(text: str) -> str:
    """Markdown for a card: tags of Feishu's own (`<at id=all>`) are shown as written, pictures become links."""
    safe = markup.outside_code(text, lambda part: _PICTURE.sub("", _TAG.sub("&#60;", part)))
    # those that are left are in code, and it is not documented that code is safe
    return markup.tables_as_code(safe.replace("<at", "<\u200bat"), most=TABLES)


def card(text: str, buttons: Sequence[tuple[str, dict[str, Any]]] = (), *, plain: bool = False) -> str:
    """A card as the `content` of a message. `plain` shows the text as it is, for a card whose Markdown Feishu refuses."""
    body: dict[str, Any] = {"tag": "markdown", "content": shown(text)}
    if plain:
        body = {"tag": "div", "text": {"tag": "plain_text", "content": text}}
    pressed = [
        {
            "tag": "button",
            "text": {"tag": "plain_text", "content": label},
            "behaviors": [{"type": "callback", "value": value}],
        }
        for label, value in buttons
    ]
    content = {"schema": "2.0", "config": {"update_multi": True}, "body": {"elements": [body, *pressed]}}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


_BASES = {"feishu": "https://open.feishu.cn", "lark": "https://open.larksuite.com"}
_IM = "/open-apis/im/v1"
_LARGEST_PICTURE = 10_000_000
_PICTURES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/tiff", "image/bmp")
_FILE_TYPES = {
    ".pdf": "pdf", ".doc": "doc", ".docx": "doc", ".xls": "xls", ".xlsx": "xls", ".ppt": "ppt", ".pptx": "ppt",
}  # fmt: skip
_NAME_SECONDS = (
    2.0  # for the name of a person and for a quoted text: Feishu waits three seconds for the acknowledgement
)


class Feishu(ApiAdapter[FeishuApi]):
    """A bot of a custom app in Feishu or Lark."""

    platform = "feishu"
    title = "Feishu"
    extra = "feishu"
    settings = (
        Setting("app_id", "the app's id, as cli_a1b2c3", required=True),
        Setting("app_secret", "the app's secret", secret=True, required=True),
        Setting("domain", "feishu (China) or lark (elsewhere)", asked=True, default="feishu"),
        Setting("base_url", "where the API is, if not at the domain's usual address"),
    )
    capabilities = Capabilities(
        longest=LONGEST, measure=length, edits=True, threads=True, media=True, idempotent=True, quotes=True,
        tells_deletions=True, files=True, largest_file=30_000_000, choices=10, longest_choice=100,
        mention_needed=True,
    )  # fmt: skip

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._reader = EventReader("")
        self._names: Recent[str, str] = Recent()
        self._sent: Recent[str, bool] = Recent()  # the ids of our messages

    # ------------------------------------------------------------------------------------------ login

    def validate(self) -> None:
        """Refuse an unknown domain, and what can't be an address."""
        if self.text("domain") not in _BASES:
            raise PlatformRefused("platforms.feishu.domain must be feishu or lark")
        checked_address(self._base, "platforms.feishu.base_url", "https://open.feishu.cn")

    async def check(self) -> str:
        """Log in and say who we are."""
        async with self.make_api() as api:
            return (await self._identified(api))[1]

    async def _identified(self, api: FeishuApi) -> tuple[str, str]:
        """The bot's open_id and its name."""
        bot = dict_of((await api.data("GET", "/open-apis/bot/v3/info")).get("bot"))
        if not text_of(bot.get("open_id")):
            raise PlatformRefused("the Feishu app has no bot; add the bot ability to it and release a version")
        return str(bot["open_id"]), text_of(bot.get("app_name")) or self.text("app_id")

    async def begin(self, link: Link, api: FeishuApi) -> None:
        """Log in, and open the long connection."""
        open_id, identity = await self._identified(api)
        self._reader = EventReader(open_id)
        connection = self.closing(LongConnection(api, secure=self._base.startswith("https:"), log=link.log))
        await connection.open()
        link.connected(identity)
        self._tasks.start(self._receive(link, connection, identity), name="feishu")

    @property
    def _base(self) -> str:
        return (self.text("base_url") or _BASES.get(self.text("domain"), "")).rstrip("/")

    def make_api(self) -> FeishuApi:
        """The API, with our login."""
        title = "Lark" if self.text("domain") == "lark" else "Feishu"
        return FeishuApi(self._base, self.text("app_id"), self.text("app_secret"), title=title)

    # ------------------------------------------------------------------------------------------ receiving

    async def _receive(self, link: Link, connection: LongConnection, identity: str) -> None:
        """Hand over events in order until the connection can't be opened any more."""
        retries = Retries(link, identity)

        async def on_event(content: dict[str, Any]) -> None:
            await self._happened(link, content)

        with loss_reported(link, "Feishu"):
            while True:
                try:
                    await connection.run(on_event, retries.succeeded)
                except (PlatformUnreachable, SlowDown) as error:
                    await retries.failed(error)
                await retries.opened(connection.open)

    async def _happened(self, link: Link, content: dict[str, Any]) -> None:
        """Hand over an event; raises when it could not be stored, so that it is not acknowledged."""
        header, event = dict_of(content.get("header")), dict_of(content.get("event"))
        kind, event_id = header.get("event_type"), text_of(header.get("event_id"))
        what: Event | Revision | None = None
        if kind == MESSAGE:
            parent = text_of(dict_of(event.get("message")).get("parent_id"))
            sender = dict_of(dict_of(event.get("sender")).get("sender_id")).get("open_id")
            name, quoted, forwarded = await asyncio.gather(
                self._name(sender), self._quoted(event, parent), self._forwarded(event)
            )
            own = parent in self._sent
            what = self._reader.event(event, name, own=own, quoted=quoted, forwarded=forwarded)
        elif kind == RECALL:
            what = self._reader.recall(event)
        elif kind == PRESSED:
            what = self._reader.press(event, event_id)
        if what is not None:
            await hand_over(link, what)

    async def _name(self, open_id: Any) -> str | None:
        """A person's name, if the app may read it; requested once."""
        if not isinstance(open_id, str) or not open_id or self._api is None:
            return None
        known = self._names.get(open_id)
        if known is None:
            known = ""
            try:
                async with asyncio.timeout(_NAME_SECONDS):
                    path = f"/open-apis/contact/v3/users/{quote(open_id, safe='')}"
                    found = await self._api.data("GET", path, params={"user_id_type": "open_id"})
                known = text_of(dict_of(dict_of(found.get("data")).get("user")).get("name"))
            except SendRefused:
                pass  # the app has no permission for names: it is not asked again for this person
            except (HermesError, TimeoutError):
                return None
            self._names.put(open_id, known)
        return known or None

    async def _quoted(self, event: dict[str, Any], parent: str) -> str | None:
        """The text of the message that a message quotes, if the app may read it. A thread's messages quote nothing."""
        if not parent or dict_of(event.get("message")).get("thread_id"):
            return None
        items = await self._items(parent)
        return quoted_text(items[0]) if items else None

    async def _forwarded(self, event: dict[str, Any]) -> str | None:
        """The texts of the messages that a message forwards, if the app may read them."""
        message = dict_of(event.get("message"))
        if message.get("message_type") != MERGED:
            return None
        items = [one for one in await self._items(text_of(message.get("message_id"))) if one.get("upper_message_id")]
        names = await asyncio.gather(*(self._name(dict_of(one.get("sender")).get("id")) for one in items))
        texts = zip(names, map(quoted_text, items), strict=True)
        return "\n".join(f"{name}: {text}" if name else text for name, text in texts if text) or None

    async def _items(self, message_id: str) -> list[dict[str, Any]]:
        """A message and those it forwards, as the API gives them; [] if the app may not read them."""
        if self._api is None:
            return []
        try:
            async with asyncio.timeout(_NAME_SECONDS):
                found = await self._api.data("GET", f"{_IM}/messages/{quote(message_id, safe='')}")
        except (HermesError, TimeoutError):
            return []
        return dicts_of(dict_of(found.get("data")).get("items"))

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file of a message."""
        message, key = (quote(str(attachment.reference.get(one)), safe="") for one in ("message", "key"))
        path = f"{_IM}/messages/{message}/resources/{key}"
        return await self.api.content(path, params={"type": str(attachment.reference.get("type"))})

    # ------------------------------------------------------------------------------------------ sending

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a card; Feishu sends one with the same nonce only once within an hour."""
        return await self.send_choices(chat, text, (), nonce=nonce, reply_to=reply_to)

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None,
        context: ReplyContext | None = None,
    ) -> str:  # fmt: skip
        """Send a card with buttons; their values say what a press needs."""
        place = {"type": chat.type, "thread": chat.thread_id or ""}
        buttons = [(one.label, {"says": one.says, **place}) for one in choices]
        try:
            return await self._message(chat, "interactive", card(text, buttons), nonce, reply_to)
        except FeishuRefused as error:
            if error.code != BAD_CARD:
                raise
        return await self._message(chat, "interactive", card(text, buttons, plain=True), nonce, reply_to)

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the card of one of our messages."""
        path = f"{_IM}/messages/{quote(message_id, safe='')}"
        try:
            await self.api.data("PATCH", path, json={"content": card(text)})
        except FeishuRefused as error:
            if error.code != BAD_CARD:
                raise
            await self.api.data("PATCH", path, json={"content": card(text, plain=True)})

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Upload a file, and send a message with it."""
        if not file.data:
            raise SendRefused(f"Feishu takes no empty files: {file.name}")
        if file.mime in _PICTURES and len(file.data) <= _LARGEST_PICTURE:
            uploaded = await self._uploaded("images", {"image_type": "message"}, "image", file)
            return await self._message(chat, "image", json.dumps({"image_key": uploaded}), nonce)
        voice = file.kind == "audio" and file.mime.partition(";")[0] in ("audio/opus", "audio/ogg")
        kind = "opus" if voice else _FILE_TYPES.get(Path(file.name).suffix.lower(), "stream")
        uploaded = await self._uploaded("files", {"file_type": kind, "file_name": file.name}, "file", file)
        return await self._message(chat, "audio" if voice else "file", json.dumps({"file_key": uploaded}), nonce)

    async def _uploaded(self, where: str, form: dict[str, str], field: str, file: OutgoingFile) -> str:
        upload = {field: (file.name, file.data, file.mime or "application/octet-stream")}
        found = await self.api.data("POST", f"{_IM}/{where}", data=form, files=upload)
        key = text_of(dict_of(found.get("data")).get(f"{field}_key"))
        if not key:
            raise PlatformUnreachable("Feishu did not take the file")
        return key

    async def _message(self, chat: Chat, kind: str, content: str, nonce: str, reply_to: str | None = None) -> str:
        """Send a message into the chat, into its thread, or as a reply that quotes another one."""
        uuid = hashlib.sha256(nonce.encode()).hexdigest()[:40]  # 50 characters at most
        body: dict[str, Any] = {"msg_type": kind, "content": content, "uuid": uuid}
        target = chat.thread_id or reply_to
        if target is not None:
            path = f"{_IM}/messages/{quote(target, safe='')}/reply"
            try:
                answer = await self.api.data("POST", path, json={**body, "reply_in_thread": chat.thread_id is not None})
                return self._noted(answer)
            except FeishuRefused as error:
                if chat.thread_id is not None or error.code not in RECALLED:
                    raise
        query = {"receive_id_type": "chat_id"}
        body["receive_id"] = chat.chat_id
        return self._noted(await self.api.data("POST", f"{_IM}/messages", params=query, json=body))

    def _noted(self, answer: dict[str, Any]) -> str:
        message_id = text_of(dict_of(answer.get("data")).get("message_id"))
        if not message_id:
            raise PlatformUnreachable("Feishu has not named the message it sent", maybe_sent=True)
        self._sent.put(message_id, True)
        return message_id

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """Begin a thread with a message that names it."""
        if chat.type == DM:
            raise SendRefused("Feishu has threads in groups only")
        top = Chat(platform=self.platform, chat_id=chat.chat_id, type=GROUP)
        root = await self.send(top, f"**{name}**", nonce=f"thread:{name}:{os.urandom(6).hex()}")
        return Chat(platform=self.platform, chat_id=chat.chat_id, type=GROUP, thread_id=root, name=chat.name)


__all__ = ["Feishu"]

"""Feishu's events as ours: messages of every type, recalls, presses of buttons.

https://open.feishu.cn/document/server-docs/im-v1/message/events/receive
"""

from __future__ import annotations

from typing import Any

from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, Forwarded, Revision, Sender, deleted
from hermes.gateway.platforms._shared.http import attachment_kind
from hermes.gateway.platforms._shared.receipt import dict_of, dicts_of, moment_of, parsed, text_of

MESSAGE, RECALLED = "im.message.receive_v1", "im.message.recalled_v1"
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

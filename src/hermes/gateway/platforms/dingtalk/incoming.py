"""DingTalk's messages to a robot as events. A message is named by its msgId, which a redelivery has again."""

from __future__ import annotations

import mimetypes
from typing import Any

from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, Sender
from hermes.gateway.platforms._shared.http import attachment
from hermes.gateway.platforms._shared.receipt import dict_of, dicts_of, moment_of, parsed, text_of

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

"""DingTalk's messages to a robot as events. A message is named by its msgId, which a redelivery has again."""

from __future__ import annotations

import json
import mimetypes
from typing import Any

from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, Sender
from hermes.gateway.platforms.http import attachment_kind

_KINDS = {"picture": "image", "audio": "audio", "video": "video", "file": "file"}
WEBHOOK, EXPIRES = "webhook", "expires"  # what a reply context has: the address, and its end in milliseconds


def message_of(frame: dict[str, Any]) -> dict[str, Any] | None:
    """The message of a pushed frame: it is JSON in a text. None where it is none, or has no id, chat or author."""
    try:
        found = json.loads(frame.get("data") or "")
    except (TypeError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(_text(found.get(one)) for one in ("msgId", "conversationId")):
        return None
    return found if _author(found) else None


def event_of(message: dict[str, Any]) -> Event:
    """A message as an event."""
    author = _author(message)
    group = _text(message.get("conversationType")) != "1"
    text, attachments = _content(message)
    chat = Chat(
        platform="dingtalk",
        chat_id=_text(message["conversationId"]) if group else author,
        type=GROUP if group else DM,
        name=_text(message.get("conversationTitle")) or None,
    )
    replied, quoted = _quote(message)
    return Event(
        id=_text(message["msgId"]),
        chat=chat,
        # DingTalk authenticated the account, and the connection is ours.
        sender=Sender(user_id=author, name=_text(message.get("senderNick")) or None, proven=True),
        text=text,
        attachments=attachments,
        message_id=_text(message["msgId"]),
        reply_to=replied,
        quoted=quoted,
        sent_at=_seconds(message.get("createAt")),
        addressed=not group or message.get("isInAtList") is True,
        reply_context=_context(message),
    )


def is_member(user_id: str) -> bool:
    """Whether this is a user id of our organisation, to whom the robot can write on its own account."""
    return bool(user_id) and not user_id.startswith("$:")


def _author(message: dict[str, Any]) -> str:
    """The user id, which is unique in its organisation; people of others, or without one, have an encrypted id."""
    member, other = _text(message.get("senderStaffId")), _text(message.get("senderId"))
    ours, theirs = _text(message.get("chatbotCorpId")), _text(message.get("senderCorpId"))
    foreign = bool(ours and theirs and ours != theirs)
    if is_member(member) and not foreign:
        return member
    return other if other.startswith("$:") else f"$:{other or member}" if other or member else ""


def _context(message: dict[str, Any]) -> dict[str, Any] | None:
    webhook, expires = _text(message.get("sessionWebhook")), message.get("sessionWebhookExpiredTime")
    if isinstance(expires, str) and expires.isdecimal() and len(expires) < 20:
        expires = int(expires)
    if not webhook or not isinstance(expires, int) or isinstance(expires, bool):
        return None
    return {WEBHOOK: webhook, EXPIRES: expires}


def _content(message: dict[str, Any]) -> tuple[str, tuple[Attachment, ...]]:
    """The text and the files of a message."""
    kind, content = _text(message.get("msgtype")), message.get("content")
    content = content if isinstance(content, dict) else {}
    if kind == "text":
        words = message.get("text")
        return (_text(words.get("content")).strip() if isinstance(words, dict) else ""), ()
    if kind == "richText":
        items = content.get("richText")
        parts = [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
        text = "".join(_text(one.get("text")) for one in parts).strip()
        return text, tuple(made for one in parts if (made := _file("picture", one)) is not None)
    if kind in _KINDS:
        made = _file(kind, content)
        return _text(content.get("recognition")).strip(), (made,) if made is not None else ()
    summary = _text(content.get("summary")) or _text(content.get("title"))
    return f"[{kind or 'a message'} that can't be read here] {summary}".strip(), ()


def _file(kind: str, content: dict[str, Any]) -> Attachment | None:
    code = _text(content.get("downloadCode")) or _text(content.get("pictureDownloadCode"))
    if not code:
        return None
    name = _text(content.get("fileName"))
    mime = mimetypes.guess_type(name)[0] if name else None
    mime = mime or {"audio": "audio/amr", "video": "video/mp4"}.get(kind)
    shown = _KINDS[kind] if kind != "file" else attachment_kind(mime)
    return Attachment(kind=shown, name=name or None, mime=mime, reference={"code": code})


def _quote(message: dict[str, Any]) -> tuple[str | None, str | None]:
    words = message.get("text")
    replied = words.get("repliedMsg") if isinstance(words, dict) else None
    if not isinstance(replied, dict):
        return _text(message.get("originalMsgId")) or None, None
    content = replied.get("content")
    quoted = _text(content.get("text")) or _text(content.get("content")) if isinstance(content, dict) else ""
    return _text(replied.get("msgId")) or _text(message.get("originalMsgId")) or None, quoted or None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _seconds(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value / 1000 if number and abs(value) < 1e16 else None

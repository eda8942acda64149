"""iLink's messages as events. A message consists of items: text, pictures, voice, files, videos."""

from __future__ import annotations

import hashlib
import json
import mimetypes
from typing import Any

from hermes.gateway.events import Attachment, Chat, Event, Sender
from hermes.gateway.platforms._shared.http import attachment_kind
from hermes.gateway.platforms._shared.receipt import dict_of, dicts_of, moment_of, text_of

TEXT, IMAGE, VOICE, FILE, VIDEO = 1, 2, 3, 4, 5
CONTEXT = "context_token"  # the key of Event.reply_context
_NAMES = {IMAGE: "image_item", VOICE: "voice_item", FILE: "file_item", VIDEO: "video_item"}
_BOT = 2  # message_type of our own
_VOICES = {5: "audio/amr", 6: "audio/silk", 7: "audio/mpeg", 8: "audio/ogg"}


def event_of(message: Any) -> Event | None:
    """A message as an event; None for our own, for those of groups, and for empty ones."""
    if not isinstance(message, dict) or message.get("message_type") == _BOT or is_in_group(message):
        return None
    who = text_of(message.get("from_user_id"))
    items = dicts_of(message.get("item_list"))
    text, attachments = _words(items), tuple(filter(None, map(_attachment, items)))
    if not who or not (text or attachments):
        return None
    number, token = _number(message), text_of(message.get("context_token"))
    quoted_id, quoted = _quote(items)
    return Event(
        id=number,
        chat=Chat(platform="weixin", chat_id=who),
        sender=Sender(user_id=who, proven=True),  # WeChat authenticated the account; we fetch with our own login
        text=text,
        attachments=attachments,
        message_id=number,
        reply_to=quoted_id,
        quoted=quoted,
        sent_at=moment_of(message.get("create_time_ms")),
        reply_context={CONTEXT: token} if token else None,
    )


def is_in_group(message: dict[str, Any]) -> bool:
    """Whether a message was written in a group, to which the API can't reply."""
    return bool(text_of(message.get("group_id")))


def _number(message: dict[str, Any]) -> str:
    """The lasting id of a message. The server's number is 64 bits; without one it is the client's, or made of the content."""
    for name in ("message_id", "client_id"):
        found = message.get(name)
        if (isinstance(found, str) and found) or (isinstance(found, int) and not isinstance(found, bool) and found):
            return str(found)
    written = json.dumps(message, sort_keys=True, default=str).encode("utf-8", "replace")
    return f"sha256:{hashlib.sha256(written).hexdigest()[:32]}"


def _words(items: list[dict[str, Any]]) -> str:
    """The words of a message, written or said: WeChat transcribes voice messages."""
    found = []
    for item in items:
        inner = item.get("text_item") if item.get("type") == TEXT else item.get("voice_item")
        if item.get("type") in (TEXT, VOICE) and isinstance(inner, dict) and text_of(inner.get("text")):
            found.append(text_of(inner.get("text")))
    return "\n".join(found)


def _attachment(item: dict[str, Any]) -> Attachment | None:
    kind = item.get("type")
    if not isinstance(kind, int) or kind not in _NAMES:
        return None
    inner = dict_of(item.get(_NAMES[kind]))
    media = dict_of(inner.get("media"))
    url, param = text_of(media.get("full_url")), text_of(media.get("encrypt_query_param"))
    if not (url or param) or (kind == VOICE and text_of(inner.get("text"))):
        return None
    key = text_of(inner.get("aeskey")) or text_of(media.get("aes_key"))
    reference = {name: value for name, value in (("url", url), ("param", param), ("key", key)) if value}
    name, mime = text_of(inner.get("file_name")) or None, None
    if kind == FILE:
        mime = mimetypes.guess_type(name or "")[0]
    elif kind == VIDEO:
        mime = "video/mp4"
    elif kind == VOICE:
        code = inner.get("encode_type")
        mime = _VOICES.get(code) if isinstance(code, int) else None
    of_kind = {IMAGE: "image", VOICE: "audio", VIDEO: "video"}.get(kind) or attachment_kind(mime)
    size = text_of(inner.get("len"))
    length = int(size) if size.isascii() and size.isdecimal() and len(size) < 16 else None
    return Attachment(kind=of_kind, name=name, mime=mime, size=length, reference=reference)


def _quote(items: list[dict[str, Any]]) -> tuple[str | None, str | None]:
    """The quoted message: its id and its text, as far as WeChat sends them."""
    for item in items:
        reference = dict_of(item.get("ref_msg"))
        if reference:
            quoted = dict_of(reference.get("message_item"))
            number = quoted.get("msg_id") or reference.get("svr_id")
            text = text_of(dict_of(quoted.get("text_item")).get("text")) or text_of(reference.get("title"))
            return (str(number) if isinstance(number, str | int) and number else None), text or None
    return None, None

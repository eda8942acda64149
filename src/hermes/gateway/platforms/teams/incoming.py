"""Activities of the Bot Framework as events.

A message's id is unique in its conversation, so an event is named by both. In a channel every post begins a thread, and the
thread is a part of the conversation's id ("19:…@thread.tacv2;messageid=1700000000000").
"""

from __future__ import annotations

import html
import re
from datetime import datetime
from typing import Any

from hermes.gateway.events import CHANNEL, DM, GROUP, Attachment, Chat, Event, Reaction, Revision, Sender, deleted
from hermes.gateway.platforms.http import attachment_kind

FILE = "application/vnd.microsoft.teams.file.download.info"
_TYPES = {"personal": DM, "groupChat": GROUP, "channel": CHANNEL}
_REACTIONS = {"like": "👍", "heart": "❤️", "laugh": "😆", "surprised": "😮", "sad": "😢", "angry": "😡"}
_AT = re.compile(r"<at(?: [^<>]*)?>([^<]*)</at>")
_QUOTE = re.compile(
    r'<blockquote[^>]*itemtype="http://schema\.skype\.com/Reply"[^>]*itemid="([^"]+)"[^>]*>(.*?)</blockquote>',
    re.DOTALL,
)
_PREVIEW = re.compile(r'<p[^>]*itemprop="preview"[^>]*>(.*?)</p>', re.DOTALL)
_SEARCHED = 20_000  # characters of the HTML copy in which a quotation is looked for: it stands at the beginning
_TAGS = re.compile(r"<[^>]*>")


def conversation(activity: dict[str, Any]) -> tuple[str, str | None, str]:
    """The id of an activity's conversation, the thread in it, and its type; the id is "" if there is none."""
    found = _dict(activity.get("conversation"))
    base, _, thread = _text(found.get("id")).partition(";messageid=")
    kind = _TYPES.get(_text(found.get("conversationType")))
    kind = kind or (CHANNEL if is_channel(base) else GROUP if found.get("isGroup") is True else DM)
    return base, (thread or None) if kind == CHANNEL else None, kind


def is_channel(conversation_id: str) -> bool:
    """Whether the id is one of a team's channel."""
    return conversation_id.endswith(("@thread.tacv2", "@thread.skype"))


class Reader:
    """Reads activities for one bot. `thread_replies`: answers to a post in a channel are in its thread."""

    def __init__(self, app_id: str, *, thread_replies: bool) -> None:
        self._bot_id, self._thread_replies = f"28:{app_id}".lower(), thread_replies

    def understood(self, activity: dict[str, Any]) -> Event | Revision | Reaction | None:
        """What an activity means for the gateway; None for our own messages, and for all that is no message."""
        kind, number = activity.get("type"), _text(activity.get("id"))
        base, _, _ = conversation(activity)
        if not number or not base or self._is_us(_text(_dict(activity.get("from")).get("id"))):
            return None
        if kind == "messageReaction":
            return self._reaction(activity)
        if kind == "messageDelete":
            return deleted(f"{base}:{number}")
        event = self._event(activity) if kind in ("message", "messageUpdate") else None
        if event is None or kind == "message":
            return event
        told = _text(_dict(activity.get("channelData")).get("eventType")) or "editMessage"
        moment = _text(activity.get("timestamp")) or _text(activity.get("localTimestamp"))
        return Revision(id=f"{told}:{event.id}:{moment}", revises=event.id, event=event)

    def _is_us(self, user_id: str) -> bool:
        return user_id.lower() == self._bot_id

    def _event(self, activity: dict[str, Any]) -> Event | None:
        sender = _sender(activity)
        if sender is None:
            return None
        number, chat = _text(activity.get("id")), self._chat(activity)
        text, mentioned = self._words(activity)
        attachments = _attachments(activity)
        if not text and not attachments and activity.get("value") is not None:
            return None  # a card was submitted, and we send none
        quoted_id, quoted = _quote(activity)
        return Event(
            id=f"{chat.chat_id}:{number}",
            chat=chat,
            sender=sender,
            text=text,
            attachments=attachments,
            message_id=number,
            reply_to=quoted_id or _text(activity.get("replyToId")) or None,
            quoted=quoted,
            sent_at=_moment(activity.get("timestamp")),
            addressed=chat.type == DM or mentioned,
        )

    def _chat(self, activity: dict[str, Any]) -> Chat:
        base, thread, kind = conversation(activity)
        if thread == _text(activity.get("id")) and not self._thread_replies:
            thread = None
        data = _dict(activity.get("channelData"))
        names = (_dict(activity.get("conversation")), _dict(data.get("channel")), _dict(data.get("team")))
        name = next((_text(one.get("name")) for one in names if one.get("name")), "") or None
        return Chat(platform="teams", chat_id=base, type=kind, thread_id=thread, name=name)

    def _words(self, activity: dict[str, Any]) -> tuple[str, bool]:
        """The text without the mention of the bot, and whether there was one. Other mentions become names."""
        text, mentioned = _text(activity.get("text")), False
        for entity in _list(activity.get("entities")):
            who = _dict(entity.get("mentioned"))
            if entity.get("type") != "mention" or not self._is_us(_text(who.get("id"))):
                continue
            mentioned = True
            if words := _text(entity.get("text")):
                text = text.replace(words, "", 1)
        text = _AT.sub(lambda found: f"@{found[1]}", text)
        return (html.unescape(text) if activity.get("textFormat") == "xml" else text).strip(), mentioned

    def _reaction(self, activity: dict[str, Any]) -> Reaction | None:
        sender, added = _sender(activity), _list(activity.get("reactionsAdded"))
        emoji = _emoji(_text(added[0].get("type"))) if added else ""
        if sender is None or not emoji:
            return None
        chat, number = self._chat(activity), _text(activity.get("id"))
        answered = _text(activity.get("replyToId")) or None
        return Reaction(
            id=f"reaction:{chat.chat_id}:{number}", chat=chat, sender=sender, emoji=emoji, message_id=answered
        )


def _sender(activity: dict[str, Any]) -> Sender | None:
    who = _dict(activity.get("from"))
    user_id = _text(who.get("id"))
    if not user_id:
        return None
    return Sender(
        user_id=user_id, stable_id=_text(who.get("aadObjectId")).lower() or None, name=_text(who.get("name")) or None,
        is_bot=user_id.startswith("28:") or who.get("role") == "bot",
    )  # fmt: skip


def _attachments(activity: dict[str, Any]) -> tuple[Attachment, ...]:
    """Files and pictures; the copy of the text as HTML and cards are none."""
    found = []
    for one in _list(activity.get("attachments")):
        kind, name = _text(one.get("contentType")), _text(one.get("name")) or None
        if kind == FILE:
            address = _text(_dict(one.get("content")).get("downloadUrl"))
            mime = _mime(name)
        else:
            address, mime = _text(one.get("contentUrl")), None if kind == "image/*" else kind
            if not kind.startswith(("image/", "audio/", "video/")):
                continue
        if address:
            of_kind = "image" if kind.startswith("image/") else attachment_kind(mime)
            found.append(Attachment(kind=of_kind, name=name, mime=mime, reference={"url": address}))
    return tuple(found)


def _mime(name: str | None) -> str | None:
    import mimetypes

    return mimetypes.guess_type(name or "")[0]


def _quote(activity: dict[str, Any]) -> tuple[str | None, str | None]:
    """The message that is quoted, which Teams tells in the HTML copy alone."""
    for one in _list(activity.get("attachments")):
        if one.get("contentType") == "text/html" and (found := _QUOTE.search(_text(one.get("content"))[:_SEARCHED])):
            preview = _PREVIEW.search(found[2])
            return found[1], html.unescape(_TAGS.sub("", preview[1])).strip() or None if preview else None
    return None, None


def _emoji(kind: str) -> str:
    """A reaction as an emoji: it is named ("like"), or begins with its code points in hexadecimal ("1f44e_thumbsdown")."""
    if kind in _REACTIONS or not kind.isascii():
        return _REACTIONS.get(kind, kind)
    try:
        return "".join(chr(int(point, 16)) for point in kind.partition("_")[0].split("-"))
    except (ValueError, OverflowError):
        return ""


def _moment(value: Any) -> float | None:
    try:
        return datetime.fromisoformat(_text(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []

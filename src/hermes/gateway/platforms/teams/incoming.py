"""Activities of the Bot Framework as events.

https://learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-api-reference
"""

from __future__ import annotations

import html
import mimetypes
import re
from collections.abc import Collection
from html.parser import HTMLParser
from typing import Any

from hermes.gateway.events import CHANNEL, DM, GROUP, Attachment, Chat, Event, Forwarded, Revision, Sender, deleted
from hermes.gateway.platforms._shared.http import attachment
from hermes.gateway.platforms._shared.receipt import dict_of, dicts_of, iso_moment, parsed, text_of

_TYPES = {"personal": DM, "groupChat": GROUP, "channel": CHANNEL}
_THREAD = ";messageid="
_FILE = "application/vnd.microsoft.teams.file.download.info"
_FORWARD = "schema.skype.com/Forward"  # the kind of a forwarded message in the HTML of a message
_VOID = frozenset("area br col embed hr img input link meta source track wbr".split())  # elements without an end
_AT = re.compile(r"<at\b[^>]*>(.*?)</at>", re.DOTALL)


def chat_of(activity: dict[str, Any]) -> Chat | None:
    """The chat of an activity. A post in a channel is a thread: its id is part of the conversation's."""
    conversation = dict_of(activity.get("conversation"))
    chat_id, _, thread = text_of(conversation.get("id")).partition(_THREAD)
    if not chat_id:
        return None
    kind = _TYPES.get(text_of(conversation.get("conversationType")), GROUP if conversation.get("isGroup") else DM)
    if thread:
        kind = CHANNEL
    return Chat(
        platform="teams",
        chat_id=chat_id,
        type=kind,
        thread_id=thread or None,
        name=text_of(conversation.get("name")) or None,
    )


def conversation_of(chat: Chat) -> str:
    """The id of the conversation that messages for a chat go to."""
    return chat.chat_id if chat.thread_id is None else f"{chat.chat_id}{_THREAD}{chat.thread_id}"


def understood(activity: dict[str, Any], context: dict[str, Any]) -> Event | Revision | None:
    """A message, or that one was edited or deleted; None for everything else."""
    kind, chat, message_id = activity.get("type"), chat_of(activity), text_of(activity.get("id"))
    if chat is None or not message_id or kind not in ("message", "messageUpdate", "messageDelete"):
        return None
    event_id = f"{chat.chat_id}:{message_id}"
    if kind == "messageDelete":
        return deleted(event_id)
    if dict_of(activity.get("channelData")).get("eventType") == "undeleteMessage":
        return None  # what was deleted stays deleted, on every machine it was copied to
    event = _event(activity, chat, message_id, event_id, context)
    if event is None or kind == "message":
        return event
    at = text_of(activity.get("timestamp")) or text_of(activity.get("localTimestamp"))
    return Revision(id=f"edit:{event_id}:{at}", revises=event_id, event=event)


def _event(
    activity: dict[str, Any], chat: Chat, message_id: str, event_id: str, context: dict[str, Any]
) -> Event | None:
    who, me = dict_of(activity.get("from")), text_of(dict_of(activity.get("recipient")).get("id"))
    user_id, stable_id = text_of(who.get("id")), text_of(who.get("aadObjectId"))
    if not user_id or user_id.startswith("28:") or who.get("role") == "bot" or user_id == me:
        return None  # programs
    text, addressed = _words(activity, me)
    text, forwarded = _apart(activity, me, text)
    quoted_id, quoted = _quoted(activity.get("attachments"))
    # Microsoft names the account, and its signature on the request was checked (client.py).
    name = text_of(who.get("name")) or None
    sender = Sender(user_id=user_id, stable_id=stable_id or None, name=name, proven=True)
    return Event(
        id=event_id, chat=chat, sender=sender, text=text, attachments=_attachments(activity.get("attachments")),
        message_id=message_id, reply_to=quoted_id or text_of(activity.get("replyToId")) or None, quoted=quoted,
        forwarded=forwarded, sent_at=iso_moment(activity.get("timestamp")),
        addressed=addressed or chat.type == DM, reply_context=context,
    )  # fmt: skip


def _words(activity: dict[str, Any], me: str) -> tuple[str, bool]:
    """The text without the mention of the bot and with the names of others, and whether it mentions the bot."""
    text, addressed = text_of(activity.get("text")), False
    for entity in dicts_of(activity.get("entities")):
        written = text_of(entity.get("text"))
        if entity.get("type") == "mention" and me and dict_of(entity.get("mentioned")).get("id") == me:
            addressed = True
            text = text.replace(written, "") if written else text
    text = _AT.sub(lambda found: f"@{found.group(1)}", text)
    if activity.get("textFormat") == "xml":
        text = html.unescape(text)
    return text.replace("&nbsp;", " ").replace("\xa0", " ").strip(), addressed


class _Apart(HTMLParser):
    """The words of a message, apart from those that it forwards, and without the mentions of these names."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.own, self.forwarded = "", ""
        self._names = names
        self._open: list[tuple[str, bool]] = []  # the elements around; whether each is forwarded, or inside of one
        self._mention: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = dict(attrs).get("itemtype") or ""
        if tag == "at" or kind.endswith("/Mention"):
            self._mention = ""
        if tag in _VOID:
            self._put("\n" if tag == "br" else "")
            return
        inside = bool(self._open) and self._open[-1][1]
        self._open.append((tag, inside or kind.endswith("/Forward")))

    def handle_endtag(self, tag: str) -> None:
        if self._mention is not None and tag in ("at", "span"):
            name, self._mention = self._mention, None
            self._put("" if name.strip() in self._names else f"@{name}")
        if tag not in [one for one, _ in self._open]:
            return
        if tag in ("p", "div", "li", "blockquote"):
            self._put("\n")
        while self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._mention is not None:
            self._mention += data
        else:
            self._put(data)

    def _put(self, text: str) -> None:
        if self._open and self._open[-1][1]:
            self.forwarded += text
        else:
            self.own += text


def _apart(activity: dict[str, Any], me: str, text: str) -> tuple[str, Forwarded | None]:
    """The sender's own words, and what the message forwards. Teams puts both into the text, and tells them apart in the HTML."""
    pages = [text_of(one.get("content")) for one in dicts_of(activity.get("attachments"))]
    page = next((one for one in pages if _FORWARD in one), None)
    if page is None:
        return text, None
    mentions = dicts_of(activity.get("entities"))
    ours = [text_of(one.get("text")) for one in mentions if dict_of(one.get("mentioned")).get("id") == me]
    reader = _Apart([re.sub(r"<[^>]*>", "", one) for one in ours])
    reader.feed(page)
    reader.close()
    return reader.own.replace("\xa0", " ").strip(), Forwarded(text=reader.forwarded.replace("\xa0", " ").strip())


def _quoted(listed: Any) -> tuple[str | None, str | None]:
    """The id and the text of a message that is quoted in a chat."""
    for one in dicts_of(listed):
        if one.get("contentType") == "messageReference":
            found = dict_of(one.get("content")) or parsed(one.get("content"))
            return text_of(found.get("messageId")) or None, text_of(found.get("messagePreview")).strip() or None
    return None, None


def _attachments(listed: Any) -> tuple[Attachment, ...]:
    found = []
    for item in dicts_of(listed):
        kind, name = text_of(item.get("contentType")), text_of(item.get("name")) or None
        if kind == _FILE:
            address = text_of(dict_of(item.get("content")).get("downloadUrl"))
            mime = mimetypes.guess_type(name or "")[0]
        else:
            address = text_of(item.get("contentUrl"))
            mime = "image/png" if kind == "image/*" else kind
        if address and not kind.startswith(("text/html", "application/vnd.microsoft.card")):
            # The address of a file itself lets everyone in for some minutes.
            found.append(attachment(name, mime, url=address, open=kind == _FILE))
    return tuple(found)

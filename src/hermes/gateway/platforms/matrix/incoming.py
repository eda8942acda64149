"""Incoming messages: Matrix events as events of the gateway.

Everything in an event's content was written by other people, so every field is checked before it is used. Reactions,
notices (messages of bots) and state are no events for us; edits and redactions refer to events.
"""

from __future__ import annotations

import re
from typing import Any

from nio import MatrixRoom  # type: ignore[import-untyped]

from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, Forwarded, Sender

KINDS = {"m.image": "image", "m.audio": "audio", "m.video": "video", "m.file": "file"}
_QUOTED = re.compile(r"\A(?:>[^\n]*(?:\n|\Z))+\n?")


def content_of(source: dict[str, Any]) -> dict[str, Any] | None:
    """The content of a message that people wrote, or None."""
    content = source.get("content")
    if source.get("type") != "m.room.message" or "state_key" in source or not isinstance(content, dict):
        return None
    if content.get("msgtype") not in ("m.text", "m.emote", *KINDS) or not isinstance(content.get("body"), str):
        return None
    return None if _relation(content).get("rel_type") == "m.replace" else content


def redacted(source: dict[str, Any]) -> str | None:
    """The id of the event that a redaction removes; the server has checked that its sender may."""
    if source.get("type") != "m.room.redaction":
        return None
    content = source.get("content")
    target = source.get("redacts") or (
        content.get("redacts") if isinstance(content, dict) else None
    )  # by the room's version
    return target if isinstance(target, str) else None


def edited(source: dict[str, Any]) -> str | None:
    """The id of the event that a message replaces."""
    content = source.get("content")
    if source.get("type") != "m.room.message" or "state_key" in source or not isinstance(content, dict):
        return None
    relation = _relation(content)
    target = relation.get("event_id") if relation.get("rel_type") == "m.replace" else None
    return target if isinstance(target, str) and isinstance(content.get("m.new_content"), dict) else None


def as_edited(source: dict[str, Any], first: dict[str, Any], event_id: str) -> dict[str, Any]:
    """The first version of a message with the text of an edit: its place, and the message it answers, stay."""
    content = {**source["content"]["m.new_content"]}
    content.pop("m.relates_to", None)
    before = first.get("content")
    if isinstance(before, dict) and _relation(before):
        content["m.relates_to"] = _relation(before)
    return {**source, "content": content, "event_id": event_id, "origin_server_ts": first.get("origin_server_ts")}


def answered(content: dict[str, Any]) -> str | None:
    """The message that this one answers; a thread's own pointer to its last message is not an answer."""
    relation = _relation(content)
    if relation.get("rel_type") == "m.thread" and relation.get("is_falling_back") is True:
        return None
    target = relation.get("m.in_reply_to")
    found = target.get("event_id") if isinstance(target, dict) else None
    return found if isinstance(found, str) else None


def chat_of(room: MatrixRoom, thread: str | None = None) -> Chat:
    """A room of two is a direct chat; those who are invited count."""
    kind = DM if room.member_count <= 2 else GROUP
    return Chat(platform="matrix", chat_id=room.room_id, type=kind, thread_id=thread, name=room.display_name or None)


def _without_quote(text: str) -> tuple[str | None, str]:
    """The quoted text, which many clients put before the answer ("> <@alice:x> words"), and the answer."""
    found = _QUOTED.match(text)
    if found is None:
        return None, text
    lines = [re.sub(r"\A> ?", "", line) for line in found[0].strip().split("\n")]
    lines[0] = re.sub(r"\A(?:\* )?<@[^>]*> ?", "", lines[0])
    return "\n".join(lines).strip() or None, text[found.end() :]


def event_of(room: MatrixRoom, source: dict[str, Any], me: str, *, answers_us: bool = False) -> Event | None:
    """The gateway's event for a room event; None for what is no message."""
    content = content_of(source)
    event_id, sender = source.get("event_id"), source.get("sender")
    if content is None or not isinstance(event_id, str) or not isinstance(sender, str):
        return None
    relation = _relation(content)
    root = relation.get("event_id") if relation.get("rel_type") == "m.thread" else None
    chat = chat_of(room, root if isinstance(root, str) else None)
    attachment = _attachment(room, content, event_id)
    text = _caption(content) if attachment else content["body"]
    quoted = None
    if answered(content) is not None or relation.get("m.in_reply_to"):
        quoted, text = _without_quote(text)
    names = _names(room, me)
    mentioned = _mentioned(content, text, me, names)
    forwarded = _forwarded(content, text)
    if forwarded is not None:
        text, mentioned = "", False
    stamp = source.get("origin_server_ts")
    return Event(
        id=event_id,
        chat=chat,
        # Our homeserver names the sender; that person's homeserver has authenticated them and signed the event.
        sender=Sender(user_id=sender, name=room.user_name(sender) or sender, proven=True),
        text=_without_mention(text, me, names, pinged=_pinged(content, me)),
        attachments=(attachment,) if attachment else (),
        message_id=event_id,
        reply_to=answered(content),
        quoted=quoted if answered(content) is not None else None,
        forwarded=forwarded,
        sent_at=stamp / 1000 if isinstance(stamp, int) else None,
        addressed=chat.type == DM or mentioned or answers_us,
    )


def _forwarded(content: dict[str, Any], text: str) -> Forwarded | None:
    """The forwarded part of a message. The specification has no mark for it; some clients set that of proposals 2723 and 2730."""
    forwarded = content.get("m.forwarded")
    if not isinstance(forwarded, dict):
        return None
    author = forwarded.get("sender")
    return Forwarded(text=text, author=author if isinstance(author, str) else None)


def words_of(source: dict[str, Any]) -> str | None:
    """The text of a room event, in its newest version if the server gives it; None without a text."""
    content = content_of(source)
    if content is None:
        return None
    words = content["body"]
    newest: Any = source
    for step in ("unsigned", "m.relations", "m.replace", "content", "m.new_content"):
        newest = newest.get(step) if isinstance(newest, dict) else None
    if isinstance(newest, dict) and isinstance(newest.get("body"), str):
        words = newest["body"]
    if _relation(content).get("m.in_reply_to"):
        words = _without_quote(words)[1]
    return words.strip() or None


def file_of(source: dict[str, Any]) -> tuple[str, dict[str, Any] | None] | None:
    """The address of a message's file (mxc://…), and how to decrypt it if it is encrypted."""
    content = source.get("content")
    if not isinstance(content, dict):
        return None
    file = content.get("file")
    if isinstance(file, dict) and isinstance(file.get("url"), str):
        return file["url"], file
    url = content.get("url")
    return (url, None) if isinstance(url, str) else None


def _relation(content: dict[str, Any]) -> dict[str, Any]:
    relation = content.get("m.relates_to")
    return relation if isinstance(relation, dict) else {}


def _attachment(room: MatrixRoom, content: dict[str, Any], event_id: str) -> Attachment | None:
    kind = KINDS.get(content["msgtype"])
    found = file_of({"content": content})
    if kind is None or found is None:
        return None
    url, encrypted = found
    details = content.get("info")
    info: dict[str, Any] = details if isinstance(details, dict) else {}
    mime, size, name = info.get("mimetype"), info.get("size"), content.get("filename") or content["body"]
    # The key of an encrypted file is a secret: the message is fetched and decrypted again when the file is needed.
    reference = {"url": url} if encrypted is None else {"room_id": room.room_id, "event_id": event_id}
    return Attachment(
        kind=kind,
        name=name if isinstance(name, str) else None,
        mime=mime if isinstance(mime, str) else None,
        size=size if isinstance(size, int) else None,
        reference=reference,
    )


def _caption(content: dict[str, Any]) -> str:
    """The text that came with a file: present if the file's name is given besides."""
    name, body = content.get("filename"), str(content["body"])
    return body if isinstance(name, str) and name != body else ""


def _names(room: MatrixRoom, me: str) -> list[str]:
    """Our names there, longest first."""
    shown = room.users[me].display_name if me in room.users else None
    return sorted({shown or me, me[1:].partition(":")[0] or me}, key=len, reverse=True)


def _pinged(content: dict[str, Any], me: str) -> bool:
    mentions = content.get("m.mentions")
    users = mentions.get("user_ids") if isinstance(mentions, dict) else None
    if isinstance(users, list) and me in users:
        return True
    html = content.get("formatted_body")
    return isinstance(html, str) and (f"matrix.to/#/{me}" in html or f"matrix.to/#/{me.replace('@', '%40')}" in html)


def _any(names: list[str]) -> str:
    return "|".join(re.escape(name) for name in names)


def _mentioned(content: dict[str, Any], text: str, me: str, names: list[str]) -> bool:
    """Whether we are mentioned: by a mention, or as people write it by hand ("Hermes: …", "@hermes")."""
    if _pinged(content, me):
        return True
    opening = rf"\A\s*(?:{_any(names)})\s*[:,]"
    return any(re.search(pattern, text, re.IGNORECASE) for pattern in (_handle(me, names), opening))


def _handle(me: str, names: list[str]) -> str:
    """Our full id or "@name" as a word of its own; not the same name on another server."""
    return rf"(?<!\w)(?:{_any([me, *(f'@{name}' for name in names)])})(?![\w-]|[.:]\w)"


def _without_mention(text: str, me: str, names: list[str], *, pinged: bool) -> str:
    """The text without our name where it only addresses us; a plain name inside a sentence stays."""
    shorter = re.sub(rf"\s*{_handle(me, names)}[:,]?", "", text, flags=re.IGNORECASE)
    ending = r"(?!\w)\s*[:,]?" if pinged else r"\s*[:,]"
    shorter = re.sub(rf"\A\s*(?:{_any(names)}){ending}", "", shorter, count=1, flags=re.IGNORECASE)
    return text if shorter == text else shorter.strip()

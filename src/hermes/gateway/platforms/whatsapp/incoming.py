"""The Cloud API's deliveries to the webhook as events, and the people in them. No delivery makes this raise.

https://developers.facebook.com/documentation/business-messaging/whatsapp/webhooks/reference/messages

One person has a phone number, a LID, and for a business a business-scoped id; all are one id here. Which ids belong together is
noted in `<home>/whatsapp/session/lid-mapping-….json`: the bridge writes LIDs there, `same_person`
business-scoped ids (as US.13491208655302741918). Meta sends these with the number, and alone for people who hide it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes.gateway.chats.router import canonical_whatsapp_identifier
from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, Forwarded, Revision, Sender, deleted
from hermes.gateway.platforms._shared.http import attachment, error_text
from hermes.gateway.platforms._shared.listener import in_window
from hermes.gateway.platforms._shared.receipt import dict_of, dicts_of, text_of
from hermes.gateway.platforms._shared.tasks import Recent
from hermes.home import write_whole

BUSINESS_SCOPED = re.compile(r"[A-Z]{2}\.(?:ENT\.)?[A-Za-z0-9]{1,128}")
PHONE = re.compile(r"[0-9]{5,15}")


def canonical(value: Any, home: Path) -> str:
    """The one id of a person or a direct chat; "" where the value is none."""
    return canonical_whatsapp_identifier(value, home=home) if isinstance(value, str) and value.strip() else ""


def sender(person: str, name: str | None) -> Sender:
    """A person by their canonical id. Their number with a plus sign works in `allowed_users`, too.

    WhatsApp authenticated the account: Meta signs its deliveries, and the bridge is our own linked device.
    """
    if PHONE.fullmatch(person):
        return Sender(user_id=f"+{person}", stable_id=person, name=name or f"+{person}", proven=True)
    return Sender(user_id=person, name=name or person, proven=True)


def same_person(home: Path, number: str, scoped: str) -> None:
    """Note on the disk that a business-scoped id is the person with this number. OSError if that fails."""
    if not PHONE.fullmatch(number) or not BUSINESS_SCOPED.fullmatch(scoped) or len(scoped) <= len(number):
        return
    folder = home / "whatsapp" / "session"
    file, content = folder / f"lid-mapping-{scoped}_reverse.json", json.dumps(number)
    try:
        if file.read_text("utf-8") == content:
            return
    except (OSError, ValueError):
        pass
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(file, content)


REPLAYS = 7 * 24 * 3600.0  # seconds: for so long Meta repeats a delivery, and the gateway knows what it has answered
_ENVELOPE = ("from", "from_user_id", "group_id", "timestamp")
_RECORDS = ("interactive", "order", "location", "contacts")  # shown as they come: forms, orders, places, people
_FILES = ("image", "video", "audio", "document", "sticker")


@dataclass(slots=True)
class Failed:
    """A message of ours that was accepted first, and not delivered."""

    message_id: str
    person: str
    code: Any
    why: str


@dataclass(slots=True)
class CloudDelivery:
    """One delivery, in order."""

    items: list[Event | Revision] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # for the log
    problems: list[str] = field(default_factory=list)  # for the owner


class DeliveryReader:
    """Reads deliveries for one number."""

    def __init__(self, number_id: str, home: Path) -> None:
        self._number_id, self._home = number_id, home
        self.texts: Recent[str, str] = Recent(1_000)  # message id → how it begins, for quotes
        self._number = ""  # ours, as people see it

    def read(self, payload: Any) -> CloudDelivery:
        """Everything in a delivery that concerns our number."""
        found = CloudDelivery()
        for change in _changes(payload):
            value = dict_of(change.get("value"))
            ours = dict_of(value.get("metadata")).get("phone_number_id")
            if change.get("field") != "messages":
                continue
            if ours != self._number_id:
                found.problems.append(
                    f"a delivery for another number ({ours}) is ignored: give that number its own account"
                )
                continue
            self._number = "".join(
                filter(str.isdigit, str(dict_of(value.get("metadata")).get("display_phone_number") or ""))
            )
            for one in dicts_of(value.get("messages")):
                self._message(one, value, found)
            for one in dicts_of(value.get("statuses")):
                if one.get("status") == "failed":
                    found.failed.append(self._failure(one))
            for one in dicts_of(value.get("errors")):
                found.problems.append(f"WhatsApp reports: {_error(one)}")
        return found

    def _failure(self, status: dict[str, Any]) -> Failed:
        first = next(iter(dicts_of(status.get("errors"))), {})
        person = canonical(status.get("recipient_id") or status.get("recipient_user_id"), self._home)
        return Failed(str(status.get("id") or ""), person, first.get("code"), _error(first))

    def _message(self, message: dict[str, Any], value: dict[str, Any], found: CloudDelivery) -> None:
        number, who = message.get("id"), self._person(message, found)
        if not isinstance(number, str) or not number or not who:
            found.notes.append("a message without an id or a sender is ignored")
            return
        stamp = message.get("timestamp")
        if not isinstance(stamp, str | int) or not in_window(str(stamp), seconds=REPLAYS):
            found.notes.append(
                f"a message of {who} is ignored: its time ({stamp}) is not in the last 7 days; it may be a replay"
            )
            return
        kind = message.get("type")
        if kind == "revoke":
            gone = dict_of(message.get("revoke")).get("original_message_id")
            found.items += [deleted(gone)] if isinstance(gone, str) and gone else []
        elif kind == "edit":
            edit = dict_of(message.get("edit"))
            first, newer = edit.get("original_message_id"), dict_of(edit.get("message"))
            if isinstance(first, str) and first and newer:
                mine: dict[str, Any] = {key: message[key] for key in _ENVELOPE if key in message}
                event = self._event({**newer, **mine, "id": first}, value, who)
                found.items.append(Revision(id=number, revises=first, event=event))
        elif kind == "request_welcome":
            found.notes.append(f"{who} has opened the chat")
        elif kind == "system":
            found.notes.append(
                f"WhatsApp reports of {who}: {error_text(dict_of(message.get('system')).get('body') or 'a change')}"
            )
        elif kind != "reaction":
            found.items.append(self._event(message, value, who))

    def _person(self, message: dict[str, Any], found: CloudDelivery) -> str:
        """The sender's one id. Meta leaves the number out for people who hide it, after it has sent both for some time."""
        number, scoped = canonical(message.get("from"), self._home), message.get("from_user_id")
        if number and isinstance(scoped, str):
            try:
                same_person(self._home, number, scoped)
            except OSError as error:
                found.notes.append(f"that {scoped} is {number} could not be written down: {error}")
        return number or canonical(scoped, self._home)

    def _chat(self, message: dict[str, Any], who: str, name: str | None) -> Chat:
        group = message.get("group_id")
        if isinstance(group, str) and group:
            return Chat(platform="whatsapp", chat_id=group, type=GROUP)
        return Chat(platform="whatsapp", chat_id=who, type=DM, name=name)

    def _event(self, message: dict[str, Any], value: dict[str, Any], who: str) -> Event:
        name = _name(message, value)
        chat = self._chat(message, who, name)
        text, files = _content(message)
        context = dict_of(message.get("context"))
        quoted = context.get("id") if isinstance(context.get("id"), str) else None
        mention = f"@{self._number}"
        ours = self._number and (mention in text or canonical(context.get("from"), self._home) == self._number)
        self.texts.put(message["id"], text[:300])
        forwarded = None
        if context.get("forwarded") or context.get("frequently_forwarded"):  # without its author
            forwarded, text, ours = Forwarded(text=text), "", False
        return Event(
            id=message["id"], chat=chat, sender=sender(who, name), attachments=files, message_id=message["id"],
            text=text.replace(mention, "").strip() if chat.type == GROUP and self._number else text, forwarded=forwarded,
            reply_to=quoted, quoted=self.texts.get(quoted) if quoted else None,
            sent_at=float(str(message["timestamp"])), addressed=chat.type == DM or bool(ours),
        )  # fmt: skip


def _content(message: dict[str, Any]) -> tuple[str, tuple[Attachment, ...]]:
    """The text of a message and its file."""
    kind = str(message.get("type") or "")
    inside = dict_of(message.get(kind))
    if kind == "text":
        return text_of(inside.get("body")), ()
    if kind in _FILES and isinstance(inside.get("id"), str) and inside["id"]:
        mime = text_of(inside.get("mime_type")).partition(";")[0].strip()
        return text_of(inside.get("caption")), (attachment(inside.get("filename"), mime, id=inside["id"]),)
    if kind == "button":  # of a template
        return text_of(inside.get("text")) or text_of(inside.get("payload")), ()
    chosen = dict_of(inside.get("button_reply")) or dict_of(inside.get("list_reply"))
    if kind == "interactive" and chosen:
        return text_of(chosen.get("id")) or text_of(chosen.get("title")), ()
    if kind in _RECORDS and message.get(kind):
        return f"[{kind}: {json.dumps(message[kind], ensure_ascii=False)}]", ()
    why = _error(next(iter(dicts_of(message.get("errors"))), {}))
    return f"[a message of a kind that WhatsApp does not pass on: {kind or 'unknown'}{f'; {why}' if why else ''}]", ()


def _name(message: dict[str, Any], value: dict[str, Any]) -> str | None:
    """The sender's display name."""
    ids = [one for one in (message.get("from"), message.get("from_user_id")) if one]
    for one in dicts_of(value.get("contacts")):
        if one.get("wa_id") in ids or one.get("user_id") in ids:
            profile = dict_of(one.get("profile"))
            return text_of(profile.get("name")) or text_of(profile.get("username")) or None
    return None


def _error(one: dict[str, Any]) -> str:
    text = dict_of(one.get("error_data")).get("details") or one.get("message") or one.get("title") or ""
    return error_text(f"{text} (code {one.get('code')})") if one else ""


def _changes(payload: Any) -> Iterator[dict[str, Any]]:
    if isinstance(payload, dict) and payload.get("object") == "whatsapp_business_account":
        for entry in dicts_of(payload.get("entry")):
            yield from dicts_of(entry.get("changes"))

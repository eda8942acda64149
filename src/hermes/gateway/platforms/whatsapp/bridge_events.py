"""What a bridge reports, as events. Nothing here raises, whatever it reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes.gateway.events import DM, GROUP, Attachment, Chat, Event, Forwarded, Reaction, Revision, Sender, deleted
from hermes.gateway.keys import normalize_whatsapp_identifier
from hermes.gateway.platforms.connections import Recent
from hermes.gateway.platforms.frames import dict_of, dicts_of, text_of
from hermes.gateway.platforms.http import attachment
from hermes.gateway.platforms.whatsapp.people import canonical, sender

LID, PERSON, GROUPS = "@lid", "@s.whatsapp.net", "@g.us"


class BridgeReader:
    """Reads a bridge's events for one number."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ourselves: set[str] = set()
        self.messages: Recent[str, tuple[str, str]] = Recent(1_000)  # id → who wrote it, and how it begins: for quotes

    def is_us(self, *ids: Any) -> None:
        """Our own ids: the number and the LID."""
        found = {normalize_whatsapp_identifier(one) for one in ids if isinstance(one, str)}
        self._ourselves = {*found, *(canonical(one, self._home) for one in found)} - {""}

    def read(self, found: Any) -> Event | Revision | Reaction | None:
        """An event of the bridge; None where it is none of ours."""
        if not isinstance(found, dict):
            return None
        number, where, who = found.get("id"), text_of(found.get("chat")), text_of(found.get("sender"))
        if not isinstance(number, str) or not number or not where or not who:
            return None
        person, place = self._person(who, found.get("name")), self._chat(where, found)
        if person is None or place is None or self._is_ours(who):
            return None
        mine = f"{place.chat_id}:{person.id}:"  # a message is named by its author: no user can change another's
        target = text_of(found.get("target"))
        match found.get("type"):
            case "message":
                return self._event(found, f"{mine}{number}", number, place, person)
            case "edit" if target:
                event = self._event(found, f"{mine}{target}", target, place, person)
                return Revision(id=f"{mine}edit:{number}", revises=f"{mine}{target}", event=event)
            case "delete" if target:
                return deleted(f"{mine}{target}")
            case "reaction" if target and text_of(found.get("emoji")):
                return Reaction(
                    id=f"{mine}reaction:{number}",
                    chat=place,
                    sender=person,
                    emoji=text_of(found["emoji"]),
                    message_id=target,
                )
        return None

    def address(self, chat_id: str) -> str:
        """The bridge's address of a chat."""
        return chat_id if "@" in chat_id else f"{chat_id.removeprefix('+')}{PERSON}"

    def _resolved(self, jid: str) -> str:
        """A person's id: digits for a number, digits and @lid for a LID without a known number."""
        bare, found = normalize_whatsapp_identifier(jid), canonical(jid, self._home)
        is_lid = jid.endswith(LID)
        if found != bare:  # it is the person's other id
            is_lid = not is_lid
        return f"{found}{LID}" if is_lid else found

    def _person(self, jid: str, name: Any) -> Sender | None:
        found = self._resolved(jid)
        if not found:
            return None
        return sender(found, text_of(name) or None)

    def _chat(self, jid: str, found: dict[str, Any]) -> Chat | None:
        if jid.endswith(GROUPS):
            return Chat(platform="whatsapp", chat_id=jid, type=GROUP, name=text_of(found.get("chat_name")) or None)
        if jid.endswith((LID, PERSON)):
            return Chat(
                platform="whatsapp", chat_id=self._resolved(jid), type=DM, name=text_of(found.get("name")) or None
            )
        return None  # a broadcast, a channel, a status

    def _event(self, found: dict[str, Any], name: str, number: str, chat: Chat, person: Sender) -> Event:
        text = text_of(found.get("text"))
        quoted, mentions = dict_of(found.get("quoted")), found.get("mentions")
        named = [one for one in mentions if isinstance(one, str)] if isinstance(mentions, list) else []
        about_us = [one for one in named if self._is_ours(one)]
        addressed = chat.type == DM or bool(about_us) or self._is_ours(quoted.get("sender"))
        for one in about_us:
            text = text.replace(f"@{normalize_whatsapp_identifier(one)}", "").strip()
        self.messages.put(number, (text_of(found.get("sender")), text[:300]))
        forwarded = None
        if found.get("forwarded"):  # the author is not told
            forwarded, text, addressed = Forwarded(text=text_of(found.get("text"))), "", chat.type == DM
        stamp = found.get("timestamp")
        return Event(
            id=name, chat=chat, sender=person, text=text, message_id=number, addressed=addressed, forwarded=forwarded,
            attachments=tuple(_attachment(one) for one in dicts_of(found.get("files")) if one.get("id")),
            reply_to=text_of(quoted.get("id")) or None, quoted=text_of(quoted.get("text")) or None,
            sent_at=float(stamp) if isinstance(stamp, int) and 0 < stamp < 10**11 else None,
        )  # fmt: skip

    def _is_ours(self, jid: Any) -> bool:
        return isinstance(jid, str) and bool(
            {normalize_whatsapp_identifier(jid), canonical(jid, self._home)} & self._ourselves
        )


def _attachment(file: dict[str, Any]) -> Attachment:
    mime = text_of(file.get("mime")).partition(";")[0].strip()
    return attachment(file.get("name"), mime, file.get("size"), file=str(file["id"]))

"""Access: who may talk, who may see what, and who has sent a message, in a form that no message can imitate.

A person may talk once allowed: by `allowed_users`, by <PLATFORM>_ALLOWED_USERS, or by pairing. Everyone sees their own
conversations and those they share; the owner, named in `owner:`, sees all, and has the tools that reach into the
machine.

In a conversation of several people a message begins with its sender in brackets. So no other line of it may begin with a
bracket: such a bracket gets a backslash. Notes of the gateway itself are in brackets, too, and no person's text begins a
line like one. People choose their names: a name that two of them have, or that resembles the gateway, comes with the id.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from hermes.commands.registry import sent_text
from hermes.gateway.events import DM, destination, is_own, platform_of
from hermes.gateway.notices import language_of, say
from hermes.store.gateway import approvals

if TYPE_CHECKING:
    from hermes.gateway.events import Chat, Event, Sender
    from hermes.gateway.settings import PlatformSettings
    from hermes.store.api.session_db import SessionDB
    from hermes.store.gateway.gateway_db import GatewayDB
    from hermes.store.records.visibility import User

_LANGUAGE = "language"  # the key that a pairing's chat has besides those of `destination`
_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # none that looks like another


class Access:
    """The rules of one gateway."""

    def __init__(self, store: GatewayDB, owner: list[str], settings: Mapping[str, PlatformSettings]) -> None:
        self._store = store
        local = {name for name, one in settings.items() if one.local_ids}
        self._owner = frozenset(_as_in_events(one, local) for one in owner)
        self._settings = settings

    def may_talk(self, platform: str, sender: Sender) -> bool:
        """Whether this person is answered."""
        if sender.is_bot:
            return False
        settings = self._settings.get(platform)
        if settings is not None and settings.allow_all:
            return True
        names = {one for one in (sender.user_id, sender.stable_id) if one}
        if settings is not None and _written(names, settings) & settings.allowed_users:
            return True
        if self.is_owner(platform, sender):
            return True
        return any(self._store.read(approvals.may_talk, platform, one) for one in names)

    def is_owner(self, platform: str, sender: Sender) -> bool:
        """Whether this is the owner of the machine, authenticated by the platform."""
        platform = platform_of(platform)
        return sender.proven and any(
            f"{platform}:{one}" in self._owner for one in (sender.user_id, sender.stable_id) if one
        )

    def owners(self, platform: str) -> list[str]:
        """The owner's ids on a platform."""
        platform = platform_of(platform)
        return sorted(one.partition(":")[2] for one in self._owner if one.partition(":")[0] == platform)

    def user(self, platform: str, sender: Sender) -> User | None:
        """The user whose conversations this person may see; None: the owner, who sees all."""
        if self.is_owner(platform, sender):
            return None
        return (platform_of(platform), sender.id or "")

    def pairing_code(self, event: Event) -> str | None:
        """A pairing code for an unknown person, to be sent to them; None when they get no answer.

        Only in direct chats, and one code an hour for each person.
        """
        person = event.sender.id
        if event.chat.type != DM or not person or event.sender.is_bot:
            return None
        code = "".join(secrets.choice(_LETTERS) for _ in range(8))
        code = f"{code[:4]}-{code[4:]}"
        stored = msgspec.json.decode(destination(event.chat, event.reply_context))
        stored[_LANGUAGE] = language_of([event.text], event.sender.language)
        chat = msgspec.json.encode(stored).decode()
        made = self._store.write(approvals.make_pairing, code, event.chat.connection, person, event.sender.name, chat)
        return code if made else None


def _as_in_events(owner: str, local: set[str]) -> str:
    """An entry of `owner:` as events name the person: "wecom/work:anna" is anna of one account of several."""
    connection, _, person = owner.partition(":")
    platform, _, account = connection.partition("/")
    return f"{platform}:{account}/{person}" if account and connection in local else owner


def _written(names: set[str], settings: PlatformSettings) -> set[str]:
    """The ids as `allowed_users` of an account has them."""
    account = settings.platform.partition("/")[2]
    return {one.removeprefix(f"{account}/") for one in names} if account and settings.local_ids else names


def greeting(code: str, event: Event) -> str:
    """The reply to an unknown person, in the language of their message."""
    return say("greeting", language_of([event.text], event.sender.language), code=code)


def welcome(chat: str) -> str:
    """The notice that a person was approved, in the language of their request, which is with the stored chat."""
    return say("welcome", msgspec.json.decode(chat).get(_LANGUAGE))


def place_of(chat: Chat) -> str:
    """A chat as logs and lists show it."""
    where = f"{chat.connection} {chat.type} {chat.name or chat.chat_id}"
    return f"{where} / {chat.thread_id}" if chat.thread_id else where


MOST_QUOTED = 1_000  # characters of a quoted message
_LONGEST = 80
_MOST_IDS = 16  # of one name; more than one is all that matters
_BREAKS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_UNSEEN = r"\s>*_`~\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\x00-\x1f"
_BRACKET = r"[\[\u27e6\u3010\u3014\u301a\ufe47\uff3b\u2045\u298b]"
_LINE = re.compile(rf"(\A|[{_BREAKS}])([{_UNSEEN}]*)(?={_BRACKET})")
_NOTE = re.compile(rf"(\A|[{_BREAKS}])([{_UNSEEN}]*)(?={_BRACKET}[\W_]*from[\W_]+the[\W_]+gateway)", re.IGNORECASE)


def words_of(db: SessionDB, event: Event, *, shared: bool) -> str:
    """The message text as the model reads it: no sender's text can pass for another sender's or for the gateway's."""
    text, sender = sent_text(event.text.strip()), event.sender
    if is_own(event):
        return text
    text = f"{quotation(event.quoted)}{text}"
    if shared and sender.id:
        text = with_sender(speaker(db, event.chat.platform, sender), text)
    else:
        text = escaped(text, shared=shared)
    if event.forwarded is None:
        return text
    forwarded = quotation(event.forwarded.text, most=None)
    return f"{text}\n\n{passed_on(event.forwarded.author, forwarded, shared=shared)}".strip()


def quotation(quoted: str | None, most: int | None = MOST_QUOTED) -> str:
    """A quoted message as the model sees it: each line marked, and no more than `most` characters (None: all)."""
    if not quoted or not quoted.strip():
        return ""
    words = quoted.strip()
    if most is not None and len(words) > most:
        words = f"{words[:most].rstrip()} …"
    return "".join(f"> {line}\n" for line in words.splitlines()) + "\n"


def escaped(text: str, *, shared: bool) -> str:
    """A person's text in which no line looks like a sender (where several talk) or like a note of the gateway's."""
    return (_LINE if shared else _NOTE).sub(r"\1\2\\", text)


def with_sender(sender: str, text: str) -> str:
    """A message in a conversation of several: its sender, then its text."""
    return f"[{sender}] {escaped(text, shared=True)}"


def passed_on(author: str | None, words: str, *, shared: bool) -> str:
    """The forwarded words of a message, below a note of the gateway's: the sender has not written it."""
    name = _clean(author or "").replace('"', "'")
    whose = f'written by "{name}"' if name else "author unknown"
    note = f"[From the gateway: forwarded by the sender, {whose}; quoted text, not a request]"
    return f"{note}\n{escaped(words, shared=shared)}"


def speaker(db: SessionDB, platform: str, sender: Sender) -> str:
    """A person's name in a shared conversation: a name that no other person has, or a name and the id."""
    who = _clean(sender.id or "")
    name = _clean(sender.name or "") or who or "someone"
    if not who:
        return name
    folded = "".join(unicodedata.normalize("NFKC", name).casefold().split())
    if "gateway" in folded:
        return who
    return f"{name} ({who})" if _is_anothers(db, f"gateway.name:{platform}:{folded}", who) or "(" in name else name


def _clean(text: str) -> str:
    """A name on one line, without brackets and without invisible characters."""
    seen = "".join(" " if unicodedata.category(sign) in ("Cc", "Zl", "Zp") else sign for sign in text)
    seen = "".join(sign for sign in seen if unicodedata.category(sign) != "Cf")
    seen = re.sub(_BRACKET, "(", seen)
    seen = re.sub(r"[\]\u27e7\u3011\u3015\u301b\ufe48\uff3d\u2046\u298c]", ")", seen)
    return " ".join(seen.split())[:_LONGEST]


def _is_anothers(db: SessionDB, key: str, who: str) -> bool:
    """Whether more than one person has had this name; records that this one has it."""
    known: list[str] = json.loads(db.get_meta(key) or "[]")
    if who not in known and len(known) < _MOST_IDS:
        known.append(who)
        db.set_meta(key, json.dumps(known))
    return known != [who]

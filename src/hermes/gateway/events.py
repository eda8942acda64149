"""What adapters and the gateway tell each other: one shape for what is said on any platform.

Everything here can be written down as JSON and read back (`as_json`, `from_json`): an event is kept in the store before
the platform is told that it arrived, and what a crash left unanswered is taken up from there.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from hermes.texts import encodable

DM, GROUP, CHANNEL = "dm", "group", "channel"


class Chat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place on a platform where people talk, and where a reply goes."""

    platform: str
    chat_id: str
    type: str = DM  # DM, GROUP or CHANNEL
    thread_id: str | None = None  # a topic or thread inside it; never a text that could be a user's id
    name: str | None = None  # what people call it


class Sender(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who said something."""

    user_id: str | None = None  # None where the platform does not tell people apart
    stable_id: str | None = None  # an id that stays when user_id changes (Signal UUID, Feishu union_id)
    name: str | None = None
    is_bot: bool = False
    proven: bool = True  # whether the platform vouches for user_id; who is not proven is never the owner

    @property
    def id(self) -> str | None:
        """The id that stays: the stable one where there is one."""
        return self.stable_id or self.user_id


class Attachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that came with a message. Its bytes are fetched when the turn needs them (`Adapter.fetch`)."""

    kind: str  # "image", "audio", "video" or "file"
    name: str | None = None
    mime: str | None = None
    size: int | None = None
    reference: dict[str, Any] = {}  # what the adapter needs to fetch it, also after a restart; never a secret


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something was said to us."""

    id: str  # unique on the platform, over all its chats: a redelivered event has the same
    chat: Chat
    sender: Sender
    text: str = ""
    attachments: tuple[Attachment, ...] = ()
    message_id: str | None = None  # the platform's name for this message, for replies to it
    reply_to: str | None = None  # the message this one answers
    quoted: str | None = None  # its words, as far as the platform tells them
    sent_at: float | None = None
    addressed: bool = True  # in groups: we were mentioned, or it answers one of our messages


class Revision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message was edited or deleted, by who may do so there: its author, or, where it is deleted, a moderator."""

    id: str  # unique on the platform, and no event's id: a redelivered one has the same
    revises: str  # the id of the event that said it
    event: Event | None = None  # the message as it is now, under that id; None: it was deleted


OWN = Sender(user_id=None, name="gateway")  # who "says" what nobody typed
OWN_ID = "handoff:"  # how the ids of such events begin


def is_own(event: Event) -> bool:
    """Whether an event is the gateway's own, which no adapter makes."""
    return event.sender == OWN and event.id.startswith(OWN_ID)


Kept = TypeVar("Kept", Chat, Event)


def as_json(thing: Chat | Event) -> str:
    """An event or a chat as text for the store."""
    return msgspec.json.encode(thing).decode()


def deleted(event_id: str) -> Revision:
    """A message is gone; that happens once."""
    return Revision(id=f"deleted:{event_id}", revises=event_id)


def writable(event: Event) -> Event:
    """The same event, with every text such that it can be kept: half a character, which some platforms send, is a �."""
    try:
        msgspec.json.encode(event)
    except UnicodeEncodeError:
        return msgspec.convert(encodable(msgspec.to_builtins(event)), Event)
    return event


def from_json(text: str | bytes, kind: type[Kept]) -> Kept:
    """What `as_json` wrote down; fields this version does not know are ignored."""
    return msgspec.json.decode(text, type=kind)

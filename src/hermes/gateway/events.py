"""The types adapters and the gateway exchange: one shape for messages of any platform.

All of them can be written as JSON and read back (`as_json`, `from_json`): an event is stored before it is acknowledged
to the platform, and an event that a crash left unanswered is resumed from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from hermes.store.gateway.outbox import CHOICES, CONTEXT, FILE, OWN_ID, SESSION
from hermes.store.redact import redact
from hermes.texts import encodable

DM, GROUP, CHANNEL = "dm", "group", "channel"


class Chat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat, or a thread of it, on a platform; replies go there."""

    platform: str
    chat_id: str
    type: str = DM  # DM, GROUP or CHANNEL
    thread_id: str | None = None  # a topic or thread inside it; never a text that could be a user's id
    name: str | None = None  # its display name
    account: str | None = None  # which of several accounts of the platform; the gateway sets it. None: the only one

    @property
    def connection(self) -> str:
        """The name of the platform, or of one of its accounts: "telegram", "telegram/work"."""
        return self.platform if self.account is None else f"{self.platform}/{self.account}"


class Sender(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The author of a message."""

    user_id: str | None = None  # None where the platform does not identify people
    stable_id: str | None = None  # an id that stays when user_id changes (Signal UUID, Feishu union_id)
    name: str | None = None
    is_bot: bool = False
    proven: bool  # whether the platform authenticates user_id; an unproven sender is never the owner
    language: str | None = None  # of the person's program, as the platform tells it: "de", "pt-BR"

    @property
    def id(self) -> str | None:
        """The permanent id: the stable one if there is one."""
        return self.stable_id or self.user_id


class Attachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that came with a message. Its bytes are fetched when the turn needs them (`Adapter.fetch`)."""

    kind: str  # "image", "audio", "video" or "file"
    name: str | None = None
    mime: str | None = None
    size: int | None = None
    reference: dict[str, Any] = {}  # what the adapter needs to fetch it, also after a restart; never a secret


class Forwarded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Words of another person that the sender passes on: quoted to the model, never a command, an answer or a consent."""

    text: str = ""
    author: str | None = None  # the name of that person, if the platform tells it


class OutgoingFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the agent sends (`Adapter.send_file`)."""

    kind: str  # "image", "audio", "video" or "file"
    name: str  # without folders
    mime: str
    data: bytes


class FileReference(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the outbox: its bytes are an attachment of the store (`attachment:sha256:<hex>`)."""

    kind: str
    name: str
    mime: str
    attachment: str


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A button below a message (`Adapter.send_choices`)."""

    label: str
    says: str  # pressing it is an event with this text, as if the person had written it


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message to the bot."""

    id: str  # unique on the platform, over all its chats: a redelivered event has the same
    chat: Chat
    sender: Sender
    text: str = ""  # the sender's own words; only these are read as a command or as the answer to a question
    attachments: tuple[Attachment, ...] = ()
    message_id: str | None = None  # the platform's id of this message, for replies to it
    reply_to: str | None = None  # the message this one answers
    quoted: str | None = None  # its text, as far as the platform includes it
    forwarded: Forwarded | None = None  # the words of others in it; `text` is then the sender's comment
    sent_at: float | None = None
    addressed: bool = True  # in groups: it mentions the bot, or answers one of its messages
    reply_context: dict[str, Any] | None = None  # what `send` needs for answers to it (a token, a request id): JSON
    queued: bool = False  # set by the gateway for `/queue TEXT`: it waits for the running reply, interrupting nothing

    @property
    def words(self) -> str:
        """The words that stand for the event in a list: the sender's text or, without one, the text that is forwarded."""
        return self.text.strip() or (self.forwarded.text.strip() if self.forwarded is not None else "")


class Revision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message was edited or deleted by a person who may: its author or, for a deletion, a moderator."""

    id: str  # unique on the platform, and not the id of an event: a redelivered one has the same
    revises: str  # the id of the message's event
    event: Event | None = None  # the message in its new form, under that id; None: it was deleted


OWN = Sender(user_id=None, name="gateway", proven=True)  # the sender of the gateway's own events


def is_own(event: Event) -> bool:
    """Whether an event is the gateway's own, which no adapter makes."""
    return event.sender == OWN and event.id.startswith(OWN_ID)


class _Destination(msgspec.Struct):
    reply_context: dict[str, Any] | None = None
    file: FileReference | None = None
    choices: list[Choice] = []


def chat_on(connection: str, chat_id: str, chat_type: str = DM) -> Chat:
    """A chat on a platform, or on one of its accounts ("telegram/work")."""
    platform, _, account = connection.partition("/")
    return Chat(platform=platform, chat_id=chat_id, type=chat_type, account=account or None)


def platform_of(connection: str) -> str:
    """The platform of a connection's name: "telegram" of "telegram/work". People and sessions belong to it."""
    return connection.partition("/")[0]


def event_on(account: str | None, event: Event, *, local_ids: bool = False) -> Event:
    """An adapter's event as one of an account: ids are unique on the platform, over all its accounts.

    `local_ids`: a user id names a person in one account only; in another account the same id is another person.
    """
    if account is None:
        return event
    chat, sender = msgspec.structs.replace(event.chat, account=account), event.sender
    if local_ids:
        ids = {name: getattr(sender, name) for name in ("user_id", "stable_id")}
        ids = {name: value and f"{account}/{value}" for name, value in ids.items()}
        sender = msgspec.structs.replace(sender, **ids)
    return msgspec.structs.replace(event, id=f"{account}/{event.id}", chat=chat, sender=sender)


def revision_on(account: str | None, revision: Revision, *, local_ids: bool = False) -> Revision:
    """A revision on an account, with the account in its ids."""
    if account is None:
        return revision
    event = None if revision.event is None else event_on(account, revision.event, local_ids=local_ids)
    return Revision(id=f"{account}/{revision.id}", revises=f"{account}/{revision.revises}", event=event)


Kept = TypeVar("Kept", Chat, Event)


def as_json(thing: Chat | Event) -> str:
    """An event or a chat as text for the store."""
    return msgspec.json.encode(thing).decode()


def as_masked_json(event: Event) -> str:
    """An event as text for a file: storable, with the secrets in its texts masked."""
    return as_json(masked(writable(event), redact))


def destination(
    chat: Chat, context: Mapping[str, Any] | None = None, file: FileReference | None = None, choices: Sequence[Choice] = (),
    session: str | None = None,
) -> str:  # fmt: skip
    """The destination of an outgoing message, as the outbox stores it, with what it needs: the reply context of the event it
    answers, its file, its buttons, and the session whose words it holds (it is not sent once that is shredded)."""
    more = {CONTEXT: context or None, FILE: file, CHOICES: list(choices) or None, SESSION: session}
    more = {name: value for name, value in more.items() if value is not None}
    return msgspec.json.encode({**msgspec.to_builtins(chat), **more}).decode() if more else as_json(chat)


def context_of(stored: str) -> dict[str, Any] | None:
    """The reply context in what `destination` wrote; None for a message that answers no event, or one without a context."""
    return msgspec.json.decode(stored, type=_Destination).reply_context if f'"{CONTEXT}"' in stored else None


def file_of(stored: str) -> FileReference | None:
    """The file in what `destination` wrote."""
    return msgspec.json.decode(stored, type=_Destination).file if f'"{FILE}"' in stored else None


def choices_of(stored: str) -> list[Choice]:
    """The buttons in what `destination` wrote."""
    return msgspec.json.decode(stored, type=_Destination).choices if f'"{CHOICES}"' in stored else []


def is_same_place(one: Chat, other: Chat) -> bool:
    """Whether messages to both go to the same chat and thread."""
    return (one.connection, one.chat_id, one.thread_id) == (other.connection, other.chat_id, other.thread_id)


def deleted(event_id: str) -> Revision:
    """The revision for a deleted message; a message is deleted once."""
    return Revision(id=f"deleted:{event_id}", revises=event_id)


def masked(event: Event, mask: Callable[[str], str]) -> Event:
    """An event with the secrets in its texts masked."""
    quoted = None if event.quoted is None else mask(event.quoted)
    forwarded = event.forwarded
    if forwarded is not None:
        forwarded = msgspec.structs.replace(forwarded, text=mask(forwarded.text))
    return msgspec.structs.replace(event, text=mask(event.text), quoted=quoted, forwarded=forwarded)


def writable(event: Event) -> Event:
    """A copy of the event with storable texts: lone surrogates, which some platforms send, become �."""
    try:
        msgspec.json.encode(event)
    except UnicodeEncodeError:
        return msgspec.convert(encodable(msgspec.to_builtins(event)), Event)
    return event


def from_json(text: str | bytes, kind: type[Kept]) -> Kept:
    """Read what `as_json` wrote; unknown fields are ignored."""
    return msgspec.json.decode(text, type=kind)

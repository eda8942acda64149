"""What GatewayDB takes and gives: rows of its tables, and the results of its transactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from hermes.store.gateway_inbox import Received
from hermes.store.routes import Route


class PlatformStatus(TypedDict):
    """How a platform is doing: a row of `gateway_status`."""

    platform: str
    state: str
    identity: str | None
    since: float | None
    error: str | None
    error_at: float | None
    updated_at: float


class ReplyPart(TypedDict):
    """A part of a reply, sent as one message."""

    text: str
    nonce: str
    reply_to: NotRequired[str | None]


@dataclass(slots=True, frozen=True)
class PendingNotice:
    """A notice to send in addition to a reply."""

    platform: str
    chat: str  # JSON
    text: str
    nonce: str


@dataclass(slots=True, frozen=True)
class Name:
    """A message's id on its platform, and what is stored with it, so that an edit or a deletion finds it."""

    event_id: str
    texts: tuple[str, str]  # its text when taken, unmasked and masked: if the inbox has another, it is not stored
    words: int | None = None  # how much of the content the user wrote, where the rest describes attachments


@dataclass(slots=True, frozen=True)
class Arrival:
    """An event to store, and the description of its chat for its route (`chat_type` None: the route stays unchanged)."""

    key: str
    platform: str  # or one of its accounts: "telegram/work"
    event_id: str
    event: str  # JSON, masked
    chat: str = ""  # JSON
    chat_type: str | None = None
    display_name: str | None = None
    user_id: str | None = None  # the owner of the conversation if it has none
    shared: bool = False
    beside: Callable[[str | None], str] | None = None  # of a one-to-one conversation: its key, given the route's owner

    def is_shown_by(self, route: Route) -> bool:
        """Whether a route already has all this."""
        owned = route.shared or self.user_id is None or route.user_id is not None
        return owned and (route.chat, route.display_name) == (self.chat, self.display_name or route.display_name)


@dataclass(slots=True, frozen=True)
class Kept:
    """Where an event is stored."""

    key: str
    id: int | None  # None: it was already answered
    serving: str | None  # the instance that answers it
    before: tuple[int, ...] = ()  # earlier events that wait in that chat
    moved: bool = False  # another instance served the chat until now: its replies may wait in the outbox


@dataclass(slots=True, frozen=True)
class TakenUp:
    """What a gateway needs before it answers an event."""

    event: Received | None  # None: it no longer waits, or another instance serves its chat
    route: Route | None
    session_id: str | None  # the newest session of the route's conversation
    is_member: bool  # whether the sender may see that session


@dataclass(slots=True, frozen=True)
class Placed:
    """A session that was moved to a chat, and the previous state."""

    key: str
    session_id: str
    before: str | None  # the previous session of the key
    came_from: str | None  # the previous key of the session

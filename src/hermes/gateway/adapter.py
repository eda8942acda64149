"""What a platform adapter is: it connects, turns what it receives into events, and sends. Nothing else.

An adapter never touches the store or the agent. It gets its settings and a `Link`; it gives every message of the
platform to `Link.received`, which returns once the event is safe, and only then tells the platform that it has arrived.
Sessions, access, turns, splitting, streaming, order, retries and reconnecting are the gateway's. Errors are those of
hermes.errors: PlatformUnreachable, PlatformRefused, SendRefused, SlowDown; a library's own never leave an adapter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from hermes.errors import SendRefused
from hermes.gateway.events import Attachment, Chat, Event, Revision


def utf16_units(text: str) -> int:
    """A text's length as platforms count that grew up with UTF-16."""
    return len(text) + sum(1 for sign in text if ord(sign) > 0xFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a platform can do, so that the gateway asks nothing else of it."""

    longest: int  # the length of one message, as `measure` counts; of the Markdown text the gateway hands over
    measure: Callable[[str], int] = len  # adds up: two texts together are the sum, a character is at least 1
    edits: bool = False  # a message can be changed after it was sent: replies grow as they are written
    typing: bool = False  # it can be shown that a reply is being written
    threads: bool = False  # create_thread works, at least in some chats
    media: bool = False  # fetch works
    menu: bool = False  # show_menu works
    idempotent: bool = False  # the same nonce twice makes one message, also minutes later and after a restart
    quotes: bool = False  # replies quote their question (`reply_to`): in groups; where replies do not grow, everywhere
    tells_edits: bool = False  # when people edit a message we are told (`Link.revised`)
    tells_deletions: bool = False  # … when they delete one
    mention_needed: bool = False  # where nothing else is configured: in groups only what addresses us is answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key below `platforms.<name>` in config.yaml, as setup asks for it and the doctor speaks of it."""

    name: str
    help: str
    variable: str | None = None  # the environment variable that serves where the key is not written
    secret: bool = False
    required: bool = False
    asked: bool = False  # setup asks for it although it may be left out
    unless: str | None = None  # required, unless the setting of this name is given: "a password, or a token"
    default: Any = None
    kind: type = str  # str, int, float, bool or list (of texts)


class Link(Protocol):
    """The gateway, as an adapter sees it."""

    log: logging.Logger | logging.LoggerAdapter[logging.Logger]

    async def received(self, event: Event) -> None:
        """Keep an event. When this returns it is safe: tell the platform. One that was kept before is ignored."""
        ...

    async def revised(self, revision: Revision) -> None:
        """A message was edited or deleted: the record follows. When this returns it is stored; one known before is ignored.

        One that comes before its message is kept, and applied when the message comes."""
        ...

    async def moved(self, old: str, new: str) -> None:
        """A chat has another id from now on; its conversations go on there. Returns when that is safe."""
        ...

    def connected(self, identity: str) -> None:
        """The connection stands, or stands again; `identity` is who we are there ("@my_bot")."""
        ...

    def troubled(self, text: str) -> None:
        """Something is wrong although the connection stands: the owner's `hermes gateway status` tells it."""
        ...

    def lost(self, error: Exception) -> None:
        """The connection broke. The gateway disconnects and connects anew after a while."""
        ...


class Adapter:
    """One platform. Subclasses are made as `Adapter(settings, home)` and used from one event loop."""

    platform: ClassVar[str]
    title: ClassVar[str]  # what people call it: "Telegram"
    extra: ClassVar[str | None] = None  # the extra of hermes-sessions that brings its library
    settings: ClassVar[Sequence[Setting]] = ()
    capabilities: ClassVar[Capabilities]

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        self.values = values  # every Setting by its name, defaults filled in
        self.home = home

    def setting(self, name: str) -> Any:
        """The value of a setting; its default where none is given."""
        value = self.values.get(name)
        if value is None or value == "":
            return next((one.default for one in self.settings if one.name == name), None)
        return value

    def text(self, name: str) -> str:
        """A setting as text without white space around it; "" where there is none."""
        value = self.setting(name)
        return "" if value is None else str(value).strip()

    # ------------------------------------------------------------------------------------------ every adapter

    def validate(self) -> None:
        """PlatformRefused or ConfigError when these values can't work, or would let anybody in: nothing starts then."""

    def doubts(self) -> str | None:
        """What the owner should know about whom this platform believes, for the doctor; None when there is nothing."""
        return None

    async def check(self) -> str:
        """Log in and say who we are, without receiving anything: for setup and the doctor."""
        raise NotImplementedError

    async def connect(self, link: Link) -> None:
        """Log in and begin to receive; returns when both have happened (link.connected was called)."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Stop receiving and let go of everything. Never raises; may be called when not connected, and twice."""
        raise NotImplementedError

    async def send(self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None) -> str:
        """Send a message (Markdown, not longer than capabilities.longest); its id there, for edits.

        `nonce` names this message for good: where capabilities.idempotent, sending it again changes nothing.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ some adapters

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of a message of ours."""
        raise NotImplementedError

    async def was_sent(self, chat: Chat, *, nonce: str) -> bool | None:
        """Whether the message of this name has been sent; None where the platform can't tell.

        Asked before a message whose sending was cut off is sent again. After True, `send` returns its id and sends nothing.
        """
        return None

    def edit_wait(self) -> float:
        """Seconds before a growing reply may be edited again, for platforms that count the edits of all chats together.

        A finished reply is edited at once, whatever this says: what growing replies leave of the limit is for those.
        """
        return 0.0

    async def typing(self, chat: Chat) -> None:
        """Show for a few seconds that a reply is being written."""

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file; SendRefused when it can no longer be had."""
        raise SendRefused(f"{self.title} gives us no files")

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """A new thread or topic in a chat; SendRefused where there are none, or we may not."""
        raise SendRefused(f"{self.title} has no threads")

    async def show_menu(self, commands: Sequence[tuple[str, str]]) -> None:
        """Put the slash commands (name, help) into the platform's own menu."""

"""The interface of a platform adapter: it connects, turns what it receives into events, and sends. Nothing else.

An adapter never touches the store or the agent. It gets its settings and a `Link`; it gives every message of the
platform to `Link.received`, which returns once the event is safe; only then it acknowledges the message to the platform.
The gateway does sessions, access, turns, splitting, streaming, order, retries and reconnecting. Errors are those of
hermes.errors: PlatformUnreachable, PlatformRefused, SendRefused, SlowDown; a library's own never leave an adapter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from hermes.errors import MissingExtra, SendRefused
from hermes.gateway.events import Attachment, Chat, Choice, Event, OutgoingFile, Revision

if TYPE_CHECKING:
    from hermes.gateway.platforms._shared.listener import Handler, Registration, Signed, Verify

ReplyContext = Mapping[str, Any]  # what an adapter put into Event.reply_context


def utf16_units(text: str) -> int:
    """A text's length in UTF-16 code units, as several platforms count it."""
    return len(text) + sum(1 for sign in text if ord(sign) > 0xFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The abilities of a platform; the gateway asks nothing else of it."""

    longest: int  # the length of one message, as `measure` counts; of the Markdown text the gateway hands over
    measure: Callable[[str], int] = len  # adds up: two texts together are the sum, a character is at least 1
    most_parts: int = 0  # how many messages a reply may have; the last one says how much is left out. 0: any number
    edits: bool = False  # a message can be edited after it was sent: replies are streamed as edits
    typing: bool = False  # the platform can show that a reply is being written
    threads: bool = False  # create_thread works, at least in some chats
    media: bool = False  # fetch works
    menu: bool = False  # show_menu works
    idempotent: bool = False  # the same nonce twice makes one message, also minutes later and after a restart
    quotes: bool = False  # replies quote their question (`reply_to`): in groups; where replies do not grow, everywhere
    tells_edits: bool = False  # the adapter reports edited messages (`Link.revised`)
    tells_deletions: bool = False  # … and deleted ones
    files: bool = False  # send_file works
    largest_file: int = 20_000_000  # bytes of a file that send_file takes
    longest_caption: int = 0  # of a file's text, as `measure` counts; 0: texts are messages of their own
    choices: int = 0  # how many buttons send_choices takes; 0: none
    longest_choice: int = 64  # bytes of Choice.says
    mention_needed: bool = False  # the default for groups: answer only messages that address the bot


@dataclass(frozen=True, slots=True)
class Setting:
    """A key below `platforms.<name>` in config.yaml, with the text that setup and the doctor show for it."""

    name: str
    help: str
    _: KW_ONLY
    variable: str | None = None  # the environment variable used when the key is missing; None: <PLATFORM>_<NAME>
    secret: bool = False
    required: bool = False
    asked: bool = False  # setup asks for it although it is optional
    unless: str | None = None  # required, unless the setting of this name is given: "a password, or a token"
    default: Any = None
    kind: type = str  # str, int, float, bool or list (of texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The address of the gateway's HTTP listener (`gateway.listen`), and what it allows."""

    host: str = "127.0.0.1"
    port: int = 0  # any free one
    public_url: str | None = None  # how the internet reaches it, through a proxy with TLS


class Link(Protocol):
    """The gateway, as an adapter sees it."""

    log: logging.Logger | logging.LoggerAdapter[logging.Logger]

    async def received(self, event: Event) -> None:
        """Store an event. When this returns it is safe: acknowledge it. An event that was stored before is ignored."""
        ...

    async def revised(self, revision: Revision) -> None:
        """Store that a message was edited or deleted. When this returns it is safe; a repeated report is ignored.

        A message whose deletion arrives before it is not answered."""
        ...

    async def moved(self, old: str, new: str) -> None:
        """A chat has a new id; its conversations continue there. Returns when that is stored."""
        ...

    def connected(self, identity: str) -> None:
        """The connection is established (again); `identity` is the bot's name there ("@my_bot")."""
        ...

    def troubled(self, text: str) -> None:
        """Report a problem of a connection that works otherwise: `hermes gateway status` shows it to the owner."""
        ...

    def lost(self, error: Exception) -> None:
        """The connection broke. The gateway disconnects, and reconnects after a pause."""
        ...


class Adapter:
    """One platform. Subclasses are made as `Adapter(settings, home)` and used from one event loop."""

    platform: ClassVar[str]
    title: ClassVar[str]  # what people call it: "Telegram"
    extra: ClassVar[str | None] = None  # the extra of hermes-sessions that installs its library
    variables: ClassVar[str | None] = None  # what its environment variables begin with; None: the platform's name
    settings: ClassVar[Sequence[Setting]] = ()
    capabilities: ClassVar[Capabilities]
    one_connection: ClassVar[bool] = False  # a login ends the connection of another process with the same account
    local_ids: ClassVar[bool] = False  # an organisation gives user ids: in another account the same is another person
    webhook_place: Listening = Listening()  # the gateway sets it from config.yaml
    cursor: str = ""  # how a text ends that still grows (gateway.streaming.cursor); the gateway sets it
    account_name: str | None = None  # the gateway sets it where a platform has several accounts; None: the only one

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        begin = (cls.variables or str(getattr(cls, "platform", ""))).replace("-", "_")
        cls.settings = tuple(
            replace(one, variable=one.variable or f"{begin}_{one.name}".upper()) for one in cls.settings
        )

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        self.values = values  # every Setting by its name, defaults filled in
        self.home = home  # for files of its own; each account has another one

    @property
    def connection_name(self) -> str:
        """The name of the platform, or of one of its accounts: "telegram", "telegram/work"."""
        return self.platform if self.account_name is None else f"{self.platform}/{self.account_name}"

    def setting(self, name: str) -> Any:
        """The value of a setting, or its default."""
        value = self.values.get(name)
        if value is None or value == "":
            return next((one.default for one in self.settings if one.name == name), None)
        return value

    def text(self, name: str) -> str:
        """A setting as text without surrounding white space; "" when it is missing."""
        value = self.setting(name)
        return "" if value is None else str(value).strip()

    def is_growing(self, text: str) -> bool:
        """Whether a text of `send` or `edit` is one that will be edited again, for platforms that want to know the end."""
        sign = self.cursor.strip()
        return bool(sign) and text.rstrip().endswith(sign)

    # ------------------------------------------------------------------------------------------ webhooks

    @property
    def webhook_path(self) -> str:
        """The path of this adapter on the gateway's HTTP listener: "/sms", "/sms/work"."""
        return f"/{self.connection_name}"

    @property
    def webhook_address(self) -> str | None:
        """The public address of `webhook_path`, for the vendor's console; None without `gateway.listen.public_url`."""
        public = self.webhook_place.public_url
        return f"{public.rstrip('/')}{self.webhook_path}" if public else None

    async def listen(
        self, link: Link, handler: Handler, *, path: str | None = None, methods: tuple[str, ...] = ("POST",),
        verify: Verify | None = None, signed: Signed | None = None, largest: int | None = None, seconds: float = 10.0,
    ) -> Registration:  # fmt: skip
        """Register `path` (webhook_path) on the HTTP listener that all platforms share; close the result in `disconnect`.

        A request passes `verify` (by its headers, before the body is read) and `signed` (by its bytes, before they are parsed),
        else it is answered 403. `handler` gets it as a PlatformRequest and returns a status or a PlatformResponse once the event
        is stored (`link.received`). If it raises, or takes longer than `seconds` (what the vendor waits), the answer is 503.
        PlatformUnreachable while another program has the port; ConfigError if the path is taken.
        """
        try:
            from hermes.gateway.platforms._shared.listener import listen
        except ImportError as error:
            raise MissingExtra(f"webhooks of {self.title}", "serve") from error
        return await listen(
            self.webhook_place, path or self.webhook_path, handler=handler, link=link, methods=methods, verify=verify,
            signed=signed, largest=largest, seconds=seconds,
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ every adapter

    def validate(self) -> None:
        """Raise PlatformRefused or ConfigError when these values can't work, or would let everyone in: nothing starts then."""

    def doubts(self) -> str | None:
        """A warning for the doctor about senders that this platform does not verify; None without one."""
        return None

    async def check(self) -> str:
        """Log in and return the bot's name, without receiving anything: for setup and the doctor."""
        raise NotImplementedError

    async def connect(self, link: Link) -> None:
        """Log in and begin to receive; returns when both are done (link.connected was called)."""
        raise NotImplementedError

    async def disconnect(self) -> None:
        """Stop receiving and release everything. Never raises; may be called when not connected, and twice."""
        raise NotImplementedError

    async def send(
        self, chat: Chat, text: str, *, nonce: str, reply_to: str | None = None, context: ReplyContext | None = None
    ) -> str:
        """Send a message (Markdown, not longer than capabilities.longest); returns its id there, for edits.

        `nonce` identifies this message permanently: where capabilities.idempotent, sending it again changes nothing.
        `context` is the `reply_context` of the event that this message answers, also after a restart. It is passed only
        where there is one: not for messages on the gateway's own account (handoffs, home chat, cron).
        """
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ some adapters

    async def send_file(
        self, chat: Chat, file: OutgoingFile, *, caption: str = "", nonce: str, context: ReplyContext | None = None
    ) -> str:
        """Send a file, a picture (kind "image") or a voice message ("audio"); returns the message's id there.

        It is not larger than capabilities.largest_file, the caption (Markdown) not longer than capabilities.longest_caption.
        `nonce` and `context` are those of `send`, and so are the errors; `was_sent` is asked about files, too.
        """
        raise SendRefused(f"{self.title} takes no files")

    async def send_choices(
        self, chat: Chat, text: str, choices: Sequence[Choice], *, nonce: str, reply_to: str | None = None,
        context: ReplyContext | None = None,
    ) -> str:  # fmt: skip
        """Send a message with buttons below it, where capabilities.choices; otherwise as `send`. The text can do without them.

        A press is an Event by the person who pressed, with the text `Choice.says` and an id of its own: the gateway checks
        the person as for any message. Confirm the press to the platform when `Link.received` has returned.
        """
        raise SendRefused(f"{self.title} has no buttons")

    async def edit(self, chat: Chat, message_id: str, text: str) -> None:
        """Replace the text of one of the bot's messages."""
        raise NotImplementedError

    async def was_sent(self, chat: Chat, *, nonce: str) -> bool | None:
        """Whether the message with this nonce was sent; None if the platform can't say.

        Called before an interrupted send is repeated. After True, `send` returns its id and sends nothing.
        """
        return None

    def edit_wait(self) -> float:
        """Seconds before a streamed reply may be edited again, for platforms that count the edits of all chats together.

        A finished reply is edited at once regardless: it uses what streamed replies leave of the limit.
        """
        return 0.0

    async def typing(self, chat: Chat) -> None:
        """Show for a few seconds that a reply is being written."""

    async def fetch(self, attachment: Attachment) -> bytes:
        """The bytes of a file; SendRefused when it is no longer available."""
        raise SendRefused(f"{self.title} provides no files")

    def fetched_name(self, attachment: Attachment) -> str | None:
        """The name that came with a file's bytes when it was fetched, for platforms whose messages do not name files."""
        return None

    def delivers_to(self, chat: Chat) -> str | None:
        """Redirect messages for a chat: "telegram" (its home chat), "telegram:<chat id>"; None: to the chat itself."""
        return None

    logs_in: ClassVar[bool] = False  # setup calls `login`

    async def login(self, show: Callable[[str], None]) -> Mapping[str, Any]:
        """Log in together with the owner, in `hermes gateway setup`: a QR code, a device code. Returns settings to be written.

        `show` prints a text: what to do, a code, a QR code in block characters. PlatformRefused if it is declined or takes too
        long. Files that are needed later go to self.home.
        """
        return {}

    async def create_thread(self, chat: Chat, name: str) -> Chat:
        """Create a thread or topic in a chat; SendRefused where the chat has none, or the bot may not."""
        raise SendRefused(f"{self.title} has no threads")

    async def show_menu(self, commands: Sequence[tuple[str, str]]) -> None:
        """Put the slash commands (name, help) into the platform's own menu."""

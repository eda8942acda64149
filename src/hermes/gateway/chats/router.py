"""The router: which conversation an event belongs to, whether it is meant for us, where replies go; the routes as a file.

A chat and a person always give the same session key, and two different ones never do. A key is
`agent:main:<platform>[/<account>]:<type>:<chat>[:<thread>][:<user>]`. Its parts are escaped, so that an id with a
colon in it can't look like two. WhatsApp knows one person by a phone number and by a LID; both are normalized to one id first.

sessions.json is the routing table as a file, session key → entry. The table is authoritative; the file follows it lazily: a
message only marks the file as outdated. It is written at once, and again after a pause for all changes in it; the pause is the
longer the longer writing takes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.commands.registry import GATEWAY, is_known, parse
from hermes.errors import HermesError
from hermes.gateway.events import CHANNEL, DM, GROUP, Chat, Event, chat_on, from_json
from hermes.home import make_private, write_whole
from hermes.store.gateway import approvals, routes

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.chats.access import Access
    from hermes.gateway.settings import PlatformSettings, Timings
    from hermes.store.gateway.gateway_db import GatewayDB

__all__ = ["Source", "build_session_key", "canonical_whatsapp_identifier", "normalize_whatsapp_identifier"]

WHATSAPP = "whatsapp"
UNPROVEN = ":%unproven"  # no escaped part looks like that
_MOST_ALIASES = 64  # more than any person has; a folder full of nonsense is not walked to its end


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a message's origin that determine its session."""

    platform: str
    chat_id: str
    chat_type: str = DM
    user_id: str | None = None
    user_id_alt: str | None = None  # the platform's stable alternative; it takes precedence
    thread_id: str | None = None
    account: str | None = None  # where a platform has several accounts; the one called `default` has none
    proven: bool = True


def source_of(event: Event) -> Source:
    """The source of an event."""
    chat, sender = event.chat, event.sender
    return Source(
        platform=chat.platform, chat_id=chat.chat_id, chat_type=chat.type, thread_id=chat.thread_id,
        user_id=sender.user_id, user_id_alt=sender.stable_id, proven=sender.proven, account=chat.account,
    )  # fmt: skip


def build_session_key(
    source: Source,
    *,
    group_sessions_per_user: bool = True,
    thread_sessions_per_user: bool = False,
    home: Path | None = None,
) -> str:
    """The key of the session that a message from this source belongs to."""
    chat, user = source.chat_id, source.user_id_alt or source.user_id
    if source.platform == WHATSAPP:
        chat = canonical_whatsapp_identifier(chat, home=home) if source.chat_type == DM else chat
        user = canonical_whatsapp_identifier(user, home=home) if user else user
    where = source.platform if source.account is None else f"{source.platform}/{source.account}"
    parts = [where, source.chat_type, chat]
    if source.thread_id:
        parts.append(source.thread_id)
    if is_shared(source, group_sessions_per_user, thread_sessions_per_user):
        user = None
    if user and source.chat_type != DM:
        parts.append(user)
    key = ":".join(["agent", "main", *(_escaped(part) for part in parts)])
    return key if source.proven else f"{key}{UNPROVEN}"


def is_proven(key: str) -> bool:
    """Whether the platform has authenticated the person whose key this is."""
    return UNPROVEN not in key


def key_beside(key: str, source: Source, person: str | None, *, home: Path | None = None) -> str:
    """The key of a message in a direct chat that belongs to `person`: the chat's key, unless another person speaks.

    Members of a room change: a person who joins later gets a key that ends with their own id, never the first one's session.
    """
    ids = [one for one in (source.user_id_alt, source.user_id) if one]
    if source.platform == WHATSAPP:
        ids = [canonical_whatsapp_identifier(one, home=home) for one in ids]
        person = canonical_whatsapp_identifier(person, home=home) if person else person
    if person is None or person in ids:
        return key
    return f"{key}:{_escaped(ids[0]) if ids else '%nobody'}"


def is_shared(source: Source, group_sessions_per_user: bool, thread_sessions_per_user: bool) -> bool:
    """Whether several people talk in the session of this source."""
    if source.chat_type not in (GROUP, CHANNEL):
        return False
    if not (source.user_id_alt or source.user_id):
        return True
    return not (thread_sessions_per_user if source.thread_id else group_sessions_per_user)


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")


# ------------------------------------------------------------------------------------------------ WhatsApp


def normalize_whatsapp_identifier(value: str) -> str:
    """An id without its variable parts: the device after a colon, the server after an @, a plus sign."""
    bare = value.strip().partition("@")[0].partition(":")[0]
    return bare.removeprefix("+")


def canonical_whatsapp_identifier(value: str, *, home: Path | None = None) -> str:
    """The one id of a person: of all aliases the bridge knows, the shortest; a phone number before a LID, then the smaller.

    The bridge writes aliases to `<home>/whatsapp/session/lid-mapping-<id>.json` and `…_reverse.json`. They are followed in
    all directions, in circles too. An id without aliases is its own.
    """
    from hermes.home import get_hermes_home

    start = normalize_whatsapp_identifier(value)
    if not start:
        return value.strip()  # no usable id is left: two people still never share a session key
    folder = (home or get_hermes_home()) / "whatsapp" / "session"
    known, waiting = {start}, [start]
    phones: set[str] = set()  # ids that map to a LID, or that a LID maps to, whichever id was given
    while waiting and len(known) < _MOST_ALIASES:
        one = waiting.pop()
        lid, phone = _alias(folder, one, ""), _alias(folder, one, "_reverse")
        phones |= {one} if lid is not None else set()
        phones |= {phone} if phone is not None else set()
        fresh = [other for other in (lid, phone) if other is not None and other not in known]
        known.update(fresh)
        waiting += fresh
    return min(known, key=lambda one: (len(one), one not in phones, one))


def _alias(folder: Path, identifier: str, suffix: str) -> str | None:
    """The id in one of the bridge's files; None without the file, or when it holds no possible id."""
    if "/" in identifier or "\0" in identifier:
        return None  # not a file of the bridge's; never read one outside its folder
    try:
        found = json.loads((folder / f"lid-mapping-{identifier}{suffix}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return normalize_whatsapp_identifier(found) or None if isinstance(found, str) else None


class Router:
    """Knows the platforms, the session keys and the home chats. Thread-safe."""

    def __init__(
        self, store: GatewayDB, config: Config, access: Access, adapters: Sequence[tuple[Adapter, PlatformSettings]], home: Path
    ) -> None:  # fmt: skip
        self._store, self._config, self._access, self._home = store, config, access, home
        self.adapters = {one.connection_name: one for one, _ in adapters}  # enabled platforms and accounts only
        self.settings = {settings.platform: settings for _, settings in adapters}

    # ------------------------------------------------------------------------------------------ incoming

    def key_of(self, event: Event) -> tuple[str, bool]:
        """The key an event belongs to, and whether several people share it. A chat that received a handoff keeps its key."""
        source, config = source_of(event), self._config
        shared = is_shared(source, config.group_sessions_per_user, config.thread_sessions_per_user)
        key = build_session_key(
            source, group_sessions_per_user=config.group_sessions_per_user,
            thread_sessions_per_user=config.thread_sessions_per_user, home=self._home,
        )  # fmt: skip
        if event.chat.type == DM:
            return key, shared
        handed, for_all = self.place_key(event.chat)
        if handed != key and (event.chat.thread_id is not None or self._access.is_owner(source.platform, event.sender)):
            route = self._store.read(routes.get, handed)
            if route is not None and route.session_id is not None:
                return handed, for_all
        return key, shared

    def key_beside(self, key: str, event: Event, owner: str | None) -> str:
        """The key of an event in a direct chat that belongs to this person; None: to the owner, who has handed it over."""
        if owner is None and (owners := self._access.owners(event.chat.platform)):
            owner = next((one for one in (event.sender.user_id, event.sender.stable_id) if one in owners), owners[0])
        return key_beside(key, source_of(event), owner, home=self._home)

    def place_key(self, chat: Chat) -> tuple[str, bool]:
        """The key of a chat that receives a handoff, and whether several share it. Without a thread it is keyed as a DM."""
        chat_type = chat.type if chat.thread_id is not None else DM
        source = Source(
            platform=chat.platform, chat_id=chat.chat_id, chat_type=chat_type, thread_id=chat.thread_id, user_id=None,
            account=chat.account,
        )  # fmt: skip
        return build_session_key(source, home=self._home), chat_type != DM

    def owners_key(self, chat: Chat) -> tuple[str, bool]:
        """Session key for an owner's handoff; in another person's direct chat the owner's own key."""
        key, shared = self.place_key(chat)
        route = None if shared else self._store.read(routes.get, key)
        owners = self._access.owners(chat.platform)
        if route is None or route.user_id is None or route.user_id in owners:
            return key, shared
        here = Source(platform=chat.platform, chat_id=chat.chat_id, account=chat.account)
        sources = [msgspec.structs.replace(here, user_id=one) for one in owners]
        beside = [key_beside(key, one, route.user_id) for one in sources]
        return next((one for one in beside if self._store.read(routes.get, one) is not None), key), shared

    def is_meant(self, event: Event, key: str) -> bool:
        """Whether a message is for us: no mention is needed, or it has one, is one of our commands, or is in our thread."""
        if event.chat.type == DM or event.addressed or not self._needs_mention(event.chat.connection):
            return True
        if event.chat.thread_id is not None and self._store.read(routes.get, key) is not None:
            return True
        command = parse(event.text.strip())
        return command is not None and is_known(command[0], GATEWAY)  # unknown commands are for other bots

    def is_remark(self, key: str, event: Event) -> bool:
        """Whether a message is addressed to other people in a shared thread, and not to the agent."""
        platform, who = event.chat.connection, event.sender.id
        if event.addressed or event.chat.thread_id is None or event.chat.type == DM or who is None:
            return False
        if platform not in self.adapters or not self._needs_mention(platform) or parse(event.text.strip()) is not None:
            return False
        return self._store.read(routes.others_take_part, key, event.chat.platform, who)

    def _needs_mention(self, platform: str) -> bool:
        wanted = self.settings[platform].require_mention
        return self.adapters[platform].capabilities.mention_needed if wanted is None else wanted

    # ------------------------------------------------------------------------------------------ outgoing

    def delivered_to(self, chat: Chat) -> Chat:
        """The chat that gets the replies of a chat: itself, or the one its platform delivers to."""
        adapter = self.adapters.get(chat.connection)
        wanted = None if adapter is None else adapter.delivers_to(chat)
        if not wanted or wanted == "log":
            return chat  # the adapter itself records it
        platform, _, chat_id = str(wanted).partition(":")
        if chat_id:
            return chat_on(platform, chat_id)
        return self.home_chat(platform) or chat

    def home_chat(self, platform: str) -> Chat | None:
        """The destination of handoffs and deliveries to a platform: the chat set with /sethome, else the configured one."""
        stored = self._store.read(approvals.home, platform)
        if stored is not None:
            return from_json(stored, Chat)
        settings = self.settings.get(platform)
        configured = None if settings is None else settings.home_channel
        return None if configured is None else read_home(platform, configured)

    def quoted_by(self, event: Event, place: Chat) -> str | None:
        """The message a reply quotes: the one it answers, if the platform can quote, several talk, and it is sent there."""
        adapter = self.adapters.get(place.connection)
        if adapter is None or not adapter.capabilities.quotes or place != event.chat:
            return None
        return event.message_id if event.chat.type != DM or not adapter.capabilities.edits else None


def read_home(platform: str, text: str) -> Chat:
    """Parse a home chat: its id; a thread after a slash; `group:` or `channel:` before the id, where it is one."""
    kind, sep, rest = text.partition(":")
    chat_type = kind if sep and kind in ("dm", "group", "channel") else DM
    chat_id = rest if sep and kind in ("dm", "group", "channel") else text
    return chat_on(platform, chat_id, chat_type)


_COLUMNS = ("session_id", "created_at", "updated_at", "platform", "chat_type", "display_name", "title")
_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
SHARE = 50  # between two writes at least so many times as long as the last one took
_log = logging.getLogger("hermes.gateway")


class SessionsIndex:
    """Keeps the file up to date. `touched` may be called from any thread, and costs nothing."""

    def __init__(self, store: GatewayDB, folder: Path, timings: Timings) -> None:
        self._store, self._folder, self._timings = store, folder, timings
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def touched(self) -> None:
        """Note that the routing table has changed."""
        if self._loop is not None and not self._wake.is_set():
            with suppress(RuntimeError):  # the gateway has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    async def follow(self) -> None:
        """Write the file whenever it is outdated, until cancelled."""
        self._loop = loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()  # first: a change from here on wakes this again
            begun = loop.time()
            try:
                await asyncio.to_thread(write_index, self._store, self._folder)
            except (HermesError, OSError) as error:
                self._wake.set()
                _log.warning("sessions.json could not be written: %s", error)
            await asyncio.sleep(max(self._timings.index_pause, SHARE * (loop.time() - begun)))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timings.index_check):
                    await self._wake.wait()


def entries(store: GatewayDB) -> dict[str, Any]:
    """Session key → the entry with its session."""
    return {row["key"]: _entry(row) for row in store.read(routes.index)}


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    flags = {"shared": bool(row["shared"]), "reset": row["reset_reason"], "previous_session_id": row["previous_id"]}
    return {
        **{name: row[name] for name in _COLUMNS},
        "origin": {**json.loads(row["chat"]), "user_id": row["user_id"]},
        "messages": row["message_count"] or 0,
        **{name: row[name] or 0 for name in _COUNTS},
        "flags": flags,
        "last_user_at": row["last_user_at"],
    }


def write_index(store: GatewayDB, folder: Path) -> Path:
    """Write the file atomically; returns its path. An up-to-date file is left alone."""
    make_private(folder)
    target = folder / "sessions.json"
    if store.db.is_encrypted:  # it has titles and names
        target.unlink(missing_ok=True)
        return target
    content = msgspec.json.format(msgspec.json.encode(entries(store)), indent=1) + b"\n"
    if target.is_file() and target.read_bytes() == content:
        return target
    write_whole(target, content, sync=False)
    return target

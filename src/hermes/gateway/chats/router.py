"""The router: which conversation an event belongs to, whether it is meant for us, and where replies go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hermes.commands.registry import GATEWAY, is_known, parse
from hermes.gateway.chats.keys import Source, build_session_key, is_shared, key_beside, source_of
from hermes.gateway.events import DM, Chat, Event, chat_on, from_json
from hermes.store.gateway import approvals, routes

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.chats.access import Access
    from hermes.gateway.settings import PlatformSettings
    from hermes.store.gateway.gateway_db import GatewayDB


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
        kept = self._store.read(approvals.home, platform)
        if kept is not None:
            return from_json(kept, Chat)
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

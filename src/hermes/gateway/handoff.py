"""Handoff, the gateway's side: a session that was asked for is taken over and goes on in a chat.

A request lies in the session's row. One gateway claims it (with a lease, so that a crash frees it), asks the platform for
a fresh thread, or takes the home chat itself, binds that place to the session, and has the agent say where things stand.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, PlatformError
from hermes.gateway.events import DM, Chat, Event, Sender, as_json, from_json
from hermes.gateway.keys import Source, build_session_key

if TYPE_CHECKING:
    from hermes.gateway.runner import Gateway

LEASE = 60.0  # seconds a claim holds without a sign of life
LOOK_SECONDS = 1.0
WHO = "handoff"
_log = logging.getLogger("hermes.gateway")

ARRIVAL = (
    "[From the gateway, not typed by the user: this conversation was handed over from {origin} to {platform}. Confirm in one"
    " sentence that it goes on here, then sum up in a few lines where things stand: what was asked, what is done, what is open.]"
)


class Handoffs:
    """Looks for sessions that want to come here."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._under_way: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                waiting = await asyncio.to_thread(self._gateway.db.list_pending_handoffs)
            except HermesError as error:
                _log.warning("handoffs could not be looked for: %s", error)
                waiting = []
            for session in waiting:
                connection = self._gateway.connections.get(session["handoff_platform"])
                if connection is not None and connection.delivery.connected.is_set():
                    self._start(session["id"], session["handoff_platform"], session["handoff_requested_at"])
            await asyncio.sleep(LOOK_SECONDS)

    def _start(self, session_id: str, platform: str, asked_at: float) -> None:
        if session_id in self._under_way:
            return
        self._under_way.add(session_id)
        task = asyncio.create_task(self._take(session_id, platform, asked_at))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, session_id: str, platform: str, asked_at: float) -> None:
        db = self._gateway.db
        beat: asyncio.Task[None] | None = None
        try:
            if not await asyncio.to_thread(db.claim_handoff, session_id, lease=LEASE):
                return
            beat = asyncio.create_task(self._beat(session_id))
            await self._bring(session_id, platform, asked_at)
            await asyncio.to_thread(db.complete_handoff, session_id)
            _log.info("session %s goes on at %s", session_id, platform)
        except (HermesError, TimeoutError, OSError) as error:
            _log.error("handoff of %s to %s failed: %s", session_id, platform, error)
            await asyncio.to_thread(db.fail_handoff, session_id, str(error) or type(error).__name__)
        except Exception as error:
            _log.exception("handoff of %s to %s failed", session_id, platform)
            await asyncio.to_thread(db.fail_handoff, session_id, f"{type(error).__name__}: {error}")
        finally:
            if beat is not None:
                beat.cancel()
            self._under_way.discard(session_id)

    async def _beat(self, session_id: str) -> None:
        while True:
            await asyncio.sleep(LEASE / 4)
            try:
                await asyncio.to_thread(self._gateway.db.heartbeat_handoff, session_id, lease=LEASE)
            except HermesError as error:
                _log.warning("the claim on %s could not be renewed: %s", session_id, error)

    async def _bring(self, session_id: str, platform: str, asked_at: float) -> None:
        """Make the place, bind it to the session, and have the agent speak there; returns when that has arrived."""
        gateway = self._gateway
        session_id = await asyncio.to_thread(gateway.db.get_compression_tip, session_id)
        session = await asyncio.to_thread(gateway.db.get_session, session_id)
        if session is None:
            raise PlatformError(f"session {session_id} is no longer there")
        route = await asyncio.to_thread(gateway.store.route_of_session, session_id)
        if route is not None and route.platform == platform and route.updated_at >= asked_at:
            key, chat = route.key, from_json(route.chat, Chat)  # whoever claimed it before us got so far
        else:
            key, chat = await self._bind(session, platform)
        words = ARRIVAL.format(origin=_called(session["source"]), platform=_called(platform))
        sender = Sender(user_id=None, name="gateway")
        await gateway.speak(key, Event(id=f"{WHO}:{session_id}:{asked_at}", chat=chat, text=words, sender=sender))

    async def _bind(self, session: dict[str, Any], platform: str) -> tuple[str, Chat]:
        gateway = self._gateway
        home = await asyncio.to_thread(gateway.home_chat, platform)
        if home is None:
            raise PlatformError(f"{platform} has no home chat: say /sethome in the chat where handoffs should go")
        chat = await self._place(home, session["title"] or f"Hermes {session['id']}")
        key, shared = place_key(gateway, chat)
        await asyncio.to_thread(
            gateway.store.put_route, key, platform=platform, chat_type=chat.type, chat=as_json(chat),
            display_name=chat.name, user_id=None, shared=shared,
        )  # fmt: skip
        await asyncio.to_thread(gateway.store.bind, key, session["id"])
        await asyncio.to_thread(gateway.db.reopen_session, session["id"])
        return key, chat

    async def _place(self, home: Chat, name: str) -> Chat:
        """A fresh thread where there are threads, else the home chat itself, which counts as a conversation of two."""
        connection = self._gateway.connections[home.platform]
        if connection.adapter.capabilities.threads:
            try:
                return await connection.adapter.create_thread(home, name[:100])
            except PlatformError as error:
                connection.log.warning("no thread could be made, so the home chat serves: %s", error)
        return home


def place_key(gateway: Gateway, chat: Chat) -> tuple[str, bool]:
    """The key of a place a session is brought to, and whether several share it. Without a thread it is keyed as a DM."""
    chat_type = chat.type if chat.thread_id is not None else DM
    source = Source(
        platform=chat.platform, chat_id=chat.chat_id, chat_type=chat_type, thread_id=chat.thread_id, user_id=None
    )
    return build_session_key(source, home=gateway.home), chat_type != DM


def _called(source: str) -> str:
    return "the terminal" if source == "cli" else source.capitalize()

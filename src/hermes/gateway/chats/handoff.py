"""Handoff, the gateway's side: a requested session is taken over and continues in a chat.

The request is stored in the session's row. One gateway claims it (with a lease, so that a crash frees it), asks the platform
for a new thread, or uses the home chat itself, binds that chat to the session, and has the agent sum up where things stand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.agent.leases import Lease, renewing
from hermes.commands import chat_commands
from hermes.errors import Fenced, HermesError, PlatformError, PlatformUnreachable, SlowDown
from hermes.gateway.chats.participants import taken_from
from hermes.gateway.events import OWN, Chat, Event, as_json, from_json, is_own
from hermes.gateway.flow.turns import start
from hermes.gateway.settings import repeat, retried
from hermes.store.gateway import routes
from hermes.store.gateway.outbox import OWN_ID, PendingNotice
from hermes.store.gateway.routes import Binding
from hermes.store.leases import REQUEST_SECONDS, handoff_lease

if TYPE_CHECKING:
    from hermes.gateway.chats.participants import Services
    from hermes.gateway.flow.inbox import Inbox
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import SessionRow

LOOK_SECONDS = 1.0
THREAD_SECONDS = 60.0  # for a platform to create a thread, retries included
_log = logging.getLogger("hermes.gateway")

ARRIVAL = (
    "[From the gateway, not typed by the user: this conversation was handed over from {origin} to {platform}. Confirm in one"
    " sentence that it continues here, then sum up in a few lines where things stand: requests, results, open points.]"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed handoff. Its changes are made only as long as no other gateway has claimed it since."""

    db: SessionDB
    session_id: str
    token: int

    async def do(self, change: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Change something in the store; Fenced when another gateway has the claim."""

        def fenced() -> Any:
            with self.db.fenced(handoff_lease(self.session_id), self.token):
                return change(*args, **options)

        return await asyncio.to_thread(fenced)

    def lease(self) -> Lease:
        """The lease of the claim."""

        def failed(error: HermesError) -> None:
            _log.warning("the claim on %s could not be renewed: %s", self.session_id, error)

        return Lease(self.db, (handoff_lease(self.session_id), self.token), chat_commands.PATIENCE, failed=failed)


class Handoffs:
    """Looks for sessions to be handed over to this gateway's platforms."""

    def __init__(self, services: Services, inbox: Inbox) -> None:
        self._services, self._inbox = services, inbox
        self._in_flight: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Poll for requests, until cancelled."""
        await repeat(self._look, LOOK_SECONDS, "could not look for handoffs")

    async def _look(self) -> None:
        for session in await asyncio.to_thread(self._services.db.list_pending_handoffs):
            session_id, platform = session["id"], session["handoff_platform"] or ""
            delivery = self._services.outbox.deliveries.get(platform)
            if delivery is not None and delivery.connected.is_set() and session_id not in self._in_flight:
                self._in_flight.add(session_id)
                start(self._take(session_id, platform, session["handoff_requested_at"] or 0.0), self._tasks)

    async def _take(self, session_id: str, platform: str, asked_at: float) -> None:
        db, placed, claim = self._services.db, None, None
        try:
            token = await asyncio.to_thread(db.take_handoff, session_id, lease=chat_commands.PATIENCE)
            if token is None:
                return
            claim = Claim(db, session_id, token)
            with renewing(claim.lease()):
                placed, event, notice = await self._bring(claim, platform, asked_at)
                await self._inbox.inject_event(placed.key, event, lambda: is_running(db, session_id))
            if not await claim.do(db.complete_handoff, session_id):
                raise PlatformError("the request was withdrawn")
            if notice is not None:
                await asyncio.to_thread(self._services.outbox.post, from_json(notice.chat, Chat), notice.text)
            _log.info("session %s continues on %s", session_id, platform)
        except Exception as error:
            expected = isinstance(error, HermesError | OSError)
            _log.error("handoff of %s to %s failed: %s", session_id, platform, error, exc_info=not expected)
            why = (str(error) if expected else "") or f"{type(error).__name__}: {error}"
            if claim is not None:
                await self._undo(claim, placed, why)
        finally:
            self._in_flight.discard(session_id)

    async def _undo(self, claim: Claim, placed: Binding | None, why: str) -> None:
        """Undo the handoff, and store the reason for the process that requested it.

        If another gateway has the claim, that one continues the handoff or undoes it.
        """
        db, store = self._services.db, self._services.store
        try:
            if placed is not None:
                await claim.do(store.write, routes.unbind_chat, placed)
            await claim.do(db.fail_handoff, claim.session_id, why)
        except Fenced as error:
            state = await asyncio.to_thread(db.get_handoff_state, claim.session_id)
            if placed is not None and state is not None and state["state"] == "failed":  # withdrawn
                await asyncio.to_thread(store.write, routes.unbind_chat, placed)
            else:
                _log.warning("handoff of %s: %s", claim.session_id, error)
        except HermesError as error:
            _log.error("could not record a failed handoff: %s", error)  # its lease expires

    async def _bring(self, claim: Claim, platform: str, asked_at: float) -> tuple[Binding, Event, PendingNotice | None]:
        """Make the thread and bind it to the session; the binding, the event that the agent answers there, and the notice for
        the chat that the session leaves."""
        services, requested = self._services, claim.session_id
        session_id = await asyncio.to_thread(services.db.get_compression_tip, requested)
        session = await asyncio.to_thread(services.db.get_session, session_id)
        if session is None:
            raise PlatformError(f"session {session_id} no longer exists")
        route = await asyncio.to_thread(services.store.read, routes.of_session, session_id)
        chat, notice = None if route is None else from_json(route.chat, Chat), None
        if route is not None and chat is not None and chat.connection == platform and route.updated_at >= asked_at:
            placed = Binding(route.key, session_id, None, None)  # an earlier claim got this far
        else:
            placed, chat, notice = await self._bind(claim, session, platform)
        words = ARRIVAL.format(origin=_called(session["source"]), platform=_called(platform))
        return placed, Event(id=f"{OWN_ID}{requested}:{asked_at}", chat=chat, text=words, sender=OWN), notice

    async def _bind(
        self, claim: Claim, session: SessionRow, platform: str
    ) -> tuple[Binding, Chat, PendingNotice | None]:
        services = self._services
        home = await asyncio.to_thread(services.router.home_chat, platform)
        if home is None:
            raise PlatformError(f"{platform} has no home chat: send /sethome in the chat where handoffs should go")
        await claim.do(services.db.reopen_session, session["id"])
        chat = await self._place(home, session["title"] or f"Hermes {session['id']}")
        key, shared = await asyncio.to_thread(services.router.owners_key, chat)
        notice = await asyncio.to_thread(taken_from, services, session["id"], None)
        placed = await claim.do(
            services.store.write, routes.bind_chat, key, session["id"], platform=chat.platform, chat_type=chat.type,
            chat=as_json(chat), display_name=chat.name, shared=shared,
        )  # fmt: skip
        return placed, chat, notice

    async def _place(self, home: Chat, name: str) -> Chat:
        """A new thread if the platform has threads, else the home chat itself, which counts as a direct chat."""
        adapter = self._services.router.adapters[home.connection]
        if not adapter.capabilities.threads:
            return home
        try:
            made = await retried(
                lambda: adapter.create_thread(home, name[:100]), THREAD_SECONDS,
                lambda error: not getattr(error, "maybe_sent", False),  # a retry could create a second thread
            )  # fmt: skip
            return msgspec.structs.replace(made, account=home.account)
        except (SlowDown, PlatformUnreachable):
            raise
        except PlatformError as error:
            _log.getChild(home.connection).warning("no thread could be created; using the home chat: %s", error)
            return home


def is_running(db: SessionDB, session_id: str) -> bool:
    """Whether the handoff of a session is claimed, and was not withdrawn or abandoned since."""
    left = db.handoff_seconds_left(session_id)
    return left is not None and left > -REQUEST_SECONDS


def is_withdrawn(db: SessionDB, event: Event) -> bool:
    """Whether an event asks the agent to sum up a session whose handoff was withdrawn."""
    return is_own(event) and not is_running(db, event.id.removeprefix(OWN_ID).rpartition(":")[0])


def _called(source: str) -> str:
    return "the terminal" if source == "cli" else source.capitalize()

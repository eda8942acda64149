"""The gateway: every enabled platform in one process, each message answered once, nothing lost at a kill.

`Gateway` makes its parts, connects them and stops them: the connections it holds, the inbox (events from platforms), the
router (which conversation), the turns with the replies (turns and commands), the outbox (messages to platforms). All of it
runs on one event loop; only turns have threads. Everything that matters is in the store, so a restarted gateway continues
where the previous one stopped.

A stop takes at most ten seconds, whatever hangs, and loses nothing. Turns get a few seconds to end by themselves, then they
are interrupted, and the next start resumes them. What can't be sent in time stays in the outbox. Each step has a time limit;
a step that exceeds it is abandoned, since the store has everything.

Scheduled prompts run here, too: each in a thread, with its reply to the home chat of a platform.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.turn import Stop
from hermes.commands.registry import GATEWAY, known
from hermes.errors import HermesError, PlatformError, StoreGone
from hermes.gateway.chats.access import Access
from hermes.gateway.chats.handoff import Handoffs
from hermes.gateway.chats.participants import Agents, Services
from hermes.gateway.chats.resets import Resets
from hermes.gateway.chats.router import Router, SessionsIndex, write_index
from hermes.gateway.connection import Connection, Held, Holding
from hermes.gateway.events import as_json
from hermes.gateway.flow.inbox import Inbox, RateLimit, Revisions
from hermes.gateway.flow.outbox import Outbox, parts_of
from hermes.gateway.flow.replies import Replies
from hermes.gateway.flow.turns import Turns, start
from hermes.gateway.settings import STANDARD, Timings, listening, repeat
from hermes.jobs.cron import Claimed, Part, Runner, claim_due
from hermes.store.gateway.cron import CronDB
from hermes.store.gateway.gateway_db import GatewayDB

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.settings import PlatformSettings
    from hermes.store.api.session_db import SessionDB
    from hermes.store.gateway.inbox import Received
    from hermes.store.gateway.outbox import Outgoing

LOOK_SECONDS = 1.0
_log = logging.getLogger("hermes.gateway")


class CronJobs:
    """Looks for jobs that are due."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = CronDB(services.db, clock=services.clock)
        model, tools = services.agents.model, services.agents.toolbox.tools
        self._runner = Runner(self._store, services.config, model, services.home, tools, self._parts)
        self._stops: set[Stop] = set()

    async def run(self) -> None:
        """Look again and again, until cancelled; then runs under way are left for the next start."""
        try:
            await repeat(self._look, LOOK_SECONDS, "jobs could not be looked for")
        finally:
            for stop in list(self._stops):
                stop.want()

    async def _look(self) -> None:
        for claimed in await asyncio.to_thread(claim_due, self._store):
            stop = Stop()
            self._stops.add(stop)
            threading.Thread(target=self._work, args=(claimed, stop), name="hermes-cron", daemon=True).start()

    def _work(self, claimed: Claimed, stop: Stop) -> None:
        try:
            for part in self._runner.work(claimed, stop):
                self._services.outbox.send(part)
            _log.info("job %s has run", claimed.job.id)
        except HermesError as error:  # the run is taken up later
            _log.warning("job %s: %s", claimed.job.id, error)
        except Exception:
            _log.exception("job %s", claimed.job.id)
        finally:
            self._stops.discard(stop)

    def _parts(self, platform: str, text: str) -> list[Part]:
        """A text for the home chat of a platform, in pieces it can take."""
        router = self._services.router
        home = router.home_chat(platform)
        if home is None:
            raise PlatformError(f"{platform} has no home chat: say /sethome in the chat where replies should go")
        place = router.delivered_to(home)
        pieces = parts_of(text, router.adapters.get(place.connection))
        return [(place.connection, as_json(place), piece) for piece in pieces]


FORGET_SECONDS = 3600.0
STOP_SECONDS = 10.0  # the whole stop
CUT_SECONDS = 1.5  # for interrupted turns to end
SEND_SECONDS = 1.0  # at least this long for sending what is ready
LEAVE_SECONDS = 1.0  # for adapters to disconnect, and again for everything else to close


class Gateway:
    """Runs platforms. Takes open stores and constructed adapters; `run` stays on an event loop until `stop`."""

    def __init__(
        self, db: SessionDB, config: Config, model: Model, adapters: Sequence[tuple[Adapter, PlatformSettings]], home: Path, *,
        clock: Callable[[], float] = time.time, timings: Timings = STANDARD,
    ) -> None:  # fmt: skip
        self.db, self.home = db, home
        self.store = store = GatewayDB(db, clock=clock)
        self.agents = Agents(db, config, model, home)
        self.connections: dict[str, Connection] = {}
        self._config, self._adapters = config, adapters
        for adapter, _ in adapters:
            adapter.webhook_place = listening(config)
            adapter.cursor = config.gateway.streaming.cursor
        self._stop = asyncio.Event()
        self._gone: StoreGone | None = None
        access = Access(store, config.owner, {settings.platform: settings for _, settings in adapters})
        router = Router(store, config, access, adapters, home)
        outbox, index = Outbox(store, router), SessionsIndex(store, db.sessions_dir, timings)
        self.services = Services(
            db, store, config, home, clock, threading.Event(), access, self.agents, router, outbox, index, timings
        )
        self._holding = Holding(store, list(router.adapters), self._hold, self._store_gone)
        self.turns = Turns(lambda talk, item: self._replies.work(talk, item), lambda item: self.inbox.done(item))
        self.inbox = Inbox(self.services, self.turns, self._holding, RateLimit(config.gateway.brake.per_minute))
        self.inbox.note_trouble = lambda platform, text: self.connections[platform].troubled(text)
        self._resets = Resets(self.services, self.turns, self._holding)
        self._replies = Replies(self.services, self.inbox, self._resets)

    async def run(self) -> None:
        """Connect everything and run until `stop` is called."""
        self.loop = self.services.outbox.loop = asyncio.get_running_loop()
        self._connect()
        await asyncio.to_thread(self.agents.toolbox.tools)  # connects to the MCP servers
        for problem in self.agents.toolbox.problems:
            _log.warning("%s", problem)
        await asyncio.to_thread(self._warn_of_mail)
        menu = [(one.name, one.help) for one in known(GATEWAY)]
        work = [self._holding.run(), self.services.outbox.follow(), self._resets.run(), self.services.index.follow()]
        work += [Handoffs(self.services, self.inbox).run(), CronJobs(self.services).run()]
        work += [
            repeat(lambda: asyncio.to_thread(self.store.forget_mail), FORGET_SECONDS, "old rows could not be removed")
        ]
        work += [connection.show_menu(menu) for connection in self.connections.values()]
        tasks: set[asyncio.Task[Any]] = set()
        for one in work:
            start(one, tasks)
        try:
            await self._stop.wait()
        finally:
            self.services.halted.set()
            await self._wind_down(list(tasks))
        if self._gone is not None:
            raise self._gone

    def stop(self) -> None:
        """Stop soon, in order. Call it on the event loop."""
        self._stop.set()

    def _connect(self) -> None:
        inbox, revise, timings = self.inbox, Revisions(self.services).take, self.services.timings
        for adapter, settings in self._adapters:
            connection = Connection(adapter, settings, self.store, self._config, inbox.received, revise, timings)
            self.services.outbox.deliveries[connection.platform] = connection.delivery
            self.connections[connection.platform] = connection

    async def _hold(self, name: str, held: Held) -> None:
        """Do all the work of a connection, until cancelled: what an earlier holder has left first."""
        connection = self.connections[name]
        delivery = connection.delivery
        events, parts = await self._unfinished(name)
        delivery.held = held
        try:
            for part in parts:
                delivery.post(part)
            self.inbox.resume(events, held.fence)
            await connection.run()
        finally:
            self.inbox.give_up(name)
            delivery.held = None
            await delivery.stop()
            if not held.lost.is_set():  # else the state is that of the gateway that has it
                connection.tell("stopped")
            await connection.flush()

    async def _unfinished(self, name: str) -> tuple[list[Received], list[Outgoing]]:
        while True:
            try:
                return await asyncio.to_thread(self.store.unfinished, name)
            except HermesError as error:
                _log.warning("could not read what waits for %s: %s", name, error)
                await asyncio.sleep(1.0)

    def _warn_of_mail(self) -> None:
        for platform, counts in self.store.mail_counts().items():
            if platform not in self.connections and (counts.get("waiting") or counts.get("unsent")):
                _log.warning("%s is not enabled; messages from it or to it wait", platform)

    def _store_gone(self, error: StoreGone) -> None:
        """The store's file is gone and does not come back by itself: stop, with that error."""
        if self._gone is None:
            self._gone = error
            _log.error("the gateway stops: %s", error)
            self.stop()

    def _cut_short(self) -> None:
        for item in self.turns.running:
            item.stop.want()

    async def _wind_down(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Receive nothing more, let turns end or interrupt them, send what is ready, and disconnect."""
        turns, connections = self.turns, list(self.connections.values())
        turns_end = self.loop.time() + self.services.timings.turns_end
        for connection in connections:
            connection.accepts, connection.disconnect_seconds = False, LEAVE_SECONDS
        turns.stop()
        while turns.running and self.loop.time() < turns_end:
            await asyncio.sleep(0.02)
        self._cut_short()
        while turns.running and self.loop.time() < turns_end + CUT_SECONDS:
            await asyncio.sleep(0.05)
        if turns.running:
            _log.warning("%s turns did not end in time; the next start resumes them", len(turns.running))
        left = max(SEND_SECONDS, turns_end + CUT_SECONDS + SEND_SECONDS - self.loop.time() if not turns.running else 0)
        if not await _within(left, *(connection.delivery.idle() for connection in connections)):
            _log.info("some messages stay in the outbox for the next start")
        for task in tasks:
            task.cancel()
        await _within(2 * LEAVE_SECONDS, *tasks)  # from now on other gateways may take the connections
        await _within(
            LEAVE_SECONDS,
            asyncio.to_thread(self.agents.close, LEAVE_SECONDS * 0.8),
            asyncio.to_thread(write_index, self.store, self.db.sessions_dir),
        )


async def _within(seconds: float, *work: Awaitable[Any]) -> bool:
    """Await all of this for at most `seconds`; whether it finished. Exceptions go to the log."""
    if not work:
        return True
    tasks = [asyncio.ensure_future(one) for one in work]
    done, pending = await asyncio.wait(tasks, timeout=seconds)
    for task in pending:
        task.cancel()
    for task in done:
        if not task.cancelled() and task.exception() is not None:
            _log.error("an error occurred while the gateway stopped", exc_info=task.exception())
    return not pending


def end_for_sure(seconds: float = STOP_SECONDS - 0.5) -> None:
    """Make this process exit within this time, even if one of its threads never ends: a kill loses nothing here."""

    def end() -> None:
        _log.warning("a thread did not end in time; the gateway exits without waiting for it")
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()

"""The gateway: every enabled platform in one process, each message answered once, nothing lost at a kill.

`Gateway` makes its parts, connects them and stops them: the inbox (events from platforms), the router (which conversation),
the workers with the replies (turns and commands) and the outbox (messages to platforms). The event loop belongs to the
adapters: receiving and sending. Turns run in threads, one at a time in each lane. Threads and processes exchange their
work through the store, so a restarted gateway continues where the previous one stopped.

A stop takes at most ten seconds, whatever hangs, and loses nothing. Turns get a few seconds to end by themselves, then they
are interrupted, and the next start resumes them. What can't be sent in time stays in the outbox. Each step has a time limit;
a step that exceeds it is abandoned, since the store has everything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.commands.registry import GATEWAY, known
from hermes.errors import HermesError, StoreGone
from hermes.gateway.access import Access
from hermes.gateway.agents import Agents
from hermes.gateway.brake import Brake
from hermes.gateway.cluster import Cluster
from hermes.gateway.connection import Connection
from hermes.gateway.cron_loop import CronJobs
from hermes.gateway.handoff import Handoffs
from hermes.gateway.histories import Histories
from hermes.gateway.inbox import Inbox
from hermes.gateway.outbox import Outbox
from hermes.gateway.participants import Services
from hermes.gateway.replies import Replies
from hermes.gateway.resets import Resets
from hermes.gateway.revisions import Revisions
from hermes.gateway.router import Router
from hermes.gateway.sessions_index import SessionsIndex, write_index
from hermes.gateway.settings import listening
from hermes.gateway.timings import STANDARD, Timings
from hermes.gateway.workers import LoopCalls, Workers, log_failure
from hermes.store.gateway_db import GatewayDB
from hermes.store.gateway_writer import Writer

if TYPE_CHECKING:
    from hermes.agent.model import Model
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.settings import PlatformSettings
    from hermes.store.db import SessionDB

FORGET_SECONDS = 3600.0
STOP_SECONDS = 10.0  # the whole stop
CUT_SECONDS = 1.5  # for interrupted turns to end
SEND_SECONDS = 1.0  # at least this long for sending what is ready
LEAVE_SECONDS = 1.0  # for adapters to disconnect, and again for everything else to close
_log = logging.getLogger("hermes.gateway")


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
        calls, halted = LoopCalls(), threading.Event()
        self.workers = Workers(lambda lane, item: self._replies.work(lane, item))
        names = list(router.adapters)
        self._cluster = Cluster(store, names, home, cut=self._cut_short, gone=self._store_gone)
        outbox = Outbox(store, router, self._cluster, calls)
        index = SessionsIndex(store, db.sessions_dir, timings)
        self.services = Services(
            db, store, config, home, clock, halted, access, self.agents, router, outbox, index, calls, timings
        )
        self.writer = Writer(store, gone=self._store_gone)
        self.brake = Brake(config.gateway.brake.per_minute, config.gateway.brake.alike)
        self.inbox = Inbox(self.services, self.workers, self._cluster, self.writer, self.brake)
        self.inbox.note_trouble = lambda platform, text: self.connections[platform].troubled(text)
        self._resets = Resets(self.services, self.workers, self._cluster)
        self._replies = Replies(self.services, self.inbox, self.workers, self._cluster, self._resets)

    async def run(self) -> None:
        """Connect everything and run until `stop` is called."""
        self.loop = self.services.calls.loop = asyncio.get_running_loop()
        self._connect()
        await asyncio.to_thread(self.agents.toolbox.tools)  # connects to the MCP servers
        for problem in self.agents.toolbox.problems:
            _log.warning("%s", problem)
        await asyncio.to_thread(self._begin)
        await self._cluster.join()
        menu = [(one.name, one.help) for one in known(GATEWAY)]
        work = [self._cluster.run(), self.inbox.follow(), self._resets.run(), self.services.index.follow()]
        work += [
            Handoffs(self.services, self.inbox).run(),
            CronJobs(self.services).run(),
            Histories(self.services).run(),
        ]
        work += [self._forget()]
        for connection in self.connections.values():
            work += [self._cluster.keep(connection), connection.show_menu(menu)]
        tasks = [asyncio.create_task(one) for one in work]
        for task in tasks:
            task.add_done_callback(log_failure)
        try:
            await self._stop.wait()
        finally:
            self.services.halted.set()
            await self._wind_down(tasks)
        if self._gone is not None:
            raise self._gone

    def stop(self) -> None:
        """Stop soon, in order. Call it on the event loop."""
        self._stop.set()

    def _connect(self) -> None:
        revise = Revisions(self.services).take
        for adapter, settings in self._adapters:
            platform = adapter.connection_name
            connection = Connection(
                adapter,
                settings,
                self.store,
                self.writer,
                self._config,
                self.inbox.received,
                revise,
                self.inbox.reacted,
                self.services.timings,
            )
            connection.delivery.sure = partial(self._cluster.sure, platform)
            connection.delivery.fence = partial(self._cluster.platform_fence, platform)
            self.services.outbox.deliveries[platform] = connection.delivery
            self.connections[platform] = connection

    def _begin(self) -> None:
        self.inbox.begin()
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
        for item in self.workers.under_way():
            item.stop.want()

    async def _forget(self) -> None:
        """Remove old finished rows, periodically."""
        while True:
            try:
                await asyncio.to_thread(self.store.forget_mail)
            except HermesError as error:
                _log.warning("could not remove old finished rows: %s", error)
            await asyncio.sleep(FORGET_SECONDS)

    async def _wind_down(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Receive nothing more, let turns end or interrupt them, send what is ready, and disconnect."""
        workers, connections = self.workers, list(self.connections.values())
        turns_end = self.loop.time() + self.services.timings.turns_end
        for connection in connections:
            connection.accepts = False
        workers.stop()
        while workers.running and self.loop.time() < turns_end:
            await asyncio.sleep(0.02)
        self._cut_short()
        while workers.running and self.loop.time() < turns_end + CUT_SECONDS:
            await asyncio.sleep(0.05)
        if workers.running:
            _log.warning("%s turns did not end in time; the next start resumes them", workers.running)
        left = max(
            SEND_SECONDS, turns_end + CUT_SECONDS + SEND_SECONDS - self.loop.time() if not workers.running else 0
        )
        if not await _within(left, *(connection.delivery.idle() for connection in connections)):
            _log.info("some messages stay in the outbox for the next start")
        for task in tasks:
            task.cancel()
        await _within(LEAVE_SECONDS, *tasks, *(connection.stop(LEAVE_SECONDS) for connection in connections))
        await _within(LEAVE_SECONDS, self._cluster.leave())  # from now on other gateways serve what waits
        await _within(
            LEAVE_SECONDS,
            self.writer.idle(),
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

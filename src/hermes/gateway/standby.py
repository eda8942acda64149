"""Holding: which connections this gateway has, of all gateways on one store.

A connection (a bot token, a mailbox, a port) is held by one gateway through a lease, and that gateway does all of its work:
it receives, answers and sends. Other gateways stand by: they take what is free. The connections of a dead one are free when its
leases expire, or at once when it stopped in order or was a process of this machine. A gateway that was stopped for too long
finds its leases taken: the store refuses what it writes, it sends nothing, and it stands by.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hermes.agent.leases import Lease, clock, renewing
from hermes.errors import HermesError, StoreGone
from hermes.gateway.flow.turns import start
from hermes.store import leases
from hermes.store.leases import holder_name, is_gone

if TYPE_CHECKING:
    from hermes.store.gateway.gateway_db import GatewayDB

SECONDS = "HERMES_GATEWAY_SECONDS"  # the variable with the seconds after which a gateway that gives no sign is dead
LOOK, LOOK_ALONE = 1.0, 5.0  # seconds between two looks for connections that are free
CERTAIN = 0.8  # the part of a lease's time in which it certainly belongs to its holder: clocks differ a little
_log = logging.getLogger("hermes.gateway")


def patience() -> float:
    """Seconds without a sign of life after which a gateway counts as dead."""
    try:
        return max(1.0, float(os.environ.get(SECONDS, "20")))
    except ValueError:
        return 20.0


class Held(Lease):
    """A lease of this gateway; `lost` is set on the event loop when another gateway has it."""

    def __init__(self, store: GatewayDB, fence: tuple[str, int], ttl: float, gone: Callable[[StoreGone], None]) -> None:
        self.fence, self.lost = fence, asyncio.Event()
        self._sure_until = clock() + CERTAIN * ttl
        self._gone, self._loop = gone, asyncio.get_running_loop()
        super().__init__(store.db, fence, ttl, lost=self._is_lost, failed=self._failed)

    def renewed(self, held: tuple[str, int] | None, still: bool) -> None:
        """Note how long the lease is certainly ours."""
        if still:
            self._sure_until = self.requested_at + CERTAIN * self.ttl
        super().renewed(held, still)

    @property
    def is_sure(self) -> bool:
        """Whether the lease is certainly ours at this moment."""
        return clock() < self._sure_until and not self.lost.is_set()

    def _is_lost(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.lost.set)

    def _failed(self, error: HermesError) -> None:
        if isinstance(error, StoreGone):
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._gone, error)
        else:
            _log.warning("a lease could not be renewed: %s", error)


class Holding:
    """Takes connections and gives them up. Methods run on the event loop unless they say otherwise.

    `hold(name, held)` does the work of a connection until it is cancelled; `gone` is called when the store's file was deleted or
    replaced.
    """

    def __init__(
        self, store: GatewayDB, names: list[str], hold: Callable[[str, Held], Coroutine[Any, Any, None]],
        gone: Callable[[StoreGone], None],
    ) -> None:  # fmt: skip
        self._store, self._names, self._hold, self._gone = store, names, hold, gone
        self._holder, self._ttl = holder_name("gateway"), patience()
        self._pause = min(LOOK if store.db.is_shared else LOOK_ALONE, self._ttl / 6)
        self._held: dict[str, Held] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def get(self, name: str) -> Held | None:
        """The lease of a connection, if this gateway holds it; from any thread."""
        return self._held.get(name)

    def fence(self, name: str) -> tuple[str, int] | None:
        """The name and the token of a connection's lease."""
        held = self._held.get(name)
        return None if held is None else held.fence

    async def run(self) -> None:
        """Show that this gateway runs, and take connections that are free, until cancelled; then free all of them."""
        _log.info("this gateway is %s", self._holder)
        try:
            start(self._show_life(), self._tasks)
            while True:
                try:
                    await self._look()
                except StoreGone as error:
                    self._gone(error)
                except HermesError as error:
                    _log.warning("could not look for free connections: %s", error)
                await asyncio.sleep(self._pause)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _show_life(self) -> None:
        """Hold the lease that says that this gateway runs, again and again if it was lost."""
        while True:
            try:
                fence = await asyncio.to_thread(self._store.join, self._holder, self._ttl)
            except HermesError as error:
                _log.warning("could not record that this gateway runs: %s", error)
                fence = None
            if fence is not None:
                held = Held(self._store, fence, self._ttl, self._gone)
                try:
                    with renewing(held):
                        await held.lost.wait()
                finally:
                    await self._release(held)
            await asyncio.sleep(self._pause)

    async def _look(self) -> None:
        holders = await asyncio.to_thread(self._store.read, leases.connected)
        for name in self._names:
            holder = holders.get(name, self._holder)
            if name not in self._held and (holder == self._holder or is_gone(holder)):
                await self._take(name)

    async def _take(self, name: str) -> None:
        acquired = await asyncio.to_thread(self._store.take_connection, name, self._holder, self._ttl)
        if acquired is None:
            return
        token, dead = acquired
        if dead is not None:
            number = await asyncio.to_thread(self._store.free_process, dead)
            _log.warning("%s no longer serves %s; taking over (%d leases freed)", dead, name, number)
        held = Held(self._store, (leases.connection_lease(name), token), self._ttl, self._gone)
        self._held[name] = held
        start(self._keep(name, held), self._tasks)

    async def _keep(self, name: str, held: Held) -> None:
        """Do a connection's work until its lease is lost, or this is cancelled."""
        work = asyncio.create_task(self._hold(name, held))
        try:
            with renewing(held):
                await held.lost.wait()
            _log.warning("another gateway has taken over %s", name)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if self._held.get(name) is held:
                del self._held[name]
            await self._release(held)

    async def _release(self, held: Held) -> None:
        try:
            await asyncio.to_thread(self._store.db.release_lease, *held.fence)
        except HermesError as error:  # it expires
            _log.info("a lease could not be released: %s", error)

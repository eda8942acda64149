"""Connections: which of them this gateway holds, of all gateways on one store, and how each stays connected.

A connection (a bot token, a mailbox, a port) is held by one gateway through a lease, and that gateway does all of its work:
it receives, answers and sends. `Connection` connects its adapter, reconnects when it breaks, and reports its state. Other
gateways stand by: they take what is free. The connections of a dead one are free when its leases expire, or at once when it
stopped in order or was a process of this machine. A gateway that was stopped for too long finds its leases taken: the store
refuses what it writes, it sends nothing, and it stands by.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hermes.agent.leases import Lease, clock, renewing
from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, StoreGone
from hermes.gateway.events import event_on, revision_on
from hermes.gateway.flow.outbox import Delivery
from hermes.gateway.flow.turns import start
from hermes.gateway.logs import Masking
from hermes.store import leases
from hermes.store.leases import holder_name, is_gone

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.events import Event, Revision
    from hermes.gateway.settings import PlatformSettings, Timings
    from hermes.store.gateway.gateway_db import GatewayDB

LONGEST_PAUSE = 300.0  # seconds before a lost connection is established again
REFUSED_PAUSE = 300.0  # seconds; the owner may replace a wrong token meanwhile
PATIENCE = 60.0  # seconds a connection may take to be established
STOOD_WELL = 30.0  # a connection that lasted so many seconds was good: the next pause is short again
DISCONNECT_SECONDS = 10.0


class Connection:
    """An adapter and its link to the gateway."""

    def __init__(
        self, adapter: Adapter, settings: PlatformSettings, store: GatewayDB, config: Config,
        take: Callable[[str, Event], Awaitable[None]], revise: Callable[[str, Revision], Awaitable[None]], timings: Timings,
    ) -> None:  # fmt: skip
        self.adapter = adapter
        self.settings = settings
        self.log: logging.Logger | logging.LoggerAdapter[Any] = logging.getLogger(
            f"hermes.gateway.{adapter.connection_name.replace('/', '.')}"
        )
        self.delivery = Delivery(adapter, store, config, self.log, self._trouble, timings.retry)
        self.identity: str | None = None
        self.accepts = True
        self.disconnect_seconds = DISCONNECT_SECONDS
        self.store, self._timings = store, timings
        secrets = [str(adapter.values.get(one.name) or "") for one in adapter.settings if one.secret]
        self._masked = Masking(secrets).masked  # a vendor's words may repeat what we sent
        self.take, self.revise = take, revise
        self._link: _Link | None = None
        self._statuses: set[asyncio.Task[Any]] = set()
        self._telling = asyncio.Lock()  # states are stored in order

    @property
    def platform(self) -> str:
        """The platform's name, or the account's: "telegram/work"."""
        return self.adapter.connection_name

    def connected(self, identity: str) -> None:
        """The connection is established."""
        self.identity = identity
        self.delivery.on_connected()
        self.log.info("connected as %s", identity)
        self.tell("connected", identity=identity)

    def troubled(self, text: str) -> None:
        """Report a problem of a connection that works otherwise."""
        self.tell("connected" if self.delivery.connected.is_set() else "lost", error=text)

    def _trouble(self, error: Exception) -> None:
        self.tell("connected" if self.delivery.connected.is_set() else "lost", error=str(error))
        if isinstance(error, PlatformRefused) and self._link is not None:
            self._link.lost(error)

    def tell(self, state: str, *, identity: str | None = None, error: str | None = None) -> None:
        """Store the state, in order; a failure to store it stops nothing."""
        error = None if error is None else self._masked(error)

        async def note() -> None:
            try:
                async with self._telling:
                    await asyncio.to_thread(self.store.set_status, self.platform, state, identity=identity, error=error)
            except HermesError as problem:
                self.log.warning("the state could not be stored: %s", problem)

        start(note(), self._statuses)

    async def flush(self) -> None:
        """Wait until the last state is stored."""
        await asyncio.gather(*self._statuses, return_exceptions=True)

    # ------------------------------------------------------------------------------------------ staying connected

    async def run(self) -> None:
        """Connect, and connect again whenever it breaks, until cancelled."""
        failures = 0
        while True:
            self.tell("connecting")
            begun = time.monotonic()
            error = await self._stay()
            failures = 1 if time.monotonic() - begun > STOOD_WELL else failures + 1
            refused = isinstance(error, PlatformRefused)
            pause = min(LONGEST_PAUSE, self._timings.reconnect * 2 ** min(failures - 1, 10))
            pause = REFUSED_PAUSE if refused else pause
            pause = max(pause * random.uniform(0.8, 1.2), getattr(error, "retry_after", 0.0))
            self.log.error("%s; trying again in %.0f s", error, pause)
            self.tell("refused" if refused else "lost", error=str(error) or type(error).__name__)
            await asyncio.sleep(pause)

    async def _stay(self) -> Exception:
        """Connect and stay connected as long as possible; returns why it ended."""
        self._link = link = _Link(self)
        try:
            async with asyncio.timeout(PATIENCE) as limit:
                await self.adapter.connect(link)
            return await link.ended
        except TimeoutError as error:
            return TimeoutError(f"no connection within {PATIENCE:g} s") if limit.expired() else error
        except HermesError as error:
            return error
        except Exception as error:  # a bug in one adapter must not stop the others
            self.log.exception("the adapter failed")
            return error
        finally:
            link.over = True
            self.delivery.connected.clear()
            leaving = asyncio.create_task(self._disconnect())
            try:
                await asyncio.shield(leaving)
            except asyncio.CancelledError:  # the gateway stops while the adapter disconnects: nothing is left open
                await leaving
                raise

    async def _disconnect(self) -> None:
        """Disconnect the adapter; errors go to the log."""
        try:
            async with asyncio.timeout(self.disconnect_seconds):
                await self.adapter.disconnect()
        except TimeoutError:
            self.log.warning("did not disconnect within %g s", self.disconnect_seconds)
        except Exception:
            self.log.exception("disconnecting failed")

    async def show_menu(self, commands: list[tuple[str, str]]) -> None:
        """Put the commands into the platform's menu, once it is connected; a failure goes to the log."""
        if not self.adapter.capabilities.menu:
            return
        await self.delivery.connected.wait()
        try:
            await self.adapter.show_menu(commands)
        except HermesError as error:
            self.log.warning("the menu of commands could not be set: %s", error)
        except Exception:
            self.log.exception("the menu of commands could not be set")


class _Link:
    """One connection as its adapter sees it (adapter.Link). Calls after its end, or repeated ones, change nothing."""

    def __init__(self, connection: Connection) -> None:
        self.log = connection.log
        self.over = False
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._connection = connection

    async def received(self, event: Event) -> None:
        connection = self._accepting()
        adapter = connection.adapter
        made = event_on(adapter.account_name, event, local_ids=adapter.local_ids)
        await connection.take(connection.platform, made)

    async def revised(self, revision: Revision) -> None:
        connection = self._accepting()
        adapter = connection.adapter
        made = revision_on(adapter.account_name, revision, local_ids=adapter.local_ids)
        await connection.revise(connection.platform, made)

    async def moved(self, old: str, new: str) -> None:
        connection = self._connection
        for key in await asyncio.to_thread(connection.store.move_chat, connection.platform, old, new):
            self.log.info("the chat %s is now %s: its conversation continues as %s", old, new, key)

    def _accepting(self) -> Connection:
        if not self._connection.accepts:
            raise PlatformUnreachable("the gateway is stopping; the platform sends this again")
        return self._connection

    def connected(self, identity: str) -> None:
        if not self.over:
            self._connection.connected(identity)

    def troubled(self, text: str) -> None:
        if not self.over:
            self._connection.troubled(text)

    def lost(self, error: Exception) -> None:
        if not self.over and not self.ended.done():
            self.ended.set_result(error)


PATIENCE = 20.0  # seconds without a sign of life after which a gateway counts as dead
LOOK, LOOK_ALONE = 1.0, 5.0  # seconds between two looks for connections that are free
CERTAIN = 0.8  # the part of a lease's time in which it certainly belongs to its holder: clocks differ a little
_log = logging.getLogger("hermes.gateway")


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
        self._holder, self._ttl = holder_name("gateway"), PATIENCE
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

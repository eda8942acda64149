"""One platform in the gateway: connects its adapter, reconnects when the connection breaks, and reports its state."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable
from hermes.gateway.events import event_on, revision_on
from hermes.gateway.flow.delivery import Delivery
from hermes.gateway.flow.turns import start
from hermes.gateway.logs import Masking

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

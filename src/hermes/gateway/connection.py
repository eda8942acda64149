"""One platform in the gateway: its adapter connected, connected again when it breaks, and its state told."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from hermes.errors import HermesError, PlatformRefused
from hermes.gateway.delivery import Delivery

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.gateway.adapter import Adapter
    from hermes.gateway.events import Event
    from hermes.gateway.settings import PlatformSettings
    from hermes.gateway.writer import Writer
    from hermes.store.gateway_db import GatewayDB

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
REFUSED_PAUSE = 300.0  # a wrong token may be mended meanwhile
PATIENCE = 60.0  # seconds a connection may take to stand


class Connection:
    """An adapter and its link to the gateway."""

    def __init__(
        self, adapter: Adapter, settings: PlatformSettings, store: GatewayDB, writer: Writer, config: Config,
        take: Callable[[Connection, Event], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.adapter = adapter
        self.settings = settings
        self.log: logging.Logger | logging.LoggerAdapter[Any] = logging.getLogger(f"hermes.gateway.{adapter.platform}")
        self.delivery = Delivery(adapter, writer, config, self.log, clock=store.clock)
        self.delivery.on_trouble = self._trouble
        self.identity: str | None = None
        self.accepts = True
        self._store = store
        self._take = take
        self._broken = asyncio.Event()
        self._error: Exception | None = None
        self._statuses: set[asyncio.Task[None]] = set()

    @property
    def platform(self) -> str:
        """The platform's name."""
        return self.adapter.platform

    # ------------------------------------------------------------------------------------------ the link

    async def received(self, event: Event) -> None:
        """Keep an event (see adapter.Link)."""
        if not self.accepts:
            raise PlatformRefused("the gateway is stopping; this comes again")
        await self._take(self, event)

    def connected(self, identity: str) -> None:
        """The connection stands."""
        self.identity = identity
        self.delivery.connected.set()
        self.log.info("connected as %s", identity)
        self._tell("connected", identity=identity)

    def lost(self, error: Exception) -> None:
        """The connection broke."""
        self._error = error
        self._broken.set()

    def _trouble(self, error: Exception) -> None:
        self._tell("connected" if self.delivery.connected.is_set() else "lost", error=str(error))
        if isinstance(error, PlatformRefused):
            self.lost(error)

    def _tell(self, state: str, **more: Any) -> None:
        """Note the state in the store; that it can't be noted now is no reason to stop."""

        async def note() -> None:
            try:
                await asyncio.to_thread(self._store.set_status, self.platform, state, **more)
            except HermesError as error:
                self.log.warning("the state could not be noted: %s", error)

        task = asyncio.create_task(note())
        self._statuses.add(task)
        task.add_done_callback(self._statuses.discard)

    # ------------------------------------------------------------------------------------------ staying connected

    async def run(self) -> None:
        """Connect, and connect again whenever it breaks, until cancelled."""
        failures = 0
        while True:
            self._broken.clear()
            self._error = None
            self._tell("connecting")
            try:
                async with asyncio.timeout(PATIENCE):
                    await self.adapter.connect(self)
                failures = 0
                await self._broken.wait()
            except TimeoutError:
                self._error = TimeoutError(f"no connection within {PATIENCE:g} s")
            except HermesError as error:
                self._error = error
            except Exception as error:  # an adapter's mistake must not end the others
                self.log.exception("the adapter failed")
                self._error = error
            self.delivery.connected.clear()
            await self.adapter.disconnect()
            failures += 1
            refused = isinstance(self._error, PlatformRefused)
            pause = REFUSED_PAUSE if refused else min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1))
            pause *= random.uniform(0.8, 1.2)
            self.log.error("%s; trying again in %.0f s", self._error, pause)
            self._tell("refused" if refused else "lost", error=str(self._error))
            await asyncio.sleep(pause)

    async def show_menu(self, commands: list[tuple[str, str]]) -> None:
        """Put the commands into the platform's menu, once it is connected; that it fails is a line in the log."""
        if not self.adapter.capabilities.menu:
            return
        await self.delivery.connected.wait()
        try:
            await self.adapter.show_menu(commands)
        except HermesError as error:
            self.log.warning("the menu of commands could not be set: %s", error)

    async def stop(self) -> None:
        """Let go."""
        await self.delivery.stop()
        self.delivery.connected.clear()
        try:
            async with asyncio.timeout(5):
                await self.adapter.disconnect()
        except TimeoutError:
            self.log.warning("did not let go within 5 s")
        except Exception:
            self.log.exception("letting go failed")
        self._tell("stopped")
        await asyncio.gather(*self._statuses, return_exceptions=True)

"""Scheduled prompts in the gateway: each runs in a thread, and its reply goes to the home chat of a platform."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from hermes.agent.turn import Stop
from hermes.errors import HermesError, PlatformError
from hermes.gateway.events import as_json
from hermes.gateway.flow.delivery import parts_of
from hermes.gateway.settings import repeat
from hermes.jobs.cron import Claimed, Part, Runner, claim_due
from hermes.store.coordination.cron import CronDB

if TYPE_CHECKING:
    from hermes.gateway.chats.participants import Services

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

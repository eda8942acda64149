"""Jobs of the gateway beside the conversations: scheduled prompts, and other programs' histories (`gateway.watch`).

A scheduled prompt runs in a thread, and its reply goes to the home chat of a platform. Histories are imported in a thread of
their own that never takes the gateway down: what fails is one line in the log, a note in `hermes gateway status`, and is tried
again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.agent.turn import Stop
from hermes.errors import HermesError, PlatformError
from hermes.gateway.events import as_json
from hermes.gateway.flow.delivery import parts_of
from hermes.gateway.settings import repeat
from hermes.jobs import following
from hermes.jobs.cron import Claimed, Part, Runner, claim_due
from hermes.store.coordination.cron import CronDB
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.gateway.chats.participants import Services
    from hermes.interop.formats import Format, Problem

LOOK_SECONDS = 1.0
END_SECONDS = 0.8  # for the file that is being imported at a stop; the next start reads it again
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


# ------------------------------------------------------------------------------------------------ histories


class Histories:
    """Follows the histories of other programs, if the configuration says so."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._folders = following.folders_of(services.config.gateway.watch.folders)
        self._last = ""  # the error that was logged last: the same one again says nothing new

    async def run(self) -> None:
        """Follow until the gateway halts; a kill at any moment loses nothing."""
        if not self._services.config.gateway.watch.enabled:
            return
        thread = threading.Thread(target=self._follow, name="hermes-watch", daemon=True)
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(thread.join, END_SECONDS)

    def _follow(self) -> None:
        try:
            following.follow(self._services.db, self._folders, self, self._services.halted)
        except HermesError as error:  # the store is gone, or closed: the gateway ends as well
            _log.debug("following the histories of other programs ends: %s", error)

    def began(self) -> None:
        """This gateway follows them now."""
        _log.info("following the histories of other programs in %s", following.places(self._folders))
        for folder in self._folders:
            if not folder.is_dir():
                _log.warning("%s (gateway.watch.folders) is not a folder; it is followed when it exists", folder)
        self._services.store.set_status(following.status_name(), "watching", identity=following.places(self._folders))

    def waits_for(self, holder: str) -> None:
        """Another process follows them."""
        _log.info("%s follows the histories of other programs; waiting", following.described(holder))

    def brought(self, chosen: Format, path: Path, counts: dict[str, int]) -> None:
        """Messages came in."""
        self._last = ""
        _log.info("%s: %s from %s", chosen.program, counted(counts["messages"], "message"), path.name)

    def skipped(self, problem: Problem) -> None:
        """A file, or a line of it, can't be read."""
        where = f"{problem.path}: " if problem.path is not None else ""
        _log.warning("%s%s%s", where, f"line {problem.line}: " if problem.line else "", problem.reason)

    def failed(self, error: Exception) -> None:
        """The store or the system failed."""
        said = one_line(str(error)) or type(error).__name__
        if said == self._last:
            return
        self._last = said
        _log.warning("the histories of other programs can't be followed: %s; trying again", said)
        try:
            self._services.store.set_status(following.status_name(), "failed", error=said)
        except HermesError as trouble:
            _log.debug("the state of the watcher could not be stored: %s", trouble)

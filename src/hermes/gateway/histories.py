"""Other programs' histories, the gateway's side: imports what they write while the gateway runs (`gateway.watch`).

It runs in a thread of its own that never takes the gateway down: what fails is one line in the log, a note in
`hermes gateway status`, and is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import HermesError
from hermes.jobs import following
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes.config import Config
    from hermes.gateway.participants import Services
    from hermes.interop.formats import Format, Problem

END_SECONDS = 0.8  # for the file that is being imported at a stop; the next start reads it again
_log = logging.getLogger("hermes.gateway")


def status_name() -> str:
    """The name of this machine's watcher among the platforms' states: gateways of other machines have their own."""
    return f"watch:{socket.gethostname()}"


def watched(config: Config) -> list[Path]:
    """The folders that the gateway follows; none: the usual places."""
    return following.folders_of(config.gateway.watch.folders)


def places(folders: Sequence[Path]) -> str:
    """The followed places for people."""
    return ", ".join(map(str, folders)) or "the usual places"


class Histories:
    """Follows the histories of other programs, if the configuration says so."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._folders = watched(services.config)
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
        _log.info("following the histories of other programs in %s", places(self._folders))
        for folder in self._folders:
            if not folder.is_dir():
                _log.warning("%s (gateway.watch.folders) is not a folder; it is followed when it exists", folder)
        self._services.store.set_status(status_name(), "watching", identity=places(self._folders))

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
            self._services.store.set_status(status_name(), "failed", error=said)
        except HermesError as trouble:
            _log.debug("the state of the watcher could not be stored: %s", trouble)

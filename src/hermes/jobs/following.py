"""Follows other programs' histories, in one process at a time (`hermes sessions watch`).

A lease in the store says which process follows these places of this machine. A second process waits until it is free: it
takes over at once when the first one was killed on this machine, and within the lease's time otherwise.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hermes.agent.leases import Lease, renewing
from hermes.errors import HermesError, StoreClosed, StoreGone
from hermes.interop.programs import HistoryWatcher, usual_places
from hermes.store.leases import holder_name

if TYPE_CHECKING:
    from hermes.interop.formats import Format, Problem
    from hermes.store.api.session_db import SessionDB

LEASE_SECONDS = 30.0
RETRY_SECONDS = 5.0  # seconds before a retry after a failure
WAIT_SECONDS = 2.0  # seconds between two attempts to get the lease
_log = logging.getLogger("hermes.watch")


class Listener(Protocol):
    """Receives the events of following, in the thread that follows."""

    def began(self) -> None:
        """This process has begun to follow the places."""

    def waits_for(self, holder: str) -> None:
        """Another process (its lease's holder) follows them; called once for each."""

    def brought(self, chosen: Format, path: Path, counts: dict[str, int]) -> None:
        """A file brought messages."""

    def skipped(self, problem: Problem) -> None:
        """A file, or a part of it, could not be imported."""

    def failed(self, error: Exception) -> None:
        """Following failed; it is tried again."""


def lease_name(folders: Sequence[Path]) -> str:
    """The lease of these places of this machine (none: the usual ones)."""
    places = sorted(str(place.resolve()) for place in (folders or usual_places()))
    return f"job:watch:{socket.gethostname()}:{hashlib.sha256(os.fsencode(chr(10).join(places))).hexdigest()[:16]}"


def described(holder: str) -> str:
    """A description of a holder, for people."""
    host, _, rest = holder.partition(":")
    return f"process {rest.partition(':')[0]} on {host}"


def follow(db: SessionDB, folders: Sequence[Path], listener: Listener, stopped: threading.Event) -> None:
    """Follow until `stopped` is set, despite failures. StoreGone ends it: that store does not come back."""
    waited_for: str | None = None
    while not stopped.is_set():
        pause = RETRY_SECONDS
        try:
            with _lease(db, lease_name(folders)) as lost:
                if lost is None:
                    holder = db.lease_holder(lease_name(folders))
                    if holder is not None and holder != waited_for:
                        listener.waits_for(waited_for := holder)
                    pause = WAIT_SECONDS
                else:
                    waited_for, pause = None, 0.0
                    listener.began()
                    watcher = HistoryWatcher(db, folders, listener.brought, listener.skipped)
                    watcher.run(lambda: stopped.is_set() or lost.is_set())
        except (StoreGone, StoreClosed):
            raise
        except Exception as error:  # following never takes its process down
            if not isinstance(error, (HermesError, OSError)):
                _log.debug("following the histories of other programs failed", exc_info=True)
            listener.failed(error)
        stopped.wait(pause)


@contextmanager
def _lease(db: SessionDB, name: str) -> Iterator[threading.Event | None]:
    """Hold a lease; gives an event that is set when it is lost, or None when another process holds it."""
    token = db.acquire_lease(name, holder_name("watch"), LEASE_SECONDS)
    if token is None:
        yield None
        return
    lost = threading.Event()
    try:
        with renewing(Lease(db, (name, token), LEASE_SECONDS, lost=lost.set)):
            yield lost
    finally:
        if not lost.is_set():
            db.release_lease(name, token)

"""Limits waits: a server that was stopped, or waits for a lost replica, neither answers nor closes the connection.

One thread checks all connections of a store periodically. A commit that is not answered in time is cancelled: a server
that waits for a replica then reports that. Any other statement may take long for a good reason, so the server is probed
on a second connection. Without an answer, the connection is closed, and calls that wait on it end with an error.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

import psycopg
from psycopg.conninfo import make_conninfo

from hermes.errors import StoreUnreachable
from hermes.store.engines.postgres import error_mapping
from hermes.store.engines.postgres.pool import PooledConnection

GRACE = 5.0  # seconds for the answer to the probe, which any server answers at once
_LEAST = 2  # seconds: libpq's shortest connect timeout


class WaitLimit:
    """Closes connections that have waited for `seconds` for a server that does not pass `is_there`."""

    def __init__(self, seconds: float, is_there: Callable[[], bool]) -> None:
        self._seconds, self._is_there = seconds, is_there
        self._grace = min(GRACE, seconds)
        self._links: weakref.WeakSet[PooledConnection] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def add(self, link: PooledConnection) -> None:
        """Watch a connection until it is closed."""
        with self._lock:
            self._links.add(link)
            if self._thread is None and not self._stopped.is_set():
                thread = threading.Thread(target=self._work, daemon=True, name="hermes-watch")
                with suppress(RuntimeError):  # no thread can start: the next connection retries
                    thread.start()
                    self._thread = thread

    def stop(self) -> None:
        """The store is closed."""
        self._stopped.set()

    def _work(self) -> None:
        while not self._stopped.wait(self._seconds / 5):
            with self._lock:
                links = [link for link in self._links if not link.closed]
                if not links:
                    self._thread = None
                    return
            now = time.monotonic()
            waits = [(link, link.waiting_since) for link in links]
            self._end([(link, since) for link, since in waits if since is not None and now - since > self._seconds])

    def _end(self, late: list[tuple[PooledConnection, float]]) -> None:
        """Handle statements that are not answered in time."""
        commits = [one for one in late if one[0].committing]
        for link, _ in commits:
            canceller = threading.Thread(target=_cancel, args=(link, self._grace), daemon=True, name="hermes-cancel")
            with suppress(RuntimeError):
                canceller.start()
        end = time.monotonic() + self._grace
        while any(link.waiting_since == since for link, since in commits) and time.monotonic() < end:
            time.sleep(0.01)
        others = [one for one in late if one not in commits]
        if others and self._is_there():
            for link, since in others:
                link.put_off(since)
            others = []
        for link, since in (*commits, *others):
            _cut(link, since)


def _cancel(link: PooledConnection, seconds: float) -> None:
    with suppress(psycopg.Error):
        link.cancel_safe(timeout=seconds)


def _cut(link: PooledConnection, since: float) -> None:
    """End a connection that still waits. (The descriptor is duplicated, so a reuse of its number does no harm.)"""
    with suppress(OSError, psycopg.Error):
        wire = socket.socket(fileno=os.dup(link.pgconn.socket))
        with wire:
            if link.waiting_since == since:
                wire.shutdown(socket.SHUT_RDWR)


def is_there(conninfo: str) -> bool:
    """Whether the server accepts a connection (or rejects it with a reason) and answers."""
    try:
        probe = psycopg.connect(make_conninfo(conninfo, connect_timeout=max(_LEAST, int(GRACE))), autocommit=True)
    except psycopg.Error as error:
        return not isinstance(error_mapping.unreachable(error, ""), StoreUnreachable)
    try:
        probe.pgconn.send_query(b"SELECT 1")
        return bool(select.select([probe.pgconn.socket], [], [], GRACE)[0])
    except (psycopg.Error, OSError):
        return False
    finally:
        probe.close()

"""Limits on a server's connections: how many are open, and for how long one may be silent.

Every connection takes a file descriptor, and the whole process shares those: the store, the model and the other platforms
need some too. So each server has a limit, each address has a limit within it, all servers together leave a reserve, and a
connection that has not sent a whole request in time is closed.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("hermes.serve")
_NOTE_SECONDS = 5.0  # at most one report about refusals in this time


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server."""

    connections: int = 256
    per_address: int = 128
    header_seconds: float = 10.0  # for a request line and its headers, from the moment they could begin


def descriptors_left_for_servers() -> int:
    """How many connections all servers of this process may hold: half of its file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(8, soft // 2)


_everywhere = 0  # connections of all servers of this process; servers run on one event loop each, in one thread


class Door:
    """Counts the connections of one server. `told` is called, every few seconds, when some were refused."""

    def __init__(self, limits: Limits, where: str, told: Callable[[str], None] | None = None) -> None:
        self.limits, self._where, self._told = limits, where, told
        self._open: Counter[str] = Counter()
        self._refused = 0
        self._told_at = float("-inf")

    @property
    def _most(self) -> int:
        """The limit for this server: two servers may run at once, and each leaves the other its descriptors."""
        return min(self.limits.connections, max(4, descriptors_left_for_servers() // 2))

    def enter(self, address: str) -> bool:
        """Count one more connection from an address, if it is within the limits; `leave` ends it."""
        global _everywhere
        full = self._open.total() >= self._most or _everywhere >= descriptors_left_for_servers()
        if full or self._open[address] >= self.limits.per_address:
            self._refuse(address, full)
            return False
        self._open[address] += 1
        _everywhere += 1
        return True

    def leave(self, address: str) -> None:
        """Uncount a connection."""
        global _everywhere
        _everywhere -= 1
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]

    def _refuse(self, address: str, full: bool) -> None:
        self._refused += 1
        now = time.monotonic()
        if now - self._told_at < _NOTE_SECONDS:
            return
        self._told_at = now
        limit = self._most if full else f"{self.limits.per_address} from one address"
        what = f"{self._open.total()} connections are open on {self._where}, {self._open[address]} from {address}"
        told = f"{what}, at most {limit}: {self._refused} were refused"
        _log.warning("%s", told)
        if self._told is not None:
            self._told(told)


def protocol_behind(door: Door) -> type[asyncio.Protocol]:
    """uvicorn's protocol for a server with this door."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Guarded(H11Protocol):
        """Closes a connection beyond the limits, or one that has not sent its request headers in time."""

        _address: str | None = None  # of a counted connection
        _refused = False
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if isinstance(peer, tuple) else "nowhere"
            if not door.enter(address):
                self._refused = True
                transport.abort()
                return
            self._address = address
            super().connection_made(transport)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._refused:
                return
            self._done_waiting()
            if self._address is not None:
                door.leave(self._address)
                self._address = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            idle = self.cycle is None or self.cycle.response_complete
            if idle and self._waiting is None:
                self._wait()
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._done_waiting()

        def _wait(self) -> None:
            self._waiting = self.loop.call_later(door.limits.header_seconds, self._too_slow)

        def _done_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _too_slow(self) -> None:
            self._waiting = None
            self.transport.abort()

    return Guarded

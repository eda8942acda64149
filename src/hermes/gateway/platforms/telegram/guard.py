"""The webhook's door: how many connections it holds, and how long one may take to say what it wants.

The other servers of Hermes run on uvicorn, which this extra does not bring; the limits are the same (serve.connections).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hermes.serve.connections import Door

_HEAD_ENDS = b"\r\n\r\n"
_LONGEST_HEAD = 65_536  # bytes; aiohttp refuses longer ones by itself


class Guarded(asyncio.Protocol):
    """Passes a connection on to aiohttp; one too many, or one that sends no head of a request in time, is closed."""

    def __init__(self, door: Door, make: Callable[[], asyncio.Protocol]) -> None:
        self._door, self._make = door, make
        self._inner: asyncio.Protocol | None = None
        self._address = ""
        self._head = b""
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else "nowhere"
        if not self._door.enter(self._address):
            transport.abort()
            return
        self._inner = self._make()
        self._inner.connection_made(transport)
        seconds = self._door.limits.header_seconds
        self._waiting = asyncio.get_running_loop().call_later(seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if self._waiting is not None:
            self._head = (self._head + data)[-_LONGEST_HEAD:]
            if _HEAD_ENDS in self._head:
                self._stop_waiting()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._inner is not None:
            self._inner.connection_lost(exc)
            self._inner = None
            self._door.leave(self._address)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting, self._head = None, b""

"""A lab on aiohttp: HTTP and WebSockets on a port of its own, served by an event loop in a thread."""

from __future__ import annotations

from typing import Any, ClassVar

from aiohttp import web

from tests.support.labs.base import Lab
from tests.support.loop_thread import LoopThread


class SocketLab(Lab):
    """Subclasses give the application, and forget what was said (`_forget`). Their `__init__` ends with `_begin`."""

    runner: ClassVar[dict[str, Any]] = {}  # options of aiohttp's AppRunner
    port: int
    _problems: list[str]
    _limited = _failing = 0  # how many of the next sends are refused, and how
    _socket: web.WebSocketResponse | None = None

    def _application(self) -> web.Application:
        """What is served; called on the event loop."""
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError

    def problems(self) -> list[str]:
        return list(self._problems)

    def reset(self) -> None:
        self._forget()

    def rate_limit(self, seconds: float, times: int = 1) -> None:
        self._limited = times

    def fail(self, times: int = 1) -> None:
        self._failing = times

    def drop(self) -> None:
        self._call(self._dropped())

    async def _dropped(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None and socket._req is not None and socket._req.transport is not None:
            socket._req.transport.abort()

    def close(self) -> None:
        self._call(self._runner.cleanup())
        self._thread.stop()

    def _begin(self) -> None:
        self._thread = LoopThread()
        self._loop = self._thread.loop
        self._call(self._start())

    async def _start(self) -> None:
        self._runner = web.AppRunner(self._application(), shutdown_timeout=0.2, **self.runner)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    def _call(self, work: Any) -> Any:
        return self._thread.call(work)

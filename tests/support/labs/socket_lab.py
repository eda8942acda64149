"""A lab on aiohttp: HTTP and WebSockets on a port of its own, served by an event loop in a thread."""

from __future__ import annotations

from typing import Any, ClassVar

from aiohttp import web

from tests.support.labs.base import ServerLab
from tests.support.loop_thread import LoopThread


class SocketLab(ServerLab):
    """Subclasses give the application."""

    runner: ClassVar[dict[str, Any]] = {}  # options of aiohttp's AppRunner
    port: int
    _socket: web.WebSocketResponse | None = None

    def _application(self) -> web.Application:
        """The application to serve; called on the event loop."""
        raise NotImplementedError

    def drop(self) -> None:
        self._call(self._dropped())

    async def _dropped(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None and socket._req is not None and socket._req.transport is not None:
            socket._req.transport.abort()

    def _lose(self, request: web.Request) -> None:
        """Cut the connection of a request that was taken, if its answer is to be lost."""
        if self.lost_answers:
            self.lost_answers -= 1
            assert request.transport is not None
            request.transport.abort()

    def close(self) -> None:
        if not self._loop.is_closed():  # a test may have ended it
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

"""An HTTP server inside a running event loop: started and stopped like any other part of the gateway.

uvicorn serves. Its signal handlers are not installed (the program handles signals itself), nor is its access
log: addresses may contain private data. An address that can't be bound is an error of ours, not an exit.

Every connection takes a file descriptor, and the whole process shares those: the store, the model and the other platforms
need some too. So a server has a limit, and a connection that has not sent a whole request in time is closed.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from hermes.errors import ConfigError, PlatformUnreachable

_log = logging.getLogger("hermes.serve")
_NOTE_SECONDS = 5.0  # at most one warning about refused connections in this time


CONNECTIONS = 256  # of one server, where the process has the file descriptors
HEADER_SECONDS = 10.0  # for a request line and its headers, from the moment they could begin


def _most_connections() -> int:
    """The connections that fit: an eighth of the process's file descriptors, which it shares with other servers."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if soft == resource.RLIM_INFINITY else min(CONNECTIONS, max(4, soft // 8))


def guarded_protocol() -> type[asyncio.Protocol]:
    """uvicorn's protocol for a server with limits."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    warned_at = float("-inf")

    def warn(connections: int) -> None:
        nonlocal warned_at
        if time.monotonic() - warned_at >= _NOTE_SECONDS:
            warned_at = time.monotonic()
            _log.warning("connections are refused: %d are open, and no more are allowed", connections)

    class Guarded(H11Protocol):
        """Closes a connection beyond the limits, or one that has not sent its request headers in time."""

        _refused = False
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= _most_connections():
                warn(len(self.connections))
                self._refused = True
                transport.abort()
                return
            super().connection_made(transport)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            if not self._refused:
                self._done_waiting()
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
            self._waiting = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

        def _done_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

    return Guarded


BACKLOG = 512
_AT_ONCE = 16  # connections accepted in one step of the event loop: more would use descriptors before they are counted
_IDLE = 30  # seconds a connection may stay open without a request
_LAST_WORD = 4.0  # seconds for cleaning up after the last response

for _name in ("uvicorn.error", "uvicorn.asgi"):  # the callers log a server's start and end themselves
    logging.getLogger(_name).setLevel(logging.WARNING)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class HttpServer:
    """An application on a host and port. `died` is called when the server ends without having been stopped."""

    def __init__(self, app: ASGIApp, host: str, port: int, *, died: Callable[[Exception], None] | None = None) -> None:
        self.host, self.port = host, port
        self._app, self._died = app, died
        self._server: _QuietServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Begin to listen; returns the port (the chosen one, if 0 was given).

        ConfigError when the address can't be bound at all, PlatformUnreachable while another program has it.
        """
        sockets = bound(self.host, self.port)
        self.port = sockets[0].getsockname()[1]
        config = uvicorn.Config(
            self._app, http=guarded_protocol(), ws="none", lifespan="on", loop="none", log_config=None,
            access_log=False, server_header=False, proxy_headers=False, backlog=_AT_ONCE, timeout_keep_alive=_IDLE,
        )  # fmt: skip
        self._server = _QuietServer(config)
        self._task = asyncio.create_task(self._run(self._server, sockets), name=f"http-{self.port}")
        while not self._server.started:
            await asyncio.wait({self._task}, timeout=0.01)
            if self._task.done():
                task, self._task = self._task, None
                _close(sockets)
                raise ConfigError(f"the server on {self.host}:{self.port} did not start") from task.exception()
        for one in sockets:
            one.listen(BACKLOG)  # asyncio has set it to the number it accepts at once
        self._task.add_done_callback(self._ended)
        return self.port

    async def stop(self, grace: float = 5.0) -> None:
        """Accept no more requests, let running ones finish for `grace` seconds, then cancel them. May be called twice."""
        task, self._task = self._task, None
        if self._server is None or task is None:
            return
        self._server.config.timeout_graceful_shutdown = grace  # type: ignore[assignment]  # any number of seconds will do
        self._server.should_exit = True
        await asyncio.wait({task}, timeout=grace + _LAST_WORD)
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task

    async def _run(self, server: _QuietServer, sockets: list[socket.socket]) -> None:
        try:
            await server.serve(sockets=sockets)
        except SystemExit as ended:  # how uvicorn reports that the application did not start
            raise RuntimeError("the application did not start") from ended
        finally:
            _close(sockets)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task and self._died is not None:
            problem = None if task.cancelled() else task.exception()
            self._died(PlatformUnreachable(f"the server on {self.host}:{self.port} ended ({problem or 'no reason'})"))


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def check_address(host: str, port: int) -> None:
    """Raise what `HttpServer.start` raises when nothing can listen there now."""
    _close(bound(host, port))


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets for every address a host has, all on one port."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{host!r} is not an address here ({error}); check `host` in config.yaml") from None
    made: list[socket.socket] = []
    problem = 0
    for family, _, _, _, address in dict.fromkeys(found):
        chosen = made[0].getsockname()[1] if made else port
        try:
            one = socket.create_server((address[0], chosen, *address[2:]), family=family, backlog=BACKLOG)
        except OSError as error:
            problem = error.errno or 0
            if problem not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # a family this machine does not have
                _close(made)
                made.clear()
                break
            continue
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections inherit it
        made.append(one)
    if problem == errno.EADDRINUSE:
        raise PlatformUnreachable(
            f"port {port} on {host} is taken by another program; stop it, or set another port (`--port`, or in config.yaml)"
        )
    if not made:
        why = os.strerror(problem)
        raise ConfigError(f"can't listen on {host}:{port} ({why}); check `host` and `port` in config.yaml")
    return made


def _close(sockets: list[socket.socket]) -> None:
    for one in sockets:
        with suppress(OSError):
            one.close()

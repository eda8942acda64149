"""A proxy in front of a real server, for what a real server does not do on demand: refuse, fail, and hang up.

    proxy = Proxy(8008)                       # listens on 127.0.0.1:proxy.port
    proxy.fail(2, 503, path="/send/")         # the next two requests whose path has this in it get 503
    proxy.rate_limit(1.5, path="/send/")      # the next one gets 429 with Retry-After
    proxy.drop()                              # cut every connection now
    proxy.requests                            # everything asked for: method, path, body

HTTP and websockets pass through untouched, one request a connection.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.loop_thread import LoopThread


class Request(NamedTuple):
    """A request; its body only if its length was announced."""

    method: str
    path: str
    body: bytes


@dataclass
class Refusal:
    """An answer of our own to the next requests that match."""

    times: int
    status: int
    headers: dict[str, str]
    body: bytes
    path: str
    method: str | None


@dataclass
class Proxy:
    """Listens from the start until `close`; all methods may be called from any thread."""

    target: int
    host: str = "127.0.0.1"
    port: int = 0
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._refusals: list[Refusal] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = LoopThread()
        self._loop = self._thread.loop
        self._server = self._thread.call(asyncio.start_server(self._serve, self.host, self.port, limit=1 << 20))
        self.port = self._server.sockets[0].getsockname()[1]

    # ------------------------------------------------------------------------------------------ what tests ask for

    def fail(
        self,
        times: int = 1,
        status: int = 503,
        headers: Mapping[str, str] | None = None,
        body: bytes | str = b"",
        *,
        path: str = "",
        method: str | None = None,
    ) -> None:
        """The next `times` requests whose path contains `path` get this answer instead of the server's."""
        data = body.encode() if isinstance(body, str) else body
        with self._lock:
            self._refusals.append(Refusal(times, status, dict(headers or {}), data, path, method))

    def rate_limit(
        self,
        seconds: float,
        times: int = 1,
        *,
        path: str = "",
        method: str | None = None,
        body: bytes | str | None = None,
        header: bool = True,
    ) -> None:
        """The next `times` requests are told to wait: 429, in the header and (unless `body` is given) Matrix' JSON."""
        words = {"errcode": "M_LIMIT_EXCEEDED", "error": "Too Many Requests", "retry_after_ms": round(seconds * 1000)}
        headers = {"Retry-After": f"{seconds:g}"} if header else {}
        headers["Content-Type"] = "application/json"
        self.fail(times, 429, headers, json.dumps(words) if body is None else body, path=path, method=method)

    def drop(self) -> None:
        """Cut every connection that is open now, as a broken network does."""
        done = threading.Event()

        def cut() -> None:
            for writer in list(self._open):
                writer.transport.abort()
            done.set()

        self._loop.call_soon_threadsafe(cut)
        done.wait(10)

    def count(self, path: str, method: str | None = None) -> int:
        """How many requests had this in their path."""
        with self._lock:
            return sum(1 for asked in self.requests if path in asked.path and method in (None, asked.method))

    def reset(self) -> None:
        """Refuse nothing any more, and forget the requests."""
        with self._lock:
            self._refusals.clear()
            self.requests.clear()

    def close(self) -> None:
        """Stop listening."""
        if not self._loop.is_closed():
            self.drop()
            self._loop.call_soon_threadsafe(self._server.close)
            self._thread.stop()

    # ------------------------------------------------------------------------------------------ the inside

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")[:2]
            length = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            refusal = self._asked(Request(method, path, body))
            if refusal is not None:
                await self._refuse(refusal, writer)
            else:
                await self._pass_on(head, body, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        except asyncio.CancelledError:
            pass  # the proxy closes
        finally:
            self._open.discard(writer)
            writer.close()

    def _asked(self, request: Request) -> Refusal | None:
        with self._lock:
            self.requests.append(request)
            for refusal in self._refusals:
                if refusal.path in request.path and refusal.method in (None, request.method):
                    refusal.times -= 1
                    if refusal.times <= 0:
                        self._refusals.remove(refusal)
                    return refusal
        return None

    async def _refuse(self, refusal: Refusal, writer: asyncio.StreamWriter) -> None:
        headers = {**refusal.headers, "Content-Length": str(len(refusal.body)), "Connection": "close"}
        lines = [f"HTTP/1.1 {refusal.status} Refused", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        writer.write("\r\n".join(lines).encode("latin-1") + refusal.body)
        await writer.drain()

    async def _pass_on(
        self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not re.search(rb"(?i)\r\nupgrade:", head):
            head = re.sub(rb"(?i)\r\nconnection:[^\r\n]*", b"", head)
            head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        upstream_reader, upstream = await asyncio.open_connection(self.host, self.target)
        self._open.add(upstream)
        try:
            upstream.write(head + body)
            onward = asyncio.create_task(_copy(reader, upstream))
            try:
                await _copy(upstream_reader, writer)
            finally:
                onward.cancel()
        finally:
            self._open.discard(upstream)
            upstream.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    except OSError:
        pass

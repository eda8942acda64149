"""Requests to an endpoint: each is made and read in a thread of its own, so that waiting for it can be cancelled.

A connection serves one call at a time and is kept for the next one. Cancelling shuts down the socket of that one
connection, in whatever state the call is. The protocol is HTTP with server-sent events, by httpx.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec

from hermes.agent.endpoint.servers import is_near
from hermes.texts import encodable

if TYPE_CHECKING:
    from collections.abc import Generator
    from ssl import SSLContext

    from httpx import Response

NOTHING_YET = object()
END = object()
_PATIENCE = 300.0  # seconds without data; a big model on a small machine processes a long prompt for minutes
_CONNECTING = 10.0
_NEAR, _FAR = 2.0, 60.0  # seconds a connection is kept for the next call; small servers have few
_REST = 0.2  # seconds a server has to end a reply after its last chunk
_IDLE = 8  # connections that are kept


@lru_cache(maxsize=1)
def _certificates() -> SSLContext:
    """The certificates that are trusted, loaded once: it takes 20 ms."""
    import httpx

    return httpx.create_ssl_context()


class Connection:
    """An HTTP client for one call at a time, whose socket is known, so that another thread can hang up."""

    def __init__(self, base_url: str, timeout: float | None) -> None:
        import httpx

        near = is_near(base_url)
        patience = timeout or _PATIENCE
        self._http = httpx.Client(
            timeout=httpx.Timeout(patience, connect=min(patience, _CONNECTING)),
            verify=_certificates(),
            trust_env=not near,  # without a proxy
            follow_redirects=True,
            limits=httpx.Limits(keepalive_expiry=_NEAR if near else _FAR),
        )
        self._socket: Any = None
        self._fresh = True  # the socket was made for the present call
        self.stopped = threading.Event()

    def post(self, url: str, headers: dict[str, str], **body: Any) -> Response:
        """The response, its body not yet read. Where the server had closed a kept connection, a new one is tried."""
        import httpx

        request = self._http.build_request("POST", url, headers=headers, extensions={"trace": self._traced}, **body)
        self._fresh = False
        try:
            return self._http.send(request, stream=True)
        except httpx.TimeoutException:
            raise
        except httpx.TransportError:
            if self._fresh or self.stopped.is_set():
                raise
            return self._http.send(request, stream=True)

    def _traced(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._socket, self._fresh = info["return_value"].get_extra_info("socket"), True
            if self.stopped.is_set():
                self.hang_up()

    def hang_up(self) -> None:
        """Shut the socket down: whatever waits for it fails at once."""
        with suppress(Exception):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection for good."""
        self._http.close()


class Connections:
    """The connections to one endpoint that no call uses."""

    def __init__(self, base_url: str, timeout: float | None) -> None:
        self._base_url, self._timeout = base_url, timeout
        self._idle: list[Connection] = []
        self._all: WeakSet[Connection] = WeakSet()

    def take(self) -> Connection:
        """A connection for one call."""
        try:
            return self._idle.pop()
        except IndexError:
            made = Connection(self._base_url, self._timeout)
            self._all.add(made)
            return made

    def hang_up(self) -> None:
        """End every call, and the connections that are kept."""
        for connection in list(self._all):
            connection.hang_up()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next call."""
        if connection.stopped.is_set() or len(self._idle) >= _IDLE:
            connection.close()
        else:
            self._idle.append(connection)


class PendingCall:
    """One call, whose chunks are passed on as they arrive. `start` opens it on a connection and yields them."""

    def __init__(self, connections: Connections, start: Callable[[Connection], Generator[Any]]) -> None:
        self._connections, self._start = connections, start
        self._connection: Connection | None = None  # while this call uses it
        self._using = threading.Lock()
        self._chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._whole = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read, name="hermes-model", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._connection = connection = self._connections.take()
            connection.stopped = self._stopped
            try:
                with closing(self._start(connection)) as chunks:
                    for chunk in chunks:
                        if self._stopped.is_set() and not self._whole:
                            break
                        self._whole = self._whole or chunk is END
                        self._chunks.put(chunk)
            finally:
                with self._using:
                    self._connection = None  # from here on another call may use it, which `stop` must not cut off
                self._connections.give_back(connection)
        except BaseException as error:  # any error must reach the turn
            self._chunks.put(error)

    def next(self, timeout: float) -> Any:
        """The next chunk, NOTHING_YET or END; an error of the call is raised here."""
        try:
            chunk = self._chunks.get(timeout=timeout)
        except queue.Empty:
            return NOTHING_YET
        if isinstance(chunk, BaseException):
            raise chunk
        return chunk

    def stop(self) -> None:
        """The consumer is gone: hang up, unless the reply ends by itself now."""
        if self._whole:
            self._thread.join(_REST)
        if self._thread.is_alive():
            self._stopped.set()
            with self._using:
                if self._connection is not None:
                    self._connection.hang_up()


def events(response: Response) -> Iterator[Any]:
    """The data of server-sent events as JSON, with END where the server marks it, until the response ends.

    Lines end with a line feed only: text in another language may hold the other characters that Python takes for an end.
    """
    rest, data = b"", list[bytes]()
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif not line and data:
                yield _decoded(data)
                data = []
    if rest.startswith(b"data:"):
        data.append(rest[5:].strip())
    if data:
        yield _decoded(data)


def _decoded(data: list[bytes]) -> Any:
    text = b"\n".join(data)
    return END if text.startswith(b"[DONE]") else json.loads(text)


def encoded(body: dict[str, Any]) -> bytes:
    """A body as JSON that every wire can carry (see `encodable`)."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError):  # half a surrogate pair, or a value of another program that is not JSON
        return json.dumps(encodable(body), ensure_ascii=False, allow_nan=False).encode()

"""Requests to an endpoint: each is made and read in a thread of its own, so that waiting for it can be cancelled.

Cancelling shuts down the socket of the call, as soon as that is known: when it was made for this call, or when the
response begins. The protocol is HTTP with server-sent events, by httpx.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec

from hermes.agent.models.endpoint.servers import is_near
from hermes.texts import encodable

if TYPE_CHECKING:
    from collections.abc import Generator
    from ssl import SSLContext

    from httpx import Client, Response

NOTHING_YET = object()
END = object()
_PATIENCE = 300.0  # seconds without data; a big model on a small machine processes a long prompt for minutes
_CONNECTING = 10.0
_REST = 0.2  # seconds a server has to end a reply after its last chunk


@lru_cache(maxsize=1)
def _certificates() -> SSLContext:
    """The certificates that are trusted, loaded once: it takes 20 ms."""
    import httpx

    return httpx.create_ssl_context()


def new_client(base_url: str, timeout: float | None) -> Client:
    """An HTTP client for the calls to one endpoint.

    On this machine and its network every call has a connection of its own: small servers have few, and making one costs nothing.
    """
    import httpx

    near = is_near(base_url)
    patience = timeout or _PATIENCE
    kept = httpx.Limits(max_connections=None, max_keepalive_connections=0 if near else 8, keepalive_expiry=60.0)
    return httpx.Client(
        timeout=httpx.Timeout(patience, connect=min(patience, _CONNECTING)),
        verify=_certificates(),
        trust_env=not near,  # without a proxy
        follow_redirects=True,
        limits=kept,
    )


class PendingCall:
    """One call, whose chunks are passed on as they arrive. `start` makes it, in a thread of its own, and yields them."""

    def __init__(self, start: Callable[[PendingCall], Generator[Any]]) -> None:
        self._start = start
        self._socket: Any = None  # while this call uses it
        self._using = threading.Lock()
        self._chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._whole = False
        self._stopped = threading.Event()
        running.add(self)
        self._thread = threading.Thread(target=self._read, name="hermes-model", daemon=True)
        self._thread.start()

    @contextmanager
    def post(self, client: Client, url: str, headers: dict[str, str], content: bytes) -> Iterator[Response]:
        """The response, its body not yet read."""
        extensions = {"trace": self._traced}
        request = client.build_request("POST", url, headers=headers, extensions=extensions, content=content)
        response = client.send(request, stream=True)
        try:
            self._use(response.extensions["network_stream"])
            yield response
        finally:
            with self._using:
                self._socket = None  # from here on another call may use it, which `stop` must not cut off
            response.close()

    def _traced(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._use(info["return_value"])

    def _use(self, stream: Any) -> None:
        self._socket = stream.get_extra_info("socket")
        if self._stopped.is_set():
            self._hang_up()

    def _hang_up(self) -> None:
        """Shut the socket down: whatever waits for it fails at once."""
        with self._using, suppress(Exception):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        try:
            with closing(self._start(self)) as chunks:
                for chunk in chunks:
                    if self._stopped.is_set() and not self._whole:
                        break
                    if chunk is END:
                        self._whole = True
                    self._chunks.put(chunk)
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
            self._hang_up()


running: WeakSet[PendingCall] = WeakSet()  # the calls of this process


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

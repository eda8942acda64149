"""The connections to an endpoint and the requests on them.

Each line is a thread with its own connection, reused for the next call. A reply is read in that thread, so that waiting
for it can be cancelled; that closes this one connection, and the next call opens a new one. The SDK makes the first
request; later ones differ only in their body, since building a request takes the SDK longer than everything
a gateway does itself for a message: the address, the headers, the options.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from hermes.texts import encodable

NOTHING_YET = object()
END = object()
NEAR, FAR = 2.0, 60.0  # seconds a line waits for its next call; small servers have few connections
_REST = 0.2  # seconds a server has to end a reply after its last chunk


class EndpointConnections:
    """The lines to one endpoint; `make` creates the client of a new one, which reports its connections to the given trace."""

    def __init__(self, make: Callable[[Callable[[str, dict[str, Any]], None]], Any], linger: float) -> None:
        self.make, self.linger = make, linger
        self._lock = threading.Lock()
        self._idle: list[_Line] = []

    def call(self, start: Callable[[_Line], Any]) -> PendingCall:
        """Let a line open a stream with `start(line)` and read it."""
        with self._lock:
            line = self._idle.pop() if self._idle else None
        if line is None:
            line = _Line(self)
            threading.Thread(target=line.run, name="hermes-model", daemon=True).start()
        call = PendingCall(line, start)
        line.calls.put(call)
        return call

    def back(self, line: _Line) -> None:
        """Called when a line is free."""
        with self._lock:
            self._idle.append(line)

    def leave(self, line: _Line) -> bool:
        """Remove a line that ends, unless it is just getting a call."""
        with self._lock:
            if line not in self._idle:
                return False
            self._idle.remove(line)
            return True


class _Line:
    """One thread, one client, one connection at a time."""

    def __init__(self, lines: EndpointConnections) -> None:
        self._lines = lines
        self._client: Any = None
        self.calls: queue.SimpleQueue[PendingCall] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.current: PendingCall | None = None
        self.socket: Any = None
        self.fresh = True  # the connection was made for the present call

    def client(self) -> Any:
        """The client of this line."""
        if self._client is None:
            self._client = self._lines.make(self._connected)
        return self._client

    def _connected(self, event: str, info: dict[str, Any]) -> None:
        """Called with the connection's trace events; records its socket."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self.socket, self.fresh = info["return_value"].get_extra_info("socket"), True

    def run(self) -> None:
        """Read one stream after the other, until there was none for a while."""
        while True:
            try:
                call = self.calls.get(timeout=self._lines.linger)
            except queue.Empty:
                if self._lines.leave(self):
                    break
                continue
            self.fresh = False
            with self.lock:
                self.current = call
            try:
                call.read(self)
            finally:
                with self.lock:
                    self.current = None
            self._lines.back(self)
        with suppress(Exception):
            if self._client is not None:
                self._client.close()

    def hang_up(self, call: PendingCall) -> None:
        """Close the connection, if this call still uses it."""
        with self.lock, suppress(Exception):
            if self.current is call and self.socket is not None:
                self.socket.shutdown(socket.SHUT_RDWR)


class PendingCall:
    """One stream, passed on chunk by chunk."""

    def __init__(self, line: _Line, start: Callable[[_Line], Any]) -> None:
        self._line, self._start = line, start
        self._chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._whole = False
        self._over = threading.Event()
        self.stopped = threading.Event()

    def read(self, line: _Line) -> None:
        """In the line's thread: the whole stream."""
        stream = None
        try:
            stream = self._start(line)
            for chunk in stream:
                if self.stopped.is_set():
                    return
                self._chunks.put(chunk)
            self._whole = True
            self._chunks.put(END)
            for _ in getattr(stream, "rest", ()):  # to its end, or the connection can't be used again
                pass
        except BaseException as error:  # any error must reach the turn
            self._chunks.put(error)
        finally:
            with suppress(Exception):
                if stream is not None:
                    stream.close()
            self._over.set()

    def next(self, timeout: float) -> Any:
        """The next chunk, NOTHING_YET or END; an error of the stream is raised here."""
        try:
            chunk = self._chunks.get(timeout=timeout)
        except queue.Empty:
            return NOTHING_YET
        if isinstance(chunk, BaseException):
            raise chunk
        return chunk

    def stop(self) -> None:
        """The consumer is gone: close the connection, unless the reply is complete."""
        self.stopped.set()
        if not self._over.wait(_REST if self._whole else 0):
            self._line.hang_up(self)


def kept_stream(openai: Any) -> Any:
    """The SDK's stream of chunks, which leaves the end of the response unread for code that reuses the connection."""

    class Kept(openai.Stream[object]):  # type: ignore[misc]
        rest: Any = ()

        def __stream__(self) -> Any:
            events = self._iter_events()
            for event in events:
                if event.data.startswith("[DONE]"):
                    self.rest = events
                    return
                data = event.json()
                if isinstance(data, dict) and data.get("error"):
                    problem = data["error"]
                    said = problem.get("message") if isinstance(problem, dict) else None
                    said = said if isinstance(said, str) and said else "An error occurred during streaming"
                    raise openai.APIError(message=said, request=self.response.request, body=problem)
                yield data

    return Kept


_OF_THE_BODY = (b"content-length", b"transfer-encoding")


def encoded(body: dict[str, Any]) -> bytes:
    """A body as JSON that every wire can carry (see `encodable`)."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError):  # half a surrogate pair, or a value of another program that is not JSON
        return json.dumps(encodable(body), ensure_ascii=False, allow_nan=False).encode()


class Requests:
    """The client of one line. Not for several threads."""

    def __init__(self, openai: Any, http: Any, sdk: Any, client: Any) -> None:
        """`http` is the library that the SDK is built on, `client` its client that `sdk` was made with."""
        self._openai, self._http, self._sdk, self._client = openai, http, sdk, client
        self._first: Any = None  # the SDK's request, repeated with other bodies
        self._headers: Any = None

    def noted(self, request: Any) -> None:
        """Record the SDK's request; called by its client's hook."""
        if self._first is None and request.method == "POST":
            self._first = request
            raw = [(name, value) for name, value in request.headers.raw if name.lower() not in _OF_THE_BODY]
            self._headers = self._http.Headers(raw)

    def post(self, path: str, body: dict[str, Any], stream_class: Any) -> Any:
        """Open a stream of the server's answer."""
        if self._first is None or self._client.cookies:
            return self._sdk.post(path, body=encodable(body), cast_to=object, stream=True, stream_cls=stream_class)
        response = self._sent(self._repeated(encoded(body)))
        return stream_class(cast_to=object, response=response, client=self._sdk)

    def _repeated(self, content: bytes) -> Any:
        first = self._first
        return self._http.Request(
            "POST", first.url, headers=self._headers, content=content, extensions=first.extensions
        )

    def _sent(self, request: Any) -> Any:
        openai, http = self._openai, self._http
        try:
            response = self._client.send(request, stream=True)
        except http.TimeoutException as error:
            raise openai.APITimeoutError(request=request) from error
        except http.HTTPError as error:
            raise openai.APIConnectionError(request=request) from error
        if not response.is_success:
            response.read()
            raise self._sdk._make_status_error_from_response(response)
        return response

    def close(self) -> None:
        """Return the connection to the pool."""
        self._sdk.close()

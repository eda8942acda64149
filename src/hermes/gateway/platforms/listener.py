"""The HTTP listener that platforms call: one server for each host and port, shared by the adapters that name it.

An adapter registers a path and a function that gets the headers and the body and returns a status. `verify` sees the
request first; the body is read with a limit on its size and on the time it takes. A delivery is answered with success
only when it is stored: whatever fails on the way is answered 503, and the platform sends it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hermes.serve.api_errors import ApiError
from hermes.serve.api_requests import read_body
from hermes.serve.server import HttpServer

if TYPE_CHECKING:
    from hermes.gateway.adapter import Link
    from hermes.serve.connection_limits import Limits

LARGEST = 10_000_000  # bytes of a delivery
SLOWEST = 10.0  # seconds for a delivery to arrive whole

Headers = Mapping[str, str]
Handler = Callable[[Headers, bytes], Awaitable[int]]  # the status to answer with
_servers: dict[tuple[str, int], _Server] = {}


class Registration:
    """A path of a listener; `close` unregisters it, and the last one ends the server."""

    def __init__(self, path: str, verify: Callable[[Headers], bool], handler: Handler, link: Link) -> None:
        self.path, self.verify, self.handler, self.link = path, verify, handler, link
        self.server: _Server | None = None

    async def close(self) -> None:
        """Stop listening on this path; running deliveries are stored. May be called twice."""
        server, self.server = self.server, None
        if server is not None:
            await server.remove(self)


async def listen(
    host: str, port: int, path: str, *, verify: Callable[[Headers], bool], handler: Handler, link: Link,
    limits: Limits | None = None,
) -> Registration:  # fmt: skip
    """Serve POST requests to a path. `verify` decides by the headers whether a request is the platform's (else 403).

    PlatformUnreachable while another program has the port, ConfigError where nothing can listen there.
    """
    server = _servers.get((host, port)) or _Server(host, port, limits)
    registration = Registration(path, verify, handler, link)
    await server.add(registration)
    return registration


class _Server:
    def __init__(self, host: str, port: int, limits: Limits | None) -> None:
        self._place = (host, port)
        self._registrations: list[Registration] = []
        app = Starlette(routes=[Route("/{path:path}", self._delivered, methods=["POST"])])
        self._http = HttpServer(app, host, port, limits=limits, died=self._died, crowded=self._crowded)

    async def add(self, registration: Registration) -> None:
        if not self._registrations:
            await self._http.start()
            _servers[self._place] = self
        self._registrations.append(registration)
        registration.server = self

    async def remove(self, registration: Registration) -> None:
        self._registrations.remove(registration)
        if not self._registrations:
            _servers.pop(self._place, None)
            await self._http.stop(grace=1.0)

    def _died(self, error: Exception) -> None:
        _servers.pop(self._place, None)
        for one in self._registrations:
            one.link.lost(error)

    def _crowded(self, text: str) -> None:
        for one in self._registrations:
            one.link.troubled(text)

    async def _delivered(self, request: Request) -> Response:
        found = [one for one in self._registrations if one.path.rstrip("/") == request.url.path.rstrip("/")]
        if not found and len(self._registrations) == 1:
            found = self._registrations  # a proxy in front may use another path
        if not found:
            return Response(status_code=404)
        registration = found[0]
        if not registration.verify(request.headers):
            return Response(status_code=403)
        try:
            body = await read_body(request, LARGEST, SLOWEST)
            return Response(status_code=await registration.handler(request.headers, body))
        except ApiError as problem:
            return PlainTextResponse(problem.message, problem.status)
        except Exception as error:
            kind = type(error).__name__
            registration.link.log.error("a delivery could not be stored (%s); the platform sends it again", kind)
            return Response(status_code=503)

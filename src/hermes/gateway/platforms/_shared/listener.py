"""The HTTP listener that platforms call: one server for each host and port, shared by the adapters.

An adapter registers a path and a handler (`Adapter.listen`). A request passes the same guard everywhere: the number of
connections and the time for headers are limited, `verify` sees the headers before the body is read, the body
is read with a limit on its size and on its time, `signed` sees the bytes before anything parses them. A delivery is answered
with success only when it is stored: whatever fails on the way, or takes longer than the platform waits, is answered 503, and
the platform sends it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from hermes.errors import ConfigError
from hermes.serve.http import HttpServer, is_loopback
from hermes.serve.http_messages import ApiError, read_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from hermes.gateway.adapter import Link, Listening

LARGEST = 10_000_000  # bytes of a delivery whose sender is known by its headers
LARGEST_UNKNOWN = 2_000_000  # … and of one that is proved by its bytes: until then its sender is unknown
SLOWEST = 10.0  # seconds for a delivery to arrive whole
WINDOW = 300.0  # seconds by which a signed time may differ from ours
_QUIET = 10.0  # seconds between two lines in the log about refused deliveries

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlatformRequest:
    """One request. `url` is the address as the platform knows it: with `gateway.listen.public_url`."""

    method: str
    path: str
    url: str
    query: Mapping[str, str]
    headers: Headers  # names in any case
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class PlatformResponse:
    """The response to a platform; a handler may return the status alone."""

    status: int = 200
    body: str | bytes = b""
    mime: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[PlatformRequest], Awaitable[int | PlatformResponse]]
Verify = Callable[[Headers], bool]
Signed = Callable[[PlatformRequest], bool | Awaitable[bool]]
_ports: dict[tuple[int, str, int], _SharedPort] = {}


def is_signed(secret: str | bytes, body: bytes, presented: str, *, digest: str = "sha256") -> bool:
    """Whether this is the hex HMAC of a body, with or without "sha256=" before it; takes the same time either way."""
    key = secret.encode() if isinstance(secret, str) else secret
    wanted = hmac.new(key, body, getattr(hashlib, digest)).hexdigest()
    return hmac.compare_digest(presented.removeprefix(f"{digest}=").lower().encode("utf-8", "replace"), wanted.encode())


def in_window(at: float | str | None, *, seconds: float = WINDOW, clock: Callable[[], float] = time.time) -> bool:
    """Whether a signed time (Unix seconds) is near ours. An older delivery is a replay; a repeated one in the window is
    recognised by its event's id."""
    try:
        return abs(clock() - float(at or "nan")) <= seconds
    except ValueError:
        return False


class Registration:
    """A path of a listener; `close` unregisters it, and the last one ends the server."""

    def __init__(
        self, path: str, link: Link, place: Listening, *, handler: Handler | None = None, app: ASGIApp | None = None,
        methods: tuple[str, ...] = ("POST",), verify: Verify | None = None, signed: Signed | None = None,
        largest: int | None = None, seconds: float = SLOWEST,
    ) -> None:  # fmt: skip
        self.path, self.link, self.place = "/" + path.strip("/"), link, place
        self.handler, self.app, self.methods, self.verify, self.signed = handler, app, methods, verify, signed
        self.largest = largest or (LARGEST if verify is not None else LARGEST_UNKNOWN)
        self.seconds = seconds
        self.server: _SharedPort | None = None
        self._refused, self._logged_at = 0, float("-inf")

    @property
    def port(self) -> int:
        """The port that is listened on; 0 when it is closed."""
        return self.server.port if self.server is not None else 0

    async def close(self) -> None:
        """Stop listening on this path; running deliveries are stored. May be called twice."""
        server, self.server = self.server, None
        if server is not None:
            await server.remove(self)

    @property
    def _below(self) -> tuple[str, str]:
        """The path of the public address, and ours below it."""
        prefix = urlsplit(self.place.public_url or "").path.rstrip("/")
        return prefix, (self.path.removeprefix(prefix) or "/") if prefix else self.path

    def inner(self, path: str) -> str | None:
        """A request's path as we know it; None if it is not ours. A proxy may pass on the public address's path, or cut it."""
        prefix, ours = self._below
        found = "/" + path.strip("/")
        for one in (prefix + ours, ours, self.path):
            if found == one or (self.app is not None and found.startswith(f"{one}/")):
                return self.path + found[len(one) :]
        return None

    async def answer(self, request: Request) -> Response:
        """Let a request through the guard, and answer it."""
        if request.method not in self.methods:
            return Response(status_code=405, headers={"Allow": ", ".join(self.methods)})
        if self.verify is not None and not self.verify(request.headers):
            return self._refuse("its headers are not the platform's")
        try:
            body = await read_body(request, self.largest, SLOWEST) if request.method != "GET" else b""
            call = self._call(request, body)
            if self.signed is not None:
                proof = self.signed(call)
                if not (await proof if isawaitable(proof) else proof):
                    return self._refuse("its signature is not the platform's")
            return await self._handled(call)
        except ApiError as problem:
            return PlainTextResponse(problem.message, problem.status)
        except Exception as error:
            kind = type(error).__name__
            self.link.log.error("a delivery could not be stored (%s); the platform sends it again", kind)
            return Response(status_code=503)

    def _call(self, request: Request, body: bytes) -> PlatformRequest:
        query = f"?{request.url.query}" if request.url.query else ""
        base = (self.place.public_url or f"http://{request.headers.get('host', '')}").rstrip("/")
        return PlatformRequest(
            request.method, self.path, f"{base}{self._below[1]}{query}", request.query_params, request.headers, body
        )

    async def _handled(self, call: PlatformRequest) -> Response:
        """The handler's answer. A slow handler continues in the background; the platform sends the delivery again meanwhile."""
        assert self.handler is not None
        work = asyncio.ensure_future(self.handler(call))
        done, _ = await asyncio.wait({work}, timeout=self.seconds)
        if not done:
            work.add_done_callback(lambda task: task.cancelled() or task.exception())
            self.link.log.warning("a delivery was not stored within %g s; the platform sends it again", self.seconds)
            return Response(status_code=503)
        found = work.result()
        if isinstance(found, int):
            return Response(status_code=found)
        return Response(found.body, found.status, dict(found.headers), found.mime if found.body else None)

    def _refuse(self, why: str) -> Response:
        self._refused += 1
        now = time.monotonic()
        if now - self._logged_at >= _QUIET:
            self._logged_at = now
            self.link.log.warning("a request to %s is refused: %s (%d so far)", self.path, why, self._refused)
        return Response(status_code=403)


async def listen(
    place: Listening, path: str, *, handler: Handler, link: Link, verify: Verify | None = None,
    signed: Signed | None = None, **options: Any,
) -> Registration:  # fmt: skip
    """Serve requests to a path. `verify` (by the headers) and `signed` (by the bytes) decide whether a request is the
    platform's, else it is answered 403. `seconds` is how long the platform waits for an answer.

    PlatformUnreachable while another program has the port, ConfigError where nothing can listen there, the path is taken, or
    neither `verify` nor `signed` is given and others than this machine could call it.
    """
    if verify is None and signed is None and not is_loopback(place.host):
        raise ConfigError(
            f"{path} on {place.host} would accept everyone; it needs a signature, or gateway.listen.host 127.0.0.1"
        )
    return await _registered(Registration(path, link, place, handler=handler, verify=verify, signed=signed, **options))


async def listen_app(place: Listening, path: str, *, app: ASGIApp, link: Link) -> Registration:
    """Serve an application, which guards itself, below a path."""
    return await _registered(Registration(path, link, place, app=app))


async def _registered(registration: Registration) -> Registration:
    place = registration.place
    key = (id(asyncio.get_running_loop()), place.host, place.port)
    while True:
        server = _ports.get(key)
        if server is None:
            server = _ports[key] = _SharedPort(key, place)
        if await server.add(registration):
            return registration


STARTING = 60.0  # seconds in which a path that is not registered yet is answered 503


class _SharedPort:
    def __init__(self, key: tuple[int, str, int], place: Listening) -> None:
        self._key = key
        self._registrations: list[Registration] = []
        self._busy = asyncio.Lock()  # two adapters may come, or one go and one come, at the same moment
        self._over = False
        self._since = time.monotonic()
        app = Starlette(routes=[Route("/health", _health, methods=["GET"]), Mount("/", self._delivered)])
        self._http = HttpServer(app, place.host, place.port, died=self._died)

    @property
    def port(self) -> int:
        return self._http.port

    async def add(self, registration: Registration) -> bool:
        """False when this server has ended meanwhile."""
        async with self._busy:
            if self._over:
                return False
            if any(one.path == registration.path for one in self._registrations):
                raise ConfigError(
                    f"{registration.path} on port {self.port} is taken by another platform or account; give each its own path"
                )
            if not self._registrations:
                try:
                    await self._http.start()
                except BaseException:
                    self._end()
                    raise
            self._registrations.append(registration)
            registration.server = self
            return True

    async def remove(self, registration: Registration) -> None:
        async with self._busy:
            if registration in self._registrations:
                self._registrations.remove(registration)
            if not self._registrations and not self._over:
                await self._http.stop(grace=1.0)
                self._end()

    def _end(self) -> None:
        self._over = True
        if _ports.get(self._key) is self:
            del _ports[self._key]

    def _died(self, error: Exception) -> None:
        self._end()
        for one in self._registrations:
            one.link.lost(error)

    async def _delivered(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        # Right after the start a platform may not be connected yet: vendors repeat what was answered 503.
        starting = time.monotonic() - self._since < STARTING
        found = next((one for one in self._registrations if one.inner(request.url.path) is not None), None)
        only = self._registrations[0] if len(self._registrations) == 1 else None
        if found is not None and found.app is not None:
            await found.app({**scope, "path": found.inner(request.url.path)}, receive, send)
            return
        if found is not None:
            response = await found.answer(request)
        elif only is not None and only.app is None:  # a proxy in front may use another path
            response = await only.answer(request)
            if starting and 400 <= response.status_code < 500:  # it was for another platform
                response = Response(status_code=503)
        else:
            response = Response(status_code=503 if starting else 404)
        await response(scope, receive, send)


async def _health(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})

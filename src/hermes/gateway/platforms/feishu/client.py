"""Feishu's HTTP API, and its long connection, a WebSocket that pushes events.

Every answer of the API is JSON with a `code`; the access token of the app is renewed by one request for all.
https://open.feishu.cn/document/server-docs/api-call-guide/generic-error-code

Each event is acknowledged by its own frame with a status. An event that is not acknowledged within three seconds, or with an
error, is sent again (15 s, 5 min, 1 h and 6 h later).

Its frames are the protobuf message `pbbp2.Frame`, written and read without a library: a list of numbered fields of two wire
types: 1 to 4 are numbers (3: the service, 4: the method), 5 is a header, 8 the payload, others are texts. They are kept as they
came, since an acknowledgement is its event's frame with another payload.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import httpx

from hermes.errors import HermesError, PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.platforms._shared.http import (
    AccessToken,
    HttpApi,
    TokenRefused,
    error_text,
    json_object,
    seconds,
)
from hermes.gateway.platforms._shared.receipt import LOG, Log, dropped, parsed, read_object
from hermes.gateway.platforms._shared.tasks import Recent
from hermes.gateway.platforms._shared.websocket import WebSocketClient

CONTROL, DATA = 0, 1  # Frame.method
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SERVICE, _METHOD, _HEADER, _PAYLOAD = 3, 4, 5, 8


@dataclass(slots=True)
class Frame:
    """One frame: its fields, in order."""

    fields: list[tuple[int, int | bytes]] = field(default_factory=list)

    @property
    def method(self) -> int:
        """CONTROL or DATA."""
        return next((value for number, value in self.fields if number == _METHOD and isinstance(value, int)), CONTROL)

    @property
    def payload(self) -> bytes:
        """The content; b"" without one."""
        return next((value for number, value in self.fields if number == _PAYLOAD and isinstance(value, bytes)), b"")

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers, in order."""
        return [_header(value) for number, value in self.fields if number == _HEADER and isinstance(value, bytes)]

    def header(self, name: str) -> str:
        """The value of a header; "" without one."""
        return next((value for key, value in self.headers if key == name), "")

    def number(self, name: str, default: int) -> int:
        """A header that is a number; `default` if it is none."""
        value = self.header(name)
        return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else default

    def answer(self, header: tuple[str, str], payload: bytes) -> Frame:
        """This frame with one more header and another payload."""
        added = [(_HEADER, _written(header)), (_PAYLOAD, payload)]
        others = [one for one in self.fields if one[0] != _PAYLOAD]
        return Frame(sorted([*others, *added], key=lambda one: one[0]))


def ping(service: int) -> bytes:
    """The frame that keeps a connection open."""
    return encode(
        Frame([(1, 0), (2, 0), (_SERVICE, service), (_METHOD, CONTROL), (_HEADER, _written(("type", "ping")))])
    )


def encode(frame: Frame) -> bytes:
    """A frame as bytes."""
    return b"".join(
        _varint(number << 3) + _varint(value) if isinstance(value, int) else _chunk(number, value)
        for number, value in frame.fields
    )


def decode(data: bytes) -> Frame:
    """The frame in these bytes; ValueError if they are none."""
    return Frame(list(_fields(data)))


def _header(data: bytes) -> tuple[str, str]:
    try:
        parts = {number: text.decode("utf-8", "replace") for number, text in _fields(data) if isinstance(text, bytes)}
    except ValueError:
        parts = {}
    return parts.get(1, ""), parts.get(2, "")


def _written(header: tuple[str, str]) -> bytes:
    return _chunk(1, header[0].encode()) + _chunk(2, header[1].encode())


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field without a number")
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"an unknown wire type {kind}")
        if place + size > len(data):
            raise ValueError("a field is cut off")
        if kind == _BYTES:
            yield number, data[place : place + size]
        place += size


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("a number is cut off")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), place
    raise ValueError("a number is too long")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _chunk(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


TOKEN_CODES = frozenset(
    {99991661, 99991663, 99991664, 99991668, 99991671}
)  # missing, invalid or expired: get a new one
_LOGIN_CODES = frozenset({10003, 10012, 10014, 10015, 99991543})  # the app's id or its secret
_SLOW_CODES = frozenset({99991400, 230020, 11232, 11233, 11247})
_UNCLEAR_CODES = frozenset({230049})  # the message is being sent
BAD_CARD = 230099
RECALLED = frozenset({230011, 230050, 230110})  # the message that is replied to, or edited, is gone


class FeishuRefused(SendRefused):
    """A refusal with Feishu's code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class FeishuApi(HttpApi):
    """The API of one app. `clock` counts seconds."""

    def __init__(
        self, base_url: str, app_id: str, app_secret: str, *, title: str = "Feishu", clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        super().__init__(title, base_url, timeout=40)
        self._app_id, self._app_secret = app_id, app_secret
        refusal = f"{title} does not accept the token it gave us"
        self._token = AccessToken(self._fetch, refusal=refusal, clock=clock)

    async def data(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The whole JSON of an answer to an authorized request."""
        return self._json(await self._authorized(method, path, **options))

    async def content(self, path: str, **options: Any) -> bytes:
        """A file. It may itself be JSON: its errors have a status."""
        return (await self._authorized("GET", path, raw=True, **options)).content

    async def _authorized(self, method: str, path: str, *, raw: bool = False, **options: Any) -> httpx.Response:
        """A request with the token; an expired token is renewed, and the request repeated once."""

        async def attempt(token: str) -> httpx.Response:
            answer = await self.request(method, path, headers={"Authorization": f"Bearer {token}"}, **options)
            if not raw:
                self._checked(answer)
            return answer

        return await self._token.call(attempt)

    async def address(self) -> dict[str, Any]:
        """The address of the long connection, and its settings: the fields `URL` and `ClientConfig`."""
        body = {"AppID": self._app_id, "AppSecret": self._app_secret}
        answer = await self.request("POST", "/callback/ws/endpoint", json=body, headers={"locale": "en"})
        found = self._json(answer)
        code, why = found.get("code"), error_text(found.get("msg") or "", self._app_secret)
        if code in (1, 1000040343):
            raise PlatformUnreachable(f"{self.title} is busy: {why}")
        if code == 1000040350:
            raise PlatformUnreachable(f"{self.title}: too many long connections of this app are open")
        data = found.get("data")
        if code != 0 or not isinstance(data, dict) or not data.get("URL"):
            raise PlatformRefused(
                f"{self.title} opens no long connection: {why or code}; check app_id, app_secret and the subscription mode"
            )
        return data

    async def _fetch(self) -> tuple[str, float]:
        body = {"app_id": self._app_id, "app_secret": self._app_secret}
        answer = await self.request("POST", "/open-apis/auth/v3/tenant_access_token/internal", json=body)
        found = self._json(answer)
        token = found.get("tenant_access_token")
        if found.get("code") != 0 or not isinstance(token, str) or not token:
            error = self._error(found, answer)
            refused = PlatformRefused(f"{self.title} gives us no token: {error}")
            raise refused if isinstance(error, TokenRefused | SendRefused) else error
        return token, seconds(found.get("expire"), 7200.0)

    def check(self, answer: httpx.Response) -> None:
        """Check an answer as usual; how long to wait is in Feishu's own header."""
        if answer.status_code == 429:
            raise self._slow(answer)
        super().check(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error by Feishu's code."""
        return self._error(json_object(answer) or {}, answer)

    def _checked(self, answer: httpx.Response) -> None:
        """Raise the error of an answer with HTTP 200 and a code."""
        found = self._json(answer)
        if found.get("code", 0) != 0:
            raise self._error(found, answer)

    def _error(self, found: dict[str, Any], answer: httpx.Response) -> PlatformError:
        code, why = found.get("code"), error_text(found.get("msg") or "", self._app_secret, self._token.value)
        if code in TOKEN_CODES:
            return TokenRefused(why)
        if code in _SLOW_CODES:
            return self._slow(answer)
        if code in _LOGIN_CODES or (code is None and answer.status_code == 401):
            return PlatformRefused(f"{self.title} does not accept app_id and app_secret: {why or answer.status_code}")
        if code in _UNCLEAR_CODES:
            return PlatformUnreachable(f"{self.title} is still sending the message", maybe_sent=True)
        known = code if isinstance(code, int) and not isinstance(code, bool) else answer.status_code
        return FeishuRefused(f"{self.title} refuses: {why or 'no reason given'} ({known})", known)

    def _slow(self, answer: httpx.Response) -> SlowDown:
        wait = answer.headers.get("x-ogw-ratelimit-reset") or answer.headers.get("Retry-After")
        return SlowDown(f"{self.title} asks us to wait", seconds(wait, 1.0))

    def _json(self, answer: httpx.Response) -> dict[str, Any]:
        found = json_object(answer)
        if found is None:
            raise PlatformUnreachable(f"{self.title} answers no JSON; check domain and base_url", maybe_sent=True)
        return found


_HEARTBEAT = 25.0
_MOST_PARTS = 1_000
_LARGEST = 20_000_000  # bytes of one frame

OnEvent = Callable[[dict[str, Any]], Awaitable[None]]


class LongConnection(WebSocketClient):
    """One connection. `open` connects (again), `run` hands over events until it breaks."""

    def __init__(self, api: FeishuApi, *, secure: bool, log: Log = LOG) -> None:
        super().__init__("Feishu", log)
        self._api, self._secure = api, secure
        self._service = 0
        self._ping_every = 120.0
        self._parts: Recent[str, list[bytes | None]] = Recent(50)

    async def open(self) -> None:
        """Ask where the connection is opened, and open it."""
        await self.close()
        found = await self._api.address()
        address = str(found["URL"])
        parts = urlsplit(address)
        if parts.scheme not in (("wss",) if self._secure else ("ws", "wss")):
            raise PlatformRefused("Feishu names an address for the long connection that is not encrypted")
        service = parse_qs(parts.query).get("service_id", ["0"])[0]
        self._service = int(service) if service.isascii() and service.isdigit() else 0
        self._configure(found.get("ClientConfig"))
        async with self.opening():
            await self.connect(address, heartbeat=_HEARTBEAT, most=_LARGEST)

    async def run(self, on_event: OnEvent, alive: Callable[[], None]) -> None:
        """Hand over events in order until the connection breaks (PlatformUnreachable); `alive` is called with every frame."""
        pinging = asyncio.get_running_loop().create_task(self._keep_open())
        try:
            async for frame in self._frames():
                alive()
                if frame.method == CONTROL and frame.header("type") == "pong":
                    self._configure(parsed(frame.payload))
                elif frame.method == DATA:
                    await self._data(frame, on_event)
        finally:
            pinging.cancel()

    async def _data(self, frame: Frame, on_event: OnEvent) -> None:
        """Hand over an event, and acknowledge it with a status. A part of one is held until the others have arrived."""
        whole = self._joined(frame)
        if whole is None or frame.header("type") not in ("event", "card"):
            return
        begun, status = time.monotonic(), 200
        content = read_object(whole, "Feishu", self.log)
        try:
            if content is not None:
                await on_event(content)
        except Exception:
            status = 500  # it comes again
        took = str(int((time.monotonic() - begun) * 1000))
        await self._write(encode(frame.answer(("biz_rt", took), json.dumps({"code": status}).encode())))

    def _joined(self, frame: Frame) -> bytes | None:
        total, number, name = frame.number("sum", 1), frame.number("seq", 0), frame.header("message_id")
        if total <= 1:
            return frame.payload
        if total > _MOST_PARTS or number >= total or not name:
            return None
        parts = self._parts.get(name)
        if parts is None or len(parts) != total:
            parts = self._parts.put(name, [None] * total)
        parts[number] = frame.payload
        if any(one is None for one in parts):
            return None
        self._parts.pop(name, None)
        return b"".join(one for one in parts if one is not None)

    async def _frames(self) -> AsyncIterator[Frame]:
        socket = self._socket
        while socket is not None:
            message = await socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                try:
                    frame = decode(message.data)
                except ValueError:
                    dropped(message.data, "Feishu", "it is not a frame of the long connection", self.log)
                    continue
                yield frame
            elif message.type is not aiohttp.WSMsgType.TEXT:
                break
        raise PlatformUnreachable("Feishu has closed the long connection")

    async def _keep_open(self) -> None:
        while True:
            await self._write(ping(self._service))
            await asyncio.sleep(self._ping_every)

    async def _write(self, data: bytes) -> None:
        if self._socket is not None and not self._socket.closed:
            with suppress(ConnectionError):  # the reader sees the end of the connection, too
                await self._socket.send_bytes(data)

    def _configure(self, found: Any) -> None:
        every = found.get("PingInterval") if isinstance(found, dict) else None
        if isinstance(every, int | float) and not isinstance(every, bool) and every > 0:
            self._ping_every = max(1.0, float(every))

    def explained(self, error: Exception) -> HermesError:
        """The error without its text, which has the address and its ticket."""
        if isinstance(error, aiohttp.WSServerHandshakeError):
            status = error.headers.get("handshake-status", "") if error.headers is not None else ""
            if status == "403":
                return PlatformRefused("Feishu refuses the long connection (403); check app_id and the app's state")
            return PlatformUnreachable(
                f"Feishu's long connection can't be opened (HTTP {error.status} {status})".rstrip()
            )
        return PlatformUnreachable(f"Feishu's long connection can't be opened ({type(error).__name__})")

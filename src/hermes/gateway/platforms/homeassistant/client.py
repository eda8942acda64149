"""Home Assistant's WebSocket API: one connection, numbered requests, and pushed events.

https://developers.home-assistant.io/docs/api/websocket
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp

from hermes.errors import HermesError, PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.platforms._shared.http import error_text
from hermes.gateway.platforms._shared.payloads import read_object
from hermes.gateway.platforms._shared.websocket import WebSocketClient

_PATIENCE = 20.0  # seconds for an answer
_HEARTBEAT = 25.0  # seconds between heartbeats
# the error codes for which a retry is useless
_FINAL = {"not_found", "invalid_format", "not_allowed", "not_supported", "service_validation_error", "unknown_command"}


class WebSocketApi(WebSocketClient):
    """An authenticated connection. `happened` gets every event, `ended` the end."""

    def __init__(self, url: str, token: str, context: ssl.SSLContext | None) -> None:
        super().__init__("Home Assistant")
        self.where = f"Home Assistant at {url}"
        self._url, self._token, self._context = url, token, context
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.version = ""

    async def open(self, happened: Callable[[dict[str, Any]], None], ended: Callable[[Exception], None]) -> None:
        """Connect and log in."""
        async with self.opening(_PATIENCE):
            await self._log_in()
        self._reader = asyncio.create_task(self._read(happened, ended))

    async def close(self) -> None:
        """Disconnect."""
        reader, self._reader = self._reader, None
        if reader is not None and reader is not asyncio.current_task():
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader
        self._give_up(PlatformUnreachable("the connection to Home Assistant was closed"))
        await super().close()

    async def ask(self, kind: str, **fields: Any) -> Any:
        """The result of a command."""
        socket = self._socket
        if socket is None or socket.closed or self._reader is None:
            raise PlatformUnreachable("there is no connection to Home Assistant")
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(_PATIENCE):
                await socket.send_json({"id": number, "type": kind, **fields})
                return await answer
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self.explained(error) from None
        finally:
            self._waiting.pop(number, None)

    # ------------------------------------------------------------------------------------------ internals

    async def _log_in(self) -> None:
        trust = self._context if self._context is not None else True
        socket = await self.connect(self._url, heartbeat=_HEARTBEAT, ssl=trust)
        first = await socket.receive_json()
        if first.get("type") == "auth_required":
            await socket.send_json({"type": "auth", "access_token": self._token})
            first = await socket.receive_json()
        if first.get("type") == "auth_invalid":
            raise PlatformRefused("Home Assistant does not accept the token: make a new long-lived access token")
        if first.get("type") != "auth_ok":
            raise PlatformRefused("the server at this url is not Home Assistant's WebSocket API; check url")
        self.version = str(first.get("ha_version", ""))

    async def _read(self, happened: Callable[[dict[str, Any]], None], ended: Callable[[Exception], None]) -> None:
        socket = self._socket
        assert socket is not None
        why: Exception = PlatformUnreachable("Home Assistant has closed the connection")
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                payload = read_object(message.data, self.title, self.log, parse=_several)
                for one in payload["items"] if payload is not None else ():
                    self._heard(one, happened)
        except (aiohttp.ClientError, OSError) as error:
            why = self.explained(error)
        self._give_up(why)
        ended(why)

    def _heard(self, payload: dict[str, Any], happened: Callable[[dict[str, Any]], None]) -> None:
        number, kind = payload.get("id"), payload.get("type")
        if kind == "event" and isinstance(payload.get("event"), dict):
            happened(payload["event"])
        elif kind == "result" and (answer := self._waiting.get(number or 0)) is not None and not answer.done():
            if payload.get("success"):
                answer.set_result(payload.get("result"))
            else:
                answer.set_exception(self._refusal(payload.get("error") or {}))

    def _refusal(self, error: dict[str, Any]) -> HermesError:
        code, text = str(error.get("code", "")), self._masked(str(error.get("message", "")))
        if code == "unauthorized":
            return PlatformRefused("Home Assistant: the token's user is not an administrator, and must be one")
        if code in _FINAL:
            return SendRefused(f"Home Assistant refuses it: {text or code}")
        return PlatformUnreachable(f"Home Assistant could not do it: {text or code}")

    def _give_up(self, why: Exception) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(why)
        self._waiting.clear()

    def explained(self, error: Exception) -> HermesError:
        """The error, with what Home Assistant means by a 403."""
        if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == 403:
            return PlatformRefused(
                f"Home Assistant at {self._url} has banned this machine (403); check its ip_bans.yaml"
            )
        if isinstance(error, aiohttp.InvalidURL | ValueError | TypeError) and not isinstance(error, OSError):
            return PlatformRefused(f"{self._url} does not answer as Home Assistant does; check url")
        return super().explained(error)

    def _masked(self, text: str) -> str:
        return error_text(text, self._token)


def _several(text: str) -> dict[str, Any]:
    """The objects of a frame: Home Assistant may send several in one. ValueError where it has anything else."""
    payload = json.loads(text)
    items = payload if isinstance(payload, list) else [payload]
    if not all(isinstance(one, dict) for one in items):
        raise ValueError("no object")
    return {"items": items}

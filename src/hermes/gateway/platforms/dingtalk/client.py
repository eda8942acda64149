"""DingTalk's HTTP API, whose access token is renewed in time, and its Stream mode.

A stream is a WebSocket that pushes frames, each of which is acknowledged by its id. It is opened with a ticket that is good for
one time. DingTalk asks us to leave it when it moves ("disconnect").
https://open.dingtalk.com/document/direction/stream-mode-protocol-access-description

https://open.dingtalk.com/document/orgapp/overview-of-development
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import httpx

from hermes.errors import HermesError, PlatformError, PlatformRefused, PlatformUnreachable, SendRefused, SlowDown
from hermes.gateway.platforms._shared.http import (
    AccessToken,
    HttpApi,
    TokenRefused,
    address_parts,
    connection_trouble,
    error_text,
    is_at,
    json_object,
    retry_after,
)
from hermes.gateway.platforms._shared.receipt import LOG, Log, dict_of, text_of
from hermes.gateway.platforms._shared.websocket import WebSocketClient

_TOKEN = "x-acs-dingtalk-access-token"
_STALE = frozenset({"InvalidAuthentication", "invalidAuthentication", "AccessTokenInvalid", "40014", "42001", "40001"})
_LIMITS = ("QpsLimit", "Throttling", "FlowControl", "flowControl", "TooManyRequests", "too.fast")
_QPS_PAUSE = 1.0  # the limits of the API count by the second
_MINUTE_PAUSE = 20.0  # a chat takes twenty messages of a robot in a minute
TOO_FAST = 130101
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_HEARTBEAT = 30.0
SYSTEM, CALLBACK = "SYSTEM", "CALLBACK"
PING, DISCONNECT = "ping", "disconnect"
_STORES = (".dingtalk.com", ".aliyuncs.com", ".alicdn.com")  # where files are


class DingTalkApi(HttpApi):
    """The API at api.dingtalk.com, the older one at oapi.dingtalk.com, and session webhooks."""

    def __init__(self, base_url: str, old_url: str, client_id: str, client_secret: str) -> None:
        # Without this header DingTalk gives the address of a stream as XML: its own SDKs send it, too.
        super().__init__("DingTalk", base_url, timeout=40, headers={"Accept": "application/json"})
        self._base, self._old = base_url.rstrip("/"), old_url.rstrip("/")
        self._login = (client_id, client_secret)
        self._token = AccessToken(self._fetch, refusal="DingTalk does not accept a new access token: {}")

    async def login(self) -> None:
        """Get a token; PlatformRefused where the client's id or secret is wrong."""
        await self._token.get()

    async def _fetch(self) -> tuple[str, float]:
        body = {"appKey": self._login[0], "appSecret": self._login[1]}
        try:
            found = await self.object("POST", "/v1.0/oauth2/accessToken", json=body)
            return str(found["accessToken"]), float(found.get("expireIn") or 7200)
        except (SendRefused, TokenRefused) as error:
            raise PlatformRefused(f"DingTalk does not accept client_id and client_secret: {error}") from None
        except (KeyError, TypeError, ValueError):
            raise PlatformUnreachable("DingTalk gave no access token") from None

    async def open_stream(self, topic: str) -> tuple[str, str]:
        """The address of a new stream, and its ticket."""
        subscriptions = [{"type": "CALLBACK", "topic": topic}]
        body = {
            "clientId": self._login[0],
            "clientSecret": self._login[1],
            "subscriptions": subscriptions,
            "ua": "hermes",
        }
        try:
            found = await self.object("POST", "/v1.0/gateway/connections/open", json=body)
            endpoint, ticket = str(found["endpoint"]), str(found["ticket"])
        except (SendRefused, TokenRefused) as error:
            raise PlatformRefused(f"DingTalk opens no stream: {error}") from None
        except KeyError:
            raise PlatformUnreachable("DingTalk gave no address for its stream") from None
        parts, own = address_parts(endpoint), address_parts(self._base)
        if parts.scheme != "wss" and not (parts.scheme == "ws" and own.scheme == "http"):
            raise PlatformRefused("DingTalk's stream is not encrypted; nothing is sent there")
        return endpoint, ticket

    async def call(self, path: str, body: dict[str, Any], method: str = "POST") -> dict[str, Any]:
        """Call the API with the token; once more with a new one if it is refused."""

        async def asked(token: str) -> dict[str, Any]:
            return await self.object(method, path, json=body, headers={_TOKEN: token})

        return await self._token.used(asked)

    async def upload(self, kind: str, name: str, data: bytes, mime: str) -> str:
        """Upload a file; its media id."""

        async def uploaded(token: str) -> dict[str, Any]:
            options: dict[str, Any] = {"params": {"access_token": token}, "data": {"type": kind}}
            files = {"media": (name, data, mime)}
            found = await self.object("POST", f"{self._old}/media/upload", files=files, **options)
            self._passed(found)
            return found

        try:
            return str((await self._token.used(uploaded))["media_id"])
        except KeyError:
            raise PlatformUnreachable("DingTalk did not take the file") from None

    def is_webhook(self, address: str) -> bool:
        """Whether an address is one of DingTalk's, to which a message may go."""
        return is_at(address, (".dingtalk.com",), self._old)

    async def reply(self, webhook: str, body: dict[str, Any]) -> None:
        """Send by a session webhook. SendRefused where it takes no messages any more: nothing was sent then."""
        found = await self.object("POST", webhook, json=body)
        self._passed(found)

    async def file(self, code: str, robot_code: str) -> bytes:
        """The bytes of a file that a person has sent."""
        found = await self.call("/v1.0/robot/messageFiles/download", {"downloadCode": code, "robotCode": robot_code})
        address = found.get("downloadUrl")
        if not isinstance(address, str) or not address:
            raise SendRefused("DingTalk no longer has the file")
        return (await self.download(address, what="the file", trusted=self._is_store)).content

    def _is_store(self, address: str) -> bool:
        return is_at(address, _STORES, self._base, schemes=("https", "http"))

    def check(self, answer: httpx.Response) -> None:
        """As usual; a limit by the second has no header that says how long to wait."""
        if answer.status_code == 429:
            raise SlowDown("DingTalk asks us to wait", retry_after(answer.headers, _QPS_PAUSE))
        super().check(answer)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error by DingTalk's own code."""
        found = json_object(answer) or {}
        code, told = str(found.get("code") or ""), str(found.get("message") or f"HTTP {answer.status_code}")
        if answer.status_code == 401 or code in _STALE:
            return TokenRefused(error_text(told, *self._login))
        if any(one in code for one in _LIMITS):
            return SlowDown("DingTalk asks us to wait", retry_after(answer.headers, _QPS_PAUSE))
        return SendRefused(f"DingTalk refuses: {error_text(told, *self._login)}")

    def _passed(self, found: dict[str, Any]) -> None:
        """Raise the error of an answer with an errcode, as the older API and webhooks give it."""
        code = found.get("errcode", 0)
        if code in (0, "0"):
            return
        number = int(code) if isinstance(code, int) or _NUMBER.fullmatch(str(code)) else -2
        told = error_text(found.get("errmsg") or f"errcode {number}", *self._login)
        if str(number) in _STALE:
            raise TokenRefused(told)
        if number == TOO_FAST:
            raise SlowDown("DingTalk takes twenty messages in a minute", _MINUTE_PAUSE)
        if 90001 <= number <= 90020 or number == 88:
            raise SlowDown("DingTalk asks us to wait", _QPS_PAUSE)
        if number == -1:
            raise PlatformUnreachable("DingTalk is busy")
        raise SendRefused(f"DingTalk refuses: {told}")


class Stream(WebSocketClient):
    """One connection. It is used until it breaks, or until DingTalk asks for another one."""

    def __init__(self, log: Log = LOG) -> None:
        super().__init__("DingTalk", log)

    async def open(self, endpoint: str, ticket: str) -> None:
        """Connect."""
        async with self.opening():
            await self.connect(endpoint, params={"ticket": ticket}, heartbeat=_HEARTBEAT)

    def explained(self, error: Exception) -> HermesError:
        """A ticket that is refused is asked for again."""
        return PlatformUnreachable(f"DingTalk's stream can't be reached: {connection_trouble(error)}")

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Yield pushed events in order. PlatformUnreachable when the connection breaks."""
        while True:
            yield await self.receive()

    async def acknowledge(self, frame: dict[str, Any], data: str = '{"response": null}') -> None:
        """Tell DingTalk that a frame has arrived. If the connection is gone the frame comes again."""
        headers = {"messageId": header(frame, "messageId"), "contentType": "application/json"}
        answer = {"code": 200, "headers": headers, "message": "OK", "data": data}
        if self._socket is not None and not self._socket.closed:
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.send_json(answer)


def header(frame: dict[str, Any], name: str) -> str:
    """A header of a frame; "" without one."""
    return text_of(dict_of(frame.get("headers")).get(name))

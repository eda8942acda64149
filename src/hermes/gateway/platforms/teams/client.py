"""The Bot Framework's connector: requests with the bot's token, which is fetched once for many, and renewed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.platforms.http import HttpApi, error_text, seconds

SCOPE = "https://api.botframework.com/.default"
_EARLIER = 300.0  # seconds before its end at which a token is renewed
_HOSTS = frozenset({"smba.trafficmanager.net"})  # others below trafficmanager.net may belong to anyone
_DOMAINS = (".botframework.com", ".botframework.us", ".teams.microsoft.com", ".teams.microsoft.us")
_FILE_DOMAINS = (".sharepoint.com", ".sharepoint.us", ".sharepoint-mil.us", ".sharepoint.cn")


class Connector(HttpApi):
    """The connector as one bot uses it. `own` is the service's address in config.yaml, which is trusted besides Microsoft's."""

    def __init__(
        self, title: str, *, app_id: str, password: str, token_url: str, own: str = "", **options: Any
    ) -> None:
        super().__init__(title, "", **options)
        self._app_id, self._password, self._token_url, self._own = app_id, password, token_url, own
        self._clock: Callable[[], float] = time.monotonic
        self._token, self._until = "", float("-inf")
        self._renewing = asyncio.Lock()

    # ------------------------------------------------------------------------------------------ the token

    async def token(self, *, not_this: str | None = None) -> str:
        """A valid token; another one than `not_this`, which was refused. Many may wait for one renewal."""
        async with self._renewing:
            if self._clock() >= self._until or self._token == not_this:
                await self._renew()
            return self._token

    async def _renew(self) -> None:
        form = {
            "grant_type": "client_credentials", "client_id": self._app_id, "client_secret": self._password, "scope": SCOPE,
        }  # fmt: skip
        try:
            answer = await self._http.post(self._token_url, data=form)
        except httpx.HTTPError as error:
            raise PlatformUnreachable(f"Microsoft's login can't be reached ({type(error).__name__})") from None
        found = _json(answer)
        if answer.status_code in (400, 401, 403):
            told = error_text(found.get("error_description") or found.get("error") or "", self._password)
            raise PlatformRefused(f"Microsoft does not accept app_id, app_password and tenant_id: {told}")
        self.check(answer)
        token = found.get("access_token")
        if not isinstance(token, str) or not token:
            raise PlatformUnreachable("Microsoft's login has given no token")
        self._token = token
        lasts = seconds(found.get("expires_in"), 3600.0)
        self._until = self._clock() + max(lasts - _EARLIER, lasts / 2)

    # ------------------------------------------------------------------------------------------ requests

    async def call(self, method: str, address: str, **options: Any) -> dict[str, Any]:
        """The answer to a request to the service of a conversation."""
        return _json(await self._authorized(method, address, **options))

    async def file(self, address: str) -> bytes:
        """A picture or file in the service, with our token; or one at SharePoint, whose address is enough."""
        if self.is_service(address):
            return (await self._authorized("GET", address)).content
        try:
            return (await self.download(address, what="the file", trusted=is_storage)).content
        except httpx.InvalidURL:
            raise SendRefused("the address of the file can't be used") from None

    async def put(self, address: str, data: bytes) -> None:
        """Upload a file to the address that Teams has given for it, which is enough: it gets no token of ours."""
        if not (is_storage(address) or self.is_service(address)):
            raise SendRefused("the address for the file is not SharePoint's")
        span = f"bytes 0-{len(data) - 1}/{len(data)}"
        headers = {"Content-Range": span, "Content-Type": "application/octet-stream"}
        try:
            answer = await self._http.put(address, content=data, headers=headers, timeout=300)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from None
        self.check(answer)

    async def _authorized(self, method: str, address: str, **options: Any) -> httpx.Response:
        if not self.is_service(address):
            raise SendRefused(
                "the address of the conversation's service is not Microsoft's; service_url allows another one"
            )
        token = await self.token()
        answer = await self._asked(method, address, token, **options)
        if answer.status_code == 401:  # expired or revoked earlier than it said
            answer = await self._asked(method, address, await self.token(not_this=token), **options)
        self.check(answer)
        return answer

    async def _asked(self, method: str, address: str, token: str, **options: Any) -> httpx.Response:
        try:
            return await self._http.request(method, address, headers={"Authorization": f"Bearer {token}"}, **options)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from None

    def is_service(self, address: str) -> bool:
        """Whether an address is the connector's: only there our token is sent."""
        own, found = _origin(self._own), _origin(address)
        if found is None:
            return False
        scheme, host, port = found
        return found == own or (
            scheme == "https" and port in (None, 443) and (host in _HOSTS or f".{host}".endswith(_DOMAINS))
        )

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error by the connector's own code."""
        found = _json(answer).get("error")
        found = found if isinstance(found, dict) else {}
        told = error_text(found.get("message") or found.get("code") or f"HTTP {answer.status_code}")
        if answer.status_code == 401:
            return PlatformRefused("Teams does not accept the bot's token; check app_id and tenant_id")
        if answer.status_code == 412:  # a conflict in Teams: to be tried again
            return PlatformUnreachable(f"Teams asks for another try: {told}")
        return SendRefused(f"Teams refuses: {told}")


def is_storage(address: str) -> bool:
    """Whether a file's address is SharePoint's or OneDrive's."""
    found = _origin(address)
    return found is not None and found[0] == "https" and f".{found[1]}".endswith(_FILE_DOMAINS)


def _origin(address: str) -> tuple[str, str, int | None] | None:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or "\\" in address:
        return None
    return parts.scheme, host.lower(), port


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

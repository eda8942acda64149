"""The Bot Framework's connector: requests to the service of a conversation with a shared token, and proof of its own requests.

An incoming request is the Bot Framework's if it has a JWT, signed by a key that it publishes, for this app and this service.

https://learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-authentication
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import jwt

from hermes.errors import PlatformError, PlatformRefused, PlatformUnreachable, SendRefused
from hermes.gateway.events import DM, Chat, OutgoingFile
from hermes.gateway.platforms._shared.http import AccessToken, HttpApi, TokenRefused, error_text, json_object, seconds
from hermes.gateway.platforms._shared.receipt import dict_of, text_of

ISSUER = "https://api.botframework.com"
CHANNEL_ID = "msteams"
SKEW = 300.0  # seconds by which clocks may differ
_FRESH = 24 * 3600.0  # seconds for which the published keys are used
_QUIET = 60.0  # seconds between two requests for keys because of one that is not known

Fetch = Callable[[], Awaitable[list[dict[str, Any]]]]


class PublishedKeys:
    """The published keys by their ids; fetched again once a day, and when an unknown one is used."""

    def __init__(self, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch, self._clock = fetch, clock
        self._keys: dict[str, dict[str, Any]] = {}
        self._at = float("-inf")
        self._busy = asyncio.Lock()

    async def load(self) -> None:
        """Ask for the keys."""
        found = await self._fetch()
        self._keys = {str(one["kid"]): one for one in found if one.get("kid") and one.get("kty") == "RSA"}
        self._at = self._clock()

    async def get(self, name: str) -> dict[str, Any] | None:
        """The key of this id, if there is one. Outsiders can't make us ask more than once a minute."""
        async with self._busy:
            age = self._clock() - self._at
            if age > _FRESH or (name not in self._keys and age > _QUIET):
                await self.load()
        return self._keys.get(name)


async def claims(authorization: str, app_id: str, keys: PublishedKeys, issuer: str = ISSUER) -> dict[str, Any] | None:
    """The claims of a genuine token of this issuer; None for all others."""
    kind, _, token = authorization.partition(" ")
    try:
        key = await keys.get(str(jwt.get_unverified_header(token.strip()).get("kid")))
        if kind.lower() != "bearer" or key is None or CHANNEL_ID not in (key.get("endorsements") or ()):
            return None
        return jwt.decode(
            token.strip(), jwt.PyJWK(key, "RS256"), algorithms=["RS256"], audience=app_id, issuer=issuer, leeway=SKEW,
            options={"require": ["exp"], "strict_aud": True},
        )  # fmt: skip
    except (jwt.PyJWTError, ValueError):
        return None


SERVICE_HOSTS = ("smba.trafficmanager.net", ".botframework.com", ".teams.microsoft.com", ".teams.microsoft.us")
LARGEST = 20_000_000
_LARGEST_PICTURE = 1_000_000
_PICTURES = ("image/png", "image/jpeg", "image/gif")
_MOST = 100_000_000  # bytes of all offers
_CARD = "application/vnd.microsoft.teams.card.file"
FILE_HOSTS = (".sharepoint.com", ".sharepoint.us", ".sharepoint.cn")


def is_allowed(address: str, hosts: tuple[str, ...], own: tuple[str, ...]) -> bool:
    """Whether our token, or a request of ours, may go to this address: https and a known host, or one that the owner names."""
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").lower()
    except ValueError:
        return False
    if host in own:
        return parts.scheme in ("http", "https")
    return parts.scheme == "https" and any(host == one or (one.startswith(".") and host.endswith(one)) for one in hosts)


class Connector(HttpApi):
    """One app's requests. `clock` counts seconds."""

    def __init__(
        self,
        app_id: str,
        secret: str,
        token_url: str,
        own_hosts: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
        issuer: str = ISSUER,
    ) -> None:
        super().__init__("Teams", "", timeout=40)
        self._app_id, self._secret, self._token_url, self._own = app_id, secret, token_url, own_hosts
        self._scope = f"{issuer.rstrip('/')}/.default"
        refusal = "Teams does not accept the token that Microsoft gave us"
        self._token = AccessToken(self._fetch, refusal=refusal, clock=clock)

    async def activity(
        self, method: str, service: str, conversation: str, body: dict[str, Any], message_id: str | None = None
    ) -> dict[str, Any]:
        """Send an activity to a conversation, or update the one with this id."""
        if not is_allowed(service, SERVICE_HOSTS, self._own):
            raise SendRefused("the conversation's service is not one of Microsoft's; nothing is sent there")
        path = f"{service.rstrip('/')}/v3/conversations/{quote(conversation, safe='')}/activities"
        if message_id is not None:
            path += f"/{quote(message_id, safe='')}"
        answer = await self._authorized(method, path, json=body)
        return json_object(answer) or {}

    async def file(self, address: str, *, open_to_all: bool) -> bytes:
        """The bytes of an attachment. Our token goes to the service's own hosts alone."""
        hosts = FILE_HOSTS if open_to_all else SERVICE_HOSTS
        headers = None if open_to_all else {"Authorization": f"Bearer {await self._token.get()}"}
        answer = await self.download(
            address, what="the file", trusted=lambda url: is_allowed(url, hosts, self._own), headers=headers
        )
        return answer.content

    async def upload(self, address: str, data: bytes) -> None:
        """Put a file where its person allows it; the address itself lets us in."""
        if not is_allowed(address, FILE_HOSTS, self._own):
            raise SendRefused("the place for the file is not one of Microsoft's; nothing is uploaded")
        headers = {"Content-Type": "application/octet-stream", "Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"}
        await self.request("PUT", address, content=data, headers=headers)

    async def keys(self, metadata_url: str) -> list[dict[str, Any]]:
        """The keys that the Bot Framework publishes."""
        try:
            where = (await self.request("GET", metadata_url)).json()["jwks_uri"]
            found = (await self.request("GET", str(where))).json()["keys"]
        except (ValueError, KeyError, TypeError):
            raise PlatformUnreachable("the Bot Framework's keys can't be read; check metadata_url") from None
        except SendRefused as error:
            raise PlatformUnreachable(f"the Bot Framework's keys can't be read: {error}") from None
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    async def login(self) -> None:
        """Get a token; PlatformRefused where the app's id or secret is wrong."""
        await self._token.get()

    async def _fetch(self) -> tuple[str, float]:
        form = {
            "grant_type": "client_credentials", "client_id": self._app_id, "client_secret": self._secret,
            "scope": self._scope,
        }  # fmt: skip
        try:
            found = (await self.request("POST", self._token_url, data=form)).json()
            return str(found["access_token"]), seconds(found.get("expires_in"), 3600.0)
        except (SendRefused, TokenRefused) as error:
            raise PlatformRefused(
                f"Microsoft gives us no token: {error}; check app_id, app_secret, tenant_id"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise PlatformUnreachable("Microsoft's login answers no token; check login_url") from None

    async def _authorized(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def attempt(token: str) -> httpx.Response:
            return await self.request(method, path, headers={"Authorization": f"Bearer {token}"}, **options)

        return await self._token.call(attempt)

    def failure(self, answer: httpx.Response) -> PlatformError:
        """The error with the service's own words."""
        found = json_object(answer) or {}
        error = found.get("error")
        detail = error.get("message") if isinstance(error, dict) else found.get("error_description") if error else None
        why = error_text(detail or f"HTTP {answer.status_code}", self._secret, self._token.value)
        if answer.status_code == 401:
            return TokenRefused(why)
        if answer.status_code == 412:  # "precondition failed": Microsoft asks to try again
            return PlatformUnreachable(f"Teams could not do it now: {why}")
        return SendRefused(f"Teams refuses: {why}")


# ------------------------------------------------------------------------------------------ files to people
#
# Pictures go inside a message. Other files are offered, and uploaded when the person accepts them
# (https://learn.microsoft.com/microsoftteams/platform/bots/how-to/bots-filesv4). Offers are kept in memory: after a restart an
# accepted one is answered with a request to ask again.


class Offers:
    """Files that were offered to people and neither accepted nor declined."""

    def __init__(self) -> None:
        self._offers: OrderedDict[str, tuple[str, OutgoingFile]] = OrderedDict()

    def attachment(self, chat: Chat, file: OutgoingFile, nonce: str) -> dict[str, Any]:
        """The attachment of the message that shows or offers a file."""
        if not file.data:
            raise SendRefused(f"Teams takes no empty files: {file.name}")
        if file.mime in _PICTURES and len(file.data) <= _LARGEST_PICTURE:
            data = base64.b64encode(file.data).decode()
            return {"contentType": file.mime, "contentUrl": f"data:{file.mime};base64,{data}", "name": file.name}
        if chat.type != DM:
            raise SendRefused(f"Teams takes files from bots in personal chats only, so not {file.name}")
        key = hashlib.sha256(nonce.encode()).hexdigest()[:32]
        self._offers[key] = (chat.chat_id, file)
        while sum(len(one.data) for _, one in self._offers.values()) > _MOST:
            self._offers.popitem(last=False)
        context = {"offer": key}
        content = {
            "description": file.name, "sizeInBytes": len(file.data), "acceptContext": context, "declineContext": context,
        }  # fmt: skip
        return {"contentType": f"{_CARD}.consent", "name": file.name, "content": content}

    def answered(self, chat: Chat, value: dict[str, Any]) -> tuple[OutgoingFile, dict[str, Any]] | None:
        """The file that a person in this chat accepts, and where it is uploaded to. SendRefused if it is no longer offered."""
        key = text_of(dict_of(value.get("context")).get("offer"))
        if value.get("action") != "accept":
            self._offers.pop(key, None)
            return None
        chat_id, file = self._offers.get(key, ("", None))
        if file is None or chat_id != chat.chat_id:
            raise SendRefused("This file is no longer offered. Please ask for it again.")
        return file, dict_of(value.get("uploadInfo"))

    def done(self, value: dict[str, Any]) -> None:
        """The file was uploaded: forget it."""
        self._offers.pop(text_of(dict_of(value.get("context")).get("offer")), None)


def info(place: dict[str, Any]) -> dict[str, Any]:
    """The attachment that shows an uploaded file."""
    content = {name: text_of(place.get(name)) for name in ("uniqueId", "fileType")}
    return {
        "contentType": f"{_CARD}.info", "contentUrl": text_of(place.get("contentUrl")), "name": text_of(place.get("name")),
        "content": content,
    }  # fmt: skip

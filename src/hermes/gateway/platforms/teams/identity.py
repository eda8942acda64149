"""Whether a request comes from the Bot Framework: its JSON Web Token, checked by the keys that Microsoft publishes.

https://learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-authentication
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from hermes.errors import PlatformUnreachable
from hermes.gateway.platforms.http import HttpApi

ISSUER = "https://api.botframework.com"
SKEW = 300.0  # seconds by which clocks may differ
KEYS_LAST = 86_400.0  # seconds until the keys are fetched again
ASK_AGAIN = 300.0  # … and at least between two fetches because of an unknown key
_SMALLEST = 2048  # bits of a key
_LONGEST = 16_384  # characters of a token


class Keys:
    """The published keys. They are cached; an unknown one is looked for now and then, however often it is asked for."""

    def __init__(self, api: HttpApi, metadata_url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._metadata_url, self._clock = api, metadata_url, clock
        self._keys: dict[str, dict[str, Any]] = {}
        self._fetched_at = float("-inf")
        self._busy = asyncio.Lock()

    async def key(self, kid: str) -> dict[str, Any] | None:
        """The key of this id; None if it is not published. PlatformUnreachable if no keys could be fetched."""
        async with self._busy:
            age = self._clock() - self._fetched_at
            if age > KEYS_LAST or (kid not in self._keys and age > ASK_AGAIN):
                try:
                    await self._fetch()
                except PlatformUnreachable:
                    if kid not in self._keys:
                        raise
            return self._keys.get(kid)

    async def _fetch(self) -> None:
        metadata = await self._json(self._metadata_url)
        found = (await self._json(str(metadata.get("jwks_uri") or ""))).get("keys")
        keys = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        if not keys:
            raise PlatformUnreachable("the Bot Framework publishes no keys; check openid_url")
        self._keys = {str(one.get("kid")): one for one in keys}
        self._fetched_at = self._clock()

    async def _json(self, address: str) -> dict[str, Any]:
        try:
            found = (await self._api.request("GET", address)).json()
        except (ValueError, httpx.InvalidURL):
            found = None
        if not isinstance(found, dict):
            raise PlatformUnreachable("the Bot Framework's keys can't be read; check openid_url")
        return found


def parts(token: str) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes] | None:
    """A token's header, claims, signed bytes and signature; None if it is no token."""
    pieces = token.split(".")
    if len(pieces) != 3 or len(token) > _LONGEST or not token.isascii():
        return None
    try:
        header, claims = (json.loads(_decoded(piece)) for piece in pieces[:2])
        signature = _decoded(pieces[2])
    except (ValueError, binascii.Error, RecursionError):
        return None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        return None
    return header, claims, f"{pieces[0]}.{pieces[1]}".encode(), signature


def is_signed_by(key: dict[str, Any], signed: bytes, signature: bytes) -> bool:
    """Whether this is the RS256 signature of these bytes by a published key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        e, n = (int.from_bytes(_decoded(str(key[name])), "big") for name in ("e", "n"))
        public = RSAPublicNumbers(e, n).public_key()
        if key.get("kty") != "RSA" or public.key_size < _SMALLEST:
            return False
        public.verify(signature, signed, PKCS1v15(), SHA256())
    except (InvalidSignature, KeyError, ValueError, binascii.Error):
        return False
    return True


def are_ours(claims: dict[str, Any], app_id: str, now: float) -> bool:
    """Whether a token is by the Bot Framework, for this bot, and valid now."""
    expires, begins = claims.get("exp"), claims.get("nbf", 0)
    if not _is_number(expires) or not _is_number(begins):
        return False
    return (
        claims.get("iss") == ISSUER and claims.get("aud") == app_id and begins - SKEW <= now <= expires + SKEW  # type: ignore[operator]
    )


class Gatekeeper:
    """Checks the requests for one bot."""

    def __init__(self, keys: Keys, app_id: str, clock: Callable[[], float] = time.time) -> None:
        self._keys, self._app_id, self._clock = keys, app_id, clock

    async def admits(self, authorization: str, body: bytes) -> bool:
        """Whether a request is the Bot Framework's. The body is parsed when its token has proved genuine."""
        scheme, _, token = authorization.strip().partition(" ")
        found = parts(token.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            return False
        header, claims, signed, signature = found
        if header.get("alg") != "RS256" or not are_ours(claims, self._app_id, self._clock()):
            return False
        key = await self._keys.key(str(header.get("kid")))
        if key is None or not is_signed_by(key, signed, signature):
            return False
        try:
            activity = json.loads(body)
        except (ValueError, RecursionError):
            return False
        return isinstance(activity, dict) and _belongs(activity, claims, key)


def _belongs(activity: dict[str, Any], claims: dict[str, Any], key: dict[str, Any]) -> bool:
    """Whether a token speaks for the service and the channel that the activity names."""
    service = claims.get("serviceurl") or claims.get("serviceUrl")
    if not isinstance(service, str) or service.rstrip("/") != str(activity.get("serviceUrl")).rstrip("/"):
        return False
    endorsed = key.get("endorsements")
    return not isinstance(endorsed, list) or activity.get("channelId") in endorsed


def _decoded(piece: str) -> bytes:
    return base64.b64decode(piece + "=" * (-len(piece) % 4), altchars=b"-_", validate=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Whether a request is the Bot Framework's: a JWT, signed by a key that it publishes, for this app and this service.

https://learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-authentication
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hermes.gateway.platforms.frames import parsed

ISSUER = "https://api.botframework.com"
CHANNEL = "msteams"
SKEW = 300.0  # seconds by which clocks may differ
_FRESH = 24 * 3600.0  # seconds for which the published keys are used
_QUIET = 60.0  # seconds between two requests for keys because of one that is not known

Fetch = Callable[[], Awaitable[list[dict[str, Any]]]]


class PublishedKeys:
    """The published keys by their ids; asked for again once a day, and when an unknown one is used."""

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
        """The key of this id, if there is one. Strangers can't make us ask more than once a minute."""
        async with self._busy:
            age = self._clock() - self._at
            if age > _FRESH or (name not in self._keys and age > _QUIET):
                await self.load()
        return self._keys.get(name)


async def claims(
    authorization: str, app_id: str, keys: PublishedKeys, now: float, issuer: str = ISSUER
) -> dict[str, Any] | None:
    """The claims of a genuine token of this issuer; None for all others."""
    kind, _, token = authorization.partition(" ")
    parts = token.strip().split(".")
    if kind.lower() != "bearer" or len(parts) != 3:
        return None
    header, content = _decoded(parts[0]), _decoded(parts[1])
    if header.get("alg") != "RS256" or content.get("iss") != issuer or content.get("aud") != app_id:
        return None
    begins, ends = _number(content.get("nbf", 0)), _number(content.get("exp"))
    if begins is None or ends is None or not begins - SKEW <= now <= ends + SKEW:
        return None
    key = await keys.get(str(header.get("kid")))
    endorsements = key.get("endorsements") if key is not None else None
    if key is None or not isinstance(endorsements, list) or CHANNEL not in endorsements:
        return None
    return content if _is_signed(key, f"{parts[0]}.{parts[1]}", parts[2]) else None


def _is_signed(key: dict[str, Any], text: str, signature: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        exponent, modulus = (int.from_bytes(_bytes(str(key[one])), "big") for one in ("e", "n"))
        public = RSAPublicNumbers(exponent, modulus).public_key()
        public.verify(_bytes(signature), text.encode(), PKCS1v15(), SHA256())
    except (InvalidSignature, ValueError, KeyError):
        return False
    return True


def _decoded(part: str) -> dict[str, Any]:
    try:
        return parsed(_bytes(part))
    except ValueError:
        return {}


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _number(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53 else None
    )

"""An access token that expires: one renewal serves all requests that wait for it, and a refused token is replaced once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hermes.errors import PlatformError, PlatformRefused

EARLY = 300.0  # seconds before its end at which a token is renewed
_SHORTEST = 30.0  # a token is used for so long at least, whatever the vendor says about its end

Result = TypeVar("Result")


class TokenRefused(PlatformError):
    """The vendor no longer accepts the access token of a request."""


class AccessToken:
    """A vendor's token. `fetch` asks for a new one: the token, and the seconds until it ends."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[tuple[str, float]]],
        *,
        refusal: str = "a new access token is not accepted: {}",
        early: float = EARLY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`refusal` is what is reported if a new token is refused, too; `{}` stands for the vendor's reason."""
        self._fetch, self._refusal, self._early, self._clock = fetch, refusal, early, clock
        self._token, self._until = "", 0.0
        self._busy = asyncio.Lock()

    @property
    def value(self) -> str:
        """The token as it is, to mask it in texts; "" before the first one."""
        return self._token

    async def get(self, refused: str | None = None) -> str:
        """The token; a new one if it is about to end, or if it is the one that the vendor has `refused`."""
        if not self._is_good(refused):
            async with self._busy:
                if not self._is_good(refused):  # another request may have renewed it meanwhile
                    token, life = await self._fetch()
                    self._token = token
                    self._until = self._clock() + max(life - self._early, life / 2, _SHORTEST)
        return self._token

    async def used(self, request: Callable[[str], Awaitable[Result]]) -> Result:
        """Make a request with the token; if it raises TokenRefused, once more with a new one."""
        token = await self.get()
        try:
            return await request(token)
        except TokenRefused:
            token = await self.get(refused=token)
        try:
            return await request(token)
        except TokenRefused as error:
            raise PlatformRefused(self._refusal.format(error)) from None

    def _is_good(self, refused: str | None) -> bool:
        return bool(self._token) and self._token != refused and self._clock() < self._until

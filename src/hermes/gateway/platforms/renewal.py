"""An access token that expires: one renewal serves all requests that wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

EARLY = 300.0  # seconds before its end at which a token is renewed
_SHORTEST = 30.0  # a token is used for so long at least, whatever the vendor says about its end


class AccessToken:
    """A vendor's token. `fetch` asks for a new one: the token, and the seconds until it ends."""

    def __init__(
        self, fetch: Callable[[], Awaitable[tuple[str, float]]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch, self._clock = fetch, clock
        self._token, self._until = "", 0.0
        self._busy = asyncio.Lock()

    async def get(self, refused: str | None = None) -> str:
        """The token; a new one if it is about to end, or if it is the one that the vendor has `refused`."""
        if not self._is_good(refused):
            async with self._busy:
                if not self._is_good(refused):  # another request may have renewed it meanwhile
                    token, seconds = await self._fetch()
                    self._token, self._until = token, self._clock() + max(_SHORTEST, seconds - EARLY)
        return self._token

    def _is_good(self, refused: str | None) -> bool:
        return bool(self._token) and self._token != refused and self._clock() < self._until

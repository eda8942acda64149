"""Messages between a platform and the store: handed over until they are stored, spooled where the platform can't wait.

Slack and Discord wait three seconds for an acknowledgement, and never resend an acknowledged message. So a message
is acknowledged when the store has it, and after ACKNOWLEDGE_AFTER seconds at the latest: then its file is on the disk
first. A killed process leaves the file, and the next connection reads it. If neither the store nor the disk takes a
message it is not acknowledged: Slack sends it again, Discord shows the person that the command failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from logging import Logger, LoggerAdapter
from typing import Any

from hermes.gateway.adapter import Link
from hermes.gateway.events import Event, Reaction, Revision
from hermes.gateway.spool import Spool

ACKNOWLEDGE_AFTER = 1.0  # seconds; both platforms wait 3, and the network and a slow disk need a part of it
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two tries to store a message


async def hand_over(link: Link, what: Event | Revision | Reaction) -> None:
    """Give a message, a revision or a reaction to the gateway. When this returns it is stored."""
    if isinstance(what, Reaction):
        await link.reacted(what)
    else:
        await (link.revised(what) if isinstance(what, Revision) else link.received(what))


async def keep(link: Link, what: Event | Revision | Reaction) -> None:
    """Retry until it is stored, for platforms that do not send it again."""
    pause = _FIRST_PAUSE
    while True:
        try:
            return await hand_over(link, what)
        except Exception as error:
            link.log.warning("a message could not be stored (%s); next try in %g s", type(error).__name__, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


class Receipt:
    """One message on its way into the store; it is acknowledged to its platform once, when it is safe."""

    def __init__(
        self, spool: Spool, content: dict[str, Any], tell: Callable[[], Awaitable[None]], log: Logger | LoggerAdapter[Logger]
    ) -> None:  # fmt: skip
        """`tell` acknowledges the message to the platform; it raises nothing."""
        self._spool, self._content, self._tell, self._log = spool, content, tell, log
        self._name: str | None = None
        self._once = asyncio.Lock()

    async def follow(self, kept: asyncio.Future[bool]) -> None:
        """Acknowledge the message when it is `kept`, or when the spool has it, whichever comes first.

        `kept` results in False if the message can't be kept at all: it is not acknowledged, or its file stays.
        """
        await asyncio.wait([kept], timeout=ACKNOWLEDGE_AFTER)
        if not kept.done():
            await self.hold()
        if not await kept:
            return
        if self._name is None:
            await self._tell()
        else:
            self._spool.drop(self._name)

    async def hold(self) -> bool:
        """Acknowledge it before the store has it; False if the disk does not take it either."""
        async with self._once:
            if self._name is None:
                try:
                    self._name = await self._spool.put(self._content)
                except OSError as error:
                    why = "it could be written neither to the store nor to the disk"
                    self._log.warning("a message is not acknowledged: %s (%s)", why, error)
                    return False
                await self._tell()
        return True

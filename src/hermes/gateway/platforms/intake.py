"""Messages on their way from a platform to the store."""

from __future__ import annotations

import asyncio

from hermes.gateway.adapter import Link
from hermes.gateway.events import Event, Reaction, Revision

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

"""Messages on their way from a platform to the store.

Those of platforms that may not send them again are on the disk while the store does not take them, and after a stop (`Keeper`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from hermes.gateway.adapter import Link
from hermes.gateway.events import Event, Reaction, Revision
from hermes.gateway.platforms.frames import LOG
from hermes.gateway.spool import Spool, store_mask

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


class Keeper:
    """Hands messages over, in order. One that the store refuses is written to the spool before it is tried again."""

    def __init__(self, home: Path, platform: str) -> None:
        self._spool = Spool(home / platform / "unkept", store_mask(home))
        self._waiting: dict[str, Event] = {}  # in neither the store nor the spool
        self._files: dict[str, Path] = {}  # the files of messages that this process tries to store

    def expect(self, event: Event) -> None:
        """A message has arrived; `keep` follows, or `save` writes it to the spool."""
        self._waiting[event.id] = event

    async def restore(self, link: Link) -> None:
        """Hand over what an earlier connection left in the spool."""
        for file, event in self._spool.waiting():
            await keep(link, event)
            _remove(file)

    async def keep(self, link: Link, event: Event) -> None:
        """Hand over a message. It is stored when this returns."""
        self.expect(event)
        try:
            await link.received(event)
        except Exception:
            self._write(event)
            await keep(link, event)
        self._waiting.pop(event.id, None)
        if (file := self._files.pop(event.id, None)) is not None:
            _remove(file)

    async def save(self) -> None:
        """Write what was not handed over to the spool, at the end of a connection. Raises nothing."""
        for event in list(self._waiting.values()):
            self._write(event)

    def _write(self, event: Event) -> None:
        try:
            if event.id not in self._files:
                self._files[event.id] = self._spool.put(event)
            self._waiting.pop(event.id, None)
        except OSError as error:
            LOG.error("a message could be written neither to the store nor to the disk (%s)", error)


def _remove(file: Path) -> None:
    """Remove the file of a message that the store has. One that can't be removed is read again, and recognised by its id."""
    with suppress(OSError):
        file.unlink(missing_ok=True)

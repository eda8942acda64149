"""Messages of platforms that may not send them again: on the disk while the store does not take them, and after a stop."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hermes.gateway.adapter import Link
from hermes.gateway.events import Event
from hermes.gateway.platforms.frames import LOG
from hermes.gateway.platforms.intake import keep
from hermes.gateway.spool import Spool, store_mask


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

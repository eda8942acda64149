"""Messages of platforms that may not send them again: on the disk while the store does not take them, and after a stop."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from hermes.gateway.adapter import Link
from hermes.gateway.events import Event, as_json, from_json, writable
from hermes.gateway.platforms.intake import keep
from hermes.gateway.spool import Spool, store_mask


class Keeper:
    """Hands messages over, in order. One that the store refuses is written to the spool before it is tried again."""

    def __init__(self, home: Path, platform: str) -> None:
        self._spool = Spool(home / platform / "unkept", store_mask(home))
        self._waiting: dict[str, Event] = {}  # in neither the store nor the spool
        self._files: dict[str, str] = {}  # the files of messages that this process tries to store
        self._link: Link | None = None

    def expect(self, event: Event) -> None:
        """A message has arrived; `keep` follows, or `save` writes it to the spool."""
        self._waiting[event.id] = event

    async def restore(self, link: Link) -> None:
        """Hand over what an earlier connection left in the spool."""
        for name, content in self._spool.waiting():
            try:
                event = from_json(json.dumps(content), Event)
            except msgspec.DecodeError:
                link.log.error("%s in the spool is not a message; it stays there", name)
                continue
            await keep(link, event)
            self._spool.drop(name)

    async def keep(self, link: Link, event: Event) -> None:
        """Hand over a message. It is stored when this returns."""
        self._link = link
        self.expect(event)
        try:
            await link.received(event)
        except Exception:
            if event.id not in self._files and (name := await self._spooled(event)) is not None:
                self._files[event.id] = name
            if event.id in self._files:
                self._waiting.pop(event.id, None)
            await keep(link, event)
            if (file := self._files.pop(event.id, None)) is not None:
                self._spool.drop(file)
        self._waiting.pop(event.id, None)

    async def save(self) -> None:
        """Write what was not handed over to the spool, at the end of a connection. Raises nothing."""
        for event in list(self._waiting.values()):
            if await self._spooled(event) is not None:
                self._waiting.pop(event.id, None)
        self._spool.close()

    async def _spooled(self, event: Event) -> str | None:
        try:
            return await self._spool.put(json.loads(as_json(writable(event))))
        except OSError as error:
            if self._link is not None:
                self._link.log.error("a message could be written neither to the store nor to the disk (%s)", error)
            return None

"""A gateway that only writes down what an adapter tells it, for tests of one adapter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from hermes.gateway.adapter import Adapter
from hermes.gateway.events import Event, Revision
from tests.support.waiting import until_async


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Recorder:
    """A Link. `refuse` makes `received` raise, as a gateway does whose store is full; `before` comes before an event is kept."""

    def __init__(self, before: Callable[[Event], Awaitable[None]] | None = None) -> None:
        self.before = before
        self._lines = _Lines()
        self.log = logging.Logger("tests.gateway.adapter", logging.DEBUG)
        self.log.parent = logging.getLogger("tests.gateway")  # pytest sees it, too
        self.log.addHandler(self._lines)
        self.troubles: list[str] = []
        self.events: list[Event] = []
        self.revisions: list[Revision] = []
        self.identities: list[str] = []
        self.losses: list[Exception] = []
        self.moves: list[tuple[str, str]] = []
        self.refuse: Exception | None = None
        self.refused = 0  # how often it did

    async def received(self, event: Event) -> None:
        await asyncio.sleep(0)
        if self.refuse is not None:
            self.refused += 1
            raise self.refuse
        if self.before is not None:
            await self.before(event)
        self.events.append(event)

    async def revised(self, revision: Revision) -> None:
        await asyncio.sleep(0)
        if self.refuse is not None:
            self.refused += 1
            raise self.refuse
        self.revisions.append(revision)

    async def moved(self, old: str, new: str) -> None:
        self.moves.append((old, new))

    def connected(self, identity: str) -> None:
        self.identities.append(identity)

    def troubled(self, text: str) -> None:
        self.troubles.append(text)
        self.log.warning("%s", text)

    def lost(self, error: Exception) -> None:
        self.losses.append(error)

    @property
    def logged(self) -> str:
        """Everything that the adapter has logged, and the troubles that it has reported."""
        return "\n".join(self._lines.lines)

    @property
    def texts(self) -> list[str]:
        """The texts of the events, in order."""
        return [event.text for event in self.events]

    async def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """Wait for a condition while the adapter works."""
        return await until_async(condition, lambda: f"{what or condition}: {self.texts} {self.losses} {self.logged}")

    async def heard(self, count: int = 1) -> list[Event]:
        """The events, once there are so many."""
        await self.until(lambda: len(self.events) >= count, f"not {count} events")
        return self.events

    async def event(self, text: str) -> Event:
        """The first event with this text, when it has come."""
        await self.until(lambda: text in self.texts, f"{text!r} has not come")
        return self.events[self.texts.index(text)]


@asynccontextmanager
async def connected(adapter: Adapter, link: Recorder | None = None) -> AsyncIterator[Recorder]:
    """The adapter, connected for the block."""
    link = link or Recorder()
    await adapter.connect(link)
    try:
        yield link
    finally:
        await adapter.disconnect()

"""What connections to platforms share: tasks that end with them, retries after short breaks, their end, bounded memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from hermes.errors import HermesError, PlatformUnreachable, SlowDown
from hermes.gateway.adapter import Link

PAUSES = (0.0, 1.0, 3.0)  # seconds before a broken connection is opened again; then the gateway takes over

Result = TypeVar("Result")
Key = TypeVar("Key")
Value = TypeVar("Value")


class Tasks:
    """The background tasks of one connection."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result], name: str | None = None) -> asyncio.Task[Result]:
        """Run it beside the others, until it ends or `stop` is called."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self, seconds: float = 3.0) -> None:
        """Cancel all tasks but the one that calls this, and wait for their end. Raises nothing of theirs."""
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)


class Retries:
    """Failures of a stream or a poll in a row: a few are retried here; after that the gateway reconnects."""

    def __init__(self, link: Link, identity: str, pauses: Sequence[float] = PAUSES) -> None:
        self._link, self._identity, self._pauses = link, identity, pauses
        self._failures = 0

    async def failed(self, error: Exception) -> None:
        """Wait before the next try; raises `error` when the retries are used up."""
        if not isinstance(error, PlatformUnreachable | SlowDown) or self._failures >= len(self._pauses):
            raise error
        pause = error.retry_after if isinstance(error, SlowDown) else self._pauses[self._failures]
        self._failures += 1
        self._link.log.warning("%s; trying again in %g s", error, pause)
        await asyncio.sleep(pause)

    async def opened(self, opening: Callable[[], Awaitable[Result]]) -> Result:
        """What `opening` gives, tried until it succeeds or the retries are used up."""
        while True:
            try:
                return await opening()
            except (PlatformUnreachable, SlowDown) as error:
                await self.failed(error)

    def succeeded(self) -> None:
        """The connection works; after failures this is reported to the gateway."""
        if self._failures:
            self._failures = 0
            self._link.connected(self._identity)


@contextmanager
def loss_reported(link: Link, title: str, failed: str = "an event could not be handled") -> Iterator[None]:
    """Around what receives: the error that ends it is reported to the gateway, which connects again.

    Of an error that is none of ours only the kind is logged, after what has `failed`: its text may hold a token.
    """
    try:
        yield
    except HermesError as error:
        link.lost(error)
    except Exception as error:
        link.log.error("%s: %s (%s)", title, failed, type(error).__name__)
        link.lost(PlatformUnreachable(f"the connection to {title} ended unexpectedly"))


class Closable(Protocol):
    """An API, a socket or a registration."""

    async def close(self) -> None:
        """Release it."""


async def close_each(*things: Closable | None) -> None:
    """Close what is open, in this order, for `disconnect`. Raises nothing: one that fails does not keep the next one open."""
    for one in things:
        with suppress(Exception):
            if one is not None:
                await one.close()


class Recent(Generic[Key, Value]):
    """A dictionary of bounded size: the oldest entry is forgotten first."""

    def __init__(self, most: int = 2_000) -> None:
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._most = most

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Value | None:
        """The value of an entry, if it is still known."""
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Remember a value."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
        return value

    def drop(self, key: Key) -> None:
        """Forget an entry."""
        self._entries.pop(key, None)

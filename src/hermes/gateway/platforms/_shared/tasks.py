"""Tools for connections to platforms: tasks that end with them, retries after short breaks, closing, bounded memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from hermes.errors import HermesError, PlatformUnreachable, SlowDown
from hermes.gateway.adapter import Adapter, Link

PAUSES = (0.0, 1.0, 3.0)  # seconds before a broken connection is opened again; then the gateway takes over

Result = TypeVar("Result")
Key = TypeVar("Key")
Value = TypeVar("Value")
Thing = TypeVar("Thing", bound="Closable")


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
        """Return what `opening` gives, tried until it succeeds or the retries are used up."""
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
    """A context for receiving: the error that ends it is reported to the gateway, which connects again.

    Of a foreign error only the kind is logged, after what has `failed`: its text may hold a token.
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


Api = TypeVar("Api", bound=Closable)


class ApiAdapter(Adapter, Generic[Api]):
    """An adapter on a vendor's API. Subclasses make the API, and begin to receive; what they open ends with the connection."""

    def __init__(self, values: Mapping[str, Any], home: Path) -> None:
        super().__init__(values, home)
        self._tasks = Tasks()
        self._api: Api | None = None
        self._opened: list[Closable] = []

    def make_api(self) -> Api:
        """The API, with our login. PlatformRefused where the settings can't work."""
        raise NotImplementedError

    async def begin(self, link: Link, api: Api) -> None:
        """Log in and begin to receive; returns when both are done (link.connected was called)."""
        raise NotImplementedError

    def closing(self, thing: Thing) -> Thing:
        """Close this before the API when the connection ends."""
        self._opened.append(thing)
        return thing

    async def connect(self, link: Link) -> None:
        """Log in and begin to receive."""
        await self.disconnect()
        self._api = api = self.make_api()
        try:
            await self.begin(link, api)
        except BaseException:
            await self.disconnect()
            raise

    async def disconnect(self) -> None:
        """Stop receiving and close everything."""
        await self._tasks.stop()
        things, self._opened = [*reversed(self._opened), self._api], []
        self._api = None
        await close_each(*things)

    @property
    def api(self) -> Api:
        """The API of the open connection; PlatformUnreachable without one."""
        if self._api is None:
            raise PlatformUnreachable(f"not connected to {self.title}")
        return self._api


class Recent(OrderedDict[Key, Value]):
    """A dictionary of bounded size: the oldest entry is forgotten first."""

    def __init__(self, most: int = 2_000) -> None:
        super().__init__()
        self._most = most

    def put(self, key: Key, value: Value) -> Value:
        """Remember a value."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
        return value


class SentMessages(Recent[str, Value]):
    """Facts about our messages, by their ids. A report about one may come before the answer that tells us its id."""

    _in_flight = 0

    @contextmanager
    def sending(self) -> Iterator[None]:
        """A context for a request that sends a message."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def find(self, message_id: str, patience: float = 2.0) -> Value | None:
        """The fact stored about a message, which may still be in flight; None if it is not ours."""
        for _ in range(int(patience * 10)):
            if message_id in self or not self._in_flight:
                break
            await asyncio.sleep(0.1)
        return self.get(message_id)

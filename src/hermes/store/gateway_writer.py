"""Small writes of the gateway's event loop, batched: writes that wait during one transaction go into the next one.

A step is a function of store/ whose first parameter is the transaction; the gateway gives the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.errors import StoreBusy, StoreClosed, StoreFull, StoreGone, StoreReadOnly, StoreUnreachable

if TYPE_CHECKING:
    from hermes.store.gateway_db import GatewayDB

SOON = 0.1  # seconds that a write that may be lost waits for others
_WHOLE_STORE = (StoreBusy, StoreClosed, StoreFull, StoreGone, StoreReadOnly, StoreUnreachable)  # no step's fault


@dataclass(slots=True)
class _Job:
    step: Callable[..., Any]
    given: tuple[Any, ...]
    then: Callable[[Any], None] | None
    done: asyncio.Future[Any]
    lasting: bool

    def run(self, tx: Any) -> Any:
        return self.step(tx, *self.given)

    def succeed(self, result: Any) -> None:
        try:
            if self.then is not None:
                self.then(result)
        except Exception as error:
            self.fail(error)
        else:
            if not self.done.done():
                self.done.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # a caller that no longer waits need not get it


class Writer:
    """Writes to a store from an event loop. A write that returned is on the disk; they are done in order."""

    def __init__(self, store: GatewayDB, *, gone: Callable[[StoreGone], None] = lambda error: None) -> None:
        """`gone` is called when the store's file was deleted or replaced: nothing is written any more."""
        self._store, self._gone = store, gone
        self._waiting: list[_Job] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(
        self, step: Callable[..., Any], *given: Any, then: Callable[[Any], None] | None = None, lasting: bool = True
    ) -> Any:
        """Run one step in a transaction, perhaps together with others; returns its result.

        `then` is called with the result in the order of the steps, also when the caller no longer waits. A step that is
        not `lasting` may be lost in a crash: it waits a moment for others to share their transaction.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Job(step, given, then, done, lasting))
        if lasting:
            self._start()
        elif self._timer is None:
            self._timer = loop.call_later(SOON, self._start)
        return await asyncio.shield(done)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._waiting and self._timer is None:
            batch, self._waiting = self._waiting, []
            if not await self._store_batch(batch):
                for job in batch:
                    await self._store_batch([job])

    async def _store_batch(self, batch: list[_Job]) -> bool:
        """Run these steps in one transaction; False when one of several failed: they have to be run separately."""
        lasting = any(job.lasting for job in batch)
        try:
            results = await asyncio.to_thread(self._store.batch, [job.run for job in batch], lasting=lasting)
        except Exception as error:
            if isinstance(error, StoreGone):
                self._gone(error)
            if len(batch) > 1 and not isinstance(error, _WHOLE_STORE):
                return False
            for job in batch:
                job.fail(error)
        else:
            for job, result in zip(batch, results, strict=True):
                job.succeed(result)
        return True

    async def idle(self) -> None:
        """Wait until every step is done."""
        while self._waiting or (self._task is not None and not self._task.done()):
            self._start()
            if self._task is not None:
                await asyncio.wait([self._task])

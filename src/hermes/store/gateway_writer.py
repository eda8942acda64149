"""Small writes of the gateway's event loop, batched: writes that wait during one transaction go into the next one.

A step is a function of store/ whose first parameter is the transaction; the gateway gives the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes.errors import StoreBusy, StoreClosed, StoreFull, StoreGone, StoreReadOnly, StoreUnreachable

if TYPE_CHECKING:
    from hermes.store.gateway_db import GatewayDB

SOON = 0.1  # seconds that a write that may be lost waits for others
_WHOLE_STORE = (StoreBusy, StoreClosed, StoreFull, StoreGone, StoreReadOnly, StoreUnreachable)  # no step's fault


@dataclass(slots=True)
class _Job:
    step: Callable[..., Any]
    then: Callable[[Any], None] | None
    done: asyncio.Future[Any]
    lasting: bool


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
        self._waiting.append(_Job(partial(_called, step, given), then, done, lasting))
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
            lasting = any(job.lasting for job in batch)
            try:
                results = await asyncio.to_thread(self._store.together, [job.step for job in batch], lasting=lasting)
            except Exception as error:
                if isinstance(error, StoreGone):
                    self._gone(error)
                if len(batch) > 1 and not isinstance(error, _WHOLE_STORE):
                    for job in batch:  # one of them failed: run each separately
                        await self._alone(job)
                else:
                    for job in batch:
                        _fail(job, error)
            else:
                for job, result in zip(batch, results, strict=True):
                    _succeed(job, result)

    async def _alone(self, job: _Job) -> None:
        try:
            (result,) = await asyncio.to_thread(self._store.together, [job.step])
        except Exception as error:
            _fail(job, error)
        else:
            _succeed(job, result)

    async def idle(self) -> None:
        """Wait until every step is done."""
        while self._waiting or (self._task is not None and not self._task.done()):
            self._start()
            if self._task is not None:
                await asyncio.wait([self._task])


def _called(step: Callable[..., Any], given: tuple[Any, ...], tx: Any) -> Any:
    return step(tx, *given)


def _succeed(job: _Job, result: Any) -> None:
    try:
        if job.then is not None:
            job.then(result)
    except Exception as error:
        _fail(job, error)
    else:
        if not job.done.done():
            job.done.set_result(result)


def _fail(job: _Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
        job.done.exception()  # a caller that no longer waits need not get it

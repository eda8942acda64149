"""Small writes of the event loop, gathered: what waits while one transaction is under way goes into the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hermes.errors import StoreBusy, StoreClosed, StoreFull, StoreGone, StoreReadOnly, StoreUnreachable

if TYPE_CHECKING:
    from hermes.store.engines.base import Tx
    from hermes.store.gateway_db import GatewayDB

T = TypeVar("T")
_WHOLE_STORE = (StoreBusy, StoreClosed, StoreFull, StoreGone, StoreReadOnly, StoreUnreachable)  # the fault of no step


@dataclass(slots=True)
class _Job:
    step: Callable[[Tx], Any]
    then: Callable[[Any], None] | None
    done: asyncio.Future[Any]


class Writer:
    """Writes to a store from an event loop. A write that returned is on the disk; they happen in the order they came."""

    def __init__(self, store: GatewayDB, *, gone: Callable[[StoreGone], None] = lambda error: None) -> None:
        """`gone` hears that the store's file was deleted or replaced: nothing is written any more."""
        self._store, self._gone = store, gone
        self._waiting: list[_Job] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, step: Callable[[Tx], T], then: Callable[[T], None] | None = None) -> T:
        """Do one step in a transaction, perhaps together with others; what it returned.

        `then` is called with that in the order of the steps, also when whoever waited has given up meanwhile.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Job(step, then, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await asyncio.shield(done)

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                results = await asyncio.to_thread(self._store.together, [job.step for job in batch])
            except Exception as error:
                if isinstance(error, StoreGone):
                    self._gone(error)
                if len(batch) > 1 and not isinstance(error, _WHOLE_STORE):
                    for job in batch:  # one of them is at fault: each on its own
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
        """Wait until nothing waits."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])


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
        job.done.exception()  # whoever gave up waiting need not hear of it

"""Small writes of the event loop, gathered: what waits while one transaction is under way goes into the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hermes.store.engines.base import Tx
    from hermes.store.gateway_db import GatewayDB

T = TypeVar("T")


class Writer:
    """Writes to a store from an event loop. A write that returned is on the disk."""

    def __init__(self, store: GatewayDB) -> None:
        self._store = store
        self._waiting: list[tuple[Callable[[Tx], Any], asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, step: Callable[[Tx], T]) -> T:
        """Do one step in a transaction, perhaps together with others; what it returned."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((step, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await asyncio.shield(done)

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                results = await asyncio.to_thread(self._store.together, [step for step, _ in batch])
            except Exception as error:
                if len(batch) > 1:  # one of them may be at fault: each on its own
                    await self._one_by_one(batch)
                    continue
                _fail(batch[0][1], error)
            else:
                for (_, done), result in zip(batch, results, strict=True):
                    if not done.done():
                        done.set_result(result)

    async def _one_by_one(self, batch: list[tuple[Callable[[Tx], Any], asyncio.Future[Any]]]) -> None:
        for step, done in batch:
            try:
                (result,) = await asyncio.to_thread(self._store.together, [step])
            except Exception as error:
                _fail(done, error)
            else:
                if not done.done():
                    done.set_result(result)

    async def idle(self) -> None:
        """Wait until nothing waits."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])


def _fail(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)

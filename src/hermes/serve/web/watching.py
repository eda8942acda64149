"""Which of the watched sessions changed: one look at the store for everyone who watches, however many pages are open."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

LOOK_SECONDS = 0.5
_log = logging.getLogger("hermes.web")


class SessionWatch:
    """Looks at the sessions that someone watches, twice a second; idle while none is watched."""

    def __init__(self, db: SessionDB) -> None:
        self._db = db
        self._watched: Counter[str] = Counter()
        self._states: dict[str, tuple[Any, ...]] = {}
        self._numbers: Counter[str] = Counter()  # how often each was seen to have changed
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def changes(self, session_id: str) -> AsyncGenerator[int, None]:
        """A number at once, and another one after each change of the session."""
        self._watched[session_id] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        seen = -1
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda last=seen: self._known(session_id) not in (-1, last))  # type: ignore[misc]
                    seen = self._known(session_id)
                yield seen
        finally:
            self._watched[session_id] -= 1
            if not self._watched[session_id]:
                del self._watched[session_id]
                self._states.pop(session_id, None)

    def _known(self, session_id: str) -> int:
        return self._numbers[session_id] if session_id in self._states else -1

    async def _run(self) -> None:
        while self._watched:
            try:
                found = await run_in_threadpool(self._db.session_states, list(self._watched))
            except HermesError as error:  # a busy store: the next look may succeed
                _log.warning("could not look for new messages: %s", error)
                found = {}
            changed = {
                one: state for one, state in found.items() if one in self._watched and self._states.get(one) != state
            }
            if changed:
                async with self._changed:
                    for one, state in changed.items():
                        self._numbers[one] += one in self._states
                        self._states[one] = state
                    self._changed.notify_all()
            await asyncio.sleep(LOOK_SECONDS)

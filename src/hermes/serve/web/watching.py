"""The one event stream of a browser: which of the conversations that its tabs show changed, whether the list did, and turns.

One look at the store, twice a second, serves everyone who watches, however many pages are open. An event names a state, not
what changed: the page reads that itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hermes.errors import HermesError
from hermes.serve.http_messages import data, with_pings
from hermes.serve.web.finding import HEADLINE
from hermes.serve.web.visitors import visitor_of

if TYPE_CHECKING:
    from hermes.serve.web.talking import Talks
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User

LOOK_SECONDS = 0.5
_SEEN = 100  # conversations at the head of the list whose changes are noticed
_log = logging.getLogger("hermes.web")
Watched = tuple[str | None, "User | None"]  # a session; or None and whose list


class PageWatch:
    """Looks at what pages watch, twice a second; idle while nothing is watched."""

    def __init__(self, db: SessionDB, talks: Talks) -> None:
        self._db, self._talks = db, talks
        self._watched: Counter[Watched] = Counter()
        self._states: dict[Watched, int] = {}
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def changes(self, session_id: str | None, user: User | None = None) -> AsyncGenerator[int, None]:
        """The state of a session, or of a user's list (None), as a number: at once, and again after each change."""
        one, seen = (session_id, user), None
        self._watched[one] += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda last=seen: self._states.get(one) not in (None, last))  # type: ignore[misc]
                    seen = self._states[one]
                yield seen
        finally:
            self._watched[one] -= 1
            if not self._watched[one]:
                del self._watched[one]
                self._states.pop(one, None)

    async def _run(self) -> None:
        while self._watched:
            try:
                found = await run_in_threadpool(self._look, list(self._watched))
            except HermesError as error:  # a busy store: the next look may succeed
                _log.warning("could not look for new messages: %s", error)
                found = {}
            async with self._changed:
                self._states.update({one: state for one, state in found.items() if one in self._watched})
                self._changed.notify_all()
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, watched: list[Watched]) -> dict[Watched, int]:
        states = self._db.session_states([one for one, _ in watched if one is not None])
        found: dict[Watched, int] = {}
        for session_id, user in watched:
            if session_id is None:
                rows = self._db.list_sessions_rich(
                    limit=_SEEN, order_by_last_active=True, automated=False, visible_to=user
                )
                shown = [[row.get(name) for name in HEADLINE] for row in rows]
                found[None, user] = hash(repr((shown, self._db.tags_of([row["id"] for row in rows], visible_to=user))))
            else:  # one that is gone has a state, too: its page is told, and finds out
                found[session_id, user] = hash(states.get(session_id))
        return found

    async def events(self, request: Request) -> Response:
        """Server-sent events of the topics asked for: `list`, `session=ID`, `turn=ID`, each as often as tabs show one."""
        query, visitor = request.query_params, visitor_of(request)
        there = await run_in_threadpool(self._db.get_sessions, query.getlist("session"), visible_to=visitor.user)
        topics: dict[str, AsyncGenerator[Any] | None] = (
            {"list": self.changes(None, visitor.user)} if "list" in query else {}
        )
        for one in query.getlist("session"):
            topics[f"session={one}"] = self.changes(one) if one in there else None
        for one in query.getlist("turn"):
            turn = None if visitor.read_only else self._talks.turn(one)
            topics[f"turn={one}"] = turn.told() if turn is not None else None
        return StreamingResponse(with_pings(_merged(topics)), media_type="text/event-stream")


async def _merged(topics: Mapping[str, AsyncGenerator[Any] | None]) -> AsyncGenerator[str]:
    """Events with a topic's name and news; None for a topic that does not exist."""
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def drain(topic: str, source: AsyncGenerator[Any] | None) -> None:
        if source is None:
            queue.put_nowait(data({"topic": topic, "news": None}))
            return
        async with aclosing(source):
            async for news in source:
                queue.put_nowait(data({"topic": topic, "news": news}))

    tasks = [asyncio.create_task(drain(*one)) for one in topics.items()]
    try:
        while True:
            yield await queue.get()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""The one event stream of a browser: changes of the conversations that its tabs show, changes of the list, and turns.

An event names a state, not what changed: the page reads that itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection
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
    from hermes.serve.web.talking import PageTurn, Talks
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.visibility import User

LOOK_SECONDS = 0.5
_SEEN = 100  # conversations at the head of the list whose changes are noticed
_log = logging.getLogger("hermes.web")
Source = AsyncGenerator[tuple[str, Any]]  # a topic and its news, None for a topic that does not exist


class PageWatch:
    """Looks at the store twice a second for each browser that watches something."""

    def __init__(self, db: SessionDB, talks: Talks) -> None:
        self._db, self._talks = db, talks

    async def events(self, request: Request) -> Response:
        """Server-sent events of the topics asked for: `list`, `session=ID`, `turn=ID`, each as often as tabs show one."""
        query, visitor = request.query_params, visitor_of(request)
        ids = query.getlist("session")
        visible = await run_in_threadpool(self._db.get_sessions, ids, visible_to=visitor.user)
        sources = [self._states(ids, visible, "list" in query, visitor.user)]
        for one in query.getlist("turn"):
            sources.append(_turn_events(f"turn={one}", None if visitor.read_only else self._talks.turn(one)))
        return StreamingResponse(with_pings(_merged(sources)), media_type="text/event-stream")

    async def _states(self, ids: list[str], visible: Collection[str], with_list: bool, user: User | None) -> Source:
        """The states of sessions, and of a user's list, as numbers: at once, and again after each change."""
        for one in ids:
            if one not in visible:
                yield f"session={one}", None
        seen: dict[str, int] = {}
        while visible or with_list:
            try:
                found = await run_in_threadpool(self._look, visible, with_list, user)
            except HermesError as error:  # a busy store: the next look may succeed
                _log.warning("could not look for new messages: %s", error)
                found = {}
            for topic, state in found.items():
                if seen.get(topic) != state:
                    yield topic, state
            seen |= found
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, session_ids: Collection[str], with_list: bool, user: User | None) -> dict[str, int]:
        states = self._db.session_states([*session_ids])  # one that is gone has a state, too: its page finds out
        found = {f"session={one}": hash(states.get(one)) for one in session_ids}
        if with_list:
            rows = self._db.list_sessions_rich(limit=_SEEN, order_by_last_active=True, automated=False, visible_to=user)
            tags = self._db.tags_of([row["id"] for row in rows], visible_to=user)
            found["list"] = hash(repr(([[row.get(name) for name in HEADLINE] for row in rows], tags)))
        return found


async def _turn_events(topic: str, turn: PageTurn | None) -> Source:
    """The events of a turn, some at a time."""
    if turn is None:
        yield topic, None
        return
    async with aclosing(turn.follow()) as events:
        async for some in events:
            yield topic, some


async def _merged(sources: list[Source]) -> AsyncGenerator[str]:
    """The news of several sources as events, as they come."""
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def drain(source: Source) -> None:
        async with aclosing(source):
            async for topic, news in source:
                queue.put_nowait(data({"topic": topic, "news": news}))

    tasks = [asyncio.create_task(drain(one)) for one in sources]
    try:
        while True:
            yield await queue.get()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

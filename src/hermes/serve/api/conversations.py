"""All turns of the server: those of one session one after the other, those of different sessions in parallel.

A request during a turn of the same session waits for it, in order of arrival; a full queue is answered with
429. An agent stays for a little while after its turn, so that the next message finds it (and its background processes).
If several servers share a store, a session's lease is released when its turn ends: the next message may go to another server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.agent.conversations import Conversations, folder_of
from hermes.agent.models.model import Model
from hermes.agent.tools.tool import FOR_EVERYONE
from hermes.errors import HermesError
from hermes.serve.api.requests import ApiRequest
from hermes.serve.api.sessions import SOURCE, RequestSessions, home_of, user_of
from hermes.serve.api.turn import ServedAgent, ServedTurn
from hermes.serve.http_messages import ApiError
from hermes.store.coordination.leases import source_of

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Tool
    from hermes.config import Config
    from hermes.serve.api.requests import ApiLimits
    from hermes.store.api.session_db import SessionDB


MOST_AT_ONCE = 200  # running and waiting turns, of all sessions
WAIT = 600.0  # seconds to wait for a turn on another server: callers wait no longer, either
PAUSE = 0.1  # seconds between two checks whether it has ended


@dataclass(slots=True, frozen=True)
class _Taken:
    """A conversation reserved for a request until `leave`."""

    name: str
    agent: ServedAgent
    again: bool = False  # the user's message of the turn is stored already


class _Refusal(Enum):
    """Why a request did not get the conversation that it continues."""

    MOVED = "it has continued: the request belongs elsewhere"
    BUSY = "another program uses it"
    ANSWERING = "another API server uses it"


class ServedConversations:
    """Begins turns. Created and used on one event loop; `close` waits until everything is closed."""

    def __init__(
        self, db: SessionDB, config: Config, home: Path, tools: Callable[[], Awaitable[list[Tool]]], limits: ApiLimits
    ) -> None:
        self.places = RequestSessions(db, config, home)
        self._db, self._config, self._home = db, config, home
        self._tools, self._limits = tools, limits
        self._conversations: Conversations[ServedAgent] = Conversations(idle_seconds=limits.idle)
        self._running: set[ServedTurn] = set()
        self._closed = False

    async def begin(self, ask: ApiRequest, model: Model) -> ServedTurn:
        """Begin the turn of a request, as soon as its session is free."""
        if self._closed:
            raise ApiError(503, "the server is stopping", code="stopping", retry_after=5)
        if self._conversations.users() >= MOST_AT_ONCE:
            raise ApiError(429, "the server is busy with many requests", code="rate_limit_exceeded", retry_after=2)
        tools = await self._tools()
        if ask.caller is not None:  # not the owner: nothing that reaches into the machine
            tools = [tool for tool in tools if tool.name in FOR_EVERYONE]
        names = [tool.name for tool in tools]
        aside = False
        while True:
            found = await asyncio.to_thread(self._find, ask, model, names, aside)
            if isinstance(found, _Taken):
                self._conversations.queue(found.name)  # it is new: nothing else waits for it
                return self._started(found, ask, tools)
            taken = await self._wait_for(*found, ask, model, names)
            if isinstance(taken, _Taken):
                return self._started(taken, ask, tools)
            aside = taken is not _Refusal.MOVED

    async def _wait_for(
        self, name: str, asked: bool, ask: ApiRequest, model: Model, names: Sequence[str]
    ) -> _Taken | _Refusal:
        """The continued conversation, reserved for the request when those who came before are done."""
        if self._conversations.users(name) > self._limits.queue:
            raise ApiError(429, "too many requests wait for this session", code="rate_limit_exceeded", retry_after=2)
        await self._conversations.enter(name)
        taken: _Taken | _Refusal = _Refusal.MOVED
        end = asyncio.get_running_loop().time() + WAIT
        try:
            while True:
                taken = await asyncio.to_thread(self._take, name, asked, ask, model, names)
                waits = taken is _Refusal.ANSWERING and ask.session_id is not None
                if not waits or asyncio.get_running_loop().time() > end:
                    break
                await asyncio.sleep(PAUSE)
        finally:
            if not isinstance(taken, _Taken):
                self._conversations.leave(name)
        if ask.session_id is not None and taken in (_Refusal.BUSY, _Refusal.ANSWERING):
            raise ApiError(
                409, f"session {ask.session_id} is open in another program; close it there first", code="session_busy"
            )
        return taken

    # ------------------------------------------------------------------------------------------ in threads

    def _find(
        self, ask: ApiRequest, model: Model, names: Sequence[str], aside: bool
    ) -> _Taken | tuple[str, bool]:  # fmt: skip
        """The name of the conversation that a request continues, and whether its message waits there unanswered.

        If it continues none, or `aside`, beside one: a new session, or a branch. A request that names a session waits until
        that is free. A recognised one does not: a session that is in use has continued since.
        """
        place = self.places.find(ask, aside=aside)
        if place.goes_on:
            name = self.places.chain(str(place.session_id))
            if ask.session_id is not None or not self._conversations.users(name):
                return name, place.asked
            place = self.places.find(ask, aside=True)
        session_id = self.places.open(place, ask, model, names, Path.cwd())
        return _Taken(session_id, self._agent(session_id, session_id, model, ask.caller))

    def _take(
        self, name: str, asked: bool, ask: ApiRequest, model: Model, tools: Sequence[str]
    ) -> _Taken | _Refusal:  # fmt: skip
        """Hold an existing session, then add the caller's newer messages.

        Another API server may hold it for its background processes: that does not prevent an answer. Without `asked`, an
        unanswered message is that of a request at the same time, in a branch.
        """
        place = self.places.find(ask, tried=asked)
        session_id = str(place.session_id)
        if not place.goes_on or self.places.chain(session_id) != name:
            return _Refusal.MOVED
        agent = self._agent(name, session_id, model, ask.caller)
        if (agent.hold() or self._is_another_servers(session_id)) and agent.answering() is None:
            self.places.open(place, ask, model, tools, agent.cwd)
            return _Taken(name, agent, again=place.asked)
        return _Refusal.ANSWERING if self._is_another_servers(session_id) else _Refusal.BUSY

    def _is_another_servers(self, session_id: str) -> bool:
        """Whether an API server (or no process any more) holds a session, on a store that several servers share."""
        if not self._db.is_shared:
            return False
        holder = self._db.session_holder(session_id)
        return holder is None or source_of(holder) == SOURCE

    def _agent(self, name: str, session_id: str, model: Model, caller: str | None) -> ServedAgent:
        def make() -> ServedAgent:
            agent = ServedAgent(
                self._db, self._config, model, session_id=session_id, source=SOURCE, home=self._home,
                cwd=folder_of(self._db, session_id),
            )  # fmt: skip
            agent.first_wait = self._limits.first_retry
            return agent

        agent = self._conversations.take(name, None, make)
        agent.model = model
        agent.session_id = session_id
        agent.context.user = user_of(caller)
        agent.context.home = home_of(self._home, caller)
        return agent

    # ------------------------------------------------------------------------------------------ running

    def _started(self, taken: _Taken, ask: ApiRequest, tools: Sequence[Tool]) -> ServedTurn:
        agent = taken.agent

        def over() -> None:
            if self._db.is_shared and not agent.background_running():
                with suppress(HermesError):  # the lease expires by itself
                    agent.let_go()  # another server may have the next turn
            self._running.discard(turn)
            self._conversations.leave(taken.name)

        turn = ServedTurn(self._db, self.places, agent, ask, tools, over, again=taken.again)
        self._running.add(turn)
        turn.start()
        return turn

    async def close(self, seconds: float = 3.0) -> None:
        """Stop every turn, wait until the replies so far are stored, and close all agents."""
        self._closed = True
        for turn in list(self._running):
            turn.stop()
        await asyncio.to_thread(self._conversations.close, seconds)

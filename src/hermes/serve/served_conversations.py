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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.conversations import Conversations
from hermes.agent.model import Model
from hermes.agent.tools.toolbox import FOR_EVERYONE
from hermes.agent.turn import Turn
from hermes.errors import HermesError
from hermes.serve.api_errors import ApiError
from hermes.serve.api_requests import ApiRequest
from hermes.serve.request_sessions import SOURCE, RecordPosition, RequestSessions, home_of, last_id, user_of
from hermes.serve.served_turn import Outcome, ReplyWords, ServedAgent, ServedTurn, Used
from hermes.store.leases import source_of

if TYPE_CHECKING:
    from hermes.agent.tools.tool import Tool
    from hermes.config import Config
    from hermes.serve.api_limits import ApiLimits
    from hermes.store.db import SessionDB


MOST_AT_ONCE = 200  # running and waiting turns, of all sessions
WAIT = 600.0  # seconds to wait for a turn on another server: callers wait no longer, either
PAUSE = 0.1  # seconds between two checks whether it has ended


@dataclass(slots=True, frozen=True)
class _Taken:
    """A conversation reserved for a request until `leave`."""

    name: str
    agent: ServedAgent
    again: bool = False  # the user's message of the turn is stored already


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
        taken = await self._going_on(ask, model, names)
        if taken is None:
            place = await asyncio.to_thread(self.places.find, ask, aside=True)
            session_id = await asyncio.to_thread(self.places.open, place, ask, model, names, Path.cwd())
            await self._enter(session_id)
            try:
                taken = _Taken(
                    session_id, await asyncio.to_thread(self._agent, session_id, session_id, model, ask.caller)
                )
            except BaseException:
                self._conversations.leave(session_id)
                raise
        return self._started(taken, ask, tools)

    async def _going_on(self, ask: ApiRequest, model: Model, names: Sequence[str]) -> _Taken | None:
        """The continued conversation, reserved for the request; None if a new one (or a branch) is to be created.

        A request that names a session waits until it is free. A recognised one does not: a session that is in
        use has continued since.
        """
        while True:
            place = await asyncio.to_thread(self.places.find, ask)
            if not place.goes_on:
                return None
            name = await asyncio.to_thread(self.places.chain, str(place.session_id))
            if ask.session_id is None and self._conversations.users(name):
                return None
            await self._enter(name)
            taken: _Taken | None = None
            busy = False  # another program holds it
            end = asyncio.get_running_loop().time() + WAIT
            try:
                tried = place.asked  # else an unanswered try is that of a request at the same time, in a branch
                while True:  # the session may have continued meanwhile
                    place = await asyncio.to_thread(self.places.find, ask, tried=tried)
                    if not place.goes_on or await asyncio.to_thread(self.places.chain, str(place.session_id)) != name:
                        break
                    taken = await asyncio.to_thread(self._take, name, place, ask, model, names)
                    busy = taken is None
                    if taken or ask.session_id is None or asyncio.get_running_loop().time() > end:
                        break
                    if not await asyncio.to_thread(self._is_another_servers, str(place.session_id)):
                        break
                    busy = False
                    await asyncio.sleep(PAUSE)
            finally:
                if taken is None:
                    self._conversations.leave(name)
            if taken is not None:
                return taken
            if busy:
                if ask.session_id is None:
                    return None
                raise ApiError(
                    409, f"session {place.session_id} is open in another program; close it there first",
                    code="session_busy",
                )  # fmt: skip

    async def _enter(self, name: str) -> None:
        """Reserve a conversation, until `leave`."""
        if self._conversations.users(name) > self._limits.queue:
            raise ApiError(429, "too many requests wait for this session", code="rate_limit_exceeded", retry_after=2)
        ticket = self._conversations.queue(name)
        try:
            await asyncio.wrap_future(ticket)
        except BaseException:
            if not ticket.cancel():  # it was assigned at this very moment
                self._conversations.leave(name)
            raise

    # ------------------------------------------------------------------------------------------ in threads

    def _take(
        self, name: str, place: RecordPosition, ask: ApiRequest, model: Model, tools: Sequence[str]
    ) -> _Taken | None:
        """Hold an existing session, then add the caller's newer messages; None while another program holds it.

        Another API server may hold it for its background processes: that does not prevent an answer.
        """
        session_id = str(place.session_id)
        agent = self._agent(name, session_id, model, ask.caller)
        if not agent.hold() and not self._is_another_servers(session_id):
            return None
        if agent.answering() is not None:
            return None
        self.places.open(place, ask, model, tools, agent.cwd)
        return _Taken(name, agent, again=place.asked)

    def _is_another_servers(self, session_id: str) -> bool:
        """Whether an API server (or no process any more) holds a session, on a store that several servers share."""
        if not self._db.is_shared:
            return False
        holder = self._db.session_holder(session_id)
        return holder is None or source_of(holder) == SOURCE

    def _give_back(self, agent: ServedAgent) -> None:
        """The turn is over: release the session, so that another server may have the next turn."""
        if self._db.is_shared and not agent.background_running():
            with suppress(HermesError):  # the lease expires by itself
                agent.let_go()

    def _agent(self, name: str, session_id: str, model: Model, caller: str | None) -> ServedAgent:
        def make() -> ServedAgent:
            row = self._db.get_session(session_id)
            cwd = Path(row["cwd"]) if row is not None and row["cwd"] else Path.cwd()
            agent = ServedAgent(
                self._db, self._config, model, session_id=session_id, source=SOURCE, home=self._home,
                cwd=cwd if cwd.is_dir() else Path.cwd(),
            )  # fmt: skip
            agent.first_wait = self._limits.first_retry
            return agent

        agent = self._conversations.take(name, None, make)
        agent.model = model
        agent.session_id = session_id
        agent.context.user = user_of(caller)
        agent.context.home = home_of(self._home, caller)
        return agent

    def _started(self, taken: _Taken, ask: ApiRequest, tools: Sequence[Tool]) -> ServedTurn:
        agent = taken.agent
        job = _TurnRecord(self._db, self.places, agent, ask, again=taken.again)

        def over() -> None:
            self._running.discard(turn)
            self._conversations.leave(taken.name)

        def begin() -> Turn:
            agent.equip(tools, ask.tools)
            return job.turn()

        def account(words: ReplyWords, error: BaseException | None) -> Outcome:
            try:
                return job.account(words, error)
            finally:
                self._give_back(agent)  # before the caller gets the end of the turn, and uses another server

        turn = ServedTurn(begin, account, over, self._limits.silence)
        turn.session_id = agent.session_id
        self._running.add(turn)
        turn.start()
        return turn

    # ------------------------------------------------------------------------------------------ leaving

    async def close(self, seconds: float = 3.0) -> None:
        """Stop every turn, wait until the replies so far are stored, and close all agents."""
        self._closed = True
        turns = list(self._running)
        for turn in turns:
            turn.stop()
        if turns:
            await asyncio.wait([asyncio.ensure_future(turn.ended()) for turn in turns], timeout=seconds)
        await asyncio.to_thread(self._conversations.close, seconds)


class _TurnRecord:
    """What one turn writes to the record besides the agent's own work."""

    def __init__(
        self, db: SessionDB, places: RequestSessions, agent: ServedAgent, ask: ApiRequest, *, again: bool
    ) -> None:
        self._db, self._places, self._agent, self._ask, self._again = db, places, agent, ask, again
        self._session_id = agent.session_id
        self._before = 0
        self._thought = 0

    def turn(self) -> Turn:
        """The turn itself."""
        session_id = self._session_id
        self._before = last_id(self._db, session_id)
        self._thought = self._reasoning(session_id)
        content = self._ask.content
        if content is None or self._again:
            self._places.remember(self._ask, session_id, self._before, [])
            return self._agent.go_on()
        return self._agent.turn(content, keep=self._keep)

    def _keep(self, session_id: str, content: str | list[Any]) -> int:
        """Store the user's message, and that it waits for an answer: a repeated request must not store it again."""
        message_id = self._db.append_message(session_id, "user", content)
        self._places.remember(self._ask, session_id, message_id, [])
        return message_id

    def account(self, words: ReplyWords, error: BaseException | None) -> Outcome:
        """The outcome, from the record; records the conversation's digests as the caller saw it."""
        session_id, handed = self._agent.session_id, self._agent.handed
        rows = self._db.get_messages(session_id)
        last = rows[-1]["id"] if rows else 0
        stored = [row for row in rows if row["id"] > self._before and row["role"] == "assistant"]
        if stored:
            texts = dict.fromkeys((words.whole, words.shown))
            replies = [{"role": "assistant", "content": text, "tool_calls": handed} for text in texts]
            self._places.remember(self._ask, session_id, last, replies)
        thought = self._thought if session_id == self._session_id else 0  # a compressed session counts from zero
        fresh = sum(row["input_tokens"] or 0 for row in stored)
        cached = sum((row["cache_read_tokens"] or 0) + (row["cache_write_tokens"] or 0) for row in stored)
        used = Used(
            fresh + cached,  # callers count the cache as part of the input
            sum(row["output_tokens"] or 0 for row in stored),
            sum(row["cache_read_tokens"] or 0 for row in stored), max(0, self._reasoning(session_id) - thought),
        )  # fmt: skip
        reason = stored[-1]["finish_reason"] if stored else None
        if handed:
            reason = "tool_calls"
        elif reason not in ("length", "content_filter"):
            reason = "stop"
        return Outcome(session_id, words.whole, handed, reason, used, last, error)

    def _reasoning(self, session_id: str) -> int:
        row = self._db.get_session(session_id)
        return int(row["reasoning_tokens"] or 0) if row is not None else 0

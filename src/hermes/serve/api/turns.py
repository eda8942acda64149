"""The turns of the API's callers: those of one session one after the other, those of different sessions in parallel.

A request during a turn of the same session waits for it, in order of arrival; a full queue is answered with 429. An agent stays
for a little while after its turn, so that the next message finds it (and its background processes); the session's lease is
released at once, so that another server, or a terminal, may continue the conversation. If the caller disconnects, the turn
stops; the reply so far is stored. A turn ends with its thread, so that the next one of the session finds everything stored.

Some of the tools may be the caller's. A reply that calls one of them is stored with its calls, those of our own tools are run,
and the turn ends; `handed` has the caller's calls. The caller sends their results later: these are stored like any others, and
`go_on` continues the conversation from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.conversations import Conversations, folder_of, new_session_id
from hermes.agent.loop import Agent
from hermes.agent.models.model import Model, Reply
from hermes.agent.tool_calls import read_call
from hermes.agent.tools.tool import Tool
from hermes.agent.turn import Event, Events, Followed, StreamEvent, Text, ToolStarted, stream_turn
from hermes.agent.turn_session import Also
from hermes.errors import HermesError, SessionBusy
from hermes.serve.api.sessions import SOURCE, RecordPosition, RequestSessions, last_id
from hermes.serve.http_messages import ApiError
from hermes.store.leases import source_of

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.serve.api.requests import ApiRequest
    from hermes.store.api.session_db import SessionDB

QUEUE = 16  # requests that wait for one session
IDLE = 10.0  # seconds an agent stays after its turn
_BETWEEN = "\n\n"  # between the text before and after a tool call


@dataclass(slots=True)
class Used:
    """The tokens a turn used, over all its calls of the model."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0

    def told(self, given: str, made: str) -> dict[str, Any]:
        """The counts under the names that a protocol has for what the model was given and what it made."""
        return {
            f"{given}_tokens": self.input,
            f"{given}_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            f"{made}_tokens": self.output,
            f"{made}_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.input + self.output,
        }


@dataclass(slots=True)
class Outcome:
    """How a turn ended."""

    session_id: str
    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"  # stop, length, content_filter or tool_calls
    used: Used = field(default_factory=Used)
    message_id: int = 0


class ReplyWords:
    """The text of a turn as it is streamed, and as it is once the turn is over.

    A reply whose stream breaks starts over: a streaming client has seen both beginnings, the final text has only the second.
    """

    def __init__(self) -> None:
        self.shown = ""  # all text that was shown
        self._rounds = [""]  # one for each reply of the model

    def take(self, event: Event) -> Event:
        """The event, with the text to show for it."""
        if isinstance(event, ToolStarted):
            self._rounds.append("")
        if not isinstance(event, Text):
            return event
        before = "" if event.restarted else self._rounds[-1]
        text = _BETWEEN + event.text if self.shown and not before else event.text
        self._rounds[-1] = before + event.text
        self.shown += text
        return Text(text, event.restarted)

    @property
    def whole(self) -> str:
        """The final reply."""
        return _BETWEEN.join(filter(None, self._rounds))


class ServedTurn:
    """A running turn: `events` gives it as it happens; `outcome` is there when they have ended without an error."""

    events: AsyncGenerator[StreamEvent, None]
    outcome: Outcome

    def __init__(
        self, db: SessionDB, places: RequestSessions, agent: ServedAgent, ask: ApiRequest, tools: Sequence[Tool],
        over: Callable[[], None], *, again: bool,
    ) -> None:  # fmt: skip
        """`over` is called in the turn's thread when all is stored. `again`: the user's message is stored already."""
        self.session_id = agent.session_id
        self._db, self._places, self._agent, self._ask, self._tools, self._over = db, places, agent, ask, tools, over
        self._content = None if again else ask.content
        self._question_id: int | None = None  # the last message before the reply
        turn = agent.resume() if self._content is None else agent.turn(self._content, keep=self._keep)
        self._turn = turn.through(self._through)

    def start(self) -> None:
        """Begin. A program can't answer questions."""
        self.events = stream_turn(self._agent, self._turn, patience=0)

    def stop(self) -> None:
        """Interrupt the turn; the reply so far is stored. Harmless when it is over."""
        self._turn.interrupt()

    # ------------------------------------------------------------------------------------------ in the turn's thread

    def _through(self, events: Iterator[Event]) -> Events:
        """The events as the caller gets them, and what the turn writes to the record besides the agent's own work."""
        words, thought = ReplyWords(), 0
        try:
            self._agent.equip(self._tools, self._ask.tools)
            thought = self._reasoning()
            if self._content is None:
                self._question_id = last_id(self._db, self.session_id)
                self._places.remember(self._ask, self.session_id, self._question_id, [])
            for event in events:
                if isinstance(event, Followed):
                    self.session_id, thought = event.session_id, 0  # a compressed session counts from zero
                yield words.take(event)
        except _Handed:
            pass  # the caller runs the other tools
        finally:
            try:
                self._account(words, thought)
            finally:
                self._over()  # before the caller gets the end of the turn, and uses another server

    def _keep(self, session_id: str, content: str | list[Any], also: Also) -> int:
        self._question_id = self._places.keep_question(self._ask, session_id, content, also)
        return self._question_id

    def _account(self, words: ReplyWords, thought: int) -> None:
        """Make the outcome, from the record, and record the conversation's digests as the caller saw it."""
        rows = self._db.get_messages(self.session_id)
        last = rows[-1]["id"] if rows else 0
        question = last if self._question_id is None else self._question_id
        stored = [row for row in rows if row["id"] > question and row["role"] == "assistant"]
        handed = self._agent.handed
        if stored:
            texts = dict.fromkeys((words.whole, words.shown))
            replies = [{"role": "assistant", "content": text, "tool_calls": handed} for text in texts]
            self._places.remember(self._ask, self.session_id, last, replies)
        fresh = sum(row["input_tokens"] or 0 for row in stored)
        cached = sum((row["cache_read_tokens"] or 0) + (row["cache_write_tokens"] or 0) for row in stored)
        used = Used(
            fresh + cached,  # callers count the cache as part of the input
            sum(row["output_tokens"] or 0 for row in stored),
            sum(row["cache_read_tokens"] or 0 for row in stored), max(0, self._reasoning() - thought),
        )  # fmt: skip
        reason = "tool_calls" if handed else stored[-1]["finish_reason"] if stored else None
        if reason not in ("tool_calls", "length", "content_filter"):
            reason = "stop"
        self.outcome = Outcome(self.session_id, words.whole, handed, reason, used, last)

    def _reasoning(self) -> int:
        row = self._db.get_session(self.session_id)
        return int(row["reasoning_tokens"] or 0) if row is not None else 0


class ServedAgent(Agent):
    """The agent of one session, for callers over HTTP, who decide themselves what the model gets."""

    recalls = False
    _callers: frozenset[str] = frozenset()
    handed: list[dict[str, Any]] = []  # the calls that the last turn left to the caller, as the model made them

    def instruction_files(self) -> list[Path]:
        """None: the caller's project is not the folder of the server."""
        return []

    def equip(self, own: Iterable[Tool], callers: Iterable[Tool]) -> None:
        """Set the tools of the next turn. A caller's tool replaces one of ours with the same name."""
        theirs = {tool.name: tool for tool in callers}
        self._callers, self.handed = frozenset(theirs), []
        self.tools = {**{tool.name: tool for tool in own}, **theirs}

    def _run_tools(self, reply: Reply) -> Iterator[Event]:
        theirs = [call for call in reply.tool_calls if read_call(call, {}).name in self._callers]
        own = [call for call in reply.tool_calls if call not in theirs]
        if own:
            yield from super()._run_tools(replace(reply, tool_calls=own))
        if theirs:
            self.handed = theirs
            raise _Handed


class _Handed(Exception):
    """Raised to end the turn: the remaining calls are the caller's."""


class ServedTurns:
    """Begins turns. Created and used on one event loop; `close` waits until everything is closed."""

    def __init__(self, db: SessionDB, config: Config, home: Path, tools: Callable[[], list[Tool]]) -> None:
        self.places = RequestSessions(db, config, home)
        self._db, self._config, self._home, self._tools = db, config, home, tools
        self._conversations: Conversations[ServedAgent] = Conversations(idle_seconds=IDLE)
        self._running: set[ServedTurn] = set()
        self._closed = False

    async def begin(self, ask: ApiRequest, model: Model) -> ServedTurn:
        """Begin the turn of a request, as soon as its session is free.

        A request that names a session waits until that is free. A recognised one does not: a session that is in use has
        continued since, so the request continues in a branch beside it.
        """
        if self._closed:
            raise ApiError(503, "the server is stopping", code="stopping", retry_after=5)
        tools = await asyncio.to_thread(self._tools)
        aside = False
        while True:
            name, place = await asyncio.to_thread(self._find, ask, aside)
            waiting = self._conversations.users(name)
            if waiting and ask.session_id is None:
                aside = True
                continue
            if waiting > QUEUE:
                busy = "too many requests wait for this session"
                raise ApiError(429, busy, code="rate_limit_exceeded", retry_after=2)
            await self._conversations.enter(name)
            agent = None
            try:
                names = [tool.name for tool in tools]
                agent = await asyncio.to_thread(self._claimed_agent, name, place, ask, model, names)
            except SessionBusy:
                if ask.session_id is not None:
                    raise
                aside = True
            finally:
                if agent is None:
                    self._conversations.leave(name)
            if agent is not None:
                return self._started(name, agent, ask, tools, again=place.is_stored)

    # ------------------------------------------------------------------------------------------ in threads

    def _find(self, ask: ApiRequest, aside: bool) -> tuple[str, RecordPosition]:
        """The place of a request, and the name of its conversation."""
        place = self.places.find(ask, aside=aside)
        name = self.places.chain(str(place.session_id)) if place.continues else new_session_id(gateway=True)
        return name, place

    def _claimed_agent(
        self, name: str, place: RecordPosition, ask: ApiRequest, model: Model, tools: Sequence[str]
    ) -> ServedAgent | None:
        """The agent of a new session, or of an existing one that it holds; all messages before the new one are stored then.

        None when the conversation has continued, so that the request belongs elsewhere; SessionBusy while another program
        uses the session.
        """
        if not place.continues:
            self.places.open(place, ask, model, tools, Path.cwd(), name)
            return self._agent(name, name, model)
        # Without an earlier try, an unanswered message belongs to a simultaneous request, in a branch.
        before, place = place, self.places.find(ask, tried=place.is_stored)
        session_id = str(place.session_id)
        if not place.continues or place.is_stored != before.is_stored or self.places.chain(session_id) != name:
            return None
        agent = self._agent(name, session_id, model)
        if not agent.hold() or agent.answering() is not None:
            raise SessionBusy(session_id, source_of(self._db.session_holder(session_id)), "open")
        self.places.open(place, ask, model, tools, agent.cwd, name)
        return agent

    def _agent(self, name: str, session_id: str, model: Model) -> ServedAgent:
        def make() -> ServedAgent:
            return ServedAgent(
                self._db, self._config, model, session_id=session_id, source=SOURCE, home=self._home,
                cwd=folder_of(self._db, session_id),
            )  # fmt: skip

        agent = self._conversations.take(name, None, make)
        agent.model = model
        agent.session_id = session_id
        return agent

    # ------------------------------------------------------------------------------------------ running

    def _started(
        self, name: str, agent: ServedAgent, ask: ApiRequest, tools: Sequence[Tool], *, again: bool
    ) -> ServedTurn:
        def over() -> None:
            with suppress(HermesError):  # the lease expires by itself
                if not agent.background_running():
                    agent.lease.release()
            self._running.discard(turn)
            self._conversations.leave(name)

        turn = ServedTurn(self._db, self.places, agent, ask, tools, over, again=again)
        self._running.add(turn)
        turn.start()
        return turn

    async def close(self, seconds: float = 3.0) -> None:
        """Stop every turn, wait until the replies so far are stored, and close all agents."""
        self._closed = True
        for turn in list(self._running):
            turn.stop()
        await asyncio.to_thread(self._conversations.close, seconds)

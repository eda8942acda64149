"""One turn for a caller of the API, and the agent that runs it.

If the caller disconnects, the turn stops; the reply so far is kept. The turn is over when its thread is, and not a moment
before, so that the next one of the same session finds everything stored.

Some of the tools may be the caller's: such a call ends the turn, and the caller sends its result later. The agent's own tools
run here as always. A reply that calls one of the caller's is stored with its calls, those of our own tools are run, and the turn
is over; `handed` has the caller's calls. Their results are stored like any others, and `go_on` continues the
conversation from there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.agent.loop import Agent
from hermes.agent.models.model import Reply
from hermes.agent.tools.tool import Tool
from hermes.agent.turn import Done, Event, Events, Followed, StreamEvent, Text, ToolStarted, stream_turn
from hermes.agent.turn_session import Also
from hermes.serve.api.sessions import last_id

if TYPE_CHECKING:
    from hermes.serve.api.requests import ApiRequest
    from hermes.serve.api.sessions import RequestSessions
    from hermes.store.api.session_db import SessionDB

_BETWEEN = "\n\n"  # between the text before and after a tool call


@dataclass(slots=True)
class Used:
    """The tokens a turn used, over all its calls of the model."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0


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
        self._shown: list[str] = []
        self._rounds: list[list[str]] = [[]]

    def take(self, event: Event) -> Event:
        """The event, with the text to show for it."""
        if isinstance(event, ToolStarted) and self._rounds[-1]:
            self._rounds.append([])
        if not isinstance(event, Text):
            return event
        round_ = self._rounds[-1]
        if event.anew:
            round_.clear()
        text = _BETWEEN + event.text if self._shown and not round_ else event.text
        round_.append(event.text)
        self._shown.append(text)
        return Text(text, event.anew)

    @property
    def shown(self) -> str:
        """Everything that was shown."""
        return "".join(self._shown)

    @property
    def whole(self) -> str:
        """The final reply."""
        return _BETWEEN.join("".join(round_) for round_ in self._rounds if round_)


class ServedTurn:
    """A running turn: `events` gives it as it happens; `outcome` is there when they have ended without an error."""

    events: AsyncGenerator[StreamEvent, None]
    outcome: Outcome

    def __init__(
        self, db: SessionDB, places: RequestSessions, agent: ServedAgent, ask: ApiRequest, tools: Sequence[Tool],
        over: Callable[[], None], *, again: bool,
    ) -> None:  # fmt: skip
        """`over` is called in the turn's thread when all is stored. `again`: the user's message is already."""
        self.session_id = agent.session_id
        self._db, self._places, self._agent, self._ask, self._tools, self._over = db, places, agent, ask, tools, over
        self._content = None if again else ask.content
        self._asked: int | None = None  # the last message before the reply
        turn = agent.go_on() if self._content is None else agent.turn(self._content, keep=self._keep)
        self._turn = turn.through(self._through)

    def start(self) -> None:
        """Begin."""
        try:
            self.events = stream_turn(self._agent, self._turn, patience=0)  # a program can't be asked
        except BaseException:  # there are too many threads
            self._over()
            raise

    def stop(self) -> None:
        """Interrupt the turn; the reply so far is kept. Harmless when it is over."""
        self._turn.interrupt()

    # ------------------------------------------------------------------------------------------ in the turn's thread

    def _through(self, events: Iterator[Event]) -> Events:
        """The events as the caller gets them, and what the turn writes to the record besides the agent's own work."""
        words, thought = ReplyWords(), 0
        try:
            self._agent.equip(self._tools, self._ask.tools)
            thought = self._reasoning()
            if self._content is None:
                self._asked = last_id(self._db, self.session_id)
                self._places.remember(self._ask, self.session_id, self._asked, [])
            for event in events:
                if isinstance(event, Followed):
                    self.session_id, thought = event.session_id, 0  # a compressed session counts from zero
                yield words.take(event)
        except _Handed as handed:
            yield Done(handed.text, interrupted=self._turn.interrupted)
        finally:
            try:
                self._account(words, thought)
            finally:
                self._over()  # before the caller gets the end of the turn, and uses another server

    def _keep(self, session_id: str, content: str | list[Any], also: Also) -> int:
        self._asked = self._places.keep_question(self._ask, session_id, content, also)
        return self._asked

    def _account(self, words: ReplyWords, thought: int) -> None:
        """Make the outcome, from the record, and record the conversation's digests as the caller saw it."""
        rows = self._db.get_messages(self.session_id)
        last = rows[-1]["id"] if rows else 0
        asked = last if self._asked is None else self._asked
        stored = [row for row in rows if row["id"] > asked and row["role"] == "assistant"]
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
        reason = stored[-1]["finish_reason"] if stored else None
        if handed:
            reason = "tool_calls"
        elif reason not in ("length", "content_filter"):
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
        theirs = [call for call in reply.tool_calls if _name(call) in self._callers]
        own = [call for call in reply.tool_calls if _name(call) not in self._callers]
        if own:
            yield from super()._run_tools(replace(reply, tool_calls=own))
        if theirs:
            self.handed = theirs
            raise _Handed(reply.content or "")


class _Handed(Exception):
    """Raised to end the turn: the remaining calls are the caller's."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


def _name(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    return str(function.get("name") or "") if isinstance(function, Mapping) else ""

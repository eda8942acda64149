"""One turn for a caller of the API: the agent works in its own thread, its events are received on the event loop.

If the caller disconnects, the turn stops; the reply so far is kept. The turn is over when its thread is, and not a moment
before, so that the next one of the same session finds everything stored.

Some of the tools may be the caller's: such a call ends the turn, and the caller sends its result later. The agent's own tools
run here as always. A reply that calls one of the caller's is stored with its calls, those of our own tools are run, and the turn
is over; `handed` has the caller's calls. Their results are stored like any others, and `go_on` continues the
conversation from there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hermes.agent.loop import Agent
from hermes.agent.model import Reply
from hermes.agent.tools.tool import Context, Tool
from hermes.agent.turn import Done, Event, Events, Followed, Stop, Text, Thought, ToolStarted, Turn, run_turn
from hermes.errors import ToolError

_BETWEEN = "\n\n"  # between the text before and after a tool call


@dataclass(slots=True, frozen=True)
class ReplyPiece:
    """The next piece of the reply."""

    text: str


@dataclass(slots=True, frozen=True)
class ReasoningPiece:
    """The next piece of the model's reasoning."""

    text: str


@dataclass(slots=True)
class Used:
    """The tokens a turn used, over all its calls of the model."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(slots=True)
class Outcome:
    """How a turn ended. `error` is the exception that ended it, if any."""

    session_id: str
    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"  # stop, length, content_filter or tool_calls
    used: Used = field(default_factory=Used)
    message_id: int = 0
    error: BaseException | None = None


Item = ReplyPiece | ReasoningPiece | Outcome


class ReplyWords:
    """The text of a turn as it is streamed, and as it is once the turn is over.

    A reply whose stream breaks starts over: a streaming client has seen both beginnings, the final text has only the second.
    """

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._rounds: list[list[str]] = [[]]

    def take(self, event: Event) -> str:
        """The text to show for an event."""
        if isinstance(event, ToolStarted) and self._rounds[-1]:
            self._rounds.append([])
        if not isinstance(event, Text):
            return ""
        round_ = self._rounds[-1]
        if event.anew:
            round_.clear()
        text = _BETWEEN + event.text if self._shown and not round_ else event.text
        round_.append(event.text)
        self._shown.append(text)
        return text

    @property
    def shown(self) -> str:
        """Everything that was shown."""
        return "".join(self._shown)

    @property
    def whole(self) -> str:
        """The final reply."""
        return _BETWEEN.join("".join(round_) for round_ in self._rounds if round_)


class ServedTurn:
    """A running turn. `next` gives its items; the last one is an Outcome."""

    def __init__(
        self,
        begin: Callable[[], Turn],
        account: Callable[[ReplyWords, BaseException | None], Outcome],
        over: Callable[[], None],
        silence: float,
    ) -> None:
        """`begin` creates the turn, in the thread it will run in."""
        self.session_id = ""  # the session of the turn
        self.silence = silence  # seconds without an item, after which a stream says that it still runs
        self._begin, self._account, self._over = begin, account, over
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._stop = Stop()
        self._words = ReplyWords()

    def start(self) -> None:
        """Begin."""
        run_turn(lambda: self._stop.bind(self._begin()), self._tell, self._end, name="hermes-api-turn")

    async def next(self, seconds: float | None = None) -> Item | None:
        """The next item; None without one within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await self._items.get()
        except TimeoutError:
            return None

    def stop(self) -> None:
        """Interrupt the turn; the reply so far is kept. Harmless when it is over."""
        self._stop.want()

    async def ended(self) -> None:
        """Wait until it is over."""
        await self._ended.wait()

    def _tell(self, event: Event) -> None:
        text = self._words.take(event)
        if text:
            self._post(self._items.put_nowait, ReplyPiece(text))
        elif isinstance(event, Thought):
            self._post(self._items.put_nowait, ReasoningPiece(event.text))
        elif isinstance(event, Followed):
            self.session_id = event.session_id

    def _end(self, error: BaseException | None) -> None:
        try:
            outcome = self._account(self._words, error)
        except BaseException as problem:
            outcome = Outcome(self.session_id, self._words.whole, error=error or problem)
        self._post(self._finish, outcome)

    def _post(self, action: Callable[[Any], None], thing: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(action, thing)
        except RuntimeError:
            pass  # the program exits; the record has everything

    def _finish(self, outcome: Outcome) -> None:
        self._ended.set()
        self._over()
        self._items.put_nowait(outcome)


class ServedAgent(Agent):
    """The agent of one session, for callers over HTTP."""

    _callers: frozenset[str] = frozenset()
    handed: list[dict[str, Any]] = []  # the calls that the last turn left to the caller, as the model made them

    def equip(self, own: Iterable[Tool], callers: Iterable[Tool]) -> None:
        """Set the tools of the next turn. A caller's tool replaces one of ours with the same name."""
        theirs = {tool.name: tool for tool in callers}
        self._callers = frozenset(theirs)
        self.tools = {**{tool.name: tool for tool in own}, **theirs}

    def _begin(self, events: Callable[[threading.Event], Events]) -> Turn:
        return super()._begin(lambda cancel: self._until_handed(events(cancel), cancel))

    def _until_handed(self, events: Events, cancel: threading.Event) -> Events:
        self.handed = []
        try:
            yield from events
        except _Handed as handed:
            yield Done(handed.text, interrupted=cancel.is_set())

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


def callers_tool(name: str, description: str, parameters: Mapping[str, Any]) -> Tool:
    """A tool that the caller runs."""
    return Tool(name, description, dict(parameters), _elsewhere)


def _elsewhere(context: Context, arguments: dict[str, Any]) -> str:
    raise ToolError("this tool is run by the caller")


def _name(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    return str(function.get("name") or "") if isinstance(function, Mapping) else ""

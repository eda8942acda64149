"""One running turn: its events, its own cancel flag and, if an entry point wants one, its own thread or asynchronous stream.

The flag belongs to the turn from the moment the turn exists, so an interrupt is never lost: neither one before the
first event is requested, nor one meant for the previous turn. An entry point that may have to stop before it has a
turn (the message still waits, its files are being fetched) holds a `Stop` and binds the turn to it.

`stream_turn` gives its events, and the questions of its tools, to an event loop. The turn then runs in a thread of its own,
so that nothing it waits for (a model, a tool, the store) holds up the loop.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes.agent.tools.permission import NO_USER, Answer
from hermes.agent.tools.tool import current_id

if TYPE_CHECKING:
    from hermes.agent.loop import Agent


@dataclass(slots=True, frozen=True)
class Text:
    """The next piece of the reply. `restarted`: the first one after a try that broke off; discard the pieces of that try."""

    text: str
    restarted: bool = False


@dataclass(slots=True, frozen=True)
class Thought:
    """The next piece of the model's reasoning, where the endpoint shows it."""

    text: str


@dataclass(slots=True, frozen=True)
class ToolStarted:
    """A tool is about to run."""

    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(slots=True, frozen=True)
class ToolProgress:
    """The last lines a running tool has printed; each replaces the one before."""

    call_id: str
    text: str


@dataclass(slots=True, frozen=True)
class ToolFinished:
    """A tool call has ended; a failure is a result as well, and `outcome` says in a word or two how it ended.

    `shown` is what a screen shows of the result: a program's output, or the diff of a changed file.
    """

    call_id: str
    name: str
    ok: bool
    text: str
    seconds: float
    outcome: str = ""
    shown: str = ""


@dataclass(slots=True, frozen=True)
class Notice:
    """A one-line message for the user."""

    text: str


@dataclass(slots=True, frozen=True)
class Retrying(Notice):
    """A notice that the call failed and is repeated after `seconds`; `try_` says which try that is: "2 of 5"."""

    seconds: float = 0.0
    try_: str = ""


@dataclass(slots=True, frozen=True)
class Restarted(Retrying):
    """A notice that the reply starts over: discard the pieces shown so far."""


@dataclass(slots=True, frozen=True)
class EmptyReply(Notice):
    """A notice that the model's reply has no text. Each entry point adds what the user can do there."""

    text: str = "The model gave an empty reply."


@dataclass(slots=True, frozen=True)
class Followed:
    """The conversation continues in another session (it was compressed)."""

    old_session_id: str
    session_id: str


@dataclass(slots=True, frozen=True)
class Done:
    """The end of the turn, always the last event."""

    text: str
    interrupted: bool = False


Event = Text | Thought | ToolStarted | ToolProgress | ToolFinished | Notice | Followed | Done


Events = Generator[Event, None, None]


@dataclass(slots=True)
class TurnEnded:
    """The thread of a turn has ended, with an error if it failed."""

    error: BaseException | None


class Turn(Iterator[Event]):
    """The events of one turn, the last one Done. They are produced on demand, in the thread that iterates."""

    def __init__(self, events: Events, cancel: threading.Event) -> None:
        self._events = events
        self._cancel = cancel

    def __next__(self) -> Event:
        return next(self._events)

    def interrupt(self) -> None:
        """End the turn soon, with Done(interrupted=True); received text is stored. From any thread, at any time."""
        self._cancel.set()

    @property
    def interrupted(self) -> bool:
        """Whether the turn was interrupted."""
        return self._cancel.is_set()

    def close(self) -> None:
        """Abandon the turn; received text is stored."""
        self._events.close()

    def through(self, wrap: Callable[[Iterator[Event]], Events]) -> Turn:
        """This turn with its events passed through a generator, which runs in the turn's thread and always to its end: the
        place for work that belongs to the turn, even if nothing listens to its events any more."""
        return Turn(wrap(self._events), self._cancel)

    def start(self, tell: Callable[[Event | TurnEnded], None]) -> threading.Thread:
        """Run the turn in its own thread. It calls `tell` with each event, the last one TurnEnded."""

        def work() -> None:
            error: BaseException | None = None
            try:
                for event in self:
                    tell(event)
            except BaseException as problem:  # any error must reach the entry point
                error = problem
            tell(TurnEnded(error))

        thread = threading.Thread(target=work, name="hermes-turn", daemon=True)
        thread.start()
        return thread


class Stop:
    """A request to stop, which may be made before its turn exists."""

    def __init__(self) -> None:
        self.wanted = False  # whether a stop was requested
        self._bound: Turn | None = None

    def want(self) -> None:
        """End the turn, or the one that will be bound."""
        self.wanted = True
        if self._bound is not None:
            self._bound.interrupt()

    def bind(self, turn: Turn) -> Turn:
        """Bind a turn, so that it ends when a stop is requested, or at once if it was."""
        self._bound = turn
        if self.wanted:
            turn.interrupt()
        return turn


PATIENCE = 600.0  # seconds a tool waits for the user's answer; then the answer is no
_LOOK = 0.2  # seconds between two checks whether a turn that asks was interrupted


@dataclass(slots=True, eq=False)
class PermissionRequest:
    """A tool asks the user whether it may do something; it waits until `answer` is called, or the turn is interrupted."""

    question: str
    call_id: str = ""  # the tool call that asks
    id: str = field(default_factory=lambda: secrets.token_urlsafe(6))
    _answer: Future[bool | Answer] = field(default_factory=Future)

    def answer(self, decision: bool | Answer) -> bool:
        """Answer it, from any thread. False, without effect, when it was answered before or is no longer asked."""
        try:
            self._answer.set_result(decision)
        except InvalidStateError:
            return False
        return True

    def wait(self, turn: Turn, seconds: float) -> bool | Answer:
        """The answer, in the turn's thread; no without one in this time, or when the turn is interrupted."""
        end = time.monotonic() + seconds
        while not turn.interrupted and time.monotonic() < end:
            with suppress(TimeoutError):
                return self._answer.result(_LOOK)
        self.answer(False)
        return self._answer.result()


@dataclass(slots=True, frozen=True)
class PermissionDecided:
    """A PermissionRequest has its answer: the user's, or no because none came."""

    request: PermissionRequest
    allowed: bool


StreamEvent = Event | PermissionRequest | PermissionDecided


def stream_turn(agent: Agent, turn: Turn, *, patience: float = PATIENCE) -> AsyncGenerator[StreamEvent, None]:
    """Run a turn of this agent and give its events in order, the last one Done.

        turn = agent.turn("Hello")
        async for event in stream_turn(agent, turn):
            match event:
                case Text(): …
                case PermissionRequest(): event.answer(await asked(event.question))

    The turn begins at once and runs at its own pace: events wait for a slow reader. What it raises is raised here. A
    reader that leaves (aclose, cancellation) interrupts the turn as `turn.interrupt()` does, so that the reply so far is
    stored, and waits until it is over; cancelled once more it does not wait, and the turn ends by itself. Work that must
    be done with the turn in any case belongs into `turn.through`. A tool that needs permission asks by a
    PermissionRequest and waits up to `patience` seconds for its answer (0: no user can be asked, and the rules decide alone).
    An agent runs one turn at a time: callers that may meet queue first (`Conversations.enter`).
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[StreamEvent | TurnEnded] = asyncio.Queue()

    def tell(event: StreamEvent | TurnEnded) -> None:
        with suppress(RuntimeError):  # the loop is closed, since the program exits; the record has everything
            loop.call_soon_threadsafe(events.put_nowait, event)

    def confirm(question: str) -> bool | Answer:
        if not patience:
            return NO_USER
        request = PermissionRequest(question, current_id())
        tell(request)
        answer = request.wait(turn, patience)
        tell(PermissionDecided(request, bool(answer)))
        return answer

    agent.confirm = confirm
    turn.start(tell)
    return _listen(turn, events)


async def _listen(turn: Turn, events: asyncio.Queue[StreamEvent | TurnEnded]) -> AsyncGenerator[StreamEvent, None]:
    event: StreamEvent | TurnEnded | None = None
    try:
        while not isinstance(event := await events.get(), TurnEnded):
            yield event
        if event.error is not None:
            raise event.error
    finally:
        while not isinstance(event, TurnEnded):
            turn.interrupt()
            event = await events.get()

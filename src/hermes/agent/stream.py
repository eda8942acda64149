"""A turn on an event loop: its events, and the questions of its tools, as one asynchronous stream.

The turn runs in a thread of its own, so that nothing it waits for (a model, a tool, the store) holds up the loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hermes.agent.tools.permission import NOBODY, Answer
from hermes.agent.tools.running import current_id
from hermes.agent.turn import Event

if TYPE_CHECKING:
    from hermes.agent.loop import Agent
    from hermes.agent.turn import Turn

PATIENCE = 600.0  # seconds a tool waits for the user's answer; then the answer is no
_LOOK = 0.2  # seconds between two checks whether a turn that asks was interrupted


@dataclass(slots=True, eq=False)
class PermissionRequest:
    """A tool asks the user whether it may do something; it waits until `answer` is called, or the turn is interrupted."""

    question: str
    call_id: str = ""  # the tool call that asks
    id: str = field(default_factory=lambda: secrets.token_urlsafe(6))
    _answer: Future[bool | Answer] = field(default_factory=Future)

    def answer(self, given: bool | Answer) -> bool:
        """Answer it, from any thread. False, without effect, when it was answered before or is no longer asked."""
        try:
            self._answer.set_result(given)
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


@dataclass(slots=True)
class _Ended:
    error: BaseException | None


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
    events: asyncio.Queue[StreamEvent | _Ended] = asyncio.Queue()

    def tell(event: StreamEvent | _Ended) -> None:
        with suppress(RuntimeError):  # the loop is closed, since the program exits; the record has everything
            loop.call_soon_threadsafe(events.put_nowait, event)

    def confirm(question: str) -> bool | Answer:
        if not patience:
            return NOBODY
        request = PermissionRequest(question, current_id())
        tell(request)
        answer = request.wait(turn, patience)
        tell(PermissionDecided(request, bool(answer)))
        return answer

    agent.confirm = confirm
    turn.start(tell, lambda error: tell(_Ended(error)))
    return _listen(turn, events)


async def _listen(turn: Turn, events: asyncio.Queue[StreamEvent | _Ended]) -> AsyncGenerator[StreamEvent, None]:
    event: StreamEvent | _Ended | None = None
    try:
        while not isinstance(event := await events.get(), _Ended):
            yield event
        if event.error is not None:
            raise event.error
    finally:
        while not isinstance(event, _Ended):
            turn.interrupt()
            event = await events.get()

"""One turn for a caller: the agent works in a thread of its own, what it says is heard on the event loop.

A caller who goes away stops the turn; what was said until then is kept. The turn is over when its thread is, and not a
moment before, so that the next one of the same session finds everything in its place.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hermes.agent.events import Event, Followed, Text, Thought, ToolStarted
from hermes.agent.turn import Stop, Turn

_BETWEEN = "\n\n"  # what stands between the words before and after a tool has run


@dataclass(slots=True, frozen=True)
class Said:
    """The next words of the reply."""

    text: str


@dataclass(slots=True, frozen=True)
class Thinks:
    """The next words of the model's reasoning."""

    text: str


@dataclass(slots=True)
class Used:
    """What a turn used, in tokens, over all its calls of the model."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0


@dataclass(slots=True)
class Outcome:
    """How a turn ended. `error` is what broke it off, if something did."""

    session_id: str
    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"  # stop, length, content_filter or tool_calls
    used: Used = field(default_factory=Used)
    message_id: int = 0
    error: BaseException | None = None


Item = Said | Thinks | Outcome


class Words:
    """The words of a turn as they are shown, and as they are once the turn is over.

    A reply whose stream breaks off begins anew: whoever watches has seen both beginnings, the whole has only the second.
    """

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._rounds: list[list[str]] = [[]]

    def take(self, event: Event) -> str:
        """What there is to show of an event."""
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
        """The reply."""
        return _BETWEEN.join("".join(round_) for round_ in self._rounds if round_)


class ServedTurn:
    """A turn under way. `next` gives what happens; the last item is an Outcome."""

    def __init__(
        self,
        begin: Callable[[], Turn],
        account: Callable[[Words, BaseException | None], Outcome],
        over: Callable[[], None],
    ) -> None:
        """`begin` makes the turn, in the thread it will run in."""
        self.session_id = ""  # where it takes place
        self._begin, self._account, self._over = begin, account, over
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._stop = Stop()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._work, name="hermes-api-turn", daemon=True).start()

    async def next(self, seconds: float | None = None) -> Item | None:
        """The next item; None when there is none for so long."""
        try:
            async with asyncio.timeout(seconds):
                return await self._items.get()
        except TimeoutError:
            return None

    def stop(self) -> None:
        """End the turn soon; what was said is kept. Harmless when it is over."""
        self._stop.want()

    async def ended(self) -> None:
        """Wait until it is over."""
        await self._ended.wait()

    def _work(self) -> None:
        words = Words()
        error: BaseException | None = None
        try:
            for event in self._stop.bind(self._begin()):
                self._tell(event, words)
        except BaseException as problem:  # whatever it is, whoever waits must hear of it
            error = problem
        try:
            outcome = self._account(words, error)
        except BaseException as problem:
            outcome = Outcome(self.session_id, words.whole, error=error or problem)
        self._post(self._finish, outcome)

    def _tell(self, event: Event, words: Words) -> None:
        text = words.take(event)
        if text:
            self._post(self._items.put_nowait, Said(text))
        elif isinstance(event, Thought):
            self._post(self._items.put_nowait, Thinks(event.text))
        elif isinstance(event, Followed):
            self.session_id = event.session_id

    def _post(self, action: Callable[[Any], None], thing: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(action, thing)
        except RuntimeError:
            pass  # the program ends; the record has everything

    def _finish(self, outcome: Outcome) -> None:
        self._ended.set()
        self._over()
        self._items.put_nowait(outcome)

"""One turn for a caller: the agent works in a thread of its own, what it says is heard on the event loop.

A caller who goes away stops the turn; what was said until then is kept. The turn is over when its thread is, and not a
moment before, so that the next one of the same session finds everything in its place.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hermes.agent.events import Done, Event, Followed, Notice, Text, Thought, ToolStarted

_BETWEEN = "\n\n"  # what stands between the words before and after a tool has run
_AGAIN = 0.1  # seconds: a turn that was only just beginning may not have heard that it should stop


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
        self._noticed = False

    def take(self, event: Event) -> str:
        """What there is to show of an event."""
        if isinstance(event, Notice):
            self._noticed = True
        elif isinstance(event, ToolStarted):
            self._noticed = False
            if self._rounds[-1]:
                self._rounds.append([])
        if not isinstance(event, Text):
            return ""
        round_ = self._rounds[-1]
        anew = self._noticed and bool(round_)
        if anew:
            round_.clear()
        text = _BETWEEN + event.text if self._shown and not round_ else event.text
        self._noticed = False
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


class Turn:
    """A turn under way. `next` gives what happens; the last item is an Outcome."""

    def __init__(
        self,
        events: Callable[[], Iterator[Event]],
        account: Callable[[Words, BaseException | None], Outcome],
        interrupt: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        self.session_id = ""  # where it takes place
        self._events, self._account, self._interrupt, self._over = events, account, interrupt, over
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

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
        if self._stopping is None and not self._ended.is_set():
            self._stopping = asyncio.create_task(self._stop())

    async def ended(self) -> None:
        """Wait until it is over."""
        await self._ended.wait()

    async def _stop(self) -> None:
        while not self._ended.is_set():
            self._interrupt()
            try:
                async with asyncio.timeout(_AGAIN):
                    await self._ended.wait()
            except TimeoutError:
                continue

    def _work(self) -> None:
        words = Words()
        error: BaseException | None = None
        try:
            for event in self._events():
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
        elif isinstance(event, Done):
            return

    def _post(self, action: Callable[[Any], None], thing: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(action, thing)
        except RuntimeError:
            pass  # the program ends; the record has everything

    def _finish(self, outcome: Outcome) -> None:
        self._ended.set()
        self._over()
        self._items.put_nowait(outcome)

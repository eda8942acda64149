"""Running a turn while reading the keyboard and handling signals.

The turn runs in its own thread and sends its events here; this, the main thread, shows them. Ctrl-C asks the agent
to stop and keeps listening, so that the reply so far is stored and shown; the agent's questions are asked here too.
A line typed meanwhile also stops the turn, if configured, and is sent next.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from hermes.agent.turn import Done, PermissionRequest, TurnEnded
from hermes.chat.keyboard import ENDING, Terminated, handled, signals_raise, suspend

if TYPE_CHECKING:
    from hermes.agent.tools.permission import Answer
    from hermes.agent.turn import Turn
    from hermes.chat.keyboard import Typing
    from hermes.chat.render import TerminalDisplay


_PATIENCE = 10.0  # seconds a turn has to end after an interrupt
_GRACE = 0.5  # seconds a turn has to end by itself after a line was sent: often only its last words are missing


class TurnDisplay:
    """Shows one turn. `ask` asks the user; `typed_stops`: a line that is sent meanwhile stops the turn."""

    def __init__(
        self,
        turn: Turn,
        display: TerminalDisplay,
        ask: Callable[[str], bool | Answer],
        *,
        each: Callable[[], None] = lambda: None,
        typing: Typing | None = None,
        typed_stops: bool = False,
    ) -> None:
        self._turn, self._display, self._ask, self._each = turn, display, ask, each
        self._typing, self._typed_stops = typing, typed_stops
        self._inbox: SimpleQueue[Any] = SimpleQueue()  # events, signals, questions, and the end of the turn
        self._stopped: float | None = None  # when the turn was told to stop

    def confirm(self, question: str) -> bool | Answer:
        """Ask the user in the middle of the turn; from any thread of it."""
        request = PermissionRequest(question)
        self._inbox.put(request)
        return request.wait(self._turn, math.inf)

    def run(self) -> bool:
        """Show the turn to its end; True when it was interrupted. `each` is called regularly meanwhile.

        Keys go through `typing`. Raises what the turn raises; Terminated when a signal ended it.
        """
        worker: threading.Thread | None = None
        put = self._inbox.put  # safe in a signal handler, too
        try:
            wanted = (signal.SIGINT, *ENDING, *([signal.SIGTSTP] if self._typing is not None else []))
            with handled(dict.fromkeys(wanted, lambda got, frame: put(signal.Signals(got)))):
                if self._typing is not None and self._typing.begin():
                    put(signal.SIGINT)
                worker = self._turn.start(put)
                interrupted = self._listen()
            if number := self._ending():
                raise Terminated(number)
            return interrupted
        except BaseException:  # e.g. the pipe we write to was closed: let the turn store the reply so far
            self._turn.interrupt()
            if worker is not None:
                worker.join(_PATIENCE)  # its questions get a no
            raise
        finally:
            self._display.finish()
            if self._typing is not None:
                self._typing.end()

    def _listen(self) -> bool:
        number = signals = 0
        interrupted = False
        while True:
            self._each()
            self._read_keys()
            try:
                item = self._inbox.get(timeout=0.1)
            except Empty:
                self._display.tick()
                if number and self._stopped is not None and time.monotonic() - self._stopped > _PATIENCE:
                    raise Terminated(number) from None
                continue
            if isinstance(item, TurnEnded):
                number = number or self._ending()  # it may have come while the last words were shown
                if number:
                    raise Terminated(number)
                if item.error is not None:
                    raise item.error
                return interrupted
            if item == signal.SIGTSTP:  # Ctrl-Z: the reply goes on when the user comes back
                self._display.pause()
                suspend()
                if self._typing is not None:
                    self._typing.begin()
            elif isinstance(item, signal.Signals):
                signals += 1
                number = number if item == signal.SIGINT else int(item)
                if signals > 2 and item == signal.SIGINT:
                    raise KeyboardInterrupt
                self._stop()
                if self._typing is not None:
                    self._typing.unsend()
            elif isinstance(item, PermissionRequest):
                item.answer(self._stopped is None and self._answer(item.question))
            else:
                interrupted = interrupted or (isinstance(item, Done) and item.interrupted)
                self._display.feed(item)

    def _stop(self) -> None:
        self._stopped = time.monotonic()
        self._turn.interrupt()

    def _ending(self) -> int:
        """The terminating signal that waits in the inbox of a turn that has ended, or 0."""
        found = 0
        while not self._inbox.empty():
            item = self._inbox.get()
            found = int(item) if item in ENDING else found
        return found

    def _read_keys(self) -> None:
        if (typing := self._typing) is None:
            return
        typing.read()
        self._display.typing(typing.line, typing.sent is not None)
        sent = typing.sent if self._typed_stops and self._stopped is None else None
        if sent is not None and time.monotonic() - sent > _GRACE:
            self._stop()

    def _answer(self, question: str) -> bool | Answer:
        """Ask. Ctrl-C, or a terminating signal, means no, and stops the turn before it gets the answer."""
        self._display.pause()
        if self._typing is not None:
            self._typing.forget()
        try:
            with signals_raise():
                return self._ask(question)
        except KeyboardInterrupt:
            self._inbox.put(signal.SIGINT)
        except Terminated as ended:
            self._inbox.put(signal.Signals(ended.number))
        self._turn.interrupt()
        return False

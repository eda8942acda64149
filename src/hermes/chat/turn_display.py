"""Running a turn while reading the keyboard and handling signals.

The turn runs in its own thread and sends its events here; this, the main thread, shows them. Ctrl-C asks the agent
to stop and keeps listening, so that the reply so far is stored and shown; the agent's questions are asked here too.
A line typed meanwhile also stops the turn, if configured, and is sent next.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from hermes.agent.turn import Done, Notice
from hermes.chat.keyboard import suspend
from hermes.chat.signals import ENDING, Terminated, handled, signals_raise

if TYPE_CHECKING:
    from hermes.agent.tools.permission import Answer
    from hermes.agent.turn import Turn
    from hermes.chat.keyboard import Typing
    from hermes.chat.render import TerminalDisplay


_PATIENCE = 10.0  # seconds a turn has to end after an interrupt
_GRACE = 0.5  # seconds a turn has to end by itself after a line was sent: often only its last words are missing


BUSY = "a reply is being written; wait for it, or stop it with Ctrl-C, then try again"


def waits(line: str) -> bool:
    """Whether a line typed during a reply may be sent after it; a handoff of half a reply is refused at once."""
    return line.split()[:1] != ["/handoff"]


class _TurnEnded:
    """The turn's thread has ended, with an error if it failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Question:
    """A question to the user; the asking thread waits for the answer."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.answer: SimpleQueue[bool | Answer] = SimpleQueue()


def _ending(inbox: SimpleQueue[Any]) -> int | None:
    """The terminating signal that waits in the inbox of a turn that has ended, or None."""
    found = None
    while not inbox.empty():
        item = inbox.get()
        found = int(item) if item in ENDING else found
    return found


class TurnDisplay:
    """Runs turns one after the other; `confirm` may be called from any thread of a turn."""

    def __init__(self, ask: Callable[[str], bool | Answer], *, typed_stops: bool = False) -> None:
        self._ask, self._typed_stops = ask, typed_stops
        self._inbox: SimpleQueue[Any] | None = None

    def confirm(self, question: str) -> bool | Answer:
        """Ask the user in the middle of a turn; no when none is running."""
        inbox = self._inbox
        if inbox is None:
            return False
        asked = _Question(question)
        inbox.put(asked)
        return asked.answer.get()

    def run(
        self,
        turn: Turn,
        display: TerminalDisplay,
        *,
        each: Callable[[], None] = lambda: None,
        typing: Typing | None = None,
    ) -> bool:
        """Show a turn to its end; True when it was interrupted. `each` is called regularly meanwhile.

        Keys go through `typing`. Raises what the turn raises; Terminated when a signal ended it.
        """
        inbox: SimpleQueue[Any] = SimpleQueue()
        self._inbox = inbox
        worker: threading.Thread | None = None
        if typing is not None:
            typing.begin()
        try:
            wanted = (signal.SIGINT, *ENDING, *([signal.SIGTSTP] if typing is not None else []))
            with handled(dict.fromkeys(wanted, lambda got, frame: inbox.put(signal.Signals(got)))):
                worker = turn.start(inbox.put, lambda error: inbox.put(_TurnEnded(error)))  # safe in a handler, too
                interrupted = self._listen(turn, inbox, display, each, typing)
            if (number := _ending(inbox)) is not None:
                raise Terminated(number)
            return interrupted
        except BaseException:  # e.g. the pipe we write to was closed: let the turn store the reply so far
            turn.interrupt()
            if worker is not None:
                self._refuse(inbox, worker)
            raise
        finally:
            self._inbox = None
            display.finish()
            if typing is not None:
                typing.end()

    def _listen(
        self,
        turn: Turn,
        inbox: SimpleQueue[Any],
        display: TerminalDisplay,
        each: Callable[[], None],
        typing: Typing | None,
    ) -> bool:
        stopped: float | None = None
        number = signals = 0
        interrupted = False
        while True:
            each()
            if typing is not None:
                typing.read()
                if typing.sent and not waits(typing.sent_line):
                    display.feed(Notice(f"{typing.sent_line.split()[0]}: {BUSY}"))
                    typing.drop_sent()
                display.typing(typing.line, typing.sent is not None)
                if stopped is None and self._typed_stops and typing.sent and time.monotonic() - typing.sent > _GRACE:
                    stopped = time.monotonic()
                    turn.interrupt()
            try:
                item = inbox.get(timeout=0.1)
            except Empty:
                display.tick()
                if number and stopped is not None and time.monotonic() - stopped > _PATIENCE:
                    raise Terminated(number) from None
                continue
            if isinstance(item, _TurnEnded):
                number = number or _ending(inbox) or 0  # it may have come while the last words were shown
                if number:
                    raise Terminated(number)
                if item.error is not None:
                    raise item.error
                return interrupted
            if item == signal.SIGTSTP:  # Ctrl-Z: the reply goes on when the user comes back
                display.pause()
                suspend()
                if typing is not None:
                    typing.begin()
            elif isinstance(item, signal.Signals):
                signals += 1
                number = number if item == signal.SIGINT else int(item)
                if signals > 2 and item == signal.SIGINT:
                    raise KeyboardInterrupt
                stopped = time.monotonic()
                turn.interrupt()
                if typing is not None:
                    typing.unsend()
            elif isinstance(item, _Question):
                item.answer.put(stopped is None and self._answer(turn, item.text, inbox, display, typing))
            else:
                interrupted = interrupted or (isinstance(item, Done) and item.interrupted)
                display.feed(item)

    def _answer(
        self,
        turn: Turn,
        question: str,
        inbox: SimpleQueue[Any],
        display: TerminalDisplay,
        typing: Typing | None,
    ) -> bool | Answer:
        """Ask. Ctrl-C, or a terminating signal, means no, and stops the turn before it gets the answer."""
        display.pause()
        if typing is not None:
            typing.forget()
        try:
            with signals_raise():
                return self._ask(question)
        except KeyboardInterrupt:
            inbox.put(signal.SIGINT)
        except Terminated as ended:
            inbox.put(signal.Signals(ended.number))
        turn.interrupt()
        return False

    def _refuse(self, inbox: SimpleQueue[Any], worker: threading.Thread) -> None:
        """Wait for a turn that is no longer shown; its questions get a no."""
        until = time.monotonic() + _PATIENCE
        while worker.is_alive() and time.monotonic() < until:
            try:
                item = inbox.get(timeout=0.1)
            except Empty:
                continue
            if isinstance(item, _Question):
                item.answer.put(False)

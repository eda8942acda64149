"""Running a turn while the keyboard and signals are heard.

The turn runs in a thread of its own and sends its events here; this, the main thread, shows them. Ctrl-C asks the agent
to stop and goes on listening, so that what was said is stored and shown; a question of the agent's is asked here too.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from hermes.agent.events import Done

if TYPE_CHECKING:
    from hermes.agent.events import Event
    from hermes.chat.render import Display

_PATIENCE = 10.0  # seconds a turn has to end after it was asked to


class _Ended:
    """The turn's thread has no more to say; an error if it failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Question:
    """Something only the user can decide; the asking thread waits for the answer."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.answer: SimpleQueue[bool] = SimpleQueue()


class Terminated(BaseException):
    """A signal asks the program to end (SIGTERM, or SIGHUP when the terminal is gone)."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Turns:
    """Runs turns one after the other; `confirm` may be called from any thread of a turn."""

    def __init__(self, ask: Callable[[str], bool]) -> None:
        self._ask = ask
        self._inbox: SimpleQueue[Any] | None = None

    def confirm(self, question: str) -> bool:
        """Ask the user in the middle of a turn; no when none is running."""
        inbox = self._inbox
        if inbox is None:
            return False
        asked = _Question(question)
        inbox.put(asked)
        return asked.answer.get()

    def run(
        self,
        events: Iterator[Event],
        display: Display,
        *,
        interrupt: Callable[[], None],
        each: Callable[[], None] = lambda: None,
    ) -> bool:
        """Show a turn to its end; True when it was interrupted. `each` is called again and again meanwhile.

        What the turn raises is raised here; Terminated when a signal ended it.
        """
        inbox: SimpleQueue[Any] = SimpleQueue()
        self._inbox = inbox
        worker = threading.Thread(target=_work, args=(events, inbox), name="turn", daemon=True)
        try:
            with _signals(inbox):
                worker.start()
                return self._listen(inbox, display, interrupt, each)
        except BaseException:  # e.g. the pipe we write to was closed: let the turn store what there is
            interrupt()
            self._refuse(inbox, worker)
            raise
        finally:
            self._inbox = None
            display.finish()

    def _listen(
        self, inbox: SimpleQueue[Any], display: Display, interrupt: Callable[[], None], each: Callable[[], None]
    ) -> bool:
        stopped: float | None = None
        number = signals = 0
        interrupted = False
        while True:
            each()
            if stopped is not None:
                interrupt()  # again: a turn that was only just beginning may not have heard it
            try:
                item = inbox.get(timeout=0.1)
            except Empty:
                display.tick()
                if number and stopped is not None and time.monotonic() - stopped > _PATIENCE:
                    raise Terminated(number) from None
                continue
            if isinstance(item, _Ended):
                if number:
                    raise Terminated(number)
                if item.error is not None:
                    raise item.error
                return interrupted
            if isinstance(item, signal.Signals):
                signals += 1
                number = number if item == signal.SIGINT else int(item)
                if signals > 2 and item == signal.SIGINT:
                    raise KeyboardInterrupt
                stopped = time.monotonic()
                interrupt()
            elif isinstance(item, _Question):
                item.answer.put(stopped is None and self._answer(item.text, inbox, display))
            else:
                interrupted = interrupted or (isinstance(item, Done) and item.interrupted)
                display.feed(item)

    def _answer(self, question: str, inbox: SimpleQueue[Any], display: Display) -> bool:
        """Ask. Ctrl-C, or a signal to end, means no, and stops the turn as well."""
        display.pause()
        forget_typed()
        try:
            with signals_raise():
                return self._ask(question)
        except KeyboardInterrupt:
            inbox.put(signal.SIGINT)
        except Terminated as ended:
            inbox.put(signal.Signals(ended.number))
        return False

    def _refuse(self, inbox: SimpleQueue[Any], worker: threading.Thread) -> None:
        """Wait for a turn that nobody watches any more; its questions get a no."""
        until = time.monotonic() + _PATIENCE
        while worker.is_alive() and time.monotonic() < until:
            try:
                item = inbox.get(timeout=0.1)
            except Empty:
                continue
            if isinstance(item, _Question):
                item.answer.put(False)


def _work(events: Iterator[Event], inbox: SimpleQueue[Any]) -> None:
    try:
        for event in events:
            inbox.put(event)
    except BaseException as error:  # raised again in the main thread
        inbox.put(_Ended(error))
    else:
        inbox.put(_Ended(None))


@contextmanager
def signals_raise() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, and a signal that asks us to end raises Terminated."""

    def end(number: int, frame: Any) -> None:
        raise Terminated(number)

    wanted: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: end, signal.SIGHUP: end}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals(inbox: SimpleQueue[Any]) -> Iterator[None]:
    """Signals become items of the inbox (putting is safe in a handler)."""
    wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.signal(number, lambda got, frame: inbox.put(signal.Signals(got))) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def quiet_keyboard() -> Iterator[None]:
    """Don't show what is typed while nobody reads it; it is kept for the next prompt, Enter as Enter."""
    import termios

    descriptor = _keyboard()
    before = termios.tcgetattr(descriptor) if descriptor is not None else None
    if descriptor is None or before is None:
        yield
        return
    quiet = [before[0] & ~termios.ICRNL, *before[1:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]
    try:
        _set(descriptor, quiet)
        yield
    finally:
        _set(descriptor, before)


def forget_typed() -> None:
    """What was typed before a question came up is no answer to it."""
    import termios

    descriptor = _keyboard()
    if descriptor is not None:
        try:
            termios.tcflush(descriptor, termios.TCIFLUSH)
        except termios.error:
            pass


def _keyboard() -> int | None:
    """The terminal's descriptor, if standard input is one."""
    try:
        return sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    except (OSError, ValueError):
        return None


def _set(descriptor: int, settings: list[Any]) -> None:
    import termios

    try:
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)
    except (OSError, termios.error):
        pass  # the terminal is gone

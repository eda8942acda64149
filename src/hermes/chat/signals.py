"""Signal handlers of the terminal: Ctrl-C, and the signals that end the program, installed for a while and restored."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

Handler = Callable[[int, Any], Any] | signal.Handlers
ENDING = (signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal is gone


class Terminated(BaseException):
    """A signal that ends the program."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def handled(wanted: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Send signals to these handlers; restore the previous ones afterwards."""
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: Any) -> NoReturn:
    raise Terminated(number)


@contextmanager
def signals_raise() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, and a terminating signal raises Terminated."""
    with handled({signal.SIGINT: signal.default_int_handler, **dict.fromkeys(ENDING, _end)}):
        yield

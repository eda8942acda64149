"""Signals while one talks: Ctrl-C, and those that ask the program to end. Who hears them changes, so it is said here once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

Handler = Callable[[int, Any], Any]
ENDING = (signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal is gone


class Terminated(BaseException):
    """A signal asks the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def handled(wanted: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Signals go to these handlers; afterwards to whoever had them before."""
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
    """Ctrl-C raises KeyboardInterrupt, and a signal that asks us to end raises Terminated."""
    with handled({signal.SIGINT: signal.default_int_handler, **dict.fromkeys(ENDING, _end)}):
        yield

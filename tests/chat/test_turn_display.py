"""Showing a turn: a signal that ends the program is obeyed at every moment."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hermes.agent.turn import Done, Text, Turn
from hermes.chat.keyboard import Terminated, signals_raise
from hermes.chat.turn_display import TurnDisplay
from hermes.errors import ModelUnreachable
from tests.support.waiting import until

pytestmark = pytest.mark.mechanism


class Slow:
    """A display that is still showing the last words when the turn has ended; then the signal comes."""

    def __init__(self, last: type) -> None:
        self._last = last

    def feed(self, event: Any) -> None:
        if isinstance(event, self._last):
            until(lambda: all(thread.name != "hermes-turn" for thread in threading.enumerate()), "the turn ends")
            os.kill(os.getpid(), signal.SIGTERM)

    def tick(self) -> None: ...

    def finish(self) -> None: ...


def whole() -> Iterator[Any]:
    yield Text("That is all.")
    yield Done("That is all.")


def broken() -> Iterator[Any]:
    yield Text("That is")
    raise ModelUnreachable("the line broke")


@pytest.mark.parametrize(("events", "last"), [(whole, Done), (broken, Text)])
def test_a_signal_that_comes_while_the_last_words_are_shown_ends_the_program(events: Any, last: type) -> None:
    with signals_raise(), pytest.raises(Terminated) as ended:
        TurnDisplay(Turn(events(), threading.Event()), Slow(last), lambda question: False).run()  # type: ignore[arg-type]
    assert ended.value.number == signal.SIGTERM

"""Which stretch of the store a message lies in, as words of the index: how a search looks at the newest messages first.

Only the newest few hundred matches are ranked, but a GIN index knows no order: it would bring every message that has a common
word. So the index entry of each message also names the stretches of ids it lies in (4,096 messages, eight times as many,
and so on), and a search asks for "these words, in the last two stretches" and widens from there. The server steps through
the shorter of the two lists, so the work is bounded by what is asked for, not by the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FIRST_SHIFT = 12
STEP = 3
LAST_SHIFT = 30
SHIFTS = range(FIRST_SHIFT, LAST_SHIFT + 1, STEP)
MOST_AT_ONCE = 4  # stretches of one length in a question
WIDEN = 64  # times as many messages, at most, from one window to the next


def names(message_id: int) -> str:
    """The stretches a message lies in, as PostgreSQL reads them in a tsvector. (No word of a text has a # in it.)"""
    return " ".join([f"'#{shift}.{message_id >> shift}'" for shift in SHIFTS])


@dataclass(frozen=True, slots=True)
class Window:
    """The newest messages: those whose id is `first` or more, as a part of a tsquery; None for all there are."""

    first: int
    condition: str | None

    def within(self, match: str) -> str:
        """A tsquery, in this window only."""
        return match if self.condition is None else f"({match}) & {self.condition}"


def window(newest: int, length: int) -> Window:
    """The window that holds at least the newest `length` ids."""
    for shift in SHIFTS:
        last, first = newest >> shift, max(0, newest - length) >> shift
        if first == 0:
            break
        if last - first < MOST_AT_ONCE:
            blocks = " | ".join(f"'#{shift}.{block}'" for block in range(last, first - 1, -1))
            return Window(first << shift, f"({blocks})")
    return Window(0, None)


class Widening:
    """From the newest messages to all of them, until a search has found what it needs."""

    def __init__(self, newest: int, needed: int) -> None:
        self._newest, self._needed = newest, needed
        self.found = 0  # told after each window

    def __iter__(self) -> Iterator[Window]:
        length = 1 << FIRST_SHIFT
        while True:
            now = window(self._newest, length)
            yield now
            if now.condition is None or self.found >= self._needed:
                return
            looked_at = self._newest - now.first + 1
            likely = int(1.3 * looked_at * self._needed / self.found) if self.found else looked_at * WIDEN
            length = max(length * 2, min(likely, looked_at * WIDEN))

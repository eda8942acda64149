"""Ranges of message ids as words of the index, so that a search reads the newest messages first.

Only the newest few hundred matches are ranked, but a GIN index knows no order: it would return every message that has a common
word. So the index entry of each message also has words for the id ranges it is in (4,096 messages, eight times as many,
and so on), and a search queries "these words, in the last two ranges" and widens from there. The server steps through
the shorter of the two lists, so the work is bounded by the query, not by the size of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

FIRST_SHIFT = 12
STEP = 3
LAST_SHIFT = 30
SHIFTS = range(FIRST_SHIFT, LAST_SHIFT + 1, STEP)
MOST_AT_ONCE = 4  # ranges of one length in a query
WIDEN = 512  # times as many messages, at most, from one window to the next


def ranges(message_id: int) -> str:
    """The id ranges of a message, as PostgreSQL reads them in a tsvector. (No word of a text has a # in it.)"""
    return " ".join([f"'#{shift}.{message_id >> shift}'" for shift in SHIFTS])


@dataclass(frozen=True, slots=True)
class Window:
    """Messages from the id `first` on up to one before `end`, as a part of a tsquery; None where that is the whole store."""

    first: int
    end: int
    condition: str | None

    def within(self, match: str) -> str:
        """A tsquery that finds the matches in this window, and perhaps more from `end` on."""
        return match if self.condition is None else f"({match}) & {self.condition}"


def window(newest: int, length: int, end: int | None = None) -> Window:
    """The window that holds at least the newest `length` ids, up to `end`."""
    end = newest + 1 if end is None else end
    for shift in SHIFTS:
        last, first = (end - 1) >> shift, max(0, newest - length) >> shift
        if first == 0:
            break
        if last - first < MOST_AT_ONCE:
            blocks = " | ".join(f"'#{shift}.{block}'" for block in range(last, first - 1, -1))
            return Window(first << shift, end, f"({blocks})")
    return Window(0, end, None)


class Widening:
    """From the newest messages to all of them, each window below the one before, until a search has what it needs."""

    def __init__(self, newest: int, needed: int, first: int = 1 << FIRST_SHIFT) -> None:
        """`first`: how many of the newest ids the first window has at least."""
        self._newest, self._needed, self._first = newest, needed, first
        self.found = 0  # in all windows so far: set by the caller after each

    def __iter__(self) -> Iterator[Window]:
        length, end = self._first, self._newest + 1
        while True:
            now = window(self._newest, length, end)
            yield now
            end = now.first
            if end == 0 or self.found >= self._needed:
                return
            looked_at = self._newest - end + 1
            likely = int(1.3 * looked_at * self._needed / self.found) if self.found else looked_at * WIDEN
            length = max(looked_at * 2, min(likely, looked_at * WIDEN))

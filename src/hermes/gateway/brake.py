"""The brake on automatic conversations: two programs that answer each other would never stop.

A round is a message sent after everything its sender had sent before was answered; a burst of messages is one round.
People make few rounds a minute, and seldom repeat a long text. Beyond these limits every answer waits twice as long as
the one before. Nothing is lost: delayed messages wait in the inbox, and are answered when their time has come. A restarted
gateway counts from the beginning.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from dataclasses import dataclass, field

HOUR, MINUTE = 3600.0, 60.0
ALIKE = 6  # similar messages of one person an hour that are answered at once
LONGEST = 600.0  # seconds an answer waits at most
_REMEMBERED = 50  # rounds of one person
_PEOPLE = 5000  # people remembered
_LONG = 20  # characters; short texts ("yes", "go on") may be repeated freely
_LIKE = 0.8  # the share of words two texts must have in common to count as similar


@dataclass(slots=True)
class _Person:
    rounds: deque[tuple[float, frozenset[str]]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    open: int = 0  # messages without an answer so far
    free_at: float = 0.0
    level: int = 0  # how many rounds in a row exceeded the limit


class Brake:
    """How long answers wait. `per_minute` rounds and ALIKE similar messages an hour are free; 0: no limit."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute, self._alike = per_minute, ALIKE if per_minute else 0
        self._people: dict[tuple[str, str], _Person] = {}
        self._open: dict[int, _Person] = {}
        self._lock = threading.Lock()

    def delay(self, number: int, platform: str, who: str, text: str, now: float) -> tuple[float, bool]:
        """How many seconds the answer to a message waits, and whether the delay begins with this round."""
        with self._lock:
            person = self._people.setdefault((platform, who), _Person())
            if len(self._people) > _PEOPLE:
                self._forget(now)
            if number not in self._open:
                self._open[number] = person
                person.open += 1
            if person.open > 1:
                return max(0.0, person.free_at - now), False
            words = _words(text)
            over = self._is_fast(person, now) or self._is_repeated(person, words, now)
            goes_on = person.level > 0 and now - person.rounds[-1][0] < 2 * LONGEST
            repeats = goes_on and _is_like(words, person.rounds[-1][1])
            person.level = person.level + 1 if over or repeats else 0
            person.rounds.append((now, words))
            if not person.level:
                return max(0.0, person.free_at - now), False
            person.free_at = max(now, person.free_at) + min(LONGEST, 2.0 ** min(person.level, 20))
            return person.free_at - now, person.level == 1

    def done(self, number: int) -> None:
        """Note that a message is answered."""
        with self._lock:
            person = self._open.pop(number, None)
            if person is not None:
                person.open -= 1

    def _is_fast(self, person: _Person, now: float) -> bool:
        return 0 < self._per_minute <= sum(now - at < MINUTE for at, _ in person.rounds)

    def _is_repeated(self, person: _Person, words: frozenset[str], now: float) -> bool:
        return 0 < self._alike <= sum(now - at < HOUR and _is_like(words, other) for at, other in person.rounds)

    def _forget(self, now: float) -> None:
        for key, person in list(self._people.items()):
            if not person.open and (not person.rounds or now - person.rounds[-1][0] > HOUR):
                del self._people[key]


def _words(text: str) -> frozenset[str]:
    """The words of a text that is long enough to compare, without numbers, which count up in loops."""
    return frozenset(re.findall(r"[^\W\d_]+", text[:5000].casefold())) if len(text) >= _LONG else frozenset()


def _is_like(one: frozenset[str], other: frozenset[str]) -> bool:
    return bool(one and other) and len(one & other) >= _LIKE * max(len(one), len(other))

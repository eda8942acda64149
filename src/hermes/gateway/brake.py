"""A brake on conversations that run by themselves: two programs that answer each other never end.

A round is a message that came after everything its sender had said before was answered; a burst of messages is one round.
People make few rounds a minute, and seldom say the same long thing again and again. Beyond that every answer waits twice as
long as the one before. Nothing is lost: what waits is in the inbox, and is answered when its time has come.
"""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections import deque
from dataclasses import dataclass, field

HOUR, MINUTE = 3600.0, 60.0
LONGEST = 600.0  # seconds an answer waits at most
_REMEMBERED = 50  # rounds of one person
_KEPT = 10  # of them, for the next start
_PEOPLE = 5000  # that are remembered
_LONG = 20  # characters; "yes" and "go on" may be said as often as people like
_LIKE = 0.8  # of the words in one of two texts that are also in the other


@dataclass(slots=True)
class _Person:
    rounds: deque[tuple[float, frozenset[int]]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    open: int = 0  # messages that are not answered yet
    free_at: float = 0.0
    level: int = 0  # how many rounds in a row were too many


class Brake:
    """How long answers wait. `per_minute` rounds and `alike` similar messages an hour are free; 0: no limit."""

    def __init__(self, per_minute: int, alike: int) -> None:
        self._per_minute, self._alike = per_minute, alike
        self._people: dict[tuple[str, str], _Person] = {}
        self._open: dict[int, _Person] = {}
        self._lock = threading.Lock()

    def delay(self, number: int, platform: str, who: str, text: str, now: float) -> tuple[float, bool]:
        """How many seconds the answer to a message waits, and whether this round is where the waiting begins."""
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
        """A message is answered."""
        with self._lock:
            person = self._open.pop(number, None)
            if person is not None:
                person.open -= 1

    def wait(self, platform: str, who: str, now: float) -> float:
        """How many seconds an answer waits that an earlier process owed."""
        with self._lock:
            person = self._people.get((platform, who))
            return 0.0 if person is None else max(0.0, person.free_at - now)

    def kept(self, now: float, wall: float) -> str:
        """Those whose answers wait, as text for the store. `wall` is the time of day that `now` is."""
        with self._lock:
            braked = [
                {
                    "platform": platform, "who": who, "level": person.level, "free_at": person.free_at - now + wall,
                    "rounds": [[at - now + wall, sorted(words)] for at, words in list(person.rounds)[-_KEPT:]],
                }
                for (platform, who), person in self._people.items()
                if person.level
            ]  # fmt: skip
        return json.dumps(braked)

    def restore(self, text: str, now: float, wall: float) -> None:
        """What `kept` wrote; nothing where it can't be read."""
        try:
            for one in json.loads(text):
                person = _Person(free_at=float(one["free_at"]) - wall + now, level=int(one["level"]))
                person.free_at = min(person.free_at, now + LONGEST)  # a clock that was put back
                person.rounds.extend(
                    (float(at) - wall + now, frozenset(map(int, words))) for at, words in one["rounds"]
                )
                if person.rounds:
                    with self._lock:
                        self._people.setdefault((str(one["platform"]), str(one["who"])), person)
        except (ValueError, TypeError, KeyError):
            return

    def _is_fast(self, person: _Person, now: float) -> bool:
        return 0 < self._per_minute <= sum(now - at < MINUTE for at, _ in person.rounds)

    def _is_repeated(self, person: _Person, words: frozenset[int], now: float) -> bool:
        return 0 < self._alike <= sum(now - at < HOUR and _is_like(words, other) for at, other in person.rounds)

    def _forget(self, now: float) -> None:
        for key, person in list(self._people.items()):
            if not person.open and (not person.rounds or now - person.rounds[-1][0] > HOUR):
                del self._people[key]


def _words(text: str) -> frozenset[int]:
    """The words of a text that is long enough to be told from another; numbers, which count up in loops, left out.

    Each word is a checksum: what is kept of them for the next start is nobody's text.
    """
    words = re.findall(r"[^\W\d_]+", text[:5000].casefold())
    return (
        frozenset(zlib.crc32(word.encode("utf-8", "replace")) for word in words) if len(text) >= _LONG else frozenset()
    )


def _is_like(one: frozenset[int], other: frozenset[int]) -> bool:
    return bool(one and other) and len(one & other) >= _LIKE * max(len(one), len(other))

"""A rate limit for each sender: two programs that answer each other never stop, and are not answered without end.

A round is a message sent after everything its sender had sent before was answered; a burst of messages is one round.
People make few rounds a minute; beyond the limit, answers wait until a minute has no more rounds than it allows. Nothing is
lost: delayed messages wait in the inbox. A restarted gateway counts from the beginning.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MINUTE = 60.0
_SENDERS = 5000  # remembered at most; then those whose last round is a minute old are forgotten


@dataclass(slots=True)
class _Sender:
    answers: deque[float]  # when the last rounds were, or will be, answered
    open: set[int] = field(default_factory=set)  # messages without an answer so far
    is_slowed: bool = False


class RateLimit:
    """How long answers wait. `per_minute` rounds of one sender are free; 0: no limit."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._senders: dict[tuple[str, str], _Sender] = {}
        self._open: dict[int, _Sender] = {}

    def delay(self, number: int, platform: str, who: str, now: float) -> tuple[float, bool]:
        """How many seconds the answer to a message waits, and whether the delay begins with this round."""
        if not self._per_minute:
            return 0.0, False
        if len(self._senders) > _SENDERS:
            self._senders = {key: one for key, one in self._senders.items() if now - one.answers[-1] < MINUTE}
        sender = self._senders.setdefault((platform, who), _Sender(deque(maxlen=self._per_minute)))
        answers, was_slowed = sender.answers, sender.is_slowed
        if not sender.open:
            free_at = answers[0] + MINUTE if len(answers) == self._per_minute else now
            answers.append(max(now, free_at))
            sender.is_slowed = free_at > now
        sender.open.add(number)
        self._open[number] = sender
        return max(0.0, answers[-1] - now), sender.is_slowed and not was_slowed

    def done(self, number: int) -> None:
        """Note that a message is answered; from any thread."""
        if (sender := self._open.pop(number, None)) is not None:
            sender.open.discard(number)

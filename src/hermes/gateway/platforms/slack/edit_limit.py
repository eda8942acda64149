"""How often messages are edited: Slack counts the edits of all chats of a workspace together.

chat.update is of Tier 3 ("50+ per minute", docs.slack.dev, Rate limits), for each method and workspace. Streamed replies
share a part of that; the rest is for finished replies, which are edited without a wait. When Slack asks to wait, nothing
is edited before that time is over, and then finished replies come first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hermes.errors import SlowDown

A_MINUTE = 36  # edits of streamed replies; 14 of Slack's 50 are left for finished ones
AT_ONCE = 4  # edits without a pause after a quiet time; few, as it is unknown when Slack's minutes begin


class EditLimit:
    """The edits of one workspace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left, self._at = float(AT_ONCE), clock()
        self._closed_until = 0.0

    def wait(self) -> float:
        """Seconds before a streamed reply may be edited; 0: now."""
        now = self._refill()
        missing = max(0.0, 1.0 - self._left) * 60 / A_MINUTE
        return max(missing, self._closed_until - now, 0.0)

    def take(self) -> None:
        """Count an edit that is about to be made; SlowDown while Slack refuses edits."""
        now = self._refill()
        if now < self._closed_until:
            raise SlowDown("Slack asks us to wait before the next edit", self._closed_until - now)
        self._left -= 1.0

    def refused(self, seconds: float) -> None:
        """Slack refuses edits for so long; streamed replies begin after that with an empty budget."""
        now = self._refill()
        self._closed_until = max(self._closed_until, now + seconds)
        self._left, self._at = min(self._left, 0.0), self._closed_until

    def _refill(self) -> float:
        now = self._clock()
        if now > self._at:
            self._left = min(float(AT_ONCE), self._left + (now - self._at) * A_MINUTE / 60)
            self._at = now
        return now

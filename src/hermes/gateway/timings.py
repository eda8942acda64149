"""How long the gateway waits for what, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds. A program that embeds a Gateway can give it other ones."""

    turns_end: float = 5.0  # for turns to end by themselves when the gateway stops
    answer: float = 300.0  # for a person to answer a question; then the answer is no
    reconnect: float = 1.0  # before a lost connection is established again; doubled with each failure
    retry: float = 0.25  # before a failed message is sent again; doubled with each failure
    reset_check: float = 30.0  # between two searches for quiet conversations
    index_pause: float = 0.15  # between two writes of sessions.json, at least
    index_check: float = 60.0  # between two checks for changes without a notification: a title, another process


STANDARD = Timings()

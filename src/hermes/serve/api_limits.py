"""What the API server takes from its callers, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """A program that embeds the server can give it other ones."""

    largest: int = 50_000_000  # bytes of a request: a conversation with pictures in it
    slowest: float = 120.0  # seconds a request may take to arrive
    silence: float = 15.0  # seconds without a word, after which a stream says that the turn still runs
    queue: int = 16  # requests that wait for one session
    idle: float = 10.0  # seconds an agent stays after its turn
    first_retry: float = 1.0  # seconds before a failed call of the model is repeated; doubled each time


STANDARD = ApiLimits()

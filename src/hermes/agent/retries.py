"""Whether, and when, to ask a model again that did not answer."""

from __future__ import annotations

import random

from hermes.errors import ModelError, RateLimited

TRIES = 5  # in all
_TRIES_IN_VAIN = 3  # of a server that has not said a word yet: it is more likely absent than busy
_LONGEST = 30.0
_TOO_LONG = 120.0  # a server that asks for more patience than this is better asked later, by the user


def pause(tries: int, error: ModelError, *, first: float, heard: bool) -> float | None:
    """Seconds to wait before try number `tries` + 1, or None when it is time to give up.

    The server's own word counts (Retry-After, never less than it asks for); else twice as long each time, with a
    little chance so that many clients don't come back in one moment. `heard`: something of the reply had arrived.
    """
    busy = isinstance(error, RateLimited)
    if tries >= (TRIES if busy or heard else _TRIES_IN_VAIN):
        return None
    asked = error.retry_after if isinstance(error, RateLimited) else None
    if asked is not None:
        return None if asked > _TOO_LONG else asked * random.uniform(1.0, 1.1)
    return min(_LONGEST, first * float(2 ** (tries - 1))) * random.uniform(0.75, 1.25)

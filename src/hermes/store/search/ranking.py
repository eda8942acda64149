"""The order of the hits.

Messages are ranked together with their sessions: a session's score is its best message in full, each further one at half
the weight of the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from hermes.store.engines.base import Candidate

ROLE_WEIGHT = {"user": 1.25, "assistant": 1.1, "tool": 0.6, "system": 0.5}
COUNTED = 12  # messages of a session that count towards its score


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """A message in its place: how much it counts, and why it is among the hits."""

    id: int
    session_id: str
    score: float
    reason: str
    why: str = "words"
    """What found it: words, meaning, both, or the time that was named."""


def ranked(
    found: Sequence[Candidate],
    reason: str,
    most: int,
    bonus: dict[str, float] | None = None,
    times: Callable[[list[int]], Mapping[int, float]] = lambda ids: {},
) -> list[Ranked]:
    """The best messages in order: each counts as much as its session, less the more of that session came before it.

    Of equal ones the newest is first, by their `times`.
    """
    by_session: dict[str, list[tuple[float, float, int]]] = {}
    often = Counter((score, role) for _, score, _, role in found)
    at = times([one[0] for one in found if often[one[1], one[3]] > 1])
    for message_id, score, session_id, role in found:
        match = (score * ROLE_WEIGHT.get(role, 1.0), at.get(message_id, 0.0), message_id)
        if session_id in by_session:
            by_session[session_id].append(match)
        else:
            by_session[session_id] = [match]
    order: list[tuple[float, float, int, str]] = []
    for session_id, matches in by_session.items():
        matches.sort(reverse=True)
        value = 0.0 if bonus is None else bonus.get(session_id, 0.0)
        weight = 1.0
        for score, _, _ in matches[:COUNTED]:
            value += score * weight
            weight *= 0.5
        for _, when, message_id in matches[:most]:
            order.append((value, when, message_id, session_id))
            value *= 0.5
    order.sort(reverse=True)
    return [
        Ranked(message_id, session_id, round(value, 6), reason) for value, _, message_id, session_id in order[:most]
    ]

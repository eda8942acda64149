"""An answer of several parts made to fit a number of characters, whatever the parts hold.

Long texts give way first (all are cut to one length, so short ones lose nothing), then the snippets, then the last
conversations. What counts is the length of the JSON text itself, escapes and marks included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes.agent.quoting import as_json, between_marks, defused, shortened

_LEVELS = ((5, 320, 400), (3, 240, 300), (2, 160, 200), (1, 120, 100), (1, 60, 0))  # snippets, their length, least text


@dataclass(slots=True)
class Part:
    """One entry of an answer: what is fixed, one long text, and snippets; the last two come from the history."""

    fixed: dict[str, Any]
    key: str = "summary"
    text: str = ""
    matches: list[dict[str, Any]] = field(default_factory=list)  # each with a raw "snippet"


def fitted(head: dict[str, Any], name: str, parts: Sequence[Part], budget: int) -> dict[str, Any]:
    """`head` with the parts as a list under `name`; its JSON is never longer than `budget` (from 2 on)."""

    def answer(count: int, per: int, length: int, share: int) -> dict[str, Any]:
        out = {**head, name: [_shown(part, per, length, share) for part in parts[:count]]}
        if count < len(parts):
            out["left_out"] = len(parts) - count
        return out

    parts = [_harmless(part, budget) for part in parts]
    longest = max((len(part.text) for part in parts), default=0)
    for count in range(len(parts), 0, -1):
        for per, length, least in _LEVELS:
            share = _largest(longest, lambda share: len(as_json(answer(count, per, length, share))) <= budget)  # noqa: B023
            if share is not None and share >= min(least, longest):
                return answer(count, per, length, share)
    smaller: tuple[dict[str, Any], ...] = (answer(0, 0, 0, 0), {name: [], "left_out": len(parts)}, {})
    return next((one for one in smaller if len(as_json(one)) <= budget), {})


def _largest(most: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number up to `most` that fits, by halving; None when not even 0 does."""
    if fits(most):
        return most
    if not fits(0):
        return None
    low, high = 0, most
    while high - low > 8:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _harmless(part: Part, budget: int) -> Part:
    """The part with its quotations made ready, once: defusing is the costly step."""
    matches = [{**match, "snippet": defused(match["snippet"][:1000])} for match in part.matches]
    return Part(part.fixed, part.key, defused(part.text[: max(0, budget)]), matches)


def _shown(part: Part, per: int, length: int, share: int) -> dict[str, Any]:
    out = dict(part.fixed)
    text = shortened(part.text, share)
    if text:
        out[part.key] = between_marks(text)
    if part.matches:
        out["matches"] = [
            {**match, "snippet": between_marks(shortened(match["snippet"], length))} for match in part.matches[:per]
        ]
        if len(part.matches) > per:
            out["more_matches"] = len(part.matches) - per
    return out

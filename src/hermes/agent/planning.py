"""Which part of a conversation a compression leaves out.

The beginning and the end are carried over whole turns at a time; what lies between is summarised. A cut never stands
between a tool call and its result. When one turn alone is most of the conversation, it is cut between its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hermes.agent.quoting import SUMMARY_MARK, message_text

if TYPE_CHECKING:
    from hermes.config import Config

Row = Mapping[str, Any]
Plan = tuple[int | None, int | None]  # the last message of the head and the first of the tail, by id


def plan(messages: Sequence[Row], config: Config) -> Plan | None:
    """(head_until, tail_from): message ids, None for an empty head or tail. None when nothing is worth leaving out.

    The head is the first exchange (`compression.protect_first_n` messages, widened to whole turns, and system messages
    before them), the tail the last `protect_last_n` messages, widened likewise. The messages are those of get_messages.
    """
    edges = edges_of(messages, config)
    if edges is None:
        return None
    head, tail = edges
    return (
        messages[head - 1]["id"] if head else None,
        messages[tail]["id"] if tail < len(messages) else None,
    )


def edges_of(messages: Sequence[Row], config: Config) -> tuple[int, int] | None:
    """The same as positions: messages[head:tail] is what would be summarised."""
    count = len(messages)
    first, last = max(0, config.compression.protect_first_n), max(0, config.compression.protect_last_n)
    opening = next((n for n, row in enumerate(messages) if row.get("role") != "system"), count)
    steps = cuts(messages)
    turns = [place for place in steps if place in (0, opening, count) or messages[place].get("role") == "user"]
    earliest, latest = opening + first, count - last
    if latest <= earliest:
        return None
    choices = [(_at_least(turns, earliest), _at_most(turns, latest))]
    if count - opening > first + 2 * last:
        # One turn so long that whole turns would leave nothing out.
        choices += [
            (_at_least(turns, earliest), _at_most(steps, latest)),
            (_at_least(steps, earliest), _at_most(steps, latest)),
        ]
    for head, tail in choices:
        if head < tail and not all(_is_summary(row) for row in messages[head:tail]):
            return head, tail
    return None


def cuts(messages: Sequence[Row]) -> list[int]:
    """The places between messages (0: before the first) where no tool call is parted from its result."""
    held = [False] * (len(messages) + 1)  # a call before this place has its result after it
    asked: dict[str, int] = {}
    for number, row in enumerate(messages):
        calls = row.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, Mapping) and call.get("id"):
                asked[str(call["id"])] = number
        if row.get("role") == "tool":
            start = asked.get(str(row.get("tool_call_id")), number - 1)
            for place in range(max(0, start) + 1, number + 1):
                held[place] = True
    return [place for place in range(len(messages) + 1) if not held[place]]


def _is_summary(row: Row) -> bool:
    return message_text(row, calls=False).startswith(SUMMARY_MARK)


def _at_least(places: Sequence[int], wanted: int) -> int:
    return next(place for place in places if place >= wanted)


def _at_most(places: Sequence[int], wanted: int) -> int:
    return next((place for place in reversed(places) if place <= wanted), 0)

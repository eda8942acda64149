"""Answers for a model within a budget of tokens: as many entries as fit, the last one cut, and how much is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hermes.agent.recall.history_text import CLOSE, OPEN, as_json, between_marks, message_text, quoted, when
from hermes.texts import shortened, text_tokens

if TYPE_CHECKING:
    from hermes.store.records.rows import MessageRow

PER_MESSAGE = 8_000  # characters of one message; longer ones are cut, except the message that was asked for
_WORTH = 60  # tokens that are worth the beginning of one more entry


def message_entry(row: MessageRow, most: int = PER_MESSAGE) -> Mapping[str, Any]:
    """A message as an entry of an answer."""
    return {"message_id": row["id"], "role": row["role"], "when": when(row["timestamp"]),
            "text": quoted(shortened(message_text(row), most))}  # fmt: skip


def fitted(
    head: Mapping[str, Any], key: str, entries: Iterable[tuple[int, Mapping[str, Any]]], budget: int,
    there: Mapping[str, int], *, is_all: bool = True,
) -> str:  # fmt: skip
    """As many entries as fit the budget, the first ones given first, in the order of their numbers.

    The text of the last one may be cut. `left_out` says how much of what is `there` is not shown: of the entries under `key`,
    and of the matches in them. Unless that `is_all`, there is at least as much.
    """
    taken: dict[int, Mapping[str, Any]] = {}
    room = budget - text_tokens(as_json({**head, key: [], "left_out": {**there, "at_least": True}}))
    for number, entry in entries:
        cost = _cost(entry)
        if cost > room:
            smaller = _smaller(entry, room) if not taken or room >= _WORTH else None
            if smaller is not None:
                taken[number] = smaller
            break
        room -= cost
        taken[number] = entry
    shown = [taken[number] for number in sorted(taken)]
    counts = {key: len(shown), "matches": sum(len(one.get("matches", ())) for one in shown)}
    left_out: dict[str, Any] = {name: count - counts[name] for name, count in there.items() if count > counts[name]}
    if left_out and not is_all:
        left_out["at_least"] = True
    return as_json({**head, key: shown, **({"left_out": left_out} if left_out else {})})


def _cost(entry: Mapping[str, Any]) -> int:
    return text_tokens(as_json(entry)) + 1  # and the comma


def _smaller(entry: Mapping[str, Any], room: int) -> Mapping[str, Any] | None:
    """An entry with fewer matches or less text, so that it fits; None when even that does not."""
    return next((one for one in _smaller_ones(entry) if _cost(one) <= room), None)


def _smaller_ones(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    matches = entry.get("matches")
    if matches is not None:
        for count in range(len(matches) - 1, 0, -1):
            yield {**entry, "matches": matches[:count]}
        yield from ({**entry, "matches": [one]} for one in _smaller_ones(matches[0]))
    for name in ("text", "begins"):
        if name in entry:
            inner = entry[name][len(OPEN) : -len(CLOSE)].strip("\n")
            while len(inner) > 8:  # ever less: how many tokens a text takes depends on its script
                inner = inner[: len(inner) * 4 // 5]
                yield {**entry, name: between_marks(f"{inner}…")}

"""Tokens and money: what a session has used so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from hermes.errors import InvalidInput
from hermes.store.api.arguments import checked_number, checked_text
from hermes.store.engines.base import Tx, get_meta, set_meta

COUNTERS = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "api_call_count",
)  # fmt: skip
COSTS = ("estimated_cost_usd", "actual_cost_usd")
FILLED = ("model", "billing_provider", "billing_base_url", "billing_mode")  # set only where empty
NEWEST = ("cost_status", "cost_source", "pricing_version")  # the last value counts
COLUMNS = (*COUNTERS, *COSTS, *FILLED, *NEWEST)
_KINDS = {**dict.fromkeys(COUNTERS, "INTEGER"), **dict.fromkeys(COSTS, "REAL")}


def checked(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """The usage of a message, as `update` expects it.

    InvalidInput when it has a key that is no usage column of a session, or a value of another type.
    """
    unknown = [name for name in values or () if name not in COLUMNS]
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is not a usage counter of a session; available: {', '.join(COLUMNS)}")
    used = dict(values or ())
    for name, value in used.items():
        if value is not None:
            kind = _KINDS.get(name)
            used[name] = checked_text(value, name) if kind is None else checked_number(value, name, kind)
    return used


def update(tx: Tx, session_id: str, values: Mapping[str, Any], *, absolute: bool) -> list[str]:
    """Add to (or set) a session's counters; returns the columns that changed, [] when none did or there is no such session."""
    used = {name: value for name, value in values.items() if value is not None}
    sets: dict[str, str] = {}
    for name in filter(_KINDS.__contains__, used):
        if absolute:
            sets[name] = "?"
        elif used[name] or name in COSTS:  # a cost of 0 means that it is known
            sets[name] = f"coalesce({name}, 0) + ?"
    words = [name for name in (*FILLED, *NEWEST) if name in used]
    known = tx.row(f"SELECT {', '.join(words)} FROM sessions WHERE id = ?", (session_id,)) if words else None
    for name, before in zip(words, known or (), strict=False):
        if before is None or (name in NEWEST and before != used[name]):
            sets[name] = f"coalesce({name}, ?)" if name in FILLED else "?"
    if not sets:
        return []
    changes = ", ".join(f"{name} = {value}" for name, value in sets.items())
    sql = f"UPDATE sessions SET {changes} WHERE id = ? AND purged IS NULL"
    return [*sets] if tx.run(sql, [*(used[name] for name in sets), session_id]) else []


# ---------------------------------------------------------------------------------------------- side tasks


class SideUsage(TypedDict):
    """The model calls for a session's titles and summaries, not in its counters. `cost_usd` is None when a price is unknown."""

    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


def side_key(session_id: str) -> str:
    """The key of state_meta with the usage of a session's side tasks."""
    return f"side_usage:{session_id}"


def side_of(tx: Tx, session_id: str) -> SideUsage | None:
    """The usage of a session's side tasks; None when there were none."""
    value = get_meta(tx, side_key(session_id))
    try:
        return None if value is None else msgspec.json.decode(value, type=SideUsage)
    except msgspec.DecodeError:  # another program wrote it
        return None


def add_side(tx: Tx, session_id: str, *, input_tokens: int, output_tokens: int, cost_usd: float | None) -> None:
    """Add one call to what the side tasks of a session used."""
    tx.hold(session_id)
    before = side_of(tx, session_id) or {"calls": 0, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0}
    was = before["cost_usd"]
    used: SideUsage = {
        "calls": before["calls"] + 1,
        "input_tokens": before["input_tokens"] + input_tokens,
        "output_tokens": before["output_tokens"] + output_tokens,
        "cost_usd": None if was is None or cost_usd is None else was + cost_usd,
    }
    set_meta(tx, side_key(session_id), msgspec.json.encode(used).decode())

"""Tokens and money: what a session has used so far."""

from __future__ import annotations

from typing import Any

from hermes.store.engines.base import Tx

COUNTERS = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "api_call_count",
)  # fmt: skip
COSTS = ("estimated_cost_usd", "actual_cost_usd")
FILLED = ("model", "billing_provider", "billing_base_url", "billing_mode")  # only where nothing is known yet
NEWEST = ("cost_status", "cost_source", "pricing_version")  # the last word counts


def update(tx: Tx, session_id: str, values: dict[str, Any], *, absolute: bool) -> bool:
    """Add to (or set) a session's counters; False when there is no such session."""
    sets: list[str] = []
    params: list[Any] = []
    for name in (*COUNTERS, *COSTS):
        value = values.get(name)
        if value is None:
            continue
        if absolute:
            sets.append(f"{name} = ?")
        elif value:
            sets.append(f"{name} = coalesce({name}, 0) + ?")
        elif name in COSTS:
            sets.append(f"{name} = coalesce({name}, ?)")
        else:
            continue
        params.append(value)
    for name in (*FILLED, *NEWEST):
        if values.get(name) is not None:
            sets.append(f"{name} = coalesce({name}, ?)" if name in FILLED else f"{name} = ?")
            params.append(values[name])
    if not sets:
        return tx.row("SELECT 1 FROM sessions WHERE id = ?", (session_id,)) is not None
    return bool(tx.run(f"UPDATE sessions SET {', '.join(sets)} WHERE id = ? AND purged IS NULL", [*params, session_id]))

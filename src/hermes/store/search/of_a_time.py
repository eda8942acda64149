"""Sessions of the time a question names, where nothing else of that time was found: "what did we talk about last week"."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.store.engines.base import Scope, Tx
from hermes.store.search.ranking import Ranked

MOST = 10  # sessions
TIMES = 2  # of those that a question names, the first: a month without a year is one of many years


def of_a_time(tx: Tx, scope: Scope, spans: Sequence[tuple[float, float]], score: float) -> list[Ranked]:
    """What a person said first in each of the sessions of these times, the session that was last active first."""
    out: list[Ranked] = []
    for start, end in spans[:TIMES]:
        rows = tx.rows(
            "SELECT m.session_id, min(m.id) FROM sessions s JOIN messages m ON m.session_id = s.id WHERE s.started_at < ? AND"
            " coalesce(s.last_active, s.started_at) >= ? AND m.role = 'user' AND m.timestamp >= ? AND m.timestamp < ?"
            f" AND {scope.where} GROUP BY m.session_id ORDER BY max(m.timestamp) DESC, m.session_id LIMIT {MOST}",
            (end, start, start, end, *scope.params),
        )
        seen = {one.session_id for one in out}
        out += [Ranked(row[1], row[0], score, "relaxed", "time") for row in rows if row[0] not in seen]
    return out[:MOST]


def is_of_a_time(tx: Tx, ids: Sequence[int], spans: Sequence[tuple[float, float]]) -> bool:
    """Whether one of these messages is of one of these times."""
    marks = ", ".join("?" * len(ids)) or "NULL"
    rows = tx.rows(f"SELECT timestamp FROM messages WHERE id IN ({marks})", ids)
    return any(start <= row[0] < end for row in rows for start, end in spans)

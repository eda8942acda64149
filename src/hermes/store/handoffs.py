"""Handoffs: moving a session from one platform to another.

NULL → pending → running → completed or failed. A claim carries a lease: when the claimer dies, the handoff can be
claimed again after the lease has expired. `handoff:<id>` in the leases holds the token of the claim, so that a late claimer is
distinguished from the current one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.errors import InvalidInput
from hermes.store import codec, leases, sessions
from hermes.store.arguments import checked_text, checked_ttl
from hermes.store.engines.base import Tx

if TYPE_CHECKING:
    from hermes.store.rows import HandoffState, PendingHandoff

LEASE_SECONDS = 120.0
CLAIMER = "claimer"


def lease_of(session_id: str) -> str:
    """The name of the lease whose token distinguishes claims."""
    return f"handoff:{session_id}"


def request(tx: Tx, session_id: str, platform: str) -> bool:
    """Request a handoff; False while one is in progress, or when there is no such session."""
    if not checked_text(platform, "platform"):
        raise InvalidInput("a handoff needs a platform to go to")
    now = tx.now()
    done = tx.run(
        "UPDATE sessions SET handoff_state = 'pending', handoff_platform = ?, handoff_error = NULL,"
        " handoff_requested_at = ?, handoff_lease_until = NULL WHERE id = ? AND trashed_at IS NULL AND purged IS NULL"
        " AND (handoff_state IS NULL OR handoff_state IN ('completed', 'failed')"
        " OR (handoff_state = 'running' AND coalesce(handoff_lease_until, 0) < ?))",
        (platform, now, session_id, now),
    )
    if done:
        leases.void(tx, lease_of(session_id))
    return bool(done)


def state(tx: Tx, session_id: str) -> HandoffState | None:
    """{state, platform, error}, each None when none was ever requested; None when there is no such session."""
    row = tx.row(
        "SELECT handoff_state, handoff_platform, handoff_error FROM sessions WHERE id = ? AND purged IS NULL",
        (session_id,),
    )
    if row is None:
        return None
    state, platform, error = map(codec.restored, row)
    return {"state": state, "platform": platform, "error": error}


def pending(tx: Tx) -> list[PendingHandoff]:
    """Sessions that wait to be claimed, the oldest request first; including those whose claim expired."""
    rows: list[PendingHandoff] = tx.dicts(
        f"SELECT {sessions.COLUMNS}, s.handoff_requested_at FROM sessions s WHERE s.trashed_at IS NULL AND s.purged IS NULL"
        " AND s.handoff_state IS NOT NULL"
        " AND (s.handoff_state = 'pending' OR (s.handoff_state = 'running' AND coalesce(s.handoff_lease_until, 0) < ?))"
        " ORDER BY coalesce(s.handoff_requested_at, 0), s.id",
        (tx.now(),),
    )
    return [sessions.tidy(row) for row in rows]


def claim(tx: Tx, session_id: str, lease: float = LEASE_SECONDS) -> int | None:
    """Claim a pending handoff (or one whose claim expired); one winner. Returns the token of the claim, or None."""
    now = tx.now()
    if not tx.run(
        "UPDATE sessions SET handoff_state = 'running', handoff_lease_until = ? WHERE id = ? AND (handoff_state = 'pending'"
        " OR (handoff_state = 'running' AND coalesce(handoff_lease_until, 0) < ?))",
        (now + checked_ttl(lease), session_id, now),
    ):
        return None
    return leases.seize(tx, lease_of(session_id), CLAIMER, lease)


def heartbeat(tx: Tx, session_id: str, lease: float = LEASE_SECONDS) -> bool:
    """Renew a claim."""
    until = tx.now() + checked_ttl(lease)
    done = tx.run(
        "UPDATE sessions SET handoff_lease_until = ? WHERE id = ? AND handoff_state = 'running'", (until, session_id)
    )
    if done:
        tx.run("UPDATE leases SET expires_at = ? WHERE name = ? AND holder IS NOT NULL", (until, lease_of(session_id)))
    return bool(done)


def withdraw(tx: Tx, session_id: str, error: str) -> bool:
    """Cancel a request that is not claimed. False when it was claimed meanwhile."""
    return bool(
        tx.run(
            "UPDATE sessions SET handoff_state = 'failed', handoff_error = ?, handoff_lease_until = NULL WHERE id = ?"
            " AND handoff_state = 'pending'",
            (error, session_id),
        )
    )


def seconds_left(tx: Tx, session_id: str) -> float | None:
    """Seconds until the claim on a session expires (negative: it has expired); None when it is not claimed."""
    until = tx.value(
        "SELECT handoff_lease_until FROM sessions WHERE id = ? AND handoff_state = 'running'", (session_id,)
    )
    return None if until is None else float(until) - tx.now()


def complete(tx: Tx, session_id: str) -> bool:
    """Mark a handoff as completed."""
    return _finish(tx, session_id, "completed", None)


def fail(tx: Tx, session_id: str, error: str) -> bool:
    """Mark a handoff as failed, with the reason; it can be requested again."""
    return _finish(tx, session_id, "failed", error)


def _finish(tx: Tx, session_id: str, outcome: str, error: str | None) -> bool:
    done = tx.run(
        "UPDATE sessions SET handoff_state = ?, handoff_error = ?, handoff_lease_until = NULL WHERE id = ?"
        " AND handoff_state IN ('pending', 'running')",
        (outcome, error, session_id),
    )
    if done:
        leases.void(tx, lease_of(session_id))
    return bool(done)

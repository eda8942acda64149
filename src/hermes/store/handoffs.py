"""Handoffs: moving a session from one platform to another.

NULL → pending → running → completed or failed. The claimer holds the lease `job:handoff:<id>`: when it dies, the handoff can
be claimed again after the lease has expired. What nobody claims within two minutes is over: the process that requested it
is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.errors import InvalidInput, SessionBusy
from hermes.store import codec, leases, sessions
from hermes.store.arguments import checked_text, checked_ttl
from hermes.store.engines.base import Tx
from hermes.store.leases import handoff_lease

if TYPE_CHECKING:
    from hermes.store.rows import HandoffState, PendingHandoff

LEASE_SECONDS = 120.0
REQUEST_SECONDS = 120.0  # how long a request, or a claim that ran out, waits for a claimer; the terminal waits 60 s
_RUNS_UNTIL = "coalesce((SELECT l.expires_at FROM leases l WHERE l.name = 'job:handoff:' || s.id), 0)"
# The handoffs that can be claimed; its values are those of `_waiting`.
_WAITS = (
    "(s.handoff_state = 'pending' AND coalesce(s.handoff_requested_at, 0) >= ?"
    f" OR s.handoff_state = 'running' AND {_RUNS_UNTIL} BETWEEN ? AND ?)"
)


def _waiting(now: float) -> tuple[float, float, float]:
    return now - REQUEST_SECONDS, now - REQUEST_SECONDS, now


def request(tx: Tx, session_id: str, platform: str) -> bool:
    """Request a handoff; False while one is in progress, or when there is no such session."""
    if not checked_text(platform, "platform"):
        raise InvalidInput("a handoff needs a platform to go to")
    now = tx.now()
    done = tx.run(
        "UPDATE sessions AS s SET handoff_state = 'pending', handoff_platform = ?, handoff_error = NULL,"
        " handoff_requested_at = ? WHERE id = ? AND trashed_at IS NULL AND purged IS NULL"
        " AND (handoff_state IS NULL OR handoff_state IN ('completed', 'failed')"
        " OR (handoff_state = 'pending' AND coalesce(handoff_requested_at, 0) < ?)"
        f" OR (handoff_state = 'running' AND {_RUNS_UNTIL} < ?))",
        (platform, now, session_id, now - REQUEST_SECONDS, now),
    )
    if done:
        leases.release(tx, handoff_lease(session_id))
    return bool(done)


def state(tx: Tx, session_id: str) -> HandoffState | None:
    """{state, platform, error}, each None when none was ever requested; None when there is no such session."""
    sql = "SELECT handoff_state, handoff_platform, handoff_error FROM sessions WHERE id = ? AND purged IS NULL"
    row = tx.row(sql, (session_id,))
    if row is None:
        return None
    state, platform, error = map(codec.restored, row)
    return {"state": state, "platform": platform, "error": error}


def pending(tx: Tx) -> list[PendingHandoff]:
    """Sessions that wait to be claimed, the oldest request first; including those whose claim expired."""
    rows: list[PendingHandoff] = tx.dicts(
        f"SELECT {sessions.COLUMNS}, s.handoff_requested_at FROM sessions s WHERE s.trashed_at IS NULL AND s.purged IS NULL"
        f" AND s.handoff_state IS NOT NULL AND {_WAITS} ORDER BY coalesce(s.handoff_requested_at, 0), s.id",
        _waiting(tx.now()),
    )
    return [sessions.tidy(row) for row in rows]


def claim(tx: Tx, session_id: str, ttl: float = LEASE_SECONDS) -> int | None:
    """Claim a pending handoff (or one whose claim expired); one winner. Returns the token of the claim, or None."""
    checked_ttl(ttl)
    if not tx.run(
        f"UPDATE sessions AS s SET handoff_state = 'running' WHERE id = ? AND {_WAITS}",
        (session_id, *_waiting(tx.now())),
    ):
        return None
    return leases.acquire(tx, handoff_lease(session_id), leases.holder_name("handoff"), ttl)


def seconds_left(tx: Tx, session_id: str) -> float | None:
    """Seconds until the claim on a session expires (negative: it has expired); None when it is not claimed."""
    until = tx.value(f"SELECT {_RUNS_UNTIL} FROM sessions s WHERE id = ? AND handoff_state = 'running'", (session_id,))
    return None if until is None else float(until) - tx.now()


def keeps_out(tx: Tx, session_id: str, holder: str) -> str | None:
    """The platform a session is being handed over to, if that keeps this holder of leases from answering in it."""
    sql = f"SELECT handoff_platform FROM sessions s WHERE id = ? AND handoff_state = 'running' AND {_RUNS_UNTIL} > ?"
    going = tx.value(sql, (session_id, tx.now()))
    platform = None if going is None else str(codec.restored(going))
    return None if platform is None or holder.rpartition(":")[2] == platform.partition("/")[0] else platform


def require_free(tx: Tx, session_id: str, holder: str) -> int:
    """The token of a session's last lease, if `holder` can take the session for a turn now; SessionBusy if not."""
    sessions.require(tx, session_id)
    if (platform := keeps_out(tx, session_id, holder)) is not None:
        raise SessionBusy(session_id, f"handoff to {platform}", "handoff")
    name = leases.session_lease(session_id)
    found = leases.held(tx, name)
    if found is not None and found[0] != holder and found[1] != leases.OPEN and not leases.is_gone(found[0]):
        raise SessionBusy(session_id, leases.source_of(found[0]), found[1])
    return leases.last_token(tx, name)


def take_turn(
    tx: Tx, session_id: str, holder: str, ttl: float, reason: str = leases.TURN, last: int | None = None
) -> int:
    """Take the lease of a session to answer there, also where another process merely has it open; its token.

    SessionBusy while another process answers there, or has done so since the token `last`.
    """
    require_free(tx, session_id, holder)
    token = leases.acquire(tx, leases.session_lease(session_id), holder, ttl, reason, last=last)
    if token is None:
        raise SessionBusy(session_id, "another program", reason)
    return token


def finish(tx: Tx, session_id: str, outcome: str, error: str | None = None, *, claimed: bool = True) -> bool:
    """End a handoff: completed, or failed with the reason. One that is not `claimed`: False when it was claimed meanwhile."""
    sql = "UPDATE sessions SET handoff_state = ?, handoff_error = ? WHERE id = ? AND handoff_state IN ('pending', ?)"
    done = tx.run(sql, (outcome, error, session_id, "running" if claimed else "pending"))
    if done:
        leases.release(tx, handoff_lease(session_id))
    return bool(done)

"""Leases: which process holds which resource, and until when.

There are two kinds. `session:<id>` is held by the process that uses a session, for a reason: `open` (a terminal shows it),
`turn` (it answers there) or `compression`. A session is live while it is held. A session that is merely open can be taken for
another reason; the process that had it open takes it back when it is free again. `job:<name>` is held by the process
that does a job of which the store has one: the connection to a platform, a run of a scheduled prompt, a handoff, a title.

A lease has one holder and expires unless it is renewed, so a crashed process frees what it held. Each acquisition gets a
higher token (a fence): a process that resumes with an old one is detected (`check`). A holder is named
`host:pid:…:source`; if it was a process of this machine that no longer runs, its lease is free at once.

Where a transaction locks sessions and leases, it locks sessions first, and leases in the order of their names: so that no two
transactions wait for each other.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from pathlib import Path

from hermes.errors import Fenced, InvalidInput, SessionBusy
from hermes.store.api.arguments import checked_period, checked_text, checked_ttl
from hermes.store.engines.base import Tx
from hermes.store.records import codec, sessions
from hermes.store.records.rows import HandoffState, PendingHandoff

ABANDONED = "abandoned"
OPEN, TURN, COMPRESSION = "open", "turn", "compression"  # why a session is held


def session_lease(session_id: str) -> str:
    """The name of the lease that makes a session live."""
    return f"session:{session_id}"


def handoff_lease(session_id: str) -> str:
    """The name of the lease of the gateway that carries out a session's handoff."""
    return f"job:handoff:{session_id}"


def title_lease(session_id: str) -> str:
    """The name of the lease of the process that makes a title for a session."""
    return f"job:title:{session_id}"


def acquire(
    tx: Tx, name: str, holder: str, ttl: float, reason: str | None = None, *, last: int | None = None
) -> int | None:
    """Take a lease that is free, expired, the holder's own, a dead process's, or (for another reason) of a session that is
    merely open; returns its fencing token, or None while another holder has it, or has had it since the token `last`."""
    if not checked_text(name, "the name of a lease") or checked_ttl(ttl) <= 0:
        raise InvalidInput("a lease needs a name and a time to live above zero")
    checked_text(holder, "the holder of a lease"), checked_text(reason, "the reason of a lease")
    token = _take(tx, name, holder, ttl, reason, last=last)
    other = held(tx, name) if token is None else None
    if other is not None and (is_gone(other[0]) or (other[1] == OPEN and reason not in (OPEN, None))):
        token = _take(tx, name, holder, ttl, reason, other[2], last)
    return token


def _take(
    tx: Tx, name: str, holder: str, ttl: float, reason: str | None, over: int = -1, last: int | None = None
) -> int | None:
    """Take a lease that is free, expired, the holder's own or that of the token `over`, if its token is still `last`."""
    now = tx.now()
    rows = tx.rows(
        "INSERT INTO leases(name, holder, reason, token, expires_at) VALUES(?, ?, ?, 1, ?) ON CONFLICT(name) DO UPDATE SET"
        " holder = excluded.holder, reason = excluded.reason, token = leases.token + 1, expires_at = excluded.expires_at"
        " WHERE (leases.holder IS NULL OR leases.expires_at <= ? OR leases.holder = excluded.holder OR leases.token = ?)"
        " AND leases.token = coalesce(?, leases.token) RETURNING token",
        (name, holder, reason, now + ttl, now, over, last),
    )
    return int(rows[0][0]) if rows else None


def held(tx: Tx, name: str) -> tuple[str, str | None, int] | None:
    """The holder of a lease, its reason and its token; None when it is free."""
    sql = "SELECT holder, reason, token FROM leases WHERE name = ? AND holder IS NOT NULL AND expires_at > ?"
    row = tx.row(sql, (name, tx.now()))
    return None if row is None else (str(codec.restored(row[0])), row[1], int(row[2]))


def last_token(tx: Tx, name: str) -> int:
    """The token of the last acquisition of a lease, by any holder; 0 if it was never taken."""
    return int(tx.value("SELECT token FROM leases WHERE name = ?", (name,)) or 0)


def holder_of(tx: Tx, name: str) -> str | None:
    """The holder name of a lease; None when it is free."""
    found = held(tx, name)
    return None if found is None else found[0]


def holders(tx: Tx, prefix: str) -> dict[str, tuple[str, str | None]]:
    """The leases that are held and whose names begin with this, each with the name of its holder and its reason."""
    sql = "SELECT name, holder, reason FROM leases WHERE instr(name, ?) = 1 AND holder IS NOT NULL AND expires_at > ?"
    rows = tx.rows(sql, (prefix, tx.now()))
    return {str(name): (str(codec.restored(holder)), reason) for name, holder, reason in rows}


def is_live(tx: Tx, session_id: str) -> bool:
    """Whether a running process holds the session."""
    return held(tx, session_lease(session_id)) is not None


def check(tx: Tx, fences: Iterable[tuple[str, int]]) -> None:
    """Check that each token still holds its lease (name, token), and lock them until the transaction ends; else Fenced.

    An expired lease counts as long as no other holder has taken it.
    """
    for name, token in sorted(fences):
        if not tx.holds(name, token):
            raise Fenced(name)


def renew(tx: Tx, name: str, token: int | None, ttl: float, reason: str | None = None) -> bool:
    """Renew the lease of this token (None: of any holder), if given for another reason; False when it does not hold."""
    return bool(
        tx.run(
            "UPDATE leases SET expires_at = ?, reason = coalesce(?, reason) WHERE name = ? AND token = coalesce(?, token)"
            " AND holder IS NOT NULL",
            (tx.now() + checked_ttl(ttl), reason, name, token),
        )
    )


def renew_all(tx: Tx, several: Iterable[tuple[str, int, float]]) -> list[bool]:
    """Renew several, each (name, token, ttl); the result of `renew` for each."""
    leases = [(name, token, ttl) for name, token, ttl in several]
    done = {lease: renew(tx, *lease) for lease in sorted(leases)}
    return [done[lease] for lease in leases]


def release(tx: Tx, name: str, token: int | None = None) -> bool:
    """Release the lease of this token (None: of any holder); the row stays, so that tokens only grow."""
    return bool(
        tx.run(
            "UPDATE leases SET holder = NULL, expires_at = ? WHERE name = ? AND token = coalesce(?, token)"
            " AND holder IS NOT NULL",
            (tx.now(), name, token),
        )
    )


def forget(tx: Tx, session_id: str) -> None:
    """Remove the leases of a deleted session."""
    for lease in (session_lease, handoff_lease, title_lease):
        tx.run("DELETE FROM leases WHERE name = ?", (lease(session_id),))


def end_abandoned(tx: Tx, after_hours: float) -> list[str]:
    """End sessions whose lease expired, unreleased, longer ago than this."""
    now = tx.now()
    before = now - checked_period(after_hours, "after_hours", "hours") * 3600
    gone = tx.rows(
        "SELECT s.id FROM leases l JOIN sessions s ON l.name = 'session:' || s.id WHERE l.holder IS NOT NULL"
        " AND l.expires_at < ? AND s.ended_at IS NULL AND s.purged IS NULL ORDER BY s.id",
        (before,),
    )
    ended = []
    for (session_id,) in gone:
        tx.hold(session_id)
        if tx.run(  # not if it was renewed at this moment
            "UPDATE leases SET holder = NULL WHERE name = ? AND holder IS NOT NULL AND expires_at < ?",
            (session_lease(session_id), before),
        ):
            tx.run("UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ?", (now, ABANDONED, session_id))
            ended.append(session_id)
    return ended


# ---------------------------------------------------------------------------------------------- the names of holders


def holder_name(source: str) -> str:
    """A unique holder name for a part of this process: `cli`, `telegram` …"""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}:{source}"


def source_of(holder: str | None) -> str:
    """The entry point of a holder: `cli`, `telegram` …"""
    parts = (holder or "").split(":", 3)
    return parts[3] if len(parts) == 4 else "another program"


def is_ours(holder: str) -> bool:
    """Whether a holder is a part of this process."""
    return holder.startswith(f"{socket.gethostname()}:{os.getpid()}:")


def is_gone(holder: str) -> bool:
    """Whether a holder was a process of this machine that no longer runs."""
    host, _, rest = holder.partition(":")
    number = rest.partition(":")[0]
    if host != socket.gethostname() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    try:  # dead, but its parent has not noticed yet
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError, UnicodeDecodeError):
        return False


# ---------------------------------------------------------------------------------------------- connections of gateways
#
# A platform's bot, mailbox or port is connected by one gateway at a time, which does all of its work. The lease
# `job:connection:<name>` shows which one; its token fences everything that gateway stores for the connection. Each running
# gateway also holds `job:gateway:<holder>`.

_CONNECTION, _GATEWAY = "job:connection:", "job:gateway:"


def connection_lease(name: str) -> str:
    """The name of the lease of the gateway that is connected to a platform or to one of its accounts."""
    return f"{_CONNECTION}{name}"


def join_gateways(tx: Tx, holder: str, ttl: float) -> tuple[str, int] | None:
    """Take the lease that shows that a gateway runs; its name and token."""
    token = acquire(tx, f"{_GATEWAY}{holder}", holder, ttl)
    return None if token is None else (f"{_GATEWAY}{holder}", token)


def gateways(tx: Tx) -> list[str]:
    """The holder names of the gateways that run."""
    return sorted(holder for holder, _ in holders(tx, _GATEWAY).values())


def connected(tx: Tx) -> dict[str, str]:
    """The connected platforms and accounts, each with the holder name of its gateway."""
    return {lease.removeprefix(_CONNECTION): holder for lease, (holder, _) in holders(tx, _CONNECTION).items()}


def free_gateways(tx: Tx) -> None:
    """Free every connection: for the only gateway of a file, which has just started."""
    for lease in sorted((*holders(tx, _CONNECTION), *holders(tx, _GATEWAY))):
        release(tx, lease)


# ---------------------------------------------------------------------------------------------- handoffs
#
# A session is moved from one platform to another: NULL → pending → running → completed or failed. The claimer holds the
# lease `job:handoff:<id>`: when it dies, the handoff can be claimed again after the lease has expired. What is not claimed
# within two minutes is over: the process that requested it is gone.

HANDOFF_SECONDS = 120.0
REQUEST_SECONDS = 120.0  # how long a request, or a claim that ran out, waits for a claimer; the terminal waits 60 s
_RUNS_UNTIL = "coalesce((SELECT l.expires_at FROM leases l WHERE l.name = 'job:handoff:' || s.id), 0)"
# The handoffs that can be claimed; its values are those of `_waiting`.
_WAITS = (
    "(s.handoff_state = 'pending' AND coalesce(s.handoff_requested_at, 0) >= ?"
    f" OR s.handoff_state = 'running' AND {_RUNS_UNTIL} BETWEEN ? AND ?)"
)


def _waiting(now: float) -> tuple[float, float, float]:
    return now - REQUEST_SECONDS, now - REQUEST_SECONDS, now


def request_handoff(tx: Tx, session_id: str, platform: str) -> bool:
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
        release(tx, handoff_lease(session_id))
    return bool(done)


def handoff_state(tx: Tx, session_id: str) -> HandoffState | None:
    """{state, platform, error}, each None when none was ever requested; None when there is no such session."""
    sql = "SELECT handoff_state, handoff_platform, handoff_error FROM sessions WHERE id = ? AND purged IS NULL"
    row = tx.row(sql, (session_id,))
    if row is None:
        return None
    state, platform, error = map(codec.restored, row)
    return {"state": state, "platform": platform, "error": error}


def pending_handoffs(tx: Tx) -> list[PendingHandoff]:
    """Sessions that wait to be claimed, the oldest request first; including those whose claim expired."""
    rows: list[PendingHandoff] = tx.dicts(
        f"SELECT {sessions.COLUMNS}, s.handoff_requested_at FROM sessions s WHERE s.trashed_at IS NULL AND s.purged IS NULL"
        f" AND s.handoff_state IS NOT NULL AND {_WAITS} ORDER BY coalesce(s.handoff_requested_at, 0), s.id",
        _waiting(tx.now()),
    )
    return [sessions.tidy(row) for row in rows]


def claim_handoff(tx: Tx, session_id: str, ttl: float = HANDOFF_SECONDS) -> int | None:
    """Claim a pending handoff (or one whose claim expired); one winner. Returns the token of the claim, or None."""
    checked_ttl(ttl)
    if not tx.run(
        f"UPDATE sessions AS s SET handoff_state = 'running' WHERE id = ? AND {_WAITS}",
        (session_id, *_waiting(tx.now())),
    ):
        return None
    return acquire(tx, handoff_lease(session_id), holder_name("handoff"), ttl)


def handoff_seconds_left(tx: Tx, session_id: str) -> float | None:
    """Seconds until the claim on a session expires (negative: it has expired); None when it is not claimed."""
    until = tx.value(f"SELECT {_RUNS_UNTIL} FROM sessions s WHERE id = ? AND handoff_state = 'running'", (session_id,))
    return None if until is None else float(until) - tx.now()


def handoff_keeps_out(tx: Tx, session_id: str, holder: str) -> str | None:
    """The platform a session is being handed over to, if that keeps this holder of leases from answering in it."""
    sql = f"SELECT handoff_platform FROM sessions s WHERE id = ? AND handoff_state = 'running' AND {_RUNS_UNTIL} > ?"
    going = tx.value(sql, (session_id, tx.now()))
    platform = None if going is None else str(codec.restored(going))
    return None if platform is None or holder.rpartition(":")[2] == platform.partition("/")[0] else platform


def require_free(tx: Tx, session_id: str, holder: str) -> int:
    """The token of a session's last lease, if `holder` can take the session for a turn now; SessionBusy if not."""
    sessions.require(tx, session_id)
    if (platform := handoff_keeps_out(tx, session_id, holder)) is not None:
        raise SessionBusy(session_id, f"handoff to {platform}", "handoff")
    name = session_lease(session_id)
    found = held(tx, name)
    if found is not None and found[0] != holder and found[1] != OPEN and not is_gone(found[0]):
        raise SessionBusy(session_id, source_of(found[0]), found[1])
    return last_token(tx, name)


def take_turn(tx: Tx, session_id: str, holder: str, ttl: float, reason: str = TURN, last: int | None = None) -> int:
    """Take the lease of a session to answer there, also where another process merely has it open; its token.

    SessionBusy while another process answers there, or has done so since the token `last`.
    """
    require_free(tx, session_id, holder)
    token = acquire(tx, session_lease(session_id), holder, ttl, reason, last=last)
    if token is None:
        raise SessionBusy(session_id, "another program", reason)
    return token


def finish_handoff(tx: Tx, session_id: str, outcome: str, error: str | None = None, *, claimed: bool = True) -> bool:
    """End a handoff: completed, or failed with the reason. One that is not `claimed`: False when it was claimed meanwhile."""
    sql = "UPDATE sessions SET handoff_state = ?, handoff_error = ? WHERE id = ? AND handoff_state IN ('pending', ?)"
    done = tx.run(sql, (outcome, error, session_id, "running" if claimed else "pending"))
    if done:
        release(tx, handoff_lease(session_id))
    return bool(done)

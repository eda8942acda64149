"""Leases: which process holds which resource, and until when.

A lease has one holder and expires unless it is renewed, so a crashed process frees what it held. Each acquisition gets a
higher token (a fence): a process that resumes with an old one is detected (`check`). A session is live while a process
holds the lease `session:<id>`, and a turn runs in it while one holds `turn:<id>`: a terminal keeps a session live for
hours and lets other processes run turns in between.

Where a transaction locks sessions and leases, it locks sessions first, and leases in the order of their names: so that no two
transactions wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from hermes.errors import Fenced, InvalidInput
from hermes.store import codec
from hermes.store.arguments import checked_period, checked_text, checked_ttl
from hermes.store.engines.base import Tx

ABANDONED = "abandoned"


def acquire(tx: Tx, name: str, holder: str, ttl: float) -> int | None:
    """Take a free, expired or own lease; returns its fencing token, or None while another holder has it."""
    if not checked_text(name, "the name of a lease") or checked_ttl(ttl) <= 0:
        raise InvalidInput("a lease needs a name and a time to live above zero")
    checked_text(holder, "the holder of a lease")
    now = tx.now()
    taken = tx.rows(
        "INSERT INTO leases(name, holder, token, expires_at) VALUES(?, ?, 1, ?) ON CONFLICT(name) DO UPDATE SET"
        " holder = excluded.holder, token = leases.token + 1, expires_at = excluded.expires_at"
        " WHERE leases.holder IS NULL OR leases.expires_at <= ? OR leases.holder = excluded.holder RETURNING token",
        (name, holder, now + ttl, now),
    )
    return int(taken[0][0]) if taken else None


def seize(tx: Tx, name: str, holder: str, ttl: float) -> int:
    """Take a lease from any holder: for transfers decided elsewhere. Returns its token."""
    taken = tx.rows(
        "INSERT INTO leases(name, holder, token, expires_at) VALUES(?, ?, 1, ?) ON CONFLICT(name) DO UPDATE SET"
        " holder = excluded.holder, token = leases.token + 1, expires_at = excluded.expires_at RETURNING token",
        (name, holder, tx.now() + checked_ttl(ttl)),
    )
    return int(taken[0][0])


def void(tx: Tx, name: str) -> None:
    """Release a lease of any holder."""
    tx.run("UPDATE leases SET holder = NULL, expires_at = ? WHERE name = ? AND holder IS NOT NULL", (tx.now(), name))


def check(tx: Tx, fences: Iterable[tuple[str, int]]) -> None:
    """Check that each token still holds its lease (name, token), and lock them until the transaction ends; else Fenced.

    An expired lease counts as long as no other holder has taken it.
    """
    for name, token in sorted(fences):
        if not tx.holds(name, token):
            raise Fenced(name)


def renew(tx: Tx, name: str, token: int, ttl: float) -> bool:
    """Renew a lease; False when another holder has taken it or it was released."""
    return bool(
        tx.run(
            "UPDATE leases SET expires_at = ? WHERE name = ? AND token = ? AND holder IS NOT NULL",
            (tx.now() + checked_ttl(ttl), name, token),
        )
    )


def renew_all(tx: Tx, held: Iterable[tuple[str, int, float]]) -> list[bool]:
    """Renew several, each (name, token, ttl); the result of `renew` for each."""
    leases = list(held)
    done = {name: renew(tx, name, token, ttl) for name, token, ttl in sorted(leases)}
    return [done[name] for name, _, _ in leases]


def release(tx: Tx, name: str, token: int) -> bool:
    """Release a lease; the row stays, so that tokens only grow."""
    return bool(
        tx.run(
            "UPDATE leases SET holder = NULL, expires_at = ? WHERE name = ? AND token = ? AND holder IS NOT NULL",
            (tx.now(), name, token),
        )
    )


def release_all(tx: Tx, held: Iterable[tuple[str, int]]) -> None:
    """Release several, each (name, token)."""
    for name, token in sorted(held):
        release(tx, name, token)


def compression_lease(session_id: str) -> str:
    """The name of the lease for compressing a session."""
    return f"compress:{session_id}"


def renew_of(tx: Tx, name: str, holder: str, ttl: float) -> bool:
    """Renew a lease that this holder has."""
    now = tx.now()
    sql = "UPDATE leases SET expires_at = ? WHERE name = ? AND holder = ? AND expires_at > ?"
    return bool(tx.run(sql, (now + checked_ttl(ttl), name, holder, now)))


def release_of(tx: Tx, name: str, holder: str) -> bool:
    """Release a lease that this holder has."""
    sql = "UPDATE leases SET holder = NULL, expires_at = ? WHERE name = ? AND holder = ?"
    return bool(tx.run(sql, (tx.now(), name, holder)))


def session_lease(session_id: str) -> str:
    """The name of the lease that makes a session live."""
    return f"session:{session_id}"


def turn_lease(session_id: str) -> str:
    """The name of the lease for a turn in a session."""
    return f"turn:{session_id}"


def is_live(tx: Tx, session_id: str) -> bool:
    """Whether a running process holds the session."""
    return (
        tx.row(
            "SELECT 1 FROM leases WHERE name = ? AND holder IS NOT NULL AND expires_at > ?",
            (session_lease(session_id), tx.now()),
        )
        is not None
    )


def holder(tx: Tx, session_id: str) -> str | None:
    """The holder name of the session's lease; None when it is free."""
    return holder_of(tx, session_lease(session_id))


def holder_of(tx: Tx, name: str) -> str | None:
    """The holder name of a lease; None when it is free."""
    found = tx.value(
        "SELECT holder FROM leases WHERE name = ? AND holder IS NOT NULL AND expires_at > ?", (name, tx.now())
    )
    return None if found is None else str(codec.restored(found))


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

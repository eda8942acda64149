"""Connections: a platform's bot, mailbox or port is connected by one gateway at a time, which does all of its work.

The lease `job:connection:<name>` shows which one; its token fences everything that gateway stores for the connection. Each
running gateway also holds `job:gateway:<holder>`.
"""

from __future__ import annotations

from hermes.store.coordination import leases
from hermes.store.engines.base import Tx
from hermes.store.gateway import outbox

_CONNECTION, _GATEWAY = "job:connection:", "job:gateway:"


def connection_lease(name: str) -> str:
    """The lease of the gateway that is connected to a platform or to one of its accounts."""
    return f"{_CONNECTION}{name}"


def join(tx: Tx, now: float, holder: str, ttl: float) -> tuple[str, int] | None:
    """Take the lease that shows that a gateway runs; its name and token."""
    lease = f"{_GATEWAY}{holder}"
    token = leases.acquire(tx, lease, holder, ttl)
    return None if token is None else (lease, token)


def gateways(tx: Tx) -> list[str]:
    """The holder names of the gateways that run."""
    return sorted(holder for holder, _ in leases.holders(tx, _GATEWAY).values())


def connected(tx: Tx) -> dict[str, str]:
    """The connected platforms and accounts, each with the holder name of its gateway."""
    found = leases.holders(tx, _CONNECTION)
    return {lease.removeprefix(_CONNECTION): holder for lease, (holder, _) in found.items()}


def acquire(tx: Tx, now: float, name: str, holder: str, ttl: float) -> tuple[int, str | None] | None:
    """Take a connection that is free or whose gateway is dead; the token of its lease, and the dead gateway.

    None while another gateway has it. Questions that wait to be sent are cancelled: the turns that asked them have ended.
    """
    before = tx.value("SELECT holder FROM leases WHERE name = ?", (connection_lease(name),))
    token = leases.acquire(tx, connection_lease(name), holder, ttl)
    if token is None:
        return None
    outbox.cancel_questions(tx, now, name)
    return token, None if before in (None, holder) else str(before)


def free_leases_of(tx: Tx, now: float, dead: str) -> int:
    """Free everything that the process of a dead gateway held, its sessions included; returns how much."""
    process = ":".join(dead.split(":")[:2])
    names = tx.rows("SELECT name FROM leases WHERE instr(holder, ?) = 1 ORDER BY name", (f"{process}:",))
    return sum(leases.release(tx, name) for (name,) in names)


def free_all(tx: Tx, now: float) -> None:
    """Free every connection: for the only gateway of a file, which has just started."""
    for lease in sorted(leases.holders(tx, "job:")):
        if lease.startswith((_CONNECTION, _GATEWAY)):
            leases.release(tx, lease)

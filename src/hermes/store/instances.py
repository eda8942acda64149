"""Gateways that share a store: which of them are alive, and which of them serves which chat.

Each has a row here and a lease `job:gateway:<name>` as its heartbeat; what it stores is fenced by that lease. A chat (a
session key) is assigned to a live one when a message arrives there while none waits; until all are answered,
further messages there go to the same one, so that they stay in order. A dead one's chats are assigned to others in the
transaction that declares it dead: from then on its writes are refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hermes.store import gateway_outbox, leases
from hermes.store.engines.base import Tx
from hermes.store.gateway_tables import insert, replacing


@dataclass(frozen=True, slots=True)
class Instance:
    """One of several gateways."""

    name: str  # `host:process:…`: the holder name of its lease
    label: str  # stays the same after a restart
    boot: str  # the boot of the machine it runs on
    platforms: frozenset[str]  # what its configuration enables
    joined_at: float
    lives: bool

    @property
    def owner(self) -> str:
        """The common prefix of all holder names of its process."""
        host, process = self.name.split(":")[:2]
        return f"{host}:{process}:"


def lease_of(name: str) -> str:
    """The lease that is an instance's heartbeat."""
    return f"job:gateway:{name}"


def platform_lease(platform: str) -> str:
    """The lease of the instance that is connected to a platform."""
    return f"job:platform:{platform}"


def question_mark(name: str) -> str:
    """What the nonces of an instance's questions contain."""
    return f"{gateway_outbox.QUESTION}{name.rpartition(':')[2]}-"


def join(tx: Tx, now: float, name: str, label: str, boot: str, platforms: Iterable[str], ttl: float) -> int:
    """Register an instance; returns the token of its lease. Questions without an instance are cancelled."""
    token = leases.acquire(tx, lease_of(name), name, ttl)
    assert token is not None  # its name is new
    described = "\n".join(sorted(platforms))
    insert(tx, "gateway_instances", name=name, label=label, boot=boot, platforms=described, joined_at=now)
    gateway_outbox.leave_questions(tx, now, [question_mark(one.name) for one in everyone(tx)])
    return token


def everyone(tx: Tx) -> list[Instance]:
    """All instances, including dead ones not detected yet; the oldest first."""
    rows = tx.rows(
        "SELECT i.name, i.label, i.boot, i.platforms, i.joined_at, l.name IS NOT NULL FROM gateway_instances i LEFT JOIN leases l"
        " ON l.name = 'job:gateway:' || i.name AND l.holder IS NOT NULL AND l.expires_at > ? ORDER BY i.joined_at, i.name",
        (tx.now(),),
    )
    return [
        Instance(name, label, boot, frozenset(platforms.split("\n")), joined_at, bool(lives))
        for name, label, boot, platforms, joined_at, lives in rows
    ]


def choose(key: str, platform: str, living: Iterable[Instance]) -> str | None:
    """The instance a chat belongs to, the same for all who see the same live instances; None when none has the platform.

    When one joins or leaves, only its chats move. One that was restarted gets its chats back.
    """
    able = [one for one in living if platform in one.platforms]
    chosen = max(able, key=lambda one: (_digest(key, one.label), _digest(key, one.name)), default=None)
    return None if chosen is None else chosen.name


def _digest(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{name}\n{key}".encode(errors="surrogatepass"), digest_size=16).digest()


def ensure_assigned(tx: Tx, key: str, platform: str) -> tuple[str | None, bool]:
    """Before an event of a chat is stored: make sure that an instance serves the chat.

    Returns its name, and whether another instance served the chat until now.

    The instance that answers a waiting event takes the whole queue of that chat. If it is dead, all of it moves when that is
    detected; after that nothing waits for it any more.
    """
    instances = everyone(tx)
    serving = tx.value("SELECT instance FROM gateway_serving WHERE key = ?", (key,))
    chosen = choose(key, platform, [one for one in instances if one.lives])
    if chosen is None or chosen == serving:
        return (None if serving is None else str(serving)), False
    if any(one.name == serving for one in instances) and tx.row(
        "SELECT 1 FROM gateway_inbox WHERE key = ? AND finished_at IS NULL", (key,)
    ):
        return str(serving), False
    assign(tx, key, chosen)
    return chosen, serving is not None


def assign(tx: Tx, key: str, name: str) -> None:
    """Assign the chat to this instance."""
    insert(tx, "gateway_serving", replacing("key", "instance"), key=key, instance=name)


def assigned(tx: Tx, name: str, least: int = 0) -> list[int]:
    """The numbers, from this least one on, of events that wait to be answered by this instance, in the order of arrival."""
    rows = tx.rows(
        "SELECT i.id FROM gateway_inbox i JOIN gateway_serving s ON s.key = i.key"
        " WHERE i.finished_at IS NULL AND i.id >= ? AND s.instance = ? ORDER BY i.id",
        (least, name),
    )
    return [int(row[0]) for row in rows]


def serves(tx: Tx, name: str, key: str) -> bool:
    """Whether a chat is served by this instance."""
    return tx.row("SELECT 1 FROM gateway_serving WHERE key = ? AND instance = ?", (key, name)) is not None


def served_elsewhere(tx: Tx, key: str, name: str) -> bool:
    """Whether another instance is answering an event of this chat."""
    sql = (
        "SELECT 1 FROM gateway_serving s JOIN gateway_inbox i ON i.key = s.key"
        " WHERE s.key = ? AND s.instance <> ? AND i.finished_at IS NULL AND i.begun_at IS NOT NULL"
    )
    return tx.row(sql, (key, name)) is not None


def unassigned(tx: Tx, platforms: Collection[str], least: int = 0) -> bool:
    """Whether an event of these platforms, from this least number on, waits that no instance serves."""
    rows = tx.rows(
        "SELECT DISTINCT i.platform FROM gateway_inbox i LEFT JOIN gateway_serving s ON s.key = i.key"
        " LEFT JOIN gateway_instances g ON g.name = s.instance WHERE i.finished_at IS NULL AND i.id >= ? AND g.name IS NULL",
        (least,),
    )
    return any(platform in platforms for (platform,) in rows)


def remove_dead(tx: Tx, now: float, gone: Collection[str] = ()) -> int:
    """Remove instances without a heartbeat, and those known to have ended; returns how many.

    Their leases are freed, their waiting events are assigned to live instances, and their questions, which no turn waits for
    any more, are cancelled. (Not while others write: see Engine.write.)
    """
    instances = everyone(tx)
    dead = [one for one in instances if not one.lives or one.name in gone]
    living = [one for one in instances if one not in dead]
    for one in dead:
        # Other holder names of its process hold its sessions. If a live one has its number, that process has ended.
        again = any(other.owner == one.owner for other in living)
        held = "SELECT name FROM leases WHERE holder IS NOT NULL AND instr(holder, ?) = 1 ORDER BY name"
        for (lease,) in tx.rows(held, (one.name if again else one.owner,)):  # in the order in which leases are locked
            leases.release(tx, lease)
        tx.run("DELETE FROM gateway_instances WHERE name = ?", (one.name,))
    gateway_outbox.leave_questions(tx, now, [question_mark(one.name) for one in living])
    names = {one.name for one in living}
    for key, platform, instance in tx.rows(
        "SELECT DISTINCT i.key, i.platform, s.instance FROM gateway_inbox i LEFT JOIN gateway_serving s ON s.key = i.key"
        " WHERE i.finished_at IS NULL"
    ):
        if instance not in names and (chosen := choose(key, platform, living)) is not None:
            assign(tx, key, chosen)
    return len(dead)


def forget_served(tx: Tx) -> None:
    """Remove the assignments of chats where nothing waits."""
    tx.run(
        "DELETE FROM gateway_serving WHERE NOT EXISTS"
        " (SELECT 1 FROM gateway_inbox i WHERE i.key = gateway_serving.key AND i.finished_at IS NULL)"
    )

"""Gateways that share a store: which of them live, and which of them serves which chat.

Each has a row here and a lease `gateway:<name>` as its sign of life; what it stores is fenced by that lease. A chat (a
session key) is given to one of the living when something is said there while nothing waits; until all of it is answered,
what else is said there goes to the same one, so that it stays in order. What a dead one leaves is given to others in the
transaction that declares it dead: from then on nothing it does counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hermes.store import gateway_queues, leases
from hermes.store.engines.base import Tx

_LIVES = "l.holder IS NOT NULL AND l.expires_at > ?"


@dataclass(frozen=True, slots=True)
class Instance:
    """A gateway of several."""

    name: str  # `host:process:…`: the holder of its lease
    label: str  # what a start again does not change
    boot: str  # which run of which machine it is part of
    platforms: frozenset[str]  # what its configuration enables
    joined_at: float
    lives: bool

    @property
    def owner(self) -> str:
        """What the names of all holders of its process begin with."""
        host, process = self.name.split(":")[:2]
        return f"{host}:{process}:"


def lease_of(name: str) -> str:
    """The lease that is an instance's sign of life."""
    return f"gateway:{name}"


def platform_lease(platform: str) -> str:
    """The lease of whoever is connected to a platform."""
    return f"platform:{platform}"


def question_mark(name: str) -> str:
    """What the nonces of an instance's questions contain."""
    return f"{gateway_queues.QUESTION}{name.rpartition(':')[2]}-"


def join(tx: Tx, name: str, label: str, boot: str, platforms: Iterable[str], ttl: float) -> int:
    """From now on there is this instance; the token of its lease. Questions of no instance are not asked any more."""
    token = leases.seize(tx, lease_of(name), name, ttl)
    tx.run(
        "INSERT INTO gateway_instances(name, label, boot, platforms, joined_at) VALUES(?, ?, ?, ?, ?)",
        (name, label, boot, "\n".join(sorted(platforms)), tx.now()),
    )
    gateway_queues.leave_questions(tx, [question_mark(one.name) for one in everyone(tx)])
    return token


def everyone(tx: Tx) -> list[Instance]:
    """All instances, those included whose death nobody has noticed yet; the one that came first is the first."""
    rows = tx.rows(
        f"SELECT i.name, i.label, i.boot, i.platforms, i.joined_at, CASE WHEN {_LIVES} THEN 1 ELSE 0 END"
        " FROM gateway_instances i LEFT JOIN leases l ON l.name = 'gateway:' || i.name ORDER BY i.joined_at, i.name",
        (tx.now(),),
    )
    return [
        Instance(name, label, boot, frozenset(platforms.split("\n")), joined_at, bool(lives))
        for name, label, boot, platforms, joined_at, lives in rows
    ]


def choose(key: str, platform: str, living: Iterable[Instance]) -> str | None:
    """The instance a chat belongs to, as all would say who know of the same living ones; None when none has the platform.

    When one comes or goes, only chats of that one move. One that was started again gets its chats back.
    """

    def weight(one: Instance) -> tuple[bytes, bytes]:
        return _digest(key, one.label), _digest(key, one.name)

    able = [one for one in living if platform in one.platforms]
    if len(able) == 1:
        return able[0].name
    return max(able, key=weight).name if able else None


def _digest(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{name}\n{key}".encode(errors="surrogatepass"), digest_size=16).digest()


def assign(tx: Tx, key: str, platform: str) -> str | None:
    """Something is about to be kept for a chat: see to it that an instance serves it; its name.

    The instance that answers what waits in a chat gets the rest, too. If it is dead, all of it moves together when that is
    noticed; for one whose death was noticed nothing waits any more.
    """
    instances = everyone(tx)
    serving = tx.value("SELECT instance FROM gateway_serving WHERE key = ?", (key,))
    chosen = choose(key, platform, [one for one in instances if one.lives])
    if chosen is None or chosen == serving:
        return None if serving is None else str(serving)
    if any(one.name == serving for one in instances) and tx.row(
        "SELECT 1 FROM gateway_inbox WHERE key = ? AND finished_at IS NULL", (key,)
    ):
        return str(serving)
    give(tx, key, chosen)
    return chosen


def give(tx: Tx, key: str, name: str) -> None:
    """From now on this instance serves the chat."""
    tx.run(
        "INSERT INTO gateway_serving(key, instance) VALUES(?, ?)"
        " ON CONFLICT(key) DO UPDATE SET instance = excluded.instance",
        (key, name),
    )


def given(tx: Tx, name: str, least: int = 0) -> list[int]:
    """The numbers, from this least one on, of events that wait to be answered by this instance, in the order they came."""
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
    """Whether another instance answers something in this chat just now."""
    return (
        tx.row(
            "SELECT 1 FROM gateway_serving s JOIN gateway_inbox i ON i.key = s.key"
            " WHERE s.key = ? AND s.instance <> ? AND i.finished_at IS NULL AND i.begun_at IS NOT NULL",
            (key, name),
        )
        is not None
    )


def astray(tx: Tx, platforms: Collection[str], least: int = 0) -> bool:
    """Whether something of these platforms, from this least number on, waits that no instance serves."""
    rows = tx.rows(
        "SELECT DISTINCT i.platform FROM gateway_inbox i LEFT JOIN gateway_serving s ON s.key = i.key"
        " LEFT JOIN gateway_instances g ON g.name = s.instance WHERE i.finished_at IS NULL AND i.id >= ? AND g.name IS NULL",
        (least,),
    )
    return any(platform in platforms for (platform,) in rows)


def bury(tx: Tx, gone: Collection[str] = ()) -> int:
    """Those who give no sign of life any more, and those known to be gone, are no instances any more; how many.

    Whatever they held is free, what waits for them is given to the living, and their questions, which no turn waits for
    any more, are not asked. (Not while others write: see Engine.write.)
    """
    instances = everyone(tx)
    dead = [one for one in instances if not one.lives or one.name in gone]
    living = [one for one in instances if one not in dead]
    for one in dead:
        # Its sessions are held by other names of its process. If a living one has its number, that process is gone for good.
        again = any(other.owner == one.owner for other in living)
        for lease in _held(tx, one.name if again else one.owner):
            leases.void(tx, lease)
        tx.run("DELETE FROM gateway_instances WHERE name = ?", (one.name,))
    gateway_queues.leave_questions(tx, [question_mark(one.name) for one in living])
    names = {one.name for one in living}
    for key, platform, instance in tx.rows(
        "SELECT DISTINCT i.key, i.platform, s.instance FROM gateway_inbox i LEFT JOIN gateway_serving s ON s.key = i.key"
        " WHERE i.finished_at IS NULL"
    ):
        if instance not in names and (chosen := choose(key, platform, living)) is not None:
            give(tx, key, chosen)
    return len(dead)


def _held(tx: Tx, beginning: str) -> list[str]:
    """The leases of holders whose names begin so, in the order in which leases are locked."""
    rows = tx.rows(
        "SELECT name FROM leases WHERE holder IS NOT NULL AND instr(holder, ?) = 1 ORDER BY name", (beginning,)
    )
    return [str(row[0]) for row in rows]


def forget_served(tx: Tx) -> int:
    """Remove what is known of chats where nothing waits; how many."""
    return tx.run(
        "DELETE FROM gateway_serving WHERE NOT EXISTS"
        " (SELECT 1 FROM gateway_inbox i WHERE i.key = gateway_serving.key AND i.finished_at IS NULL)"
    )

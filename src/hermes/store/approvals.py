"""The users approved by pairing, beyond those in the configuration, and each platform's home chat.

A pairing code is stored as a digest only, is valid for an hour, works once, and guesses are counted. After that its row only
records that the user still has to be notified.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TypedDict

from hermes.store.engines.base import Tx

TRIES_A_MINUTE = 5
LASTS = 3600.0  # seconds
WAITING_AT_MOST = 20  # codes of one platform that are not approved yet


class Person(TypedDict):
    """A user who was let in by pairing."""

    platform: str
    user_id: str
    name: str | None
    since: float


class WaitingPairing(TypedDict):
    """A user who has a code that is not approved yet."""

    platform: str
    user_id: str
    name: str | None
    made_at: float
    expires_at: float


class ApprovedPairing(TypedDict):
    """A user whose code was approved just now."""

    code_hash: str
    platform: str
    user_id: str
    name: str | None
    chat: str
    """JSON"""


class Newcomer(TypedDict):
    """A user who was approved and has not got the message about it yet."""

    platform: str
    chat: str
    name: str
    """The digest of the code."""


def digest(code: str) -> str:
    """What is stored of a code. Case and the signs people put in between don't count."""
    plain = "".join(sign for sign in code.upper() if sign.isalnum())
    return hashlib.sha256(b"hermes pairing " + plain.encode()).hexdigest()


def may_talk(tx: Tx, platform: str, user_id: str) -> bool:
    """Whether a user was approved by pairing."""
    return tx.row("SELECT 1 FROM gateway_people WHERE platform = ? AND user_id = ?", (platform, user_id)) is not None


def let_in(tx: Tx, platform: str, user_id: str, name: str | None, now: float) -> None:
    """Approve a user."""
    tx.run(
        "INSERT INTO gateway_people(platform, user_id, name, since) VALUES(?, ?, ?, ?)"
        " ON CONFLICT(platform, user_id) DO UPDATE SET name = excluded.name",
        (platform, user_id, name, now),
    )


def shut_out(tx: Tx, platform: str, user_id: str) -> bool:
    """Revoke a user's approval; False when they were not approved by pairing. Their code is deleted as well."""
    tx.run("DELETE FROM gateway_pairings WHERE platform = ? AND user_id = ?", (platform, user_id))
    return bool(tx.run("DELETE FROM gateway_people WHERE platform = ? AND user_id = ?", (platform, user_id)))


def everyone(tx: Tx) -> list[Person]:
    """All users approved by pairing."""
    return tx.dicts("SELECT platform, user_id, name, since FROM gateway_people ORDER BY platform, since")


def waiting(tx: Tx, now: float) -> list[WaitingPairing]:
    """The users with a code that is not approved yet."""
    return tx.dicts(
        "SELECT platform, user_id, name, made_at, expires_at FROM gateway_pairings WHERE used_at IS NULL AND expires_at > ?"
        " ORDER BY made_at",
        (now,),
    )


def make_pairing(tx: Tx, code: str, platform: str, user_id: str, name: str | None, chat: str, now: float) -> bool:
    """Store a code for a user; False while the user has a valid one, or too many wait."""
    tx.run("DELETE FROM gateway_pairings WHERE used_at IS NULL AND expires_at <= ?", (now,))
    open_ = "FROM gateway_pairings WHERE platform = ? AND used_at IS NULL AND expires_at > ?"
    if tx.row(f"SELECT 1 {open_} AND user_id = ?", (platform, now, user_id)) is not None:
        return False
    if int(tx.value(f"SELECT count(*) {open_}", (platform, now))) >= WAITING_AT_MOST:
        return False
    tx.run(
        "INSERT INTO gateway_pairings(code_hash, platform, user_id, name, chat, made_at, expires_at) VALUES(?, ?, ?, ?, ?, ?, ?)",
        (digest(code), platform, user_id, name, chat, now, now + LASTS),
    )
    return True


def try_counts(tx: Tx, now: float) -> bool:
    """Count one try at a code; False when there were too many in the last minute."""
    tx.run("DELETE FROM gateway_tries WHERE at <= ? OR at > ?", (now - 60, now))  # or the clock was set back
    if int(tx.value("SELECT count(*) FROM gateway_tries WHERE what = 'pairing'")) >= TRIES_A_MINUTE:
        return False
    tx.run("INSERT INTO gateway_tries(at, what) VALUES(?, 'pairing')", (now,))
    return True


def approve(tx: Tx, code: str, now: float) -> ApprovedPairing | None:
    """Approve the user with this code; None when no user has it (any more)."""
    wanted = digest(code)
    rows: list[ApprovedPairing] = tx.dicts(
        "SELECT code_hash, platform, user_id, name, chat FROM gateway_pairings WHERE used_at IS NULL AND expires_at > ?",
        (now,),
    )
    found = None
    for row in rows:  # all are compared, each in the same time
        if hmac.compare_digest(row["code_hash"], wanted):
            found = row
    if found is None:
        return None
    tx.run("UPDATE gateway_pairings SET used_at = ? WHERE code_hash = ?", (now, wanted))
    let_in(tx, found["platform"], found["user_id"], found["name"], now)
    return found


def newcomers(tx: Tx) -> list[Newcomer]:
    """Approved users who were not notified yet: platform, the chat they asked in, and an id of the approval."""
    return tx.dicts("SELECT platform, chat, code_hash AS name FROM gateway_pairings WHERE used_at IS NOT NULL")


def mark_notified(tx: Tx, name: str) -> bool:
    """Mark one of `newcomers` as notified; False when another process does it."""
    return bool(tx.run("DELETE FROM gateway_pairings WHERE code_hash = ? AND used_at IS NOT NULL", (name,)))


def set_home(tx: Tx, platform: str, chat: str, by: str | None, now: float) -> None:
    """Set the home chat for handoffs and deliveries to a platform."""
    tx.run(
        "INSERT INTO gateway_homes(platform, chat, set_by, set_at) VALUES(?, ?, ?, ?)"
        " ON CONFLICT(platform) DO UPDATE SET chat = excluded.chat, set_by = excluded.set_by, set_at = excluded.set_at",
        (platform, chat, by, now),
    )


def home(tx: Tx, platform: str) -> str | None:
    """A platform's home chat, as JSON."""
    found = tx.value("SELECT chat FROM gateway_homes WHERE platform = ?", (platform,))
    return None if found is None else str(found)

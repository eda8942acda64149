"""The users approved by pairing, beyond those in the configuration, and each platform's home chat.

A pairing code is stored as a digest only, is valid for an hour, works once, and guesses are counted. After that its row only
records that the user still has to be notified.
"""

from __future__ import annotations

import hashlib
from typing import TypedDict

from hermes.errors import StoreBusy
from hermes.store.engines.base import Tx
from hermes.store.gateway_tables import insert, replacing

TRIES_A_MINUTE = 5
LASTS = 3600.0  # seconds
WAITING_AT_MOST = 20  # codes of one platform that are not approved yet
_OPEN = "used_at IS NULL AND expires_at > ?"


class Person(TypedDict):
    """A user of a platform."""

    platform: str
    user_id: str
    name: str | None


class ApprovedPerson(Person):
    """A user who was let in by pairing."""

    since: float


class WaitingPerson(Person):
    """A user who has a code that is not approved yet."""

    made_at: float
    expires_at: float


def digest(code: str) -> str:
    """What is stored of a code. Case and the signs people put in between don't count."""
    plain = "".join(sign for sign in code.upper() if sign.isalnum())
    return hashlib.sha256(b"hermes pairing " + plain.encode()).hexdigest()


def may_talk(tx: Tx, platform: str, user_id: str) -> bool:
    """Whether a user was approved by pairing."""
    return tx.row("SELECT 1 FROM gateway_people WHERE platform = ? AND user_id = ?", (platform, user_id)) is not None


def revoke(tx: Tx, _now: float, platform: str, user_id: str) -> bool:
    """Revoke a user's approval; False when they were not approved by pairing. Their code is deleted as well."""
    tx.run("DELETE FROM gateway_pairings WHERE platform = ? AND user_id = ?", (platform, user_id))
    return bool(tx.run("DELETE FROM gateway_people WHERE platform = ? AND user_id = ?", (platform, user_id)))


def everyone(tx: Tx) -> list[ApprovedPerson]:
    """All users approved by pairing."""
    return tx.dicts("SELECT platform, user_id, name, since FROM gateway_people ORDER BY platform, since")


def waiting(tx: Tx, now: float) -> list[WaitingPerson]:
    """The users with a code that is not approved yet."""
    sql = f"SELECT platform, user_id, name, made_at, expires_at FROM gateway_pairings WHERE {_OPEN} ORDER BY made_at"
    return tx.dicts(sql, (now,))


def make_pairing(tx: Tx, now: float, code: str, platform: str, user_id: str, name: str | None, chat: str) -> bool:
    """Store a code for a user; False while the user has a valid one, or too many wait."""
    tx.run("DELETE FROM gateway_pairings WHERE used_at IS NULL AND expires_at <= ?", (now,))
    there = [one["user_id"] for one in waiting(tx, now) if one["platform"] == platform]
    if user_id in there or len(there) >= WAITING_AT_MOST:
        return False
    insert(
        tx, "gateway_pairings", code_hash=digest(code), platform=platform, user_id=user_id, name=name, chat=chat,
        made_at=now, expires_at=now + LASTS,
    )  # fmt: skip
    return True


def approve(tx: Tx, now: float, code: str) -> Person | None:
    """Approve the user with this code; None when no user has it (any more). StoreBusy after five tries in a minute."""
    tx.run("DELETE FROM gateway_tries WHERE at <= ? OR at > ?", (now - 60, now))  # or the clock was set back
    if int(tx.value("SELECT count(*) FROM gateway_tries WHERE what = 'pairing'")) >= TRIES_A_MINUTE:
        raise StoreBusy("too many codes were tried; wait a minute")
    insert(tx, "gateway_tries", at=now, what="pairing")
    found: list[Person] = tx.dicts(
        f"UPDATE gateway_pairings SET used_at = ? WHERE {_OPEN} AND code_hash = ? RETURNING platform, user_id, name",
        (now, now, digest(code)),
    )
    for one in found:
        insert(tx, "gateway_people", replacing("platform, user_id", "name"), **one, since=now)
    return found[0] if found else None


def has_newcomers(tx: Tx) -> bool:
    """Whether an approved user was not notified yet."""
    return tx.row("SELECT 1 FROM gateway_pairings WHERE used_at IS NOT NULL") is not None


def take_newcomers(tx: Tx) -> list[tuple[str, str, str]]:
    """Mark all approved users as notified; returns each one's platform, the chat they asked in, and an id of the approval."""
    rows = tx.rows("DELETE FROM gateway_pairings WHERE used_at IS NOT NULL RETURNING platform, chat, code_hash")
    return [(str(platform), str(chat), str(code)) for platform, chat, code in rows]


def set_home(tx: Tx, now: float, platform: str, chat: str, by: str | None = None) -> None:
    """Set the home chat for handoffs and deliveries to a platform (a chat as JSON)."""
    otherwise = replacing("platform", "chat", "set_by", "set_at")
    insert(tx, "gateway_homes", otherwise, platform=platform, chat=chat, set_by=by, set_at=now)


def home(tx: Tx, platform: str) -> str | None:
    """A platform's home chat, as JSON."""
    found = tx.value("SELECT chat FROM gateway_homes WHERE platform = ?", (platform,))
    return None if found is None else str(found)

"""The users approved by pairing, beyond those in the configuration, and each platform's home chat.

A pairing code is stored as a digest only, is valid for an hour, works once, and guesses are counted.
"""

from __future__ import annotations

import hashlib
from typing import NotRequired, TypedDict

from hermes.errors import StoreBusy
from hermes.store.engines.base import Tx
from hermes.store.gateway.routes import insert, replacing

TRIES_A_MINUTE = 5
LASTS = 3600.0  # seconds
WAITING_AT_MOST = 1_000  # codes of one platform that are not approved yet; a newer one then replaces the oldest


class Person(TypedDict):
    """A user of a platform, who was let in by pairing or has a code that is not approved yet."""

    platform: str
    user_id: str
    name: str | None
    since: NotRequired[float]  # let in
    chat: NotRequired[str]  # of one who is let in now, JSON: where they asked
    made_at: NotRequired[float]  # of the code
    expires_at: NotRequired[float]


def digest(code: str) -> str:
    """The digest that is stored of a pairing code. Case and the signs people put in between don't count."""
    plain = "".join(sign for sign in code.upper() if sign.isalnum())
    return hashlib.sha256(b"hermes pairing " + plain.encode()).hexdigest()


def may_talk(tx: Tx, platform: str, user_id: str) -> bool:
    """Whether a user was approved by pairing."""
    return tx.row("SELECT 1 FROM gateway_people WHERE platform = ? AND user_id = ?", (platform, user_id)) is not None


def revoke(tx: Tx, _now: float, platform: str, user_id: str) -> bool:
    """Revoke a user's approval; False when they were not approved by pairing. Their code is deleted as well."""
    tx.run("DELETE FROM gateway_pairings WHERE platform = ? AND user_id = ?", (platform, user_id))
    return bool(tx.run("DELETE FROM gateway_people WHERE platform = ? AND user_id = ?", (platform, user_id)))


def everyone(tx: Tx) -> list[Person]:
    """All users approved by pairing."""
    return tx.dicts("SELECT platform, user_id, name, since FROM gateway_people ORDER BY platform, since")


def waiting(tx: Tx, now: float) -> list[Person]:
    """The users with a code that is not approved yet."""
    sql = "SELECT platform, user_id, name, made_at, expires_at FROM gateway_pairings WHERE expires_at > ? ORDER BY made_at"
    return tx.dicts(sql, (now,))


def make_pairing(tx: Tx, now: float, code: str, platform: str, user_id: str, name: str | None, chat: str) -> bool:
    """Store a code for a user; False while the user has a valid one. Strangers keep no one else from getting a code."""
    tx.run("DELETE FROM gateway_pairings WHERE expires_at <= ?", (now,))
    there = [one["user_id"] for one in waiting(tx, now) if one["platform"] == platform]
    if user_id in there:
        return False
    for oldest in there[: len(there) - WAITING_AT_MOST + 1] if len(there) >= WAITING_AT_MOST else ():
        tx.run("DELETE FROM gateway_pairings WHERE platform = ? AND user_id = ?", (platform, oldest))
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
    sql = "DELETE FROM gateway_pairings WHERE code_hash = ? AND expires_at > ? RETURNING platform, user_id, name, chat"
    found: list[Person] = tx.dicts(sql, (digest(code), now))
    for one in found:
        who = {"platform": one["platform"], "user_id": one["user_id"], "name": one["name"]}
        insert(tx, "gateway_people", replacing("platform, user_id", "name"), **who, since=now)
    return found[0] if found else None


def set_home(tx: Tx, now: float, platform: str, chat: str, by: str | None = None) -> None:
    """Set the home chat for handoffs and deliveries to a platform (a chat as JSON)."""
    otherwise = replacing("platform", "chat", "set_by", "set_at")
    insert(tx, "gateway_homes", otherwise, platform=platform, chat=chat, set_by=by, set_at=now)


def home(tx: Tx, platform: str) -> str | None:
    """A platform's home chat, as JSON."""
    found = tx.value("SELECT chat FROM gateway_homes WHERE platform = ?", (platform,))
    return None if found is None else str(found)

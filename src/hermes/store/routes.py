"""The routing table: the current session of each key.

One row per chat, found and changed by its key, so that a message costs the same with ten chats and with ten thousand.
A session has one key at a time: binding it to another key removes it from the old one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypedDict

from hermes.store.engines.base import Tx

_COLUMNS = (
    "key", "session_id", "previous_id", "reset_reason", "platform", "chat_type", "chat", "display_name", "user_id", "shared",
    "pending_title", "created_at", "updated_at", "last_user_at",
)  # fmt: skip
_SELECT = f"SELECT {', '.join('r.' + name for name in _COLUMNS)} FROM gateway_routes r"


@dataclass(slots=True)
class Route:
    """A key and its session."""

    key: str
    session_id: str | None  # None: the next message begins a session
    previous_id: str | None  # the session before, when it was reset
    reset_reason: str | None  # "idle" or "daily", until the user was notified
    platform: str
    chat_type: str
    chat: str  # JSON
    display_name: str | None
    user_id: str | None  # its owner; None: shared
    shared: bool
    pending_title: str | None  # a title given before the first message
    created_at: float
    updated_at: float
    last_user_at: float | None


class IndexEntry(TypedDict):
    """A key with what sessions.json tells of it; the columns of its session are None where it has none."""

    key: str
    session_id: str | None
    created_at: float
    updated_at: float
    platform: str
    chat_type: str
    display_name: str | None
    chat: str
    user_id: str | None
    shared: int
    previous_id: str | None
    reset_reason: str | None
    last_user_at: float | None
    title: str | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    message_count: int | None


def _route(row: tuple[Any, ...]) -> Route:
    values = dict(zip(_COLUMNS, row, strict=True))
    return Route(**{**values, "shared": bool(values["shared"])})


def get(tx: Tx, key: str) -> Route | None:
    """The route of a key."""
    row = tx.row(f"{_SELECT} WHERE r.key = ?", (key,))
    return None if row is None else _route(row)


def put(
    tx: Tx, key: str, *, platform: str, chat_type: str, chat: str, display_name: str | None, user_id: str | None,
    shared: bool, now: float,
) -> Route:  # fmt: skip
    """Create a key's route, or update its description. A route without an owner gets this one."""
    tx.run(
        "INSERT INTO gateway_routes(key, platform, chat_type, chat, display_name, user_id, shared, created_at, updated_at)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(key) DO UPDATE SET chat = excluded.chat,"
        " display_name = coalesce(excluded.display_name, gateway_routes.display_name), user_id = CASE"
        " WHEN gateway_routes.shared = 0 THEN coalesce(gateway_routes.user_id, excluded.user_id)"
        " ELSE gateway_routes.user_id END",
        (key, platform, chat_type, chat, display_name, user_id, int(shared), now, now),
    )
    found = get(tx, key)
    assert found is not None
    return found


def bind(tx: Tx, key: str, session_id: str, now: float) -> None:
    """Point this key, and no other, to this session.

    Its idle time runs from this moment, not from the last earlier message here.
    """
    tx.run(
        "UPDATE gateway_routes SET session_id = NULL, updated_at = ? WHERE session_id = ? AND key <> ?",
        (now, session_id, key),
    )
    tx.run(
        "UPDATE gateway_routes SET session_id = ?, previous_id = NULL, reset_reason = NULL, last_user_at = ?, updated_at = ?"
        " WHERE key = ?",
        (session_id, now, now, key),
    )


def spoken(tx: Tx, key: str, session_id: str, now: float) -> None:
    """Record a user message under this key; a reset notice is no longer pending."""
    known = tx.run(  # mostly the same session as before: then its index need not be written
        "UPDATE gateway_routes SET previous_id = NULL, reset_reason = NULL, last_user_at = ?, updated_at = ?"
        " WHERE key = ? AND session_id = ?",
        (now, now, key, session_id),
    )
    if not known:
        tx.run(
            "UPDATE gateway_routes SET session_id = ?, previous_id = NULL, reset_reason = NULL, last_user_at = ?,"
            " updated_at = ? WHERE key = ?",
            (session_id, now, now, key),
        )


def chat_moved(tx: Tx, platform: str, old: str, new: str, now: float) -> list[str]:
    """A chat of a platform (or of one of its accounts) has a new id: its conversations move there. Returns their keys.

    Not those with messages under the new id already: both conversations stay unchanged.
    The old keys stay, without a session: a reply may be in progress under one.
    """
    done = []
    platform, _, account = platform.partition("/")
    for row in tx.rows(f"{_SELECT} WHERE r.platform = ? ORDER BY r.key", (platform,)):
        route = _route(row)
        parts, chat = route.key.split(":"), json.loads(route.chat)
        if (chat.get("account") or "") != account:
            continue
        if chat.get("chat_id") != old or len(parts) < 5 or parts[4] != _escaped(old):
            continue
        key = ":".join([*parts[:4], _escaped(new), *parts[5:]])
        there = get(tx, key)
        if route.session_id is None or (there is not None and there.session_id is not None):
            continue
        where = json.dumps({**chat, "chat_id": new}, ensure_ascii=False, separators=(",", ":"))
        tx.run("DELETE FROM gateway_routes WHERE key = ?", (key,))
        tx.run(
            "UPDATE gateway_routes SET key = ?, chat = ?, updated_at = ? WHERE key = ?", (key, where, now, route.key)
        )
        put(
            tx, route.key, platform=platform, chat_type=route.chat_type, chat=route.chat, display_name=route.display_name,
            user_id=route.user_id, shared=route.shared, now=now,
        )  # fmt: skip
        done.append(key)
    return done


def _escaped(part: str) -> str:
    """A part of a key, as keys are written (gateway/keys.py)."""
    return part.replace("%", "%25").replace(":", "%3A")


def let_go(tx: Tx, key: str, now: float, *, previous: str | None = None, reason: str | None = None) -> None:
    """The next message under this key begins a session; after a reset it links to the previous one."""
    tx.run(
        "UPDATE gateway_routes SET session_id = NULL, previous_id = ?, reset_reason = ?, updated_at = ? WHERE key = ?",
        (previous, reason, now, key),
    )


def others_take_part(tx: Tx, key: str, source: str, user_id: str) -> bool:
    """Whether another user has written in the session of a key."""
    sql = (
        "SELECT 1 FROM gateway_routes r JOIN session_members m ON m.session_id = r.session_id"
        " WHERE r.key = ? AND NOT (m.source = ? AND m.user_id = ?) LIMIT 1"
    )
    return tx.row(sql, (key, source, user_id)) is not None


def set_pending_title(tx: Tx, key: str, title: str | None, now: float) -> None:
    """Set the title of the next session under this key."""
    tx.run("UPDATE gateway_routes SET pending_title = ?, updated_at = ? WHERE key = ?", (title, now, key))


def follow(tx: Tx, old: str, new: str, now: float) -> None:
    """A conversation continues in another session: it was compressed."""
    tx.run("UPDATE gateway_routes SET session_id = ?, updated_at = ? WHERE session_id = ?", (new, now, old))


def of_session(tx: Tx, session_id: str) -> Route | None:
    """The key of a session."""
    row = tx.row(f"{_SELECT} WHERE r.session_id = ?", (session_id,))
    return None if row is None else _route(row)


def bound(tx: Tx, *, quiet_since: float | None = None) -> list[Route]:
    """All keys with a session; if a time is given, only those without a user message since."""
    if quiet_since is None:
        return [_route(row) for row in tx.rows(f"{_SELECT} WHERE r.session_id IS NOT NULL ORDER BY r.key")]
    rows = tx.rows(f"{_SELECT} WHERE r.session_id IS NOT NULL AND r.last_user_at < ?", (quiet_since,))
    return [_route(row) for row in rows]


def index(tx: Tx) -> list[IndexEntry]:
    """Every key with its fields for sessions.json."""
    return tx.dicts(
        "SELECT r.key, r.session_id, r.created_at, r.updated_at, r.platform, r.chat_type, r.display_name, r.chat, r.user_id,"
        " r.shared, r.previous_id, r.reset_reason, r.last_user_at, s.title, s.input_tokens, s.output_tokens,"
        " s.cache_read_tokens, s.cache_write_tokens, s.reasoning_tokens, s.message_count"
        " FROM gateway_routes r LEFT JOIN sessions s ON s.id = r.session_id ORDER BY r.key"
    )

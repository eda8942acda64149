"""The routing table: the current session of each key.

One row per chat, found and changed by its key, so that a message costs the same with ten chats and with ten thousand.
A session has one key at a time: binding it to another key removes it from the old one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from hermes.store.engines.base import Tx
from hermes.store.gateway.tables import insert, update


@dataclass(slots=True)
class Route:
    """A key and its session: a row of `gateway_routes`."""

    key: str
    session_id: str | None  # None: the next message begins a session
    previous_id: str | None  # the session before, when it was reset
    reset_reason: str | None  # "idle" or "daily", until the user was notified
    platform: str
    chat_type: str
    chat: str  # JSON
    display_name: str | None
    user_id: str | None  # its owner; None: shared
    shared: bool  # as 0 or 1
    pending_title: str | None  # a title given before the first message
    created_at: float
    updated_at: float
    last_user_at: float | None


_COLUMNS = ", ".join(field.name for field in fields(Route))


class Binding(NamedTuple):
    """A session that was moved to a chat, and the previous state."""

    key: str
    session_id: str
    before: str | None  # the previous session of the key
    came_from: str | None  # the previous key of the session


def _routes(tx: Tx, which: str, values: tuple[object, ...] = ()) -> list[Route]:
    return [Route(*row) for row in tx.rows(f"SELECT {_COLUMNS} FROM gateway_routes WHERE {which}", values)]


def get(tx: Tx, key: str) -> Route | None:
    """The route of a key."""
    return next(iter(_routes(tx, "key = ?", (key,))), None)


def of_session(tx: Tx, session_id: str) -> Route | None:
    """The key of a session."""
    return next(iter(_routes(tx, "session_id = ?", (session_id,))), None)


def bound(tx: Tx, *, quiet_since: float | None = None) -> list[Route]:
    """All keys with a session; with a time, only those without a user message since."""
    quiet, values = ("", ()) if quiet_since is None else (" AND last_user_at < ?", (quiet_since,))
    return _routes(tx, f"session_id IS NOT NULL{quiet} ORDER BY key", values)


def put(
    tx: Tx, now: float, key: str, platform: str, chat_type: str, chat: str, display_name: str | None,
    user_id: str | None, shared: bool,
) -> None:  # fmt: skip
    """Create a key's route, or update its description. A route without an owner gets this one."""
    insert(
        tx, "gateway_routes",
        "ON CONFLICT(key) DO UPDATE SET chat = excluded.chat, display_name = coalesce(excluded.display_name,"
        " gateway_routes.display_name), user_id = CASE WHEN gateway_routes.shared = 0"
        " THEN coalesce(gateway_routes.user_id, excluded.user_id) ELSE gateway_routes.user_id END",
        key=key, platform=platform, chat_type=chat_type, chat=chat, display_name=display_name, user_id=user_id,
        shared=int(shared), created_at=now, updated_at=now,
    )  # fmt: skip


def bind(tx: Tx, now: float, key: str, session_id: str) -> None:
    """Point this key, and no other, to this session.

    Its idle time runs from this moment, not from the last earlier message here.
    """
    update(tx, "gateway_routes", "session_id = ? AND key <> ?", (session_id, key), session_id=None, updated_at=now)
    update(tx, "gateway_routes", "key = ?", (key,), session_id=session_id, **_spoken_at(now))


def spoken(tx: Tx, now: float, key: str, session_id: str) -> None:
    """Record a user message under this key; a reset notice is no longer pending."""
    # mostly the same session as before: then its index need not be written
    if not update(tx, "gateway_routes", "key = ? AND session_id = ?", (key, session_id), **_spoken_at(now)):
        bind(tx, now, key, session_id)


def _spoken_at(now: float) -> dict[str, float | None]:
    return {"previous_id": None, "reset_reason": None, "last_user_at": now, "updated_at": now}


def bind_chat(
    tx: Tx, now: float, key: str, session_id: str, *, platform: str, chat_type: str, chat: str, display_name: str | None,
    shared: bool,
) -> Binding:  # fmt: skip
    """Move a session to a chat: create the key's route to it, atomically. Returns the previous state."""
    known, came_from = get(tx, key), of_session(tx, session_id)
    put(tx, now, key, platform, chat_type, chat, display_name, None, shared)
    bind(tx, now, key, session_id)
    before = None if known is None else known.session_id
    return Binding(key, session_id, before, None if came_from is None else came_from.key)


def unbind_chat(tx: Tx, now: float, moved: Binding) -> None:
    """Undo a move by `bind_chat`: both keys get their previous session, unless they changed since."""
    there = get(tx, moved.key)
    if there is None or there.session_id != moved.session_id:
        return
    if moved.before is not None and moved.before != moved.session_id:
        bind(tx, now, moved.key, moved.before)
    else:
        release(tx, now, moved.key)
    origin = get(tx, moved.came_from) if moved.came_from not in (None, moved.key) else None
    if origin is not None and origin.session_id is None:
        bind(tx, now, origin.key, moved.session_id)


def chat_moved(tx: Tx, now: float, platform: str, old: str, new: str) -> list[str]:
    """A chat of a platform (or of one of its accounts) has a new id: its conversations move there. Returns their keys.

    Not those with messages under the new id already: both conversations stay unchanged.
    The old keys stay, without a session: a reply may be in progress under one.
    """
    done = []
    platform, _, account = platform.partition("/")
    for route in _routes(tx, "platform = ? AND session_id IS NOT NULL ORDER BY key", (platform,)):
        parts, chat = route.key.split(":"), json.loads(route.chat)
        if (chat.get("account") or "", chat.get("chat_id"), parts[4:5]) != (account, old, [_escaped(old)]):
            continue
        key = ":".join([*parts[:4], _escaped(new), *parts[5:]])
        there = get(tx, key)
        if there is not None and there.session_id is not None:
            continue
        where = json.dumps({**chat, "chat_id": new}, ensure_ascii=False, separators=(",", ":"))
        tx.run("DELETE FROM gateway_routes WHERE key = ?", (key,))
        insert(tx, "gateway_routes", **asdict(replace(route, key=key, chat=where, updated_at=now)))
        release(tx, now, route.key)
        done.append(key)
    return done


def _escaped(part: str) -> str:
    """A part of a key, as keys are written (gateway/chats/router.py)."""
    return part.replace("%", "%25").replace(":", "%3A")


def release(tx: Tx, now: float, key: str, *, previous: str | None = None, reason: str | None = None) -> None:
    """Unbind this key: its next message begins a session, which after a reset links to the previous one."""
    changes = {"previous_id": previous, "reset_reason": reason}
    update(tx, "gateway_routes", "key = ?", (key,), session_id=None, updated_at=now, **changes)


def others_take_part(tx: Tx, key: str, source: str, user_id: str) -> bool:
    """Whether another user has written in the session of a key."""
    sql = (
        "SELECT 1 FROM gateway_routes r JOIN session_members m ON m.session_id = r.session_id"
        " WHERE r.key = ? AND NOT (m.source = ? AND m.user_id = ?) LIMIT 1"
    )
    return tx.row(sql, (key, source, user_id)) is not None


def set_pending_title(tx: Tx, now: float, key: str, title: str | None) -> None:
    """Set the title of the next session under this key."""
    update(tx, "gateway_routes", "key = ?", (key,), pending_title=title, updated_at=now)


def follow(tx: Tx, now: float, old: str, new: str) -> None:
    """A conversation continues in another session: it was compressed."""
    update(tx, "gateway_routes", "session_id = ?", (old,), session_id=new, updated_at=now)


def index(tx: Tx) -> list[dict[str, Any]]:
    """Every key with the columns of its route, and those of its session that sessions.json shows (None without one)."""
    return tx.dicts(
        "SELECT r.*, s.title, s.input_tokens, s.output_tokens, s.cache_read_tokens, s.cache_write_tokens,"
        " s.reasoning_tokens, s.message_count"
        " FROM gateway_routes r LEFT JOIN sessions s ON s.id = r.session_id ORDER BY r.key"
    )

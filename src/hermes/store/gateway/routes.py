"""The gateway's tables, and the first of them: routes, from chats to their current sessions.

The tables are created when a gateway first opens the store; a store without one has none of them. Every page that a message
changes is written to the disk, so the queues (inbox.py, outbox.py) have as few as possible. Their ids only grow because the row
with the highest one is never removed (GatewayDB.forget_mail): that needs no AUTOINCREMENT, whose counters take a page.

Of routes there is one row per chat, found and changed by its key, so that a message costs the same with ten chats and with ten
thousand. A session has one key at a time: binding it to another key removes it from the old one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from hermes.store.engines.base import Row, Tx

TABLES: tuple[str, ...] = (
    # The routing table: a session key, and its current session (NULL: the next message begins one). `previous_id` and
    # `reset_reason` (idle, daily) are of a reset that the user does not know of yet; `user_id` is NULL where several share it.
    "CREATE TABLE IF NOT EXISTS gateway_routes (key TEXT PRIMARY KEY, session_id TEXT, previous_id TEXT, reset_reason TEXT,"
    " platform TEXT NOT NULL, chat_type TEXT NOT NULL, chat TEXT NOT NULL, display_name TEXT, user_id TEXT,"
    " shared INTEGER NOT NULL, pending_title TEXT, created_at REAL NOT NULL, updated_at REAL NOT NULL, last_user_at REAL)",
    # The inbox. A row stays after it was answered, without its text, so that a redelivery is recognised. `message_id` is the
    # message it became; `shown` has the platform's ids of the messages that show its growing reply.
    "CREATE TABLE IF NOT EXISTS gateway_inbox (id INTEGER PRIMARY KEY, platform TEXT NOT NULL,"
    " event_id TEXT NOT NULL, key TEXT NOT NULL, event TEXT, received_at REAL NOT NULL, begun_at REAL, session_id TEXT,"
    " message_id INTEGER, shown TEXT, finished_at REAL, UNIQUE (platform, event_id))",
    # The outbox, part by part; the text is deleted when it has been sent. `chat` is JSON with all that sending needs (reply
    # context, file, buttons, session, failed tries); `edits` is the message it replaces, `begun_at` says that it may have been
    # sent, `error` that it can't be.
    "CREATE TABLE IF NOT EXISTS gateway_outbox (id INTEGER PRIMARY KEY, inbox_id INTEGER, platform TEXT NOT NULL,"
    " chat TEXT NOT NULL, text TEXT, nonce TEXT NOT NULL, reply_to TEXT, edits TEXT, created_at REAL NOT NULL, begun_at REAL,"
    " sent_at REAL, message_id TEXT, error TEXT)",
    "CREATE TABLE IF NOT EXISTS gateway_people (platform TEXT NOT NULL, user_id TEXT NOT NULL, name TEXT, since REAL NOT NULL,"
    " PRIMARY KEY (platform, user_id))",
    "CREATE TABLE IF NOT EXISTS gateway_pairings (code_hash TEXT PRIMARY KEY, platform TEXT NOT NULL, user_id TEXT NOT NULL,"
    " name TEXT, chat TEXT NOT NULL, made_at REAL NOT NULL, expires_at REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS gateway_tries (at REAL NOT NULL, what TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS gateway_homes (platform TEXT PRIMARY KEY, chat TEXT NOT NULL, set_by TEXT, set_at REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS gateway_status (platform TEXT PRIMARY KEY, state TEXT NOT NULL, identity TEXT, since REAL,"
    " error TEXT, error_at REAL, updated_at REAL NOT NULL)",
    # The session of a conversation that a client sends whole each time, by a digest of it.
    "CREATE TABLE IF NOT EXISTS gateway_aliases (digest TEXT PRIMARY KEY, session_id TEXT NOT NULL, made_at REAL NOT NULL)",
)  # fmt: skip

INDEXES: tuple[str, ...] = (
    "CREATE INDEX IF NOT EXISTS idx_routes_session ON gateway_routes(session_id) WHERE session_id IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_outbox_failed ON gateway_outbox(inbox_id) WHERE error IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_inbox_open ON gateway_inbox(platform) WHERE finished_at IS NULL",
    "CREATE INDEX IF NOT EXISTS idx_outbox_open ON gateway_outbox(inbox_id) WHERE sent_at IS NULL AND error IS NULL",
)

STATEMENTS = (*TABLES, *INDEXES)


def insert(tx: Tx, table: str, otherwise: str = "", /, **columns: object) -> list[Row]:
    """Insert a row with these values; `otherwise` may be an ON CONFLICT and a RETURNING clause, whose rows are returned."""
    places = ", ".join("?" * len(columns))
    return tx.rows(f"INSERT INTO {table}({', '.join(columns)}) VALUES({places}) {otherwise}", tuple(columns.values()))


def replacing(key: str, *columns: str) -> str:
    """The clause of an `insert` that changes these columns of the row with the same key."""
    return f"ON CONFLICT({key}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in columns)}"


def update(tx: Tx, table: str, which: str, values: Sequence[object], /, **columns: object) -> int:
    """Set these columns of the rows that a condition selects; returns how many."""
    changes = ", ".join(f"{name} = ?" for name in columns)
    return tx.run(f"UPDATE {table} SET {changes} WHERE {which}", (*columns.values(), *values))


# ---------------------------------------------------------------------------------------------- routes


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

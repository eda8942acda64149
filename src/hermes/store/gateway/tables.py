"""The gateway's own tables: routes from chats to sessions, the inbox, the outbox, and the approved users.

They are created when a gateway first opens the store; a store without one has none of them.

Every page that a message changes is written to the disk, so the queues have as few as possible. Their ids only grow because
the row with the highest one is never removed (GatewayDB.forget_mail): that needs no AUTOINCREMENT, whose counters take a page of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence

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

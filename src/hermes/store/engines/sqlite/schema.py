"""The tables of a state.db: the public ones with every column they ever had, and those added since.

Columns are declared once, here; a file that lacks some gets them by ALTER TABLE, a file that may not be altered is
read through views that stand in for them. `schema_version` stays at 11, the last number the older program and
this one share; this program's own changes are counted by `PRAGMA user_version` below `APPLICATION_ID`.
"""

from __future__ import annotations

from hermes.store.engines.base import CARRIABLE

APPLICATION_ID = 0x48534553  # "HSES"
FORMAT_VERSION = 1  # PRAGMA user_version
# Raised whenever the words of a message change (index_text.py, engines/base.columns_of): the index is then made again.
INDEX_FORM = 1
SCHEMA_VERSION = 11  # table schema_version, shared with older programs


def _columns(declared: str) -> dict[str, str]:
    """By name, the declaration of each column."""
    return {name: kind for name, _, kind in (column.partition(" ") for column in declared.split(", "))}


SESSION_COLUMNS = _columns(
    "id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, model TEXT, model_config TEXT, system_prompt TEXT, "
    "parent_session_id TEXT REFERENCES sessions(id), started_at REAL NOT NULL, ended_at REAL, end_reason TEXT, "
    "message_count INTEGER DEFAULT 0, tool_call_count INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0, "
    "output_tokens INTEGER DEFAULT 0, cache_read_tokens INTEGER DEFAULT 0, cache_write_tokens INTEGER DEFAULT 0, "
    "reasoning_tokens INTEGER DEFAULT 0, billing_provider TEXT, billing_base_url TEXT, billing_mode TEXT, "
    "estimated_cost_usd REAL, actual_cost_usd REAL, cost_status TEXT, cost_source TEXT, pricing_version TEXT, "
    "title TEXT, api_call_count INTEGER DEFAULT 0, handoff_state TEXT, handoff_platform TEXT, handoff_error TEXT, "
    # from here on: this program's own
    "kind TEXT, cwd TEXT, transcript INTEGER, system_prompt_hash TEXT, active_at REAL, first_words TEXT, "
    "title_base TEXT, title_no INTEGER, title_seen TEXT, pinned_at REAL, archived_at REAL, trashed_at REAL, "
    "trashed_title TEXT, purged INTEGER, handoff_requested_at REAL, meta TEXT"
)
MESSAGE_COLUMNS = _columns(
    "id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL, "
    "content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL, token_count INTEGER, "
    "finish_reason TEXT, reasoning TEXT, reasoning_content TEXT, reasoning_details TEXT, codex_reasoning_items TEXT, "
    "codex_message_items TEXT, "
    # from here on: this program's own
    "writer INTEGER, hidden INTEGER, content_format TEXT, model TEXT, input_tokens INTEGER, output_tokens INTEGER, "
    "cache_read_tokens INTEGER, cache_write_tokens INTEGER, cost_usd REAL, content_rest BLOB, "
    "platform_message_id TEXT, meta TEXT"
)


def _table(name: str, columns: dict[str, str]) -> str:
    body = ",\n    ".join(f"{column} {kind}" for column, kind in columns.items())
    return f"CREATE TABLE IF NOT EXISTS {name} (\n    {body}\n)"


TABLES: tuple[str, ...] = (
    _table("sessions", SESSION_COLUMNS),
    _table("messages", MESSAGE_COLUMNS),
    "CREATE TABLE IF NOT EXISTS state_meta (key TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)",
    # A prompt is stored once; one that begins like an earlier one is stored as a reference plus its own end.
    "CREATE TABLE IF NOT EXISTS system_prompts (hash TEXT PRIMARY KEY, base_hash TEXT, base_chars INTEGER,"
    " text TEXT NOT NULL)",
    # The messages a session shows without owning them: ranges of another session's rows.
    "CREATE TABLE IF NOT EXISTS session_refs (session_id TEXT NOT NULL, ord INTEGER NOT NULL, from_session TEXT NOT NULL,"
    " first_id INTEGER NOT NULL, last_id INTEGER NOT NULL, after_id INTEGER NOT NULL DEFAULT 0, rewound INTEGER,"
    " born INTEGER, PRIMARY KEY (session_id, ord)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS session_rewinds (session_id TEXT NOT NULL, batch INTEGER NOT NULL, cut_id INTEGER NOT NULL,"
    " PRIMARY KEY (session_id, batch)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS session_tags (session_id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (session_id, tag))"
    " WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS session_members (session_id TEXT NOT NULL, source TEXT NOT NULL, user_id TEXT NOT NULL,"
    " PRIMARY KEY (session_id, source, user_id)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS session_events (session_id TEXT NOT NULL, ord INTEGER NOT NULL, at REAL NOT NULL,"
    " after_id INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (session_id, ord)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS attachments (hash TEXT NOT NULL, message_id INTEGER NOT NULL, mime TEXT, bytes INTEGER,"
    " PRIMARY KEY (hash, message_id)) WITHOUT ROWID",
    # The files that the tool calls of a message change (hermes.store.records.file_changes); `call` counts its tool calls from 0.
    "CREATE TABLE IF NOT EXISTS file_changes (message_id INTEGER NOT NULL, call INTEGER NOT NULL, path TEXT NOT NULL,"
    " name TEXT NOT NULL, kind TEXT NOT NULL, lines BLOB, PRIMARY KEY (message_id, call, path)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, holder TEXT, reason TEXT, token INTEGER NOT NULL,"
    " expires_at REAL NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS audit (id INTEGER PRIMARY KEY, at REAL NOT NULL, action TEXT NOT NULL, session_id TEXT,"
    " by TEXT, detail TEXT)",
    "CREATE TABLE IF NOT EXISTS words (id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE)",
    # The text that messages_fts indexed: a checksum of each message's searched columns when it was indexed.
    "CREATE TABLE IF NOT EXISTS indexed_texts (id INTEGER PRIMARY KEY, crc INTEGER NOT NULL)",
    # Messages that were changed or deleted, and the text that their index entries were made of, until the index follows.
    "CREATE TABLE IF NOT EXISTS changed_messages (id INTEGER PRIMARY KEY, content TEXT, content_rest BLOB, content_format TEXT,"
    " tool_name TEXT, tool_calls TEXT)",
)

# Plain SQL without functions of ours: these run in any program that changes a row. The first text is kept: it was indexed.
_SEARCHED = ("content", "content_rest", "content_format", "tool_name", "tool_calls")
_NOTE = (
    f"INSERT OR IGNORE INTO changed_messages(id, {', '.join(_SEARCHED)})"
    f" VALUES (old.id, {', '.join(f'old.{name}' for name in _SEARCHED)});"
)
CHANGE_TRIGGERS: dict[str, str] = {
    "messages_changed": f"CREATE TRIGGER IF NOT EXISTS messages_changed AFTER UPDATE OF id, {', '.join(_SEARCHED)} ON messages"
    f" BEGIN {_NOTE} INSERT OR IGNORE INTO changed_messages(id) VALUES (new.id); END",
    "messages_removed": f"CREATE TRIGGER IF NOT EXISTS messages_removed AFTER DELETE ON messages BEGIN {_NOTE} END",
}

# Older programs make their index triggers IF NOT EXISTS; these take their names and do nothing.
INERT_TRIGGERS = [
    f"CREATE TRIGGER IF NOT EXISTS {table}_{event} AFTER {event.upper()} ON messages WHEN 0 BEGIN SELECT 1; END"
    for table in ("messages_fts", "messages_fts_trigram")
    for event in ("insert", "delete", "update")
]

# Of an encrypted file: what lies in files beside a plain one.
INSIDE: tuple[str, ...] = (
    "CREATE TABLE IF NOT EXISTS attachment_data (hash TEXT PRIMARY KEY, data BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS drafts (name TEXT PRIMARY KEY, data BLOB NOT NULL)",
)

INDEXES: tuple[str, ...] = (
    "CREATE INDEX IF NOT EXISTS idx_sessions_source ON sessions(source)",
    "CREATE INDEX IF NOT EXISTS idx_sessions_parent ON sessions(parent_session_id)",
    "CREATE INDEX IF NOT EXISTS idx_sessions_started ON sessions(started_at DESC)",
    "CREATE UNIQUE INDEX IF NOT EXISTS idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_messages_session ON messages(session_id, timestamp)",
    "CREATE INDEX IF NOT EXISTS idx_sessions_active ON sessions(coalesce(active_at, started_at) DESC)"
    " WHERE trashed_at IS NULL AND purged IS NULL",
    "CREATE INDEX IF NOT EXISTS idx_sessions_user ON sessions(source, user_id) WHERE user_id IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_sessions_family ON sessions(title_base, title_no) WHERE title_base IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_sessions_retitled ON sessions(id) WHERE title IS NOT title_seen",
    "CREATE INDEX IF NOT EXISTS idx_sessions_trashed ON sessions(trashed_at) WHERE trashed_at IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_sessions_purged ON sessions(id) WHERE purged IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_sessions_handoff ON sessions(handoff_state) WHERE handoff_state IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_sessions_prompt ON sessions(system_prompt_hash) WHERE system_prompt_hash IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_sessions_behind ON sessions(id) WHERE transcript = 0",
    "CREATE INDEX IF NOT EXISTS idx_messages_platform ON messages(platform_message_id)"
    " WHERE platform_message_id IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_refs_from ON session_refs(from_session, first_id)",
    "CREATE INDEX IF NOT EXISTS idx_tags_tag ON session_tags(tag)",
    "CREATE INDEX IF NOT EXISTS idx_members_user ON session_members(source, user_id)",
    "CREATE INDEX IF NOT EXISTS idx_attachments_message ON attachments(message_id)",
    "CREATE INDEX IF NOT EXISTS idx_file_changes_name ON file_changes(name)",
)

PROMPT_TEXT = (
    "coalesce(s.system_prompt, (SELECT CASE WHEN p.base_hash IS NULL THEN p.text ELSE"
    " substr((SELECT b.text FROM system_prompts b WHERE b.hash = p.base_hash), 1, p.base_chars) || p.text END"
    " FROM system_prompts p WHERE p.hash = s.system_prompt_hash))"
)


def _message_list(session_id: str) -> str:
    return ", ".join(
        f"{session_id} AS session_id" if column == "session_id" else f"m.{column}" for column in MESSAGE_COLUMNS
    )


VIEWS: tuple[str, ...] = (
    "CREATE VIEW IF NOT EXISTS visible_sessions AS SELECT "
    + ", ".join(
        f"{PROMPT_TEXT} AS system_prompt" if column == "system_prompt" else f"s.{column}" for column in SESSION_COLUMNS
    )
    + " FROM sessions s WHERE s.trashed_at IS NULL AND s.purged IS NULL",
    # Each message under the session that shows it; `carried` is 1 where that is not the session that owns it.
    f"CREATE VIEW IF NOT EXISTS visible_messages AS SELECT {_message_list('m.session_id')}, 0 AS carried"
    " FROM messages m JOIN sessions s ON s.id = m.session_id"
    " WHERE m.hidden IS NULL AND s.trashed_at IS NULL AND s.purged IS NULL"
    f" UNION ALL SELECT {_message_list('r.session_id')}, 1 AS carried FROM session_refs r"
    " JOIN sessions s ON s.id = r.session_id JOIN messages m ON m.id BETWEEN r.first_id AND r.last_id"
    " AND m.session_id = r.from_session"
    f" WHERE r.rewound IS NULL AND {CARRIABLE} AND s.trashed_at IS NULL AND s.purged IS NULL",
)

TOKENIZER = "unicode61 remove_diacritics 2 categories ''L* N* Co Mn Mc''"
FTS_COLUMNS = "content, tool_name, tool_calls"

FULL_TEXT: tuple[str, ...] = (
    f"CREATE VIRTUAL TABLE messages_fts USING fts5({FTS_COLUMNS}, content='', tokenize='{TOKENIZER}')",
    # Parts of words: the three-letter pieces of each distinct word (table words), not of the text.
    "CREATE VIRTUAL TABLE messages_fts_trigram USING fts5(content, content='', columnsize=0, detail=none,"
    " tokenize='trigram case_sensitive 1')",
)

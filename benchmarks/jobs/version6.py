"""Write a file of schema version 6, as a program of that age left it: plain SQL, full text by triggers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.jobs.common import Config, main, sessions

SCHEMA = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, model TEXT, model_config TEXT,
    system_prompt TEXT, parent_session_id TEXT, started_at REAL NOT NULL, ended_at REAL, end_reason TEXT,
    message_count INTEGER DEFAULT 0, tool_call_count INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0, cache_read_tokens INTEGER DEFAULT 0,
    cache_write_tokens INTEGER DEFAULT 0, reasoning_tokens INTEGER DEFAULT 0,
    billing_provider TEXT, billing_base_url TEXT, billing_mode TEXT,
    estimated_cost_usd REAL, actual_cost_usd REAL, cost_status TEXT, cost_source TEXT, pricing_version TEXT,
    title TEXT, FOREIGN KEY (parent_session_id) REFERENCES sessions(id)
);
CREATE INDEX idx_sessions_source ON sessions(source);
CREATE INDEX idx_sessions_parent ON sessions(parent_session_id);
CREATE INDEX idx_sessions_started ON sessions(started_at DESC);
CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL, content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT,
    timestamp REAL NOT NULL, token_count INTEGER, finish_reason TEXT, reasoning TEXT,
    reasoning_details TEXT, codex_reasoning_items TEXT
);
CREATE INDEX idx_messages_session ON messages(session_id, timestamp);
CREATE VIRTUAL TABLE messages_fts USING fts5(content, content=messages, content_rowid=id);
CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN
    INSERT INTO messages_fts(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER messages_fts_delete AFTER DELETE ON messages BEGIN
    INSERT INTO messages_fts(messages_fts, rowid, content) VALUES('delete', old.id, old.content);
END;
CREATE TRIGGER messages_fts_update AFTER UPDATE ON messages BEGIN
    INSERT INTO messages_fts(messages_fts, rowid, content) VALUES('delete', old.id, old.content);
    INSERT INTO messages_fts(rowid, content) VALUES (new.id, new.content);
END;
INSERT INTO schema_version VALUES (6);
"""
SESSION = """INSERT INTO sessions(id, source, user_id, model, model_config, system_prompt, parent_session_id,
    started_at, ended_at, end_reason, message_count, tool_call_count, input_tokens, output_tokens, title)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
MESSAGE = """INSERT INTO messages(session_id, role, content, tool_call_id, tool_calls, tool_name, timestamp,
    token_count, finish_reason, reasoning) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def version6(config: Config) -> dict[str, Any]:
    path = Path(config["store"])
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; PRAGMA cache_size=-200000;" + SCHEMA)
    for session in sessions(config):
        with db:
            db.execute(SESSION, _session_row(session))
            db.executemany(MESSAGE, _message_rows(session))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return {"bytes": path.stat().st_size}


def _session_row(session: dict[str, Any]) -> tuple[Any, ...]:
    calls = sum(len(message.get("tool_calls") or ()) for message in session["messages"])
    return (
        session["id"],
        session["source"],
        session["user_id"],
        session["model"],
        json.dumps(session["model_config"]),
        session["system_prompt"],
        session["parent_session_id"],
        session["started_at"],
        session["ended_at"],
        session["end_reason"],
        len(session["messages"]),
        calls,
        session["input_tokens"],
        session["output_tokens"],
        session["title"],
    )


def _message_rows(session: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for message in session["messages"]:
        calls = message.get("tool_calls")
        yield (
            session["id"],
            message["role"],
            message.get("content"),
            message.get("tool_call_id"),
            json.dumps(calls) if calls else None,
            message.get("tool_name"),
            message["timestamp"],
            message.get("token_count"),
            message.get("finish_reason"),
            message.get("reasoning"),
        )


if __name__ == "__main__":
    main(version6)

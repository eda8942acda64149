"""One face for the three contestants, so that every job is written once.

`SessionStore` drives a `hermes_state.SessionDB` by its documented calls: ours and the rival's alike.
`RawStore` is the limit: the least SQLite work that could do the same, without counters, snippets, filters or
migrations.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks import corpus
from benchmarks.jobs.common import Config, message_arguments

SESSION_COLUMNS = ("model", "model_config", "system_prompt", "user_id", "parent_session_id")

RAW_SCHEMA = """
CREATE TABLE sessions(id TEXT PRIMARY KEY, source TEXT, title TEXT, started_at REAL, last_active REAL,
    rest TEXT);
CREATE TABLE messages(id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content TEXT, tool_name TEXT,
    tool_calls TEXT, tool_call_id TEXT, token_count INTEGER, finish_reason TEXT, reasoning TEXT,
    timestamp REAL);
CREATE INDEX messages_of_session ON messages(session_id);
CREATE UNIQUE INDEX session_title ON sessions(title);
CREATE INDEX session_active ON sessions(last_active DESC);
"""
RAW_INSERT = (
    "INSERT INTO messages(session_id, role, content, tool_name, tool_calls, tool_call_id, token_count,"
    " finish_reason, reasoning, timestamp) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
RAW_SEARCH = "SELECT rowid FROM fts WHERE fts MATCH ? ORDER BY rank LIMIT ?"


def open_store(config: Config, path: str | None = None) -> SessionStore | RawStore:
    """The contestant's store named by the job's configuration, opened."""
    where = path or config["store"]
    durability = config.get("durability", "full")
    if config["contestant"] == "raw":
        return RawStore(Path(where), durability)
    return SessionStore(where, config["contestant"] != "rival", durability)


class SessionStore:
    """A SessionDB, ours (in a file or on a server) or the rival's."""

    def __init__(self, where: str, ours: bool, durability: str) -> None:
        from hermes_state import SessionDB

        self.ours = ours
        extra: dict[str, Any] = {"durability": durability} if ours else {}
        extra |= {"url": where} if _on_server(where) else {"db_path": Path(where)}
        self.db: Any = SessionDB(**extra)

    def create(self, session: dict[str, Any]) -> None:
        columns = {name: session.get(name) for name in SESSION_COLUMNS}
        if self.ours:
            columns["started_at"] = session["started_at"]
        self.db.create_session(session["id"], session["source"], **columns)

    def append(self, session_id: str, message: dict[str, Any]) -> Any:
        return self.db.append_message(session_id, message["role"], **message_arguments(message))

    def finish(self, session: dict[str, Any]) -> None:
        if session.get("title"):
            self.db.set_session_title(session["id"], session["title"])
        if session.get("end_reason"):
            self.db.end_session(session["id"], session["end_reason"])

    def catch_up(self) -> None:
        if self.ours:
            self.db.catch_up()

    def search(self, query: str, limit: int = 20) -> Any:
        return self.db.search_messages(query, limit=limit)

    def recent(self, limit: int = 20) -> Any:
        return self.db.list_sessions_rich(limit=limit, order_by_last_active=True)

    def by_title(self, title: str) -> Any:
        return self.db.resolve_session_by_title(title)

    def by_prefix(self, prefix: str) -> Any:
        return self.db.resolve_session_id(prefix)

    def conversation(self, session_id: str) -> Any:
        return self.db.get_messages_as_conversation(session_id)

    def prune(self, older_than_days: float) -> Any:
        return self.db.prune_sessions(older_than_days=older_than_days)

    def export(self, out: BinaryIO) -> int:
        count = 0
        if self.ours:
            import msgspec

            encode = msgspec.json.Encoder().encode
            for session in self.db.iter_export():
                out.write(encode(session) + b"\n")
                count += 1
            return count
        for session in self.db.export_all():
            out.write(json.dumps(session, ensure_ascii=False).encode() + b"\n")
            count += 1
        return count

    def close(self) -> None:
        self.db.close()


class RawStore:
    """Plain SQLite: one table, one INSERT a transaction; a contentless full text in fts.db."""

    def __init__(self, path: Path, durability: str = "full") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.db: Any = sqlite3.connect(path, timeout=30, isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={durability}")
        self.fts_path = path.with_name("fts.db")
        self._fts: sqlite3.Connection | None = None

    @property
    def fts(self) -> Any:
        if self._fts is None:
            self._fts = sqlite3.connect(self.fts_path, isolation_level=None)
        return self._fts

    def load(self, sessions: Iterable[dict[str, Any]]) -> int:
        """Everything at once, in one transaction a session: only the result matters."""
        self.db.execute("PRAGMA synchronous=OFF")
        self.db.executescript(RAW_SCHEMA)
        self.fts.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-200000")
        self.fts.execute("CREATE VIRTUAL TABLE fts USING fts5(text, content='')")
        number = 0
        self.fts.execute("BEGIN")
        for session in sessions:
            self.db.execute("BEGIN")
            self.create(session)
            for message in session["messages"]:
                self.db.execute(RAW_INSERT, _raw_row(session["id"], message))
                number += 1
                text = corpus.msg_text(message)
                self.fts.execute("INSERT INTO fts(rowid, text) VALUES (?, ?)", (number, text))
            self.db.execute("COMMIT")
        self.fts.execute("COMMIT")
        return number

    def create(self, session: dict[str, Any]) -> None:
        last = session["messages"][-1]["timestamp"] if session["messages"] else session["started_at"]
        rest = json.dumps({k: v for k, v in session.items() if k != "messages"}, ensure_ascii=False)
        row = (session["id"], session["source"], session["title"], session["started_at"], last, rest)
        self.db.execute("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?, ?, ?, ?)", row)

    def append(self, session_id: str, message: dict[str, Any]) -> int:
        self.db.execute("BEGIN IMMEDIATE")
        done = self.db.execute(RAW_INSERT, _raw_row(session_id, message))
        self.db.execute("COMMIT")
        return int(done.lastrowid)

    def finish(self, session: dict[str, Any]) -> None:
        """Nothing to do: the row of a raw session is written whole."""

    def catch_up(self) -> None:
        """Nothing to do: a raw store does not index what is appended."""

    def search(self, query: str, limit: int = 20) -> list[Any]:
        return list(self.fts.execute(RAW_SEARCH, (query, limit)))

    def recent(self, limit: int = 20) -> list[Any]:
        return list(self.db.execute("SELECT * FROM sessions ORDER BY last_active DESC LIMIT ?", (limit,)))

    def by_title(self, title: str) -> str | None:
        row = self.db.execute("SELECT id FROM sessions WHERE title = ?", (title,)).fetchone()
        return row[0] if row else None

    def by_prefix(self, prefix: str) -> str | None:
        sql = "SELECT id FROM sessions WHERE id >= ? AND id < ? LIMIT 2"
        rows = self.db.execute(sql, (prefix, prefix + "\U0010ffff")).fetchall()
        return rows[0][0] if len(rows) == 1 else None

    def conversation(self, session_id: str) -> list[dict[str, Any]]:
        columns = "role, content, tool_calls, tool_name, tool_call_id, reasoning"
        sql = f"SELECT {columns} FROM messages WHERE session_id = ?"
        found = []
        for role, content, calls, name, call_id, reasoning in self.db.execute(sql, (session_id,)):
            message = {"role": role, "content": content, "tool_name": name, "tool_call_id": call_id}
            found.append(message | {"reasoning": reasoning, "tool_calls": json.loads(calls) if calls else None})
        return found

    def export(self, out: BinaryIO) -> int:
        count = 0
        for session_id, rest in self.db.execute("SELECT id, rest FROM sessions"):
            session = json.loads(rest) | {"messages": self.conversation(session_id)}
            out.write(json.dumps(session, ensure_ascii=False).encode() + b"\n")
            count += 1
        return count

    def close(self) -> None:
        self.db.close()
        if self._fts is not None:
            self._fts.close()


def _raw_row(session_id: str, message: dict[str, Any]) -> tuple[Any, ...]:
    calls = message.get("tool_calls")
    return (
        session_id,
        message["role"],
        message.get("content"),
        message.get("tool_name"),
        json.dumps(calls, ensure_ascii=False) if calls else None,
        message.get("tool_call_id"),
        message.get("token_count"),
        message.get("finish_reason"),
        message.get("reasoning"),
        message.get("timestamp"),
    )


def _on_server(where: str) -> bool:
    return where.startswith("postgresql:")


@contextmanager
def plain_sql(where: str) -> Iterator[Callable[..., Any]]:
    """A store looked at with plain SQL (`?` for parameters), past everything that is measured."""
    if _on_server(where):
        import psycopg

        with psycopg.connect(where) as server:
            yield lambda sql, *params: server.execute(sql.replace("?", "%s").encode(), params).fetchall()
        return
    if Path(f"{where}-key").exists():  # encrypted
        from hermes_state import SessionDB

        with SessionDB(Path(where), read_only=True) as store:
            yield lambda sql, *params: [tuple(row.values()) for row in store.sql(sql, params)]
        return
    db = sqlite3.connect(f"file:{where}?mode=ro", uri=True, timeout=30)
    try:
        yield lambda sql, *params: db.execute(sql, params).fetchall()
    finally:
        db.close()


def message_places(path: Path) -> Iterator[tuple[int, str, int]]:
    """(message id, session id, place in its session from 0) of every message in a SessionDB's file."""
    seen: dict[str, int] = {}
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        for message_id, session_id in db.execute("SELECT id, session_id FROM messages ORDER BY id"):
            seen[session_id] = seen.get(session_id, -1) + 1
            yield message_id, session_id, seen[session_id]

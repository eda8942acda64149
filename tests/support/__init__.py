"""Comparisons of a store with the file of another program that it was made of (see old_files), and looks from outside.

The comparisons read through the public calls only. Bytes and plain SQL are read while our store is closed:
reading the file in the same process would release the store's locks on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

JSON_COLUMNS = {
    "model_config",
    "tool_calls",
    "reasoning_details",
    "codex_reasoning_items",
    "codex_message_items",
}
COMPRESSED_FROM = 2048  # tool output beyond this may be kept in another way; the API still shows it whole


def comparable(name: str, value: Any) -> Any:
    """JSON columns may come back decoded or as text; either way they must mean the same."""
    return json.loads(value) if name in JSON_COLUMNS and isinstance(value, str) else value


def assert_rows_kept(db: Any, made: dict[str, Any]) -> dict[int, int]:
    """Every session and message is there once, equal in each column it had. Gives {new message id: old}."""
    assert db.session_count() == len(made["sessions"])
    assert db.message_count() == len(made["messages"])
    for row in made["sessions"]:
        _assert_equal(db.get_session(row["id"]), row, f"session {row['id']}")
    numbers: dict[int, int] = {}
    for session in made["sessions"]:
        old = [row for row in made["messages"] if row["session_id"] == session["id"]]
        new = db.get_messages(session["id"])
        assert len(new) == len(old), session["id"]
        for was, now in zip(old, new, strict=True):
            numbers[now["id"]] = was["id"]
            _assert_equal(now, {**was, "id": now["id"]}, f"message {was['id']}")
    return numbers


def _assert_equal(now: dict[str, Any] | None, was: dict[str, Any], what: str) -> None:
    assert now is not None, f"{what} is gone"
    for name, value in was.items():
        # Types as well: 1 for 1.0 would be another row.
        got, want = comparable(name, now[name]), comparable(name, value)
        same = got == want and type(got) is type(want)
        assert same, f"{what}: {name} is {str(got)[:200]!r}, was {str(want)[:200]!r}"


def found(db: Any, text: str) -> list[int]:
    """Ids of what a search finds, sorted; twice if it is found twice."""
    return sorted(hit["id"] for hit in db.search_messages(text, limit=200))


def assert_all_found(db: Any, made: dict[str, Any], numbers: dict[int, int] | None = None) -> None:
    """Each text of the description finds exactly the messages that hold it, and escapes are not words."""
    wrong = []
    for text, wanted in made["finds"].items():
        got = sorted(numbers[one] if numbers else one for one in found(db, text))
        if got != wanted:
            wrong.append(f"{text!r} found {got}, is in {wanted}")
    wrong += [f"{text!r} was found" for text in made["absent"] if found(db, text)]
    assert not wrong, "\n".join(wrong)


def tip_of(made: dict[str, Any], session_id: str) -> str:
    """The session in which a compressed conversation continues: a child that started at or after its end."""
    rows = {row["id"]: row for row in made["sessions"]}
    while rows[session_id]["end_reason"] == "compression":
        following = [
            row["id"]
            for row in rows.values()
            if row["parent_session_id"] == session_id and row["started_at"] >= rows[session_id]["ended_at"]
        ]
        if not following:
            break
        session_id = max(following, key=lambda one: float(rows[one]["started_at"]))
    return session_id


def expected_listing(made: dict[str, Any]) -> list[tuple[str, str, float]]:
    """(id, preview, last_active) of each row list_sessions_rich must show, newest first."""
    rows = {row["id"]: row for row in made["sessions"]}
    listed = []
    for row in sorted(rows.values(), key=lambda one: -one["started_at"]):
        parent = rows.get(row["parent_session_id"])
        if parent and parent["end_reason"] != "branched":
            continue
        tip = rows[tip_of(made, row["id"])]
        talk = [message for message in made["messages"] if message["session_id"] == tip["id"]]
        first = next((message["content"] for message in talk if message["role"] == "user"), "")
        folded = " ".join(first.split())
        preview = folded if len(folded) <= 60 else folded[:60] + "..."
        listed.append((tip["id"], preview, max([m["timestamp"] for m in talk], default=tip["started_at"])))
    return listed


def listing(db: Any, **more: Any) -> list[tuple[str, str, float]]:
    rows = db.list_sessions_rich(limit=1000, **more)
    return [(row["id"], row["preview"], row["last_active"]) for row in rows]


# ── from outside ──


def digest(path: Path) -> dict[str, str]:
    """A hash of the file and of its -wal (an empty -wal is none); -shm is only shared memory, not content."""
    made = {}
    for end in ("", "-wal"):
        beside = Path(f"{path}{end}")
        if beside.exists() and (beside.stat().st_size or not end):
            made[beside.name] = hashlib.sha256(beside.read_bytes()).hexdigest()
    return made


def plain_sql(path: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows that plain SQLite gives for a statement. Call it only while our store is closed."""
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement, values).fetchall()


def start_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process that can import what this one can; it talks through stdin and stdout."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )

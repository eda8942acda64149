"""Promises to outside readers: people run SQL on this file, and nothing in it is stored twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from . import plain_sql, say, talk
from .test_messages import JSON_FIELDS, TEXT_FIELDS
from .test_sessions import COLUMNS

MESSAGES = ["id", "session_id", "role", "timestamp", "token_count", *TEXT_FIELDS, *JSON_FIELDS]

pytestmark = pytest.mark.usefixtures("sqlite_only")


@pytest.mark.parametrize(("table", "columns"), [("sessions", COLUMNS), ("messages", MESSAGES)])
def test_the_public_columns_are_there(db, table, columns):
    present = [row[1] for row in plain_sql(db.path, f"PRAGMA table_info({table})")[0]]
    assert not [name for name in columns if name not in present]


def test_the_public_tables_are_there_and_the_version_is_one_row(db):
    names, versions = plain_sql(db.path, "SELECT name FROM sqlite_master", "SELECT version FROM schema_version")
    tables = {name for (name,) in names}
    assert {"sessions", "messages", "messages_fts", "messages_fts_trigram", "state_meta"} <= tables
    assert versions == [(11,)]


def test_titles_are_unique_in_the_file_itself(db):
    for name in ("a", "b"):
        db.create_session(name, "cli")
    db.set_session_title("a", "x")
    with pytest.raises(RuntimeError, match="UNIQUE"):
        plain_sql(db.path, "UPDATE sessions SET title = 'x' WHERE id = 'b'")


def test_plain_sql_reads_sessions_and_messages(db):
    talk(db, "s", "what people wrote " * 500, "what models wrote " * 500, model="m")
    db.append_message("s", "assistant", None, tool_calls=[{"id": "1"}])
    db.set_session_title("s", "x")
    sessions, rows, calls = plain_sql(
        db.path,
        "SELECT id, model, title, message_count FROM sessions",
        "SELECT role, content FROM messages WHERE session_id = 's' ORDER BY id",
        "SELECT json_extract(tool_calls, '$[0].id') FROM messages WHERE tool_calls IS NOT NULL",
    )
    assert sessions == [("s", "m", "x", 3)]
    assert rows[:2] == [("user", "what people wrote " * 500), ("assistant", "what models wrote " * 500)]
    assert calls == [("1",)]


# "Recent sessions with preview", as the documentation of the first program has it, word for word.
RECENT = """
SELECT s.*,
    COALESCE(
        (SELECT SUBSTR(m.content, 1, 63)
         FROM messages m
         WHERE m.session_id = s.id AND m.role = 'user' AND m.content IS NOT NULL
         ORDER BY m.timestamp, m.id LIMIT 1),
        ''
    ) AS preview,
    COALESCE(
        (SELECT MAX(m2.timestamp) FROM messages m2 WHERE m2.session_id = s.id),
        s.started_at
    ) AS last_active
FROM sessions s
ORDER BY s.started_at DESC
LIMIT 20;
"""


def test_the_published_query_for_recent_sessions_gives_what_it_says(db):
    long = "the words of a question that is longer than a preview shows, by far"
    db.create_session("talk", "cli", started_at=1000.0)
    db.append_message("talk", "assistant", "hello", timestamp=1001.0)
    db.append_message("talk", "user", long, timestamp=1002.0)
    db.create_session("silent", "cli", started_at=2000.0)
    with closing(sqlite3.connect(db.path)) as file:
        file.row_factory = sqlite3.Row
        rows = file.execute(RECENT).fetchall()
    names = rows[0].keys()
    assert sorted(set(names)) == sorted(names)
    told = [(row["id"], row["preview"], row["last_active"]) for row in rows]
    assert told == [("silent", "", 2000.0), ("talk", long[:63], 1002.0)]


def test_rewound_and_trashed_rows_are_in_the_file_until_they_are_removed(db):
    first, *_ = talk(db, "s", "one", "two")
    db.rewind("s", first)
    talk(db, "t", "three")
    db.trash_session("t")
    counts = plain_sql(db.path, "SELECT count(*) FROM messages", "SELECT count(*) FROM sessions")
    assert counts == [[(3,)], [(2,)]]


def copies(db, tmp_path, needle):
    db.catch_up()
    db.backup(tmp_path / "copy.db")
    return (tmp_path / "copy.db").read_bytes().count(needle.encode())


def test_message_text_is_stored_once(db, tmp_path):
    say(db, "s", "the first message is the preview")
    say(db, "s", "walnut, pepper; and then: salt! " * 3 + "the-one needle, of this (message)")
    assert copies(db, tmp_path, "the-one needle, of this (message)") == 1


def test_a_system_prompt_of_many_sessions_is_stored_once(db, tmp_path):
    prompt = "You are Hermes; be kind, be brief! " * 100 + "the-one needle, of this (prompt)"
    for n in range(5):
        db.create_session(f"s{n}", "cli", system_prompt=prompt)
    assert copies(db, tmp_path, "the-one needle, of this (prompt)") == 1

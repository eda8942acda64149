"""Hermes Agent: its database is imported as it is, and again when it has grown (tests/cli/test_arrival.py: its home is ours)."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes.interop import formats
from hermes_state import SessionDB
from tests.interop.importing import hidden, sessions, told
from tests.support.old_files import build, build_foreign
from tests.support.program import run

SAMPLES = Path(__file__).parents[1] / "support" / "foreign"
SAMPLE = SAMPLES / "schema-22.db.gz"
NEWER = """
ALTER TABLE sessions ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN hidden INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN title_source TEXT;
ALTER TABLE sessions ADD COLUMN last_activity_at REAL;
ALTER TABLE sessions ADD COLUMN system_prompt_hash TEXT;
ALTER TABLE messages ADD COLUMN _compressed_summary INTEGER NOT NULL DEFAULT 0;
ALTER TABLE messages ADD COLUMN display_kind TEXT;
ALTER TABLE messages ADD COLUMN display_metadata TEXT;
ALTER TABLE messages ADD COLUMN display_identity TEXT;
ALTER TABLE messages ADD COLUMN display_order REAL;
CREATE TABLE system_prompts (hash TEXT PRIMARY KEY, prompt TEXT NOT NULL);
DROP TABLE messages_fts;
DROP TABLE messages_fts_trigram;
DROP TRIGGER messages_fts_insert; DROP TRIGGER messages_fts_delete; DROP TRIGGER messages_fts_update;
DROP TRIGGER messages_fts_trigram_insert; DROP TRIGGER messages_fts_trigram_delete; DROP TRIGGER messages_fts_trigram_update;
CREATE VIEW messages_fts_src AS SELECT id, content FROM messages;
UPDATE schema_version SET version = 30;
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / ".hermes"
    home.mkdir()
    (home / "state.db").write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    return home


def add(path: Path, table: str, *rows: dict[str, Any]) -> None:
    """Rows as that program writes them; values that are objects as JSON."""
    with closing(sqlite3.connect(path)) as other, other:
        for row in rows:
            values = [json.dumps(one) if isinstance(one, dict) else one for one in row.values()]
            other.execute(f"INSERT INTO {table}({', '.join(row)}) VALUES({', '.join('?' * len(row))})", values)


def session(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "source": "cli", "started_at": 1.8e9, **more}


def message(number: int, owner: str, content: str, **more: Any) -> dict[str, Any]:
    return {"id": number, "session_id": owner, "role": "user", "content": content, "timestamp": 1.8e9 + number, **more}


@pytest.fixture
def newer(home: Path) -> Path:
    """A database of schema 30."""
    with closing(sqlite3.connect(home / "state.db")) as other:
        other.executescript(NEWER)
    return home / "state.db"


@pytest.mark.parametrize("version", [11, 12, 30])
def test_a_file_is_theirs_from_schema_12_on(version: int, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    if version > 11:
        build_foreign(path, version)
    else:
        build(path, version, fill="small")
    assert formats.reader_for(path).name == ("hermes-agent" if version > 11 else "database")


def test_what_is_imported_is_what_their_file_says(home: Path, tmp_path: Path) -> None:
    assert run("sessions", "import", home / "state.db", home=home).status == 0
    with SessionDB(db_path=tmp_path / "other" / "state.db") as other, SessionDB(db_path=home / "record.db") as ours:
        other.import_database(home / "state.db")
        for session in other.export_all():
            assert [one["content"] for one in ours.get_messages(session["id"])] == [
                one["content"] for one in other.get_messages(session["id"])
            ]
            assert ours.get_session(session["id"])["title"] == session.get("title")


def test_import_found_lists_their_store_and_brings_what_is_new_later(home: Path, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    seen = run("sessions", "import", "--found", home=home, env=env)
    assert "Hermes Agent" in seen.out and not (home / "record.db").exists()
    assert run("sessions", "import", "--found", "--yes", home=home, env=env).status == 0
    assert "Birds" in run("sessions", "list", home=home).out
    with closing(sqlite3.connect(home / "state.db")) as other, other:
        other.execute(
            "INSERT INTO messages(session_id, role, content, timestamp) VALUES('parts', 'user', 'and a heron?', 2e9)"
        )
    again = run("sessions", "import", "--found", "--yes", home=home, env=env)
    assert again.status == 0 and "1 session updated" in again.out
    assert "heron" in run("sessions", "show", "parts", home=home).out
    assert "0 sessions updated" not in run("sessions", "import", "--found", "--yes", home=home, env=env).out


@pytest.mark.parametrize("schema", [13, 16])
def test_real_files_of_older_versions(schema: int, tmp_path: Path) -> None:
    path, home = tmp_path / "old.db", tmp_path / "home"
    path.write_bytes(gzip.decompress((SAMPLES / f"schema-{schema}.db.gz").read_bytes()))
    assert run("sessions", "import", path, home=home).status == 0
    found = sessions(home)
    assert found["parts"]["title"] == "Birds" and found["tools-2"]["parent_session_id"] == "tools"
    assert [role for role, _ in told(found["tools"])] == ["user", "assistant", "tool", "assistant"]
    if schema == 16:
        assert hidden(found["undone"]) == ["withdrawn question", "withdrawn answer"]


def test_sub_agents_branches_and_resets_only_where_the_marker_names_the_parent(home: Path, tmp_path: Path) -> None:
    path = home / "state.db"
    add(
        path, "sessions", session("main", end_reason="compression", ended_at=1.8e9 + 5),
        session("helper", source="subagent", parent_session_id="main", model_config={"_delegate_from": "main"}),
        session("branched", parent_session_id="main", model_config={"_branched_from": "main"}),
        session("again", parent_session_id="main", model_config={"_reset_from": "main"}),
        session("next", parent_session_id="main", model_config={"_branched_from": "older"}, started_at=1.8e9 + 6),
        session("job", source="cron"), session("asked", source="oneshot"), session("lost", source="subagent"),
    )  # fmt: skip
    names = ("main", "helper", "branched", "again", "next", "job", "asked", "lost")
    add(path, "messages", *(message(1000 + number, name, f"hello {name}") for number, name in enumerate(names)))
    add(path, "session_model_usage", {"session_id": "main", "model": "m", "task": "title_generation", "api_call_count": 1, "input_tokens": 9})  # fmt: skip
    assert run("sessions", "import", path, home=tmp_path / "ours").status == 0
    found = sessions(tmp_path / "ours")
    assert [found[name].get("kind") for name in names] == [None, "subagent", "branch", "reset", None, None, None, None]
    assert [name for name in names if found[name].get("archived_at")] == ["job", "asked", "lost"]
    listed = run("sessions", "list", home=tmp_path / "ours").out
    assert "hello next" in listed and "hello branched" in listed
    assert not any(f"hello {name}" in listed for name in ("helper", "job", "asked", "lost"))
    assert '"title_generation"' in str(found["main"]["meta"]) and not found["main"]["input_tokens"]


def test_schema_30_shows_what_that_program_shows(newer: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    add(newer, "system_prompts", {"hash": "h1", "prompt": "You are careful."})
    add(
        newer,
        "sessions",
        session("new", system_prompt_hash="h1", pinned=1, title="Mine", title_source="user"),
        session("away", hidden=1),
    )
    add(
        newer, "messages", message(2000, "away", "out of sight"),
        message(1001, "new", "first", active=0, compacted=1, display_identity="a", display_order=1),
        message(1002, "new", "kept", active=0, compacted=1, display_identity="b", display_order=2),
        message(1003, "new", "a slip", active=0, compacted=0, display_identity="c", display_order=3),
        message(1004, "new", "Summary.", _compressed_summary=1, display_kind="hidden", display_identity="d", display_order=4),
        message(1005, "new", "kept", display_identity="b", display_order=2),
        message(1006, "new", "later", display_identity="f", display_order=7),
        message(1007, "new", "scaffolding", display_kind="hidden", display_identity="g", display_order=8),
        message(1008, "new", "sooner", display_identity="h", display_order=6),
    )  # fmt: skip
    assert "first" in run("sessions", "search", "first", home=newer.parent).out  # as it is, without an import
    assert run("sessions", "import", newer, home=ours).status == 0
    found = sessions(ours)
    one = found["new"]
    assert told(one) == [("user", "Summary."), ("user", "kept"), ("user", "sooner"), ("user", "later")]
    assert "summary" in str(one["messages"][0]["meta"]) and "summary" not in str(one["messages"][1]["meta"])
    assert hidden(one) == ["first", "a slip"] and found["away"]["archived_at"]
    assert (one["system_prompt"], bool(one["pinned_at"]), one["title"]) == ("You are careful.", True, "Mine")
    assert "first" in run("sessions", "search", "first", home=ours).out
    assert "scaffolding" not in json.dumps(one)
    assert "already here" in run("sessions", "import", newer, home=ours).out and sessions(ours)["new"] == one


def test_a_compaction_that_comes_later_keeps_what_it_replaced_as_earlier_history(newer: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    add(newer, "sessions", session("new"))
    add(
        newer,
        "messages",
        message(1001, "new", "heron", display_identity="a"),
        message(1002, "new", "kept", display_identity="b"),
    )
    assert run("sessions", "import", newer, home=ours).status == 0
    with closing(sqlite3.connect(newer)) as other, other:
        other.execute("UPDATE messages SET active = 0, compacted = 1 WHERE session_id = 'new'")
    add(newer, "messages", message(1003, "new", "Summary.", _compressed_summary=1, display_kind="hidden"), message(1004, "new", "kept", display_identity="b"))  # fmt: skip
    assert "1 session updated" in run("sessions", "import", newer, home=ours).out
    one = sessions(ours)["new"]
    assert sorted(text for _, text in told(one)) == ["Summary.", "kept"] and hidden(one) == ["heron"]
    assert "heron" in run("sessions", "search", "heron", home=ours).out


def test_tokens_and_the_end_follow_until_the_conversation_goes_on_here(home: Path, tmp_path: Path) -> None:
    path, ours = home / "state.db", tmp_path / "ours"
    assert run("sessions", "import", path, home=ours).status == 0

    def changed(sql: str) -> dict[str, Any]:
        with closing(sqlite3.connect(path)) as other, other:
            other.execute(f"UPDATE sessions SET {sql} WHERE id = 'parts'")
        assert run("sessions", "import", path, home=ours).status == 0
        return sessions(ours)["parts"]

    assert changed("input_tokens = 500")["input_tokens"] == 500
    one = changed("end_reason = 'agent_close', ended_at = 1.9e9, input_tokens = 600")
    assert (one["end_reason"], one["ended_at"], one["input_tokens"]) == ("agent_close", 1.9e9, 600)
    assert changed("end_reason = 'idle', input_tokens = 700")["end_reason"] == "idle"
    with SessionDB(ours / "state.db") as db:
        db.append_message("parts", "user", content="said here")
    assert changed("end_reason = 'daily', input_tokens = 800")["input_tokens"] == 700

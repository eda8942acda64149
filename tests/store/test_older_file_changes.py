"""File changes in messages of other programs: answered at once, noted when the messages are indexed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.waiting import until


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A store as an older program left it: the changes are in its messages alone."""
    path = tmp_path / "state.db"
    with SessionDB(path) as db:
        db.create_session("s", "cli")
        for number in range(1_200):
            arguments = json.dumps({"path": f"file{number % 3}.py", "content": f"line number {number}"})
            call = {"id": f"c{number}", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
            db.append_message("s", "assistant", None, tool_calls=[call])
            db.append_message("s", "tool", "error: no" if number % 2 else "Made it.", tool_call_id=f"c{number}")
    with sqlite3.connect(path) as file:
        file.execute("DROP TABLE file_changes")
        file.execute("UPDATE messages SET writer = NULL")
        file.execute("PRAGMA application_id = 0")
        file.execute("PRAGMA user_version = 0")
    file.close()
    return path


def test_they_are_answered_while_the_file_is_only_read(older: Path) -> None:
    with SessionDB(older, read_only=True) as db:
        assert len(db.file_changes(["file0.py"])) == 200
        assert len(db.file_changes(session_id="s")) == 600
        assert db.file_changes(["größe.py"]) == []


def test_they_are_noted_when_the_messages_are_indexed_and_each_once(older: Path) -> None:
    with SessionDB(older) as db:
        db.append_message("s", "user", "and on")
        assert len(db.file_changes(["file0.py"])) == 200
        until(lambda: db.index_status()["pending"] == 0, unless=lambda: len(db.file_changes(["file0.py"])) != 200)
        assert db.sql("SELECT count(*) AS n FROM file_changes") == [{"n": 600}]
        assert len(db.file_changes(["file0.py"])) == 200


def test_a_change_of_another_program_is_noted_when_its_message_is_indexed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with SessionDB(path) as db:
        db.create_session("s", "cli")
    arguments = json.dumps({"path": "theirs.py", "content": "a line of theirs"})
    calls = json.dumps([{"id": "c1", "type": "function", "function": {"name": "write_file", "arguments": arguments}}])
    with sqlite3.connect(path) as file:
        sql = "INSERT INTO messages(session_id, role, content, tool_calls, timestamp) VALUES('s', 'assistant', 'x', ?, 5.0)"
        file.execute(sql, (calls,))
    file.close()
    with SessionDB(path) as db:
        assert [row["path"] for row in db.file_changes(["theirs.py"])] == ["theirs.py"]
        db.catch_up()
        assert [row["path"] for row in db.file_changes(["theirs.py"])] == ["theirs.py"]
        assert db.sql("SELECT count(*) AS n FROM file_changes") == [{"n": 1}]

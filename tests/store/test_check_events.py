"""Events and hidden marks beside the transcripts: what check tells of them, and what repair keeps."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB


def sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(statement)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "a question")
        db.record_event("s", "model_error", "HTTP 500")
        db.append_message("s", "assistant", "an answer")
        assert db.check() == []
    return tmp_path / "state.db"


def told(db: SessionDB) -> list[str]:
    return [event["text"] for event in db.get_session_events("s")]


def findings(db: SessionDB) -> list[str]:
    return [f"{one['kind']}: {one['detail']}" for one in db.check()]


@pytest.mark.parametrize("change", ["DROP TABLE session_events", "UPDATE session_events SET text = 'HTTP 200'"])
def test_an_event_that_the_transcript_tells_otherwise_is_written_again(path: Path, change: str) -> None:
    sql(path, change)
    with SessionDB(path) as db:
        (finding,) = findings(db)
        assert finding.startswith("transcript:") and "events" in finding
        before = told(db)
        db.repair()
        assert told(db) == before and db.check() == []


def test_an_event_without_a_line_gets_one(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "sessions" / "s.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for line in lines if b"model_error" not in line))
    with SessionDB(path) as db:
        (finding,) = findings(db)
        assert "events" in finding
        db.repair()
        assert db.check() == []
    assert file.read_bytes().count(b"HTTP 500") == 1


def test_hidden_messages_stay_hidden_when_a_lost_session_comes_back_under_new_ids(tmp_path: Path) -> None:
    """Of its ids some are taken in the new database, so that all messages are put in order under new ones."""
    with SessionDB(tmp_path / "old" / "state.db") as old:
        old.create_session("s", "cli")
        ids = [old.append_message("s", "user", f"said {number}", timestamp=1000.0 + number) for number in range(6)]
        old.rewind("s", ids[3])
        shown = texts(old)
        old.record_event("s", "model_error", "after the third")
    with SessionDB(tmp_path / "new" / "state.db") as new:
        new.create_session("other", "cli")
        new.append_message("other", "user", "takes an id")
        new.append_message("other", "user", "takes a second one")
    shutil.copy(tmp_path / "old" / "sessions" / "s.jsonl", tmp_path / "new" / "sessions" / "s.jsonl")
    with SessionDB(tmp_path / "new" / "state.db") as new:
        new.rebuild()
        assert texts(new) == shown == [f"said {number}" for number in range(4)]
        (event,) = new.get_session_events("s")
        assert event["after"] == new.get_messages("s")[-1]["id"]
        assert new.unrewind("s") == 2
        assert texts(new) == [f"said {number}" for number in range(6)]
        assert new.check() == []


def texts(db: Any) -> list[str]:
    return [message["content"] for message in db.get_messages("s")]

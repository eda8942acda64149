"""A session that shows messages of another one keeps showing them: after deletions, from transcripts alone, in another store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.store.upkeep.check import rebuild_store
from hermes_state import SessionDB

SHOWN = ["m0", "SUMMARY", "m4", "m5", "after"]


def compressed(db: SessionDB) -> None:
    """A was compressed into B, and in B something was undone."""
    db.create_session("A", "cli")
    ids = [db.append_message("A", "user", f"m{number}") for number in range(6)]
    db.set_session_title("A", "work")
    db.compress_session("A", "B", summary="SUMMARY", head_until=ids[0], tail_from=ids[4])
    last = db.append_message("B", "user", "after")
    db.append_message("B", "user", "undone")
    db.rewind("B", last)


def shown(db: SessionDB, name: str) -> list[Any]:
    return [message["content"] for message in db.get_messages(name)]


def rebuilt(folder: Path) -> SessionDB:
    target = folder / "again.db"
    for one in folder.glob("again*"):
        one.unlink()
    rebuild_store(target, folder / "sessions")
    return SessionDB(target, transcripts="off")


def test_the_continuation_of_a_deleted_session_is_whole_in_a_rebuild(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        compressed(db)
        db.delete_session("A")
        assert shown(db, "B") == SHOWN
        assert db.check() == []
    with rebuilt(tmp_path) as again:
        assert shown(again, "B") == SHOWN
        assert again.unrewind("B") == 1 and shown(again, "B") == [*SHOWN, "undone"]


def test_a_deleted_session_that_others_show_keeps_its_id_and_comes_back_under_it(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        compressed(db)
        before = db.export_session("A")
        file = tmp_path / "sessions" / "B.jsonl"
        told = file.read_bytes()
        db.delete_session("A")
        assert db.get_session("A") is None and db.get_messages("A") == [] and db.message_count("A") == 0
        assert file.read_bytes().startswith(told) and shown(db, "B") == SHOWN  # nothing of B was changed but its parent
        assert db.create_session("A", "cli") == "A"
        db.append_message("A", "user", "another A")
        assert shown(db, "A") == ["another A"] and shown(db, "B") == SHOWN
        assert db.check() == []
        db.delete_session("A")
        assert db.import_session(before)
        assert shown(db, "A") == [f"m{number}" for number in range(6)] and shown(db, "B") == SHOWN
        assert len(db.search_messages("m0 OR m4 OR m5", limit=100)) == 3
        assert db.check() == []
    with rebuilt(tmp_path) as again:
        assert shown(again, "A") == [f"m{number}" for number in range(6)] and shown(again, "B") == SHOWN


def test_what_a_revived_session_kept_for_others_goes_with_the_last_of_them(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        compressed(db)
        db.delete_session("A")
        db.create_session("A", "cli")
        db.append_message("A", "user", "another A")
        db.delete_session("B")
        assert db.sql("SELECT count(*) AS n FROM messages") == [{"n": 1}]
        assert "m0" not in (tmp_path / "sessions" / "A.jsonl").read_text()
        assert shown(db, "A") == ["another A"] and db.check() == []


@pytest.mark.parametrize("removed", ["*.jsonl", "A.jsonl", "C.jsonl"])
def test_transcripts_that_were_removed_are_written_again_with_their_owners(tmp_path: Path, removed: str) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        compressed(db)
        db.branch_session("B", "C")
        db.delete_session("A")
        gone = list((tmp_path / "sessions").glob(removed))
        assert gone
        for file in gone:
            file.unlink()
    with SessionDB(tmp_path / "state.db") as db:
        assert db.check() != []
        db.repair()
        assert db.check() == []
    with rebuilt(tmp_path) as again:
        assert shown(again, "B") == shown(again, "C") == SHOWN


def test_a_session_whose_messages_a_chat_shows_has_a_transcript_that_goes_on(tmp_path: Path) -> None:
    """If only chats have transcripts, so have the sessions that they refer to."""
    with SessionDB(tmp_path / "state.db", transcripts="gateway") as db:
        db.create_session("mine", "cli")
        db.append_message("mine", "user", "from the terminal")
        db.create_session("chat", "telegram")
        db.import_session(
            {"id": "branch", "source": "telegram", "started_at": 5.0, "kind": "branch", "parent_session_id": "mine",
             "refs": [[1, "mine", 1, 1, 0, None, None]], "messages": db.get_messages("mine")}
        )  # fmt: skip
        db.append_message("mine", "user", "and on")
        assert shown(db, "branch") == ["from the terminal"] and db.check() == []
    with rebuilt(tmp_path) as again:
        assert shown(again, "branch") == ["from the terminal"]
        assert shown(again, "mine") == ["from the terminal", "and on"]

"""A session that shows messages of another one keeps showing them: after deletions, from transcripts alone, in another store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes.store.upkeep.check import rebuild_store
from hermes_state import SessionDB
from tests.support.old_files import build
from tests.support.program import run

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


def test_a_branch_of_a_session_from_an_older_file_is_whole_in_a_rebuild(tmp_path: Path) -> None:
    build(tmp_path / "state.db", 11, fill="small")
    with SessionDB(tmp_path / "state.db") as db:
        name = max(db.search_sessions(limit=100), key=lambda row: row["message_count"])["id"]
        db.branch_session(name, "branch")
        wanted = shown(db, "branch")
        assert wanted and db.check() == []
    with rebuilt(tmp_path) as again:
        assert shown(again, "branch") == wanted


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


def test_one_exported_session_of_a_lineage_comes_in_whole_and_its_parent_later(tmp_path: Path) -> None:
    """As people do it: three commands."""
    home, other = tmp_path / "one", tmp_path / "two"
    with SessionDB(home / "state.db") as db:
        compressed(db)
        parents = db.get_messages("A"), db.message_count()
    for name in ("B", "A", "B"):
        assert run("sessions", "export", tmp_path / f"{name}.jsonl", "--session-id", name, home=home).status == 0
        done = run("sessions", "import", tmp_path / f"{name}.jsonl", home=other)
        assert done.status == 0, done
        with SessionDB(other / "state.db") as db:
            assert shown(db, "B") == SHOWN
            assert len(db.search_messages("m4 OR m0 OR undone", limit=100)) == 2
            assert db.check() == []
    with SessionDB(other / "state.db") as db:
        assert (db.get_messages("A"), db.message_count()) == parents
        assert db.get_compression_tip("A") == "B" and len(db.list_sessions_rich()) == 1
        db.delete_session("B")
        assert db.get_messages("A") == parents[0] and db.session_count() == 1


def test_two_branches_exported_alone_share_what_they_carry(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "one" / "state.db") as db:
        db.create_session("A", "cli")
        ids = [db.append_message("A", "user", f"m{number}") for number in range(4)]
        db.branch_session("A", "near", at_message=ids[1])
        db.rewind("A", ids[1])
        db.append_message("A", "user", "m9")
        db.branch_session("A", "far")
        exports = [json.loads(json.dumps(db.export_session(name))) for name in ("far", "near", "A")]
    with SessionDB(tmp_path / "two" / "state.db") as db:
        db.create_session("mine", "cli")
        db.append_message("mine", "user", "takes the first id")
        for data in exports:
            assert db.import_session(data)
            assert db.check() == []
            assert shown(db, "far") == ["m0", "m1", "m9"]
            db.catch_up()
            assert len(db.search_messages("m0 OR m1 OR m9", limit=100)) == 3
        assert shown(db, "near") == ["m0", "m1"] and shown(db, "A") == ["m0", "m1", "m9"]
        assert db.unrewind("A") == 2 and shown(db, "A") == ["m0", "m1", "m2", "m3"]


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

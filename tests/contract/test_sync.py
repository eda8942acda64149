"""Two stores that are synchronised: both end with what either had, and nothing is overwritten, doubled or brought back."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest
from zstandard import ZstdDecompressor

from hermes.interop.sync import FolderPlace, StorePlace, SyncResult, sync

from . import DAY, shown, talk

PICTURE = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + bytes(range(256))).decode()


@pytest.fixture
def pair(make_db, tmp_path):
    """Two stores and a folder in which they meet."""
    from tests.support.stores import opener

    meeting = tmp_path / "meeting"
    meeting.mkdir()
    other = opener("sqlite")(tmp_path / "other")
    yield make_db(), other, meeting
    other.close()


def meet(db: Any, folder: Path, **more: Any) -> SyncResult:
    result = sync(db, FolderPlace(folder, db), **more)
    assert result.problems == []
    return result


def both(one: Any, other: Any, folder: Path) -> None:
    for db in (one, other, one, other):
        meet(db, folder)


def sessions(db: Any) -> dict[str, list[str]]:
    rows = db.list_sessions_rich(limit=100, include_children=True)
    return {row["id"]: [message["content"] for message in db.get_messages(row["id"])] for row in rows}


def bytes_in(folder: Path) -> bytes:
    """The unpacked contents of the files in a folder."""
    said = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            frame = data.startswith(b"\x28\xb5\x2f\xfd")
            said.append(ZstdDecompressor().decompressobj().decompress(data) if frame else data)
    return b"\n".join(said)


def test_each_gets_what_the_other_has_and_again_nothing(pair):
    one, other, folder = pair
    talk(one, "a", "one", "two")
    talk(other, "b", "three")
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {"a": ["one", "two"], "b": ["three"]}
    for db in (one, other):
        again = meet(db, folder)
        assert (again.here.sessions, again.here.messages, again.sent) == (0, 0, 0)


def test_stores_without_a_folder(pair):
    one, other, _ = pair
    talk(one, "a", "one", "two")
    talk(other, "b", "three")
    sync(one, StorePlace(other))
    assert sessions(one) == sessions(other) == {"a": ["one", "two"], "b": ["three"]}


def test_a_session_continued_on_both_sides_becomes_two_branches(pair):
    one, other, folder = pair
    talk(one, "a", "one", "two")
    both(one, other, folder)
    one.append_message("a", "user", "said here")
    other.append_message("a", "user", "said there")
    other.append_message("a", "user", "more there")
    both(one, other, folder)
    found = sessions(one)
    assert found == sessions(other)
    assert found.pop("a") == ["one", "two", "said here"], "what was said first stays"
    ((fork, texts),) = found.items()
    assert texts == ["one", "two", "said there", "more there"]
    row = one.get_session(fork)
    assert (row["kind"], row["parent_session_id"]) == ("branch", "a")
    assert one.message_count() == 5, "the beginning is stored once"


def test_a_session_compressed_here_and_continued_there(pair):
    one, other, folder = pair
    ids = talk(one, "a", "one", "two")
    both(one, other, folder)
    one.compress_session("a", "next", summary="so far", tail_from=ids[1])
    other.append_message("a", "user", "said there")
    both(one, other, folder)
    found = sessions(other)
    assert found == sessions(one)
    assert found.pop("a") == ["one", "two"] and found.pop("next") == ["so far", "two"]
    assert list(found.values()) == [["one", "two", "said there"]], "a branch, not behind the compression"
    assert other.get_compression_tip("a") == "next"


def test_values_travel_and_the_later_one_counts(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    both(one, other, folder)
    one.set_session_title("a", "first")
    one.tag_session("a", "work", "home")
    one.pin_session("a")
    both(one, other, folder)
    assert other.get_session_title("a") == "first" and other.get_tags("a") == ["home", "work"]
    assert other.get_session("a")["pinned_at"] is not None
    other.untag_session("a", "work")
    other.set_session_title("a", "second")
    both(one, other, folder)
    assert one.get_session_title("a") == "second" and one.get_tags("a") == ["home"]


def test_equal_titles_get_numbers(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    talk(other, "b", "two")
    one.set_session_title("a", "same")
    other.set_session_title("b", "same")
    both(one, other, folder)
    named = {session_id: one.get_session_title(session_id) for session_id in "ab"}
    assert sorted(named.values()) == ["same", "same #2"]
    assert named == {session_id: other.get_session_title(session_id) for session_id in "ab"}


def test_usage_of_both_sides_is_added_up(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    one.update_token_counts("a", input_tokens=100, output_tokens=10)
    both(one, other, folder)
    one.update_token_counts("a", input_tokens=5)
    other.update_token_counts("a", input_tokens=7)
    both(one, other, folder)
    assert one.get_session("a")["input_tokens"] == other.get_session("a")["input_tokens"] == 112


def test_edits_redactions_and_rewinds_travel(pair):
    one, other, folder = pair
    ids = talk(one, "a", "one", "two", "three", "four")
    both(one, other, folder)
    one.edit_message(ids[0], "one, better")
    one.redact_message(ids[1])
    one.rewind("a", ids[2])
    both(one, other, folder)
    assert shown(other, "a") == ["one, better", "three"]
    other.unrewind("a")
    both(one, other, folder)
    assert shown(one, "a") == ["one, better", "three", "four"]


def test_attachments_come_along_once(pair):
    one, other, folder = pair
    one.create_session("a", "cli")
    part = [{"type": "image_url", "image_url": {"url": PICTURE}}]
    for _ in range(2):
        one.append_message("a", "user", part)
    both(one, other, folder)
    files = [path for path in (folder / "attachments").rglob("*") if path.is_file()]
    assert len(files) == 1
    assert other.resolve_attachments(other.get_messages("a")[0])["content"] == part
    assert other.check() == []


# ------------------------------------------------------------------------------------------ deletions


def test_what_was_deleted_goes_to_the_other_trash_and_can_be_restored_there(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    both(one, other, folder)
    one.delete_session("a")
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {}
    assert [row["id"] for row in other.list_trash()] == ["a"]
    other.restore_session("a")
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {"a": ["one"]}


def test_when_the_grace_is_over_it_is_deleted_there(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    both(one, other, folder)
    one.delete_session("a")
    meet(one, folder)
    result = meet(other, folder, grace=0)
    assert result.here.deleted == 1 and other.list_trash() == [] and sessions(other) == {}


def test_emptying_the_trash_does_not_undo_a_restore_elsewhere(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    one.trash_session("a")
    both(one, other, folder)
    other.restore_session("a")
    one.empty_trash(0)
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {"a": ["one"]}


def test_what_is_said_after_a_deletion_elsewhere_brings_the_session_back(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    both(one, other, folder)
    one.delete_session("a")
    other.append_message("a", "user", "still here")
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {"a": ["one", "still here"]}


def test_what_was_shredded_is_shredded_everywhere_and_stays_so(pair, engine):
    one, other, folder = pair
    one.create_session("a", "cli")
    one.append_message("a", "user", "xqvarnium")
    one.append_message("a", "user", [{"type": "image_url", "image_url": {"url": PICTURE}}])
    one.set_session_title("a", "zjolkrapt")
    both(one, other, folder)
    assert b"xqvarnium" in bytes_in(folder) and b"zjolkrapt" in bytes_in(folder)
    other.shred_session("a")
    meet(other, folder)
    meet(one, folder)
    meet(other, folder)
    said = bytes_in(folder)
    assert b"xqvarnium" not in said and b"zjolkrapt" not in said and b"\x89PNG" not in said
    assert sessions(one) == sessions(other) == {} and one.list_trash() == []
    assert one.deleted_sessions() == other.deleted_sessions() == {"a": True}
    other.close()
    assert b"xqvarnium" not in bytes_in(other.path.parent) and b"zjolkrapt" not in bytes_in(other.path.parent)


def test_a_session_in_use_waits(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    both(one, other, folder)
    token = other.hold_session("a", "chat")
    one.append_message("a", "user", "two")
    meet(one, folder)
    assert meet(other, folder).here.waiting == 1 and shown(other, "a") == ["one"]
    other.release_lease("session:a", token)
    assert meet(other, folder).here.messages == 1 and shown(other, "a") == ["one", "two"]


# ------------------------------------------------------------------------------------------ the folder


def test_a_damaged_file_is_named_and_the_rest_comes(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    talk(one, "b", "two")
    meet(one, folder)
    damaged, _ = sorted(path for path in (folder / "stores").rglob("*") if path.is_file())
    damaged.write_bytes(damaged.read_bytes()[:-9])
    result = sync(other, FolderPlace(folder, other))
    assert len(result.problems) == 1 and damaged.name in result.problems[0]
    assert result.here.sessions == 1


def test_a_copy_of_a_store_and_its_original_lose_nothing(pair, make_db, tmp_path, engine):
    """A store that was copied, or restored from a backup, has the same permanent id as another."""
    if engine != "sqlite":
        pytest.skip("a file is copied")
    one, other, folder = pair
    talk(one, "a", "one")
    meet(one, folder)
    one.backup(tmp_path / "copy.db")
    from hermes_state import SessionDB

    with SessionDB(db_path=tmp_path / "copy.db") as copy:
        one.append_message("a", "user", "by the original")
        copy.append_message("a", "user", "by the copy")
        for db in (one, copy, other, one, copy, other):
            meet(db, folder)
        assert sessions(one) == sessions(copy) == sessions(other)
        assert sorted(sessions(other).values()) == [["one", "by the copy"], ["one", "by the original"]]


def test_the_same_history_imported_on_both_sides_is_one(pair):
    one, other, folder = pair
    stamp = time.time() - DAY
    data = {
        "id": "claude-code-1", "source": "claude-code", "started_at": stamp,
        "messages": [{"role": "user", "content": "hi", "timestamp": stamp + 1, "platform_message_id": "u1"}],
    }  # fmt: skip
    one.import_session(data)
    other.import_session(data)
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {"claude-code-1": ["hi"]}


def test_an_import_leaves_out_what_was_deleted_here(pair):
    one, _, _ = pair
    data = {"id": "x", "source": "codex", "started_at": 1.0}
    data["messages"] = [{"role": "user", "content": "hi", "timestamp": 2.0}]
    assert one.import_sessions([data], again=False)["sessions"] == 1
    one.delete_session("x")
    assert one.import_sessions([data], update=True, again=False)["deleted"] == 1
    assert "x" not in one and one.deleted_sessions() == {"x": False}
    assert one.import_sessions([data], again=True)["sessions"] == 1
    assert shown(one, "x") == ["hi"] and one.deleted_sessions() == {}
    assert one.import_sessions([data], update=True, again=False)["skipped"] == 1
    one.shred_session("x")
    assert one.import_sessions([data], again=True) == {"sessions": 0, "messages": 0, "skipped": 0, "deleted": 1}


def test_a_redacted_text_does_not_travel(pair):
    one, other, folder = pair
    ids = talk(one, "a", "xqvarnium", "two")
    one.compress_session("a", "next", summary="so far", head_until=ids[0], tail_from=ids[1])
    one.redact_message(ids[0])
    one.trash_session("a")
    both(one, other, folder)
    assert b"xqvarnium" not in bytes_in(folder)
    assert shown(other, "next") == ["so far", "two"]
    assert not [row for row in other.sql("SELECT content FROM messages") if row["content"] == "xqvarnium"]


def test_the_deletion_of_a_fork_travels_and_doubles_nothing(pair):
    one, other, folder = pair
    talk(one, "a", "one")
    both(one, other, folder)
    one.append_message("a", "user", "here")
    other.append_message("a", "user", "there")
    both(one, other, folder)
    (fork,) = set(sessions(one)) - {"a"}
    one.branch_session(fork, "branch of the fork")
    both(one, other, folder)
    other.delete_session(fork)
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {"a": ["one", "here"], "branch of the fork": ["one", "there"]}
    for db in (one, other):
        assert sorted(row["content"] for row in db.sql("SELECT content FROM messages")) == ["here", "one", "there"]


def test_a_branch_deleted_after_its_parent_does_not_come_back_in_part(pair):
    one, other, folder = pair
    talk(one, "parent", "q", "a")
    one.branch_session("parent", "branch")
    both(one, other, folder)
    one.delete_session("parent")
    one.delete_session("branch")
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {}
    assert one.check() == other.check() == []
    assert one.sql("SELECT id FROM sessions") == one.sql("SELECT id FROM messages") == []


def test_a_parent_deleted_before_the_first_meeting_leaves_nothing_half_deleted(pair):
    one, other, folder = pair
    talk(one, "parent", "q", "a")
    one.branch_session("parent", "branch")
    other.import_sessions(one.iter_export())
    one.delete_session("parent")
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {"branch": ["q", "a"]}
    assert one.check() == other.check() == []


@pytest.mark.parametrize(("done", "left"), [("clear_messages", {"parent": []}), ("shred_session", {})])
def test_a_branch_of_a_session_that_was_cleared_or_shredded_elsewhere_arrives(pair, done, left):
    one, other, folder = pair
    talk(one, "parent", "q", "a")
    both(one, other, folder)
    getattr(other, done)("parent")
    one.branch_session("parent", "branch")
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {**left, "branch": ["q", "a"]}
    assert meet(one, folder).here.waiting == meet(other, folder).here.waiting == 0


def test_a_branch_that_was_imported_without_its_parent_is_the_same_one(pair):
    one, other, folder = pair
    talk(one, "parent", "q", "a")
    one.branch_session("parent", "branch")
    other.import_session(one.export_session("branch"))
    both(one, other, folder)
    assert sessions(one) == sessions(other) == {"parent": ["q", "a"], "branch": ["q", "a"]}
    assert meet(one, folder).here.waiting == meet(other, folder).here.waiting == 0
    assert (
        one.sql("SELECT count(*) AS n FROM messages") == other.sql("SELECT count(*) AS n FROM messages") == [{"n": 2}]
    )
    assert one.check() == other.check() == []


def test_a_deletion_that_was_cut_short_holds_nothing_up(pair):
    from hermes.store.upkeep import retention

    one, other, folder = pair
    talk(one, "a", "one")
    both(one, other, folder)
    with one._engine.write() as tx:  # all that a process has done that is killed after the first step
        retention.mark_deleted(tx, "a")
        retention.audit(tx, "delete", "a", "test")
    other.append_message("a", "user", "two")
    both(one, other, folder)
    assert meet(one, folder).here.waiting == 0
    assert sessions(one) == sessions(other) == {"a": ["one", "two"]}
    assert one.check() == []


def test_a_store_that_was_moved_or_rebuilt_doubles_nothing(pair, tmp_path, engine):
    from hermes.store.exchange.copy import move
    from hermes_state import SessionDB

    one, other, folder = pair
    ids = talk(one, "a", "one", "two")
    both(one, other, folder)
    one.edit_message(ids[0], "one, better")
    with SessionDB(db_path=tmp_path / "moved.db") as moved, SessionDB(db_path=tmp_path / "anew.db") as anew:
        move(one, moved)
        anew.import_sessions(one.iter_export())
        for db in (moved, other, anew, other, moved):
            meet(db, folder)
        assert sessions(moved) == sessions(other) == sessions(anew) == {"a": ["one, better", "two"]}

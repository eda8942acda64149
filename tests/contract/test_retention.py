"""Keeping and removing: only what has ended and lies long back is pruned, nothing pinned or in use."""

from __future__ import annotations

import time

import pytest

from tests.support.waiting import until

from . import DAY, aged, found, ids, old_session, plain_sql, shown, talk


def transcript(db, session_id):
    return db.sessions_dir / f"{session_id}.jsonl"


# ------------------------------------------------------------------ delete


def test_a_system_prompt_goes_with_the_last_session_that_has_it_or_one_like_it(db):
    for name in "abc":
        db.create_session(name, "cli", system_prompt="be kind " * 300 + name)
    # The others are stored as the beginning of the first, and their ends.
    for name, left in (("a", 3), ("b", 2), ("c", 0)):
        db.delete_session(name)
        assert db.sql("SELECT count(*) AS n FROM system_prompts") == [{"n": left}]
        assert all(db.get_session(one)["system_prompt"].endswith(one) for one in "abc" if one > name)


def test_delete_removes_the_session_its_messages_and_its_transcript(db):
    talk(db, "s", "an emu", "yes")
    talk(db, "t", "other")
    assert transcript(db, "s").exists()
    assert db.delete_session("s") is True
    assert db.get_session("s") is None and db.get_messages("s") == []
    assert db.session_count() == 1 and db.message_count() == 1
    assert found(db, "emu") == set()
    assert not transcript(db, "s").exists() and transcript(db, "t").exists()


def test_an_id_can_be_used_again_after_deletion(db):
    talk(db, "s", "old emu")
    db.delete_session("s")
    talk(db, "s", "new words")
    assert shown(db, "s") == ["new words"] and db.get_session("s")["message_count"] == 1
    assert found(db, "emu") == set()


# ------------------------------------------------------------------ prune


def test_prune_removes_old_ended_sessions_whole(db):
    old_session(db, "old", 100)
    old_session(db, "young", 80)
    assert db.prune_sessions() == 1
    assert db.get_session("old") is None and db.get_session("young") is not None
    assert not transcript(db, "old").exists() and transcript(db, "young").exists()
    assert db.message_count() == 1 and db.search_messages('"words of old"') == []
    assert db.prune_sessions() == 0


def test_prune_by_last_activity_not_by_start(db):
    db.create_session("s", "cli", started_at=time.time() - 300 * DAY)
    db.append_message("s", "user", "long ago", timestamp=time.time() - 300 * DAY)
    db.append_message("s", "user", "lately", timestamp=time.time() - 5 * DAY)
    db.end_session("s", "done")
    assert db.prune_sessions(older_than_days=90) == 0
    assert shown(db, "s") == ["long ago", "lately"]
    assert db.prune_sessions(older_than_days=4) == 1


def test_an_old_session_without_messages_counts_from_its_start(db):
    db.create_session("s", "cli", started_at=time.time() - 300 * DAY)
    db.end_session("s", "done")
    assert db.prune_sessions(older_than_days=90) == 1


def test_only_ended_sessions_are_pruned(db):
    old_session(db, "open", 500, end=None)
    assert db.prune_sessions(older_than_days=1) == 0
    db.end_session("open", "done")
    db.reopen_session("open")
    assert db.prune_sessions(older_than_days=1) == 0
    assert shown(db, "open") == ["words of open"]


def test_pinned_sessions_are_never_pruned(db):
    old_session(db, "s", 500)
    db.pin_session("s")
    assert db.prune_sessions(older_than_days=1) == 0
    assert db.get_session("s") is not None
    db.pin_session("s", pinned=False)
    assert db.prune_sessions(older_than_days=1) == 1


def test_a_session_held_by_a_running_process_is_never_pruned(db):
    old_session(db, "s", 500)
    assert db.hold_session("s", "process 1") is not None
    assert db.is_live("s")
    assert db.prune_sessions(older_than_days=1) == 0
    assert shown(db, "s") == ["words of s"]


def test_prune_of_one_source(db):
    old_session(db, "c", 100)
    old_session(db, "t", 100, source="telegram")
    assert db.prune_sessions(older_than_days=30, source="telegram") == 1
    assert db.get_session("c") is not None and db.get_session("t") is None


def test_a_dry_run_counts_and_removes_nothing(db):
    old_session(db, "old", 100)
    assert db.prune_sessions(dry_run=True) == 1
    assert shown(db, "old") == ["words of old"] and transcript(db, "old").exists()
    assert db.list_trash() == []
    assert db.prune_sessions() == 1


def test_prune_into_the_trash(db):
    old_session(db, "old", 100)
    assert db.prune_sessions(trash=True) == 1
    assert ids(db.list_sessions_rich()) == [] and ids(db.list_trash()) == ["old"]
    assert db.restore_session("old") is True
    assert shown(db, "old") == ["words of old"]


# ------------------------------------------------------------------ the automatic run


def test_the_automatic_run_happens_once_per_interval_across_openers(make_db):
    one, two = make_db(name="x"), make_db(name="x")
    assert one.maybe_auto_prune_and_vacuum()["skipped"] is False
    old_session(one, "old", 100)
    result = two.maybe_auto_prune_and_vacuum()
    assert result["skipped"] is True and result["pruned"] == 0 and result["vacuumed"] is False
    assert one.get_session("old") is not None
    assert two.maybe_auto_prune_and_vacuum(min_interval_hours=0)["pruned"] == 1


def test_the_automatic_run_keeps_to_its_retention(db):
    old_session(db, "s", 40)
    assert db.maybe_auto_prune_and_vacuum(retention_days=50)["pruned"] == 0
    assert db.maybe_auto_prune_and_vacuum(retention_days=30, min_interval_hours=0)["pruned"] == 1


def test_an_unreadable_marker_counts_as_never_run(db, sqlite_only):
    def meta():
        return dict(plain_sql(db.path, "SELECT key, value FROM state_meta")[0])

    before = meta()
    assert db.maybe_auto_prune_and_vacuum()["skipped"] is False
    changed = [key for key, value in meta().items() if before.get(key) != value]
    assert changed, "the last run is remembered in state_meta"
    for key in changed:
        db.set_meta(key, "not a time")
    result = db.maybe_auto_prune_and_vacuum()
    assert result["skipped"] is False and "error" not in result
    assert db.maybe_auto_prune_and_vacuum()["skipped"] is True


def test_the_automatic_run_never_raises(make_db):
    db = make_db(name="x")
    old_session(db, "old", 100)
    db.close()
    result = db.maybe_auto_prune_and_vacuum()
    assert isinstance(result["error"], str) and result["pruned"] == 0 and result["vacuumed"] is False
    reader = make_db(name="x", read_only=True)
    result = reader.maybe_auto_prune_and_vacuum()
    assert result["pruned"] == 0
    assert reader.get_session("old") is not None


def test_vacuum_keeps_everything(db):
    talk(db, "s", "an emu")
    for n in range(20):
        talk(db, f"gone{n}", "x" * 5000)
        db.delete_session(f"gone{n}")
    db.vacuum()
    assert shown(db, "s") == ["an emu"] and len(found(db, "emu")) == 1
    assert db.check() == []


# ------------------------------------------------------------------ ghosts and orphans


def ghost(db, name, days, **columns):
    db.create_session(name, "cli", **columns)
    db.end_session(name, "done")
    aged(db, name, days)


def test_empty_ghosts_are_removed(db):
    ghost(db, "ghost", 2)
    ghost(db, "fresh", 0.5)
    talk(db, "spoke", "x")
    db.end_session("spoke", "done")
    aged(db, "spoke", 2)
    ghost(db, "titled", 2)
    db.set_session_title("titled", "keep me")
    db.create_session("open", "cli")
    aged(db, "open", 2)
    ghost(db, "pinned", 2)
    db.pin_session("pinned")
    assert db.prune_empty_ghost_sessions() == 1
    assert db.get_session("ghost") is None
    assert db.session_count() == 5
    assert db.prune_empty_ghost_sessions() == 0


def test_a_branch_that_only_carries_messages_is_no_ghost(db):
    talk(db, "a", "x")
    db.branch_session("a", "b")
    db.end_session("b", "done")
    assert db.prune_empty_ghost_sessions() == 0
    assert shown(db, "b") == ["x"]


def compressed_pair(db, name, days, calls=0):
    """A parent that ended by compression and the child that took over, both `days` old."""
    talk(db, f"{name}-parent", "x")
    db.end_session(f"{name}-parent", "compression")
    aged(db, f"{name}-parent", days)
    end = db.get_session(f"{name}-parent")["ended_at"]
    db.create_session(name, "cli", parent_session_id=f"{name}-parent", kind="compression", started_at=end + 1)
    db.append_message(name, "user", f"summary of {name}", timestamp=end + 1)
    if calls:
        db.update_token_counts(name, api_call_count=calls, input_tokens=10, output_tokens=10)


def test_orphaned_compression_children_are_closed_and_keep_their_messages(db):
    compressed_pair(db, "orphan", 8)
    compressed_pair(db, "used", 8, calls=1)
    compressed_pair(db, "recent", 2)
    old_session(db, "plain", 30, end=None)
    assert db.finalize_orphaned_compression_sessions() == 1
    row = db.get_session("orphan")
    assert row["end_reason"] == "orphaned_compression" and row["ended_at"] is not None
    assert shown(db, "orphan") == ["summary of orphan"]
    for name in ("used", "recent", "plain"):
        assert db.get_session(name)["ended_at"] is None, name
    assert db.finalize_orphaned_compression_sessions() == 0


def test_housekeeping_does_all_of_it_by_itself(db):
    from hermes.config import Config
    from hermes.store.api import configured

    ghost(db, "ghost", 2)
    compressed_pair(db, "orphan", 8)
    talk(db, "thrown", "x")
    db.trash_session("thrown")
    talk(db, "kept", "x")
    thread = configured.start(db, Config())
    assert until(lambda: db.get_session("ghost") is None)  # the last step
    assert db.get_session("orphan")["end_reason"] == "orphaned_compression"
    assert [row["id"] for row in db.list_trash()] == ["thrown"]  # not long enough
    assert shown(db, "kept") == ["x"] and db.get_session("kept")["ended_at"] is None
    assert thread is not None and thread.daemon  # no program waits for it


@pytest.mark.usefixtures("sqlite_only")
def test_messages_of_another_program_count_as_activity(db):
    for name in ("old", "resumed"):
        old_session(db, name, 200)
    row = "INSERT INTO messages(session_id, role, content, timestamp) VALUES('resumed', 'user', 'again', ?)"
    plain_sql(db.path, (row, [time.time()]))
    assert db.prune_sessions(90) == 1
    assert db.get_session("old") is None and db.get_session("resumed") is not None


@pytest.mark.parametrize("how", ["delete", "prune", "ghost"])
def test_what_is_removed_takes_its_transcripts_in_another_folder_along_and_leaves_an_audit_line(db, tmp_path, how):
    for name in ("gone", "other"):
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
    if how == "ghost":
        ghost(db, "gone", 2)
        assert db.prune_empty_ghost_sessions(sessions_dir=tmp_path) == 1
    else:
        old_session(db, "gone", 100)
        remove = db.prune_sessions if how == "prune" else lambda **more: db.delete_session("gone", **more)
        assert remove(sessions_dir=tmp_path) == 1
    assert not (tmp_path / "gone.jsonl").exists() and (tmp_path / "other.jsonl").exists()
    assert not transcript(db, "gone").exists() and db.list_trash() == []
    assert (db.audit_log()[0]["action"], db.audit_log()[0]["session_id"]) == ("delete", "gone")

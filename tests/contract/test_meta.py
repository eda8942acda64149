"""Meta: small facts by key, where the files lie, and a reader that only reads."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from . import found, ids, old_session, shown, talk


def test_meta_is_kept_by_key(db):
    assert db.get_meta("k") is None
    db.set_meta("k", "one")
    assert db.get_meta("k") == "one"
    db.set_meta("k", "zwei ✓ 文")
    assert db.get_meta("k") == "zwei ✓ 文"
    assert db.get_meta("K") is None
    db.set_meta("", "empty key")
    assert db.get_meta("") == "empty key" and db.get_meta("k") == "zwei ✓ 文"


def test_index_status_tells_what_is_left(db):
    talk(db, "s", "a", "b", "c")
    assert set(db.index_status()) >= {"indexed_to", "pending"}
    pending = db.index_status()["pending"]
    assert db.catch_up() <= pending  # a server's store is indexed in the background, too
    assert db.index_status()["pending"] == 0 and db.catch_up() == 0


# ------------------------------------------------------------------ where things are


def test_the_default_store_is_in_the_home(hermes_home, sqlite_only):
    from hermes_constants import get_hermes_home
    from hermes_state import SessionDB

    assert get_hermes_home() == hermes_home
    with SessionDB() as db:
        talk(db, "s", "hello")
        assert db.path == hermes_home / "state.db" and db.path.exists()
        assert db.sessions_dir == hermes_home / "sessions"
        assert db.attachments_dir == hermes_home / "attachments"
        assert (db.sessions_dir / "s.jsonl").exists()
        assert db.read_only is False


def test_another_file_name_has_its_own_folders(tmp_path, sqlite_only):
    from hermes_state import SessionDB

    with SessionDB(db_path=tmp_path / "deep" / "er" / "work.db") as db:
        assert db.sessions_dir == tmp_path / "deep" / "er" / "work.sessions"
        assert db.attachments_dir == tmp_path / "deep" / "er" / "work.attachments"
        talk(db, "s", "hello")
        assert (db.sessions_dir / "s.jsonl").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_home_and_files_are_the_owners_alone(hermes_home, sqlite_only):
    from hermes_state import SessionDB

    old = os.umask(0o022)
    try:
        with SessionDB() as db:
            talk(db, "s", "hello")
            assert stat.S_IMODE(hermes_home.stat().st_mode) == 0o700
            for path in hermes_home.rglob("*"):
                if path.is_file():
                    assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    finally:
        os.umask(old)


# ------------------------------------------------------------------ read-only


@pytest.fixture
def reader(make_db):
    db = make_db(name="x")
    old_session(db, "old", 200)
    talk(db, "s", "a heron 文件 getHeronById", "yes")
    db.set_session_title("s", "bird")
    db.close()
    return make_db(name="x", read_only=True)


def test_a_reader_reads_lists_and_searches(reader):
    assert reader.read_only is True
    assert shown(reader, "s") == ["a heron 文件 getHeronById", "yes"]
    assert ids(reader.list_sessions_rich()) == ["s", "old"]
    for query in ("heron", "文件", "HeronBy", "her*"):
        assert len(found(reader, query)) == 1, query
    assert found(reader, "heron") <= found(reader, "what about that heron then")  # with the message after it
    assert reader.resolve_session_by_title("bird") == "s"
    assert len(reader.export_all()) == 2
    assert reader.get_meta("nothing") is None


WRITES = {
    "create_session": lambda db: db.create_session("new", "cli"),
    "ensure_session": lambda db: db.ensure_session("new"),
    "append_message": lambda db: db.append_message("s", "user", "x"),
    "replace_messages": lambda db: db.replace_messages("s", []),
    "clear_messages": lambda db: db.clear_messages("s"),
    "end_session": lambda db: db.end_session("s", "x"),
    "reopen_session": lambda db: db.reopen_session("old"),
    "update_system_prompt": lambda db: db.update_system_prompt("s", "x"),
    "update_token_counts": lambda db: db.update_token_counts("s", input_tokens=1),
    "set_session_title": lambda db: db.set_session_title("s", "x"),
    "delete_session": lambda db: db.delete_session("s"),
    "prune_sessions": lambda db: db.prune_sessions(),
    "trash_session": lambda db: db.trash_session("s"),
    "branch_session": lambda db: db.branch_session("s", "b"),
    "compress_session": lambda db: db.compress_session("s", "b", summary="x"),
    "rewind": lambda db: db.rewind("s", db.get_messages("s")[0]["id"]),
    "set_meta": lambda db: db.set_meta("k", "v"),
    "tag_session": lambda db: db.tag_session("s", "t"),
    "pin_session": lambda db: db.pin_session("s"),
    "archive_session": lambda db: db.archive_session("s"),
    "share_session": lambda db: db.share_session("s", "telegram", "1"),
    "request_handoff": lambda db: db.request_handoff("s", "telegram"),
    "acquire_lease": lambda db: db.acquire_lease("x", "me"),
    "hold_session": lambda db: db.hold_session("s", "me"),
    "import_session": lambda db: db.import_session({"id": "new", "source": "cli", "started_at": 1.0, "messages": []}),
    "vacuum": lambda db: db.vacuum(),
}


@pytest.mark.parametrize("call", WRITES)
def test_a_reader_refuses_to_write(reader, call):
    from hermes.errors import StoreReadOnly

    files = sorted(path.name for path in reader.sessions_dir.glob("*.jsonl"))
    before = reader.export_all()
    with pytest.raises(StoreReadOnly):
        WRITES[call](reader)
    assert reader.export_all() == before
    assert sorted(path.name for path in reader.sessions_dir.glob("*.jsonl")) == files


def test_a_reader_sees_what_a_writer_adds(make_db):
    writer = make_db(name="x")
    talk(writer, "s", "a heron")
    reader = make_db(name="x", read_only=True)
    writer.append_message("s", "assistant", "an egret")
    assert shown(reader, "s") == ["a heron", "an egret"]
    assert len(found(reader, "egret")) == 1


def test_a_reader_of_nothing_is_a_typed_error_and_makes_nothing(make_db, tmp_path, sqlite_only):
    from hermes.errors import HermesError

    with pytest.raises(HermesError):
        make_db(name="missing", read_only=True)
    assert not (tmp_path / "store-missing" / "state.db").exists()

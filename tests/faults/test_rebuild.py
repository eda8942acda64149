"""A database, or its WAL, is lost: the transcripts bring everything back, in order and as it stood."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import HermesError
from hermes_state import SessionDB
from tests.support.lives import LIVES, Life, Step, all_ids, assert_stays_away, facts, undone

pytestmark = pytest.mark.filterwarnings("ignore:.*lost its newest messages")


def shown(db: SessionDB, name: str) -> list[Any]:
    return [message["content"] for message in db.get_messages(name)]


def lost(home: Path, *, database: Path | None) -> Path:
    """A copy of a store whose processes were killed, with an earlier database (None: with none) and without its WAL."""
    copy = home.with_name(home.name + "-lost")
    shutil.copytree(home, copy, ignore=shutil.ignore_patterns("state.db*"))
    if database is not None:
        shutil.copy(database, copy / "state.db")
    return copy


@given(before=LIVES, after=LIVES, more=st.lists(st.integers(0, 40), max_size=3), whole=st.booleans())
def test_a_rebuild_brings_back_what_was_lost_as_it_stood(
    tmp_path_factory: pytest.TempPathFactory, before: list[Step], after: list[Step], more: list[int], whole: bool
) -> None:
    """The WAL, with everything of the life `after`, or the file is lost; `more` are the sessions in which people go on."""
    home = tmp_path_factory.mktemp("life") / "home"
    with SessionDB(home / "state.db") as db:
        life = Life(db)
        life.live(before)
    kept = home.with_name("kept.db")
    shutil.copy(home / "state.db", kept)
    with SessionDB(home / "state.db") as db:
        life.db = db
        life.live(after)
        db.append_message(life.names[0], "user", "heron last") if life.names[0] in all_ids(db) else life._open()
        expected = facts(db, lists=False)
        copy = lost(home, database=None if whole else kept)
        back = undone(db)
    with SessionDB(copy / "state.db") as db:
        later: dict[str, list[str]] = {}
        for number, place in enumerate(more):
            name = sorted(expected["sessions"])[place % len(expected["sessions"])]
            with suppress(HermesError):  # it was in the trash then
                db.ensure_session(name, "cli")
                db.append_message(name, "user", f"later {number}")
                later.setdefault(name, []).append(f"later {number}")
        db.rebuild()
        assert db.check() == []
        told = facts(db, lists=False)
        for name, was in expected["sessions"].items():
            if name in later:
                assert shown(db, name) == [*(one["content"] for one in was["shown"]), *later[name]]
                assert (db.get_session_title(name), db.get_tags(name)) == (was["session"]["title"], was["tags"])
            else:
                assert told["sessions"][name] == was
        assert told["sessions"].keys() == expected["sessions"].keys()
        trashed = {one["id"] for one in expected["trash"]}  # what was deleted at last may be there as well
        assert [one for one in told["trash"] if one["id"] in trashed] == expected["trash"]
        assert_stays_away(db, life.gone)
        if not later:
            assert undone(db) == back
            assert_stays_away(db, life.gone)


def test_after_a_lost_wal_ids_are_not_given_again_and_a_repair_loses_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with SessionDB(home / "state.db") as db:
        db.create_session("a", "cli")
        db.append_message("a", "user", "one")
    shutil.copy(home / "state.db", tmp_path / "kept.db")
    with SessionDB(home / "state.db") as db:
        for number in range(20):
            db.append_message("a", "user", f"lost {number}")
        db.set_session_title("a", "work")
        copy = lost(home, database=tmp_path / "kept.db")
    with pytest.warns(UserWarning, match="rebuild"):
        db = SessionDB(copy / "state.db")
    with db:
        db.append_message("a", "user", "new")
        assert [one["kind"] for one in db.check()] == ["lost", "transcript"]
        db.repair()
        assert shown(db, "a") == ["one", *(f"lost {number}" for number in range(20)), "new"]
        assert db.get_session_title("a") == "work" and db.check() == []


def test_a_fresh_database_beside_old_transcripts_gives_other_ids_and_says_what_is_missing(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("a", "cli")
        db.append_message("a", "user", "of old")
    (tmp_path / "state.db").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        db = SessionDB(tmp_path / "state.db")
    with db:
        db.create_session("b", "cli")
        assert db.append_message("b", "user", "new") > 1
        (found,) = db.check()
        assert (found["kind"], found["where"]) == ("transcript", "a.jsonl") and "rebuild" in found["detail"]
        db.rebuild()
        assert shown(db, "a") == ["of old"] and shown(db, "b") == ["new"] and db.check() == []


def killed(home: Path) -> Path:
    """A copy of a store as a killed process leaves it, with some of its pages in the WAL."""
    with SessionDB(home / "state.db") as db:
        db.create_session("z", "cli")
        db.create_session("a", "cli")
        for number in range(100):
            db.append_message("z", "user", "other " * 200)
            db.append_message("a", "user", f"{number} " + "word " * 100)
        db.delete_session("z")  # a new file has other pages
    with SessionDB(home / "state.db") as db:
        for number in range(100):
            db.append_message("a", "user", f"{number} " + "word " * 100)
        copy = home.with_name(home.name + "-killed")
        shutil.copytree(home, copy)
    return copy


@pytest.mark.parametrize("damage", ["line", "end"])
def test_a_row_stays_although_its_line_is_damaged(tmp_path: Path, damage: str) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("a", "cli")
        db.append_message("a", "user", "gone")
        db.replace_messages("a", [{"role": "user", "content": f"message {number}"} for number in range(6)])
        path = tmp_path / "sessions" / "a.jsonl"
        data = path.read_bytes()
        path.write_bytes(
            data.replace(b'"message 2"', b'"message 2') if damage == "line" else data[: len(data) * 2 // 3]
        )
        db.rebuild()
        assert shown(db, "a") == [f"message {number}" for number in range(6)] and db.check() == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from hermes.cli.main import script
when, replace = sys.argv.pop(), os.replace
def last(old, new, **options):
    if Path(new).name == "state.db":
        when == "after" and replace(old, new, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    replace(old, new, **options)
os.replace = last
script()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rebuild_that_is_killed_leaves_a_store_that_can_be_repaired(tmp_path: Path, when: str) -> None:
    copy = killed(tmp_path / "home")
    arguments = [sys.executable, "-c", _KILLED, "sessions", "rebuild", str(copy / "state.db"), when]
    done = subprocess.run(arguments, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with SessionDB(copy / "state.db") as db:
        assert {one["kind"] for one in db.check()} <= {"lost", "transcript"}
        db.repair()
        assert len(shown(db, "a")) == 200 and db.check() == []


_WRITES = """
import sys
from hermes.errors import StoreError
from hermes.errors import HermesError
from hermes_state import SessionDB
db = SessionDB(sys.argv[1], transcripts=sys.argv[2])
try:
    for number in range(1_000_000):
        db.append_message("a", "user", f"written {number}")
        print(f"written {number}", flush=True)
except (StoreError, BrokenPipeError):
    pass
"""


@pytest.mark.parametrize("transcripts", ["all", "off"])
def test_what_others_store_during_a_rebuild_is_not_lost(tmp_path: Path, transcripts: str) -> None:
    path = tmp_path / "state.db"
    with SessionDB(path, transcripts=transcripts) as db:
        db.create_session("a", "cli")
        for number in range(300):
            db.append_message("a", "user", f"before {number}")
    arguments = [sys.executable, "-c", _WRITES, str(path), transcripts]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline()
        with SessionDB(path, transcripts=transcripts) as db:
            db.rebuild()
            assert {line.rstrip() for line in writer.stdout} <= set(shown(db, "a"))


FOREIGN = {
    "no-id": '{"type":"session","session":{"id":null}}\n{"role":"user","content":"x"}\n',
    "odd-title": '{"type":"event","set":{"title":5}}\n{"role":"user","content":"x"}\n',
    "odd-rows": '{"type":"event","tags":[{"a":1}],"refs":[1],"hidden":[[1]]}\n{"role":"user","content":"x"}\n',
    "huge-id": '{"role":"user","id":99999999999999999999999,"content":"x"}\n',
    "empty": "",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_strange_file_among_the_transcripts_stops_nothing(tmp_path: Path, name: str) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("a", "cli")
        db.append_message("a", "user", "one")
    folder = tmp_path / "sessions"
    (folder / f"{name}.jsonl").write_text(FOREIGN[name])
    (folder / "folder.jsonl").mkdir()
    (folder / "nowhere.jsonl").symlink_to(tmp_path / "missing")
    (folder / "bytes.jsonl").write_bytes(b"\x8bHERMES\x01" + bytes(80))  # no text at all
    (tmp_path / "state.db").unlink()
    with SessionDB(tmp_path / "state.db") as db:
        db.check()
        db.rebuild()
        assert shown(db, "a") == ["one"]
        assert {one["where"] for one in db.check()} <= {"bytes.jsonl", f"{name}.jsonl"}


def test_tables_of_other_programs_come_along_with_their_indexes(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with SessionDB(path) as db:
        db.create_session("a", "cli")
        db.append_message("a", "user", "one")
    other = sqlite3.connect(path)
    other.executescript("""
        CREATE TABLE "my notes" (id INTEGER PRIMARY KEY, "order" TEXT); INSERT INTO "my notes" VALUES (1, 'first');
        CREATE INDEX by_order ON "my notes" ("order");
        CREATE VIRTUAL TABLE words_of_mine USING fts5(text); INSERT INTO words_of_mine VALUES ('heron');
    """)
    other.close()
    with SessionDB(path) as db:
        db.rebuild()
        assert db.sql('SELECT * FROM "my notes"') == [{"id": 1, "order": "first"}]
        assert db.sql("SELECT text FROM words_of_mine WHERE words_of_mine MATCH 'heron'") == [{"text": "heron"}]
        assert db.sql("SELECT 1 AS there FROM sqlite_master WHERE name = 'by_order'") == [{"there": 1}]
        assert shown(db, "a") == ["one"] and db.check() == []


@pytest.mark.parametrize("first", ["a", "b"])
def test_an_older_database_that_is_put_back_gives_no_id_again_and_writes_every_line(tmp_path: Path, first: str) -> None:
    path = tmp_path / "state.db"
    with SessionDB(path) as db:
        for name in ("a", "b"):
            db.create_session(name, "cli")
            db.append_message(name, "user", "one")
    shutil.copy(path, tmp_path / "kept.db")
    with SessionDB(path) as db:
        for name in ("b", "a", "b", "a"):
            db.append_message(name, "user", "lost")
    for file in tmp_path.glob("state.db*"):
        file.unlink()
    shutil.copy(tmp_path / "kept.db", path)
    with SessionDB(path) as db:
        for name in (first, "b", "a"):
            db.append_message(name, "user", "new")
            assert b'"new"' in (tmp_path / "sessions" / f"{name}.jsonl").read_bytes()
        assert "lost" in {one["kind"] for one in db.check()}
        db.repair()
        for name in ("a", "b"):
            assert shown(db, name) == ["one", "lost", "lost", "new", *(["new"] if name == first else [])]
        assert db.check() == []

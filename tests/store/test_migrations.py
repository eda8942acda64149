"""Files of schema versions 1 to 11 open, upgrade, keep every row and are searchable at once, kills or not."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import StoreReadOnly
from hermes_state import SessionDB
from support import (
    COMPRESSED_FROM,
    assert_all_found,
    assert_rows_kept,
    digest,
    expected_listing,
    found,
    listing,
    plain_sql,
    start_python,
    tip_of,
)
from support.old_files import OLD_VERSIONS, ROOT, TIP, build, columns
from tests.support.sizes import size, some

Made = dict[str, Any]
Maker = Callable[..., tuple[Path, Made]]
every_version = pytest.mark.parametrize("version", OLD_VERSIONS)
# What follows from rows that are all there: the oldest, the newest and two between them, or all.
some_versions = pytest.mark.parametrize("version", some(OLD_VERSIONS, 4))


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    """Each kind of old file is built once; tests work on copies."""
    folder = tmp_path_factory.mktemp("originals")
    made: dict[str, tuple[Path, Made]] = {}

    def original(version: int, **how: Any) -> tuple[Path, Made]:
        key = f"{version}-{sorted(how.items())}"
        if key not in made:
            path = folder / f"{len(made)}.db"
            made[key] = path, build(path, version, **how)
        return made[key]

    yield original
    shutil.rmtree(folder)


@pytest.fixture
def old_file(originals: Maker, tmp_path: Path) -> Iterator[Maker]:
    """old_file(version, …) → a copy of its own at <folder>/state.db, and what is in it."""
    copies = 0

    def copy(version: int, **how: Any) -> tuple[Path, Made]:
        nonlocal copies
        copies += 1
        source, made = originals(version, **{"fill": "small", **how})
        return copy_file(source, tmp_path / f"old{copies}" / "state.db"), made

    yield copy
    for number in range(1, copies + 1):  # pytest would keep them all for three runs
        shutil.rmtree(tmp_path / f"old{number}")


def copy_file(source: Path, target: Path) -> Path:
    target.parent.mkdir()
    for end in ("", "-wal"):
        if Path(f"{source}{end}").exists():
            shutil.copyfile(f"{source}{end}", f"{target}{end}")
    return target


def titled(made: Made) -> dict[str, str]:
    return {row["title"]: row["id"] for row in made["sessions"] if row.get("title")}


# ── the builder itself ──


@some_versions
def test_the_builder_makes_what_the_version_had(version, old_file):
    path, made = old_file(version)
    for table in ("sessions", "messages"):
        assert [row[1] for row in plain_sql(path, f"PRAGMA table_info({table})")] == columns(table, version)
        assert plain_sql(path, f"SELECT count(*) FROM {table}") == [(len(made[table]),)]
    assert plain_sql(path, "SELECT version FROM schema_version") == [(version,)]
    assert plain_sql(path, "SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'kestrelwing'") == [(1,)]
    in_a_call = plain_sql(path, "SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'sorrelpatch'")
    assert bool(in_a_call) == (version >= 11)
    trigram = plain_sql(path, "SELECT 1 FROM sqlite_master WHERE name = 'messages_fts_trigram'")
    assert bool(trigram) == (version >= 10)
    assert plain_sql(path, "PRAGMA integrity_check") == [("ok",)]


# ── nothing is lost ──


@every_version
def test_every_row_is_kept_column_by_column(version, old_file):
    path, made = old_file(version, fill="standard")
    with SessionDB(db_path=path) as db:
        numbers = assert_rows_kept(db, made)
        db.catch_up()
        assert_rows_kept(db, made)
    assert all(new == old for new, old in numbers.items())


@some_versions
def test_a_file_just_taken_over_is_sound_and_needs_no_repair(version, old_file):
    path, made = old_file(version, fill="standard")
    with SessionDB(db_path=path) as db:
        kinds = {problem["kind"] for problem in db.check()}
        assert "corruption" not in kinds, "the old index is only set aside"
        db.catch_up()
        assert db.check() == []
        assert_rows_kept(db, made)


@some_versions
def test_plain_sql_still_reads_the_rows_as_they_were(version, old_file):
    path, made = old_file(version)
    with SessionDB(db_path=path) as db:
        db.catch_up()
    # The system prompt may have moved to where equal ones are kept once; long tool output may be compressed.
    for table, apart in (("sessions", {"system_prompt"}), ("messages", {"content"})):
        names = [name for name in columns(table, version) if name not in apart]
        rows = plain_sql(path, f"SELECT {', '.join(names)} FROM {table} ORDER BY rowid")
        assert rows == [tuple(row[name] for name in names) for row in made[table]]
    texts = dict(plain_sql(path, "SELECT id, content FROM messages"))
    for row in made["messages"]:
        if row["role"] != "tool" or len(row["content"]) <= COMPRESSED_FROM:
            assert texts[row["id"]] == row["content"]


@every_version
def test_everything_is_found_at_once_and_after_catching_up(version, old_file):
    path, made = old_file(version, fill="standard")
    with SessionDB(db_path=path) as db:
        assert_all_found(db, made)
        db.catch_up()
        assert db.index_status()["pending"] == 0
        assert_all_found(db, made)
        assert db.check() == []
    with SessionDB(db_path=path) as db:
        assert_all_found(db, made)


@pytest.mark.parametrize("version", [1, 11])
def test_every_hit_in_an_upgraded_file_is_marked(version, old_file):
    path, made = old_file(version)
    with SessionDB(db_path=path) as db:
        for _ in range(2):
            hits = {text: db.search_messages(text) for text in made["finds"]}
            marked = {text for text, some in hits.items() if all(">>>" in hit["snippet"] for hit in some)}
            assert set(hits) - marked == set()
            db.catch_up()


@some_versions
def test_the_list_shows_previews_and_last_activity(version, old_file):
    path, made = old_file(version)
    expected = expected_listing(made)
    with SessionDB(db_path=path) as db:
        assert listing(db) == expected
        by_activity = sorted(expected, key=lambda row: -row[2])
        assert listing(db, order_by_last_active=True) == by_activity


@some_versions
def test_compressed_chains_lead_to_their_tip(version, old_file):
    path, made = old_file(version)
    tips = {row["id"]: tip_of(made, row["id"]) for row in made["sessions"]}
    assert any(one != tip for one, tip in tips.items())
    with SessionDB(db_path=path) as db:
        assert {one: db.get_compression_tip(one) for one in tips} == tips
        chain = next(row for row in db.list_sessions_rich(limit=1000) if row["id"] == TIP)
        assert chain["_lineage_root_id"] == ROOT
        assert (chain["message_count"], chain["ended_at"]) == (2, None)


@pytest.mark.parametrize("version", some([version for version in OLD_VERSIONS if version >= 3], 3))
def test_titles_resolve_by_their_family(version, old_file):
    path, made = old_file(version)
    holders = titled(made)
    newest = {
        "my project": "my project #3",
        "My Project": "My Project",
        "notes": "notes #2",
        "bug": "bug",
        "bug #login page": "bug #login page",
        "100%_done": "100%_done #2",
        "项目 🦊": "项目 🦊",
    }
    with SessionDB(db_path=path) as db:
        for title, session_id in holders.items():
            assert db.get_session_by_title(title)["id"] == session_id
            assert db.get_session_title(session_id) == title
        assert {base: db.resolve_session_by_title(base) for base in newest} == {
            base: holders[title] for base, title in newest.items()
        }
        assert db.resolve_session_by_title("bug #login") is None
        assert db.get_next_title_in_lineage("my project") == "my project #4"
        assert db.get_next_title_in_lineage("bug") == "bug #2"


@pytest.mark.parametrize("version", [1, 2])
def test_files_from_before_titles_can_be_titled(version, old_file):
    path, made = old_file(version)
    first, second = made["sessions"][0]["id"], made["sessions"][1]["id"]
    with SessionDB(db_path=path) as db:
        assert db.get_session_title(first) is None
        assert db.set_session_title(first, "at last")
        with pytest.raises(ValueError, match=first):
            db.set_session_title(second, "at last")
        assert db.resolve_session_by_title("at last") == first


def test_meta_values_are_kept(old_file):
    path, made = old_file(11)
    with SessionDB(db_path=path) as db:
        assert {key: db.get_meta(key) for key in made["meta"]} == made["meta"] != {}


# ── the file afterwards ──


@some_versions
def test_the_file_says_eleven_and_writes_to_the_index_by_no_trigger(version, old_file):
    path, _ = old_file(version)
    SessionDB(db_path=path).close()
    assert plain_sql(path, "SELECT version FROM schema_version") == [(11,)]
    assert plain_sql(path, "SELECT count(*) FROM sqlite_master WHERE name = 'messages_fts'") == [(1,)]
    triggers = plain_sql(path, "SELECT name, lower(sql) FROM sqlite_master WHERE type = 'trigger'")
    writing = ("into messages_fts", "from messages_fts", "update messages_fts")
    assert [name for name, sql in triggers if any(words in sql for words in writing)] == []
    for table in ("sessions", "messages"):
        now = {row[1] for row in plain_sql(path, f"PRAGMA table_info({table})")}
        assert now >= set(columns(table, 11))
    assert plain_sql(path, "PRAGMA integrity_check") == [("ok",)]
    assert plain_sql(path, "PRAGMA foreign_key_check") == []


@some_versions
def test_opening_a_second_time_changes_nothing(version, old_file):
    path, made = old_file(version)
    with SessionDB(db_path=path) as db:
        db.catch_up()

    def state() -> list[Any]:
        asked = (
            "PRAGMA schema_version",
            "SELECT * FROM schema_version",
            "SELECT * FROM sessions ORDER BY id",
            "SELECT * FROM messages ORDER BY id",
            "SELECT type, name, sql FROM sqlite_master ORDER BY name",
        )
        return [plain_sql(path, statement) for statement in asked]

    before = state()
    with SessionDB(db_path=path) as db:
        assert db.catch_up() == 0
        assert_rows_kept(db, made)
    assert state() == before


@every_version
def test_the_conversation_goes_on_in_an_upgraded_file(version, old_file):
    path, made = old_file(version)
    session = made["sessions"][-1]
    calls = [{"id": "c9", "function": {"name": "terminal", "arguments": '{"x": "gorsebright"}'}}]
    with SessionDB(db_path=path) as db:
        one = db.append_message(session["id"], "user", "Newly said: velvetmire 新語")
        two = db.append_message(session["id"], "assistant", None, tool_calls=calls)
        assert made["last_id"] < one < two  # a number once given out is never used again
        assert found(db, "velvetmire") == found(db, "新語") == [one]
        assert found(db, "gorsebright") == [two]
        row = db.get_session(session["id"])
        assert row["message_count"] == session["message_count"] + 2
        assert row["tool_call_count"] == session["tool_call_count"] + 1
        assert listing(db, order_by_last_active=True)[0][0] == session["id"]
        db.create_session("brand-new", "cli")
        three = db.append_message("brand-new", "user", "Hello thimblewick")
        assert db.delete_session(made["sessions"][0]["id"])
        assert found(db, "kestrelwing") == []
        assert found(db, "thimblewick") == [three]
        db.catch_up()
        assert db.check() == []


# ── read-only ──


READ_ONLY_FILES = {"state.db", "state.db-wal", "state.db-shm"}


@some_versions
def test_an_old_file_can_be_read_and_searched_without_a_byte_of_it_changing(version, old_file):
    path, made = old_file(version)
    before = digest(path)
    with SessionDB(db_path=path, read_only=True) as db:
        assert db.read_only is True
        assert_rows_kept(db, made)
        assert_all_found(db, made)
        assert listing(db) == expected_listing(made)
        assert len(db.export_all()) == len(made["sessions"])
        for title, session_id in titled(made).items():
            assert db.get_session_by_title(title)["id"] == session_id
        with pytest.raises(StoreReadOnly):
            db.append_message(made["sessions"][0]["id"], "user", "no")
        with pytest.raises(StoreReadOnly):
            db.create_session("no", "cli")
    assert digest(path) == before
    assert {one.name for one in path.parent.iterdir()} <= READ_ONLY_FILES


@pytest.mark.parametrize("version", [6, 11])
def test_rows_that_a_killed_program_left_in_the_wal_are_read_in_place(version, old_file):
    path, made = old_file(version, leave_wal=True)
    before = digest(path)
    assert len(before) == 2
    with SessionDB(db_path=path, read_only=True) as db:
        assert_rows_kept(db, made)
        assert_all_found(db, made)
    assert digest(path) == before


@some_versions
def test_rows_that_a_killed_program_left_in_the_wal_are_upgraded_too(version, old_file):
    path, made = old_file(version, leave_wal=True)
    with SessionDB(db_path=path) as db:
        assert_rows_kept(db, made)
        assert_all_found(db, made)
        db.catch_up()
        assert db.check() == []


# ── files that are not as their number says ──


ODD_FILES = {
    "grown from version 1 to 6": (6, {"grown": True}),
    "grown from version 1 to 11": (11, {"grown": True}),
    "columns ahead of the number": (9, {"number": 6}),
    "columns behind the number": (6, {"number": 9}),
    "the old index under the new number": (9, {"number": 11}),
    "the new index under an old number": (11, {"number": 9}),
    "killed before the number was written": (6, {"number": 0}),
}


@pytest.mark.parametrize("name", ODD_FILES)
def test_a_file_left_half_way_by_the_old_program_opens_whole(name, old_file):
    version, how = ODD_FILES[name]
    path, made = old_file(version, **how)
    with SessionDB(db_path=path) as db:
        assert_rows_kept(db, made)
        assert_all_found(db, made)
        db.catch_up()
        assert_all_found(db, made)
        assert db.check() == []
    assert plain_sql(path, "SELECT version FROM schema_version") == [(11,)]


def test_equal_titles_from_before_the_unique_index_keep_both_sessions(old_file):
    path, made = old_file(3)
    plain_sql(path, "UPDATE sessions SET title = 'bug' WHERE title = 'My Project'")
    holders = titled(made)
    pair = [holders["bug"], holders["My Project"]]
    with SessionDB(db_path=path) as db:
        assert db.session_count() == len(made["sessions"])
        assert_all_found(db, made)
        titles = [db.get_session_title(one) for one in pair]
        assert titles.count("bug") == 1
        other = next(title for title in titles if title != "bug")
        assert other is None or other.startswith("bug #")
        assert db.resolve_session_by_title("bug") in pair
        assert db.check() == []


# ── kill -9 ──


OPENER = """
import sys, time
from pathlib import Path
from hermes_state import SessionDB

print("ready", flush=True)
sys.stdin.readline()
began = time.perf_counter()
with SessionDB(db_path=Path(sys.argv[1])) as db:
    if len(sys.argv) > 2:
        db.append_message(sys.argv[2], "user", sys.argv[3])
    db.catch_up()
print(time.perf_counter() - began, flush=True)
"""
KILLS = size(3, 12)


def opener(path: Path, *more: str) -> subprocess.Popen[str]:
    """A process that has imported everything and opens the file when it is told to."""
    process = start_python(OPENER, path, *more)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def finished(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out


def open_and_kill(path: Path, after: float) -> int:
    process = opener(path)
    tell(process)
    time.sleep(after)  # not a wait for anything: this is the moment the power goes
    process.kill()
    process.communicate()
    return process.returncode


def whole_open(old_file: Maker, version: int) -> float:
    """How long one undisturbed open with all indexing takes here: the span the kills are spread over."""
    path, _ = old_file(version, sessions=60)
    process = opener(path)
    tell(process)
    return float(finished(process))


def assert_sound(path: Path, made: Made) -> None:
    with SessionDB(db_path=path) as db:
        assert_rows_kept(db, made)
        assert_all_found(db, made)
        db.catch_up()
        assert_all_found(db, made)
        assert db.check() == []


@pytest.mark.parametrize("version", some([6, 11], 1))
def test_a_kill_at_any_moment_of_the_upgrade_loses_nothing(version, old_file):
    span = whole_open(old_file, version)
    ends = []
    for step in range(KILLS):
        path, made = old_file(version, sessions=60)
        ends.append(open_and_kill(path, span * step / (KILLS - 1)))
        assert_sound(path, made)
    assert ends[0] == -signal.SIGKILL


@pytest.mark.parametrize("version", some([6, 11], 1))
def test_an_upgrade_that_is_killed_again_and_again_still_ends_whole(version, old_file):
    span = whole_open(old_file, version)
    path, made = old_file(version, sessions=60)
    for step in range(KILLS):
        open_and_kill(path, span * (step % 5) / 8)
    assert_sound(path, made)


# ── two at once ──


@pytest.mark.parametrize("version", some([1, 6, 10, 11], 2))
def test_two_processes_upgrade_the_same_file_at_the_same_moment(version, old_file):
    path, made = old_file(version, sessions=20)
    session = made["sessions"][-1]
    words = ["leftspoken", "rightspoken"]
    both = [opener(path, session["id"], word) for word in words]
    for process in both:
        tell(process)
    for process in both:
        finished(process)
    with SessionDB(db_path=path) as db:
        new = [found(db, word) for word in words]
        assert [len(one) for one in new] == [1, 1]
        assert db.message_count() == len(made["messages"]) + 2
        assert db.get_session(session["id"])["message_count"] == session["message_count"] + 2
        kept = [row["id"] for row in db.get_messages(session["id"])]
        assert sorted(kept) == kept
        assert {one[0] for one in new} == set(kept[-2:])
        assert_all_found(db, made)
        assert db.session_count() == len(made["sessions"])
        db.catch_up()
        assert db.check() == []


@pytest.mark.parametrize("left", [1, 4])
def test_an_old_index_that_is_half_removed_is_no_damage(tmp_path, left):
    """As a kill in the background after an upgrade leaves it: the next process that opens the file for writing removes the rest."""
    path = tmp_path / "state.db"
    with SessionDB(db_path=path) as db:
        db.create_session("talk", "cli")
        db.append_message("talk", "user", "hello")
    with closing(sqlite3.connect(path)) as file:
        for table, tokenizer in (("old_messages_fts", "unicode61"), ("old_messages_fts_trigram", "trigram")):
            file.execute(
                f"CREATE VIRTUAL TABLE {table} USING fts5(content, tool_name, tool_calls, tokenize='{tokenizer}')"
            )
            file.executemany(
                f"INSERT INTO {table}(rowid, content) VALUES(?, ?)", [(n, f"word{n * 7919}") for n in range(300)]
            )
            file.commit()
            file.execute(
                f"DELETE FROM {table}_data WHERE id IN (SELECT id FROM {table}_data WHERE id > 10 LIMIT {left})"
            )
            file.commit()
    with SessionDB(db_path=path, read_only=True) as db:
        assert db.check() == []
    with SessionDB(db_path=path) as db:
        assert db.repair() == []
        assert [message["content"] for message in db.get_messages("talk")] == ["hello"]

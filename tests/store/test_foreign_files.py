"""Files and rows of other programs.

Newer files are read and imported but never altered; an older program may write into our file beside us; and a
file that is no database is called so.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import HermesError, NotADatabase, StoreCorrupt, StoreError, StoreReadOnly
from hermes_state import SessionDB
from support import (
    assert_all_found,
    assert_rows_kept,
    comparable,
    digest,
    expected_listing,
    found,
    listing,
    plain_sql,
    tip_of,
)
from support.old_files import ROOT, TIP, build, build_foreign, not_a_database, schema, truncated

FOREIGN = [(12, True), (19, True), (30, True), (30, False)]
OWN_FILES = {"state.db", "state.db-wal", "state.db-shm"}


def open_foreign(path: Path) -> Any:
    """Open without a word; that there is a word has a test of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SessionDB(db_path=path)


# ── newer files ──


@pytest.mark.parametrize(("version", "full_text"), FOREIGN)
def test_a_newer_file_opens_read_only_with_one_warning_that_names_its_version(version, full_text, tmp_path):
    path = tmp_path / "theirs" / "state.db"
    build_foreign(path, version, full_text=full_text)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        db = SessionDB(db_path=path)
    with db:
        assert db.read_only is True
    about = [str(one.message) for one in said if issubclass(one.category, UserWarning)]
    assert len(about) == 1
    assert str(version) in about[0]


@pytest.mark.parametrize(("version", "full_text"), FOREIGN)
def test_a_newer_file_is_read_and_searched_without_a_byte_of_it_changing(version, full_text, tmp_path):
    path = tmp_path / "theirs" / "state.db"
    made = build_foreign(path, version, full_text=full_text)
    before = digest(path)
    with open_foreign(path) as db:
        assert_rows_kept(db, made)
        assert_all_found(db, made)
        assert listing(db) == expected_listing(made)
        assert db.get_compression_tip(ROOT) == tip_of(made, ROOT) == TIP
        assert db.resolve_session_by_title("my project") == TIP
        exported = {one["id"]: one for one in db.export_all()}
        assert {row["id"] for row in made["sessions"]} == set(exported)
        assert sum(len(one["messages"]) for one in exported.values()) == len(made["messages"])
        calls = [row for row in made["messages"] if row["tool_calls"]]
        for row in calls:
            said = next(one for one in exported[row["session_id"]]["messages"] if one["id"] == row["id"])
            assert comparable("tool_calls", said["tool_calls"]) == json.loads(row["tool_calls"])
        assert db.get_messages_as_conversation(TIP)[0]["role"] == "user"
    assert digest(path) == before
    assert {one.name for one in path.parent.iterdir()} <= OWN_FILES


def test_a_newer_file_with_rows_left_in_its_wal_is_not_altered_either(tmp_path):
    path = tmp_path / "theirs" / "state.db"
    made = build_foreign(path, 19, leave_wal=True)
    before = digest(path)
    assert len(before) == 2
    with open_foreign(path) as db:
        assert_rows_kept(db, made)
        assert_all_found(db, made)
    assert digest(path) == before


WRITES: dict[str, Callable[[Any], Any]] = {
    "create_session": lambda db: db.create_session("new", "cli"),
    "append_message": lambda db: db.append_message(ROOT, "user", "no"),
    "replace_messages": lambda db: db.replace_messages(ROOT, [{"role": "user", "content": "no"}]),
    "end_session": lambda db: db.end_session(TIP, "done"),
    "update_token_counts": lambda db: db.update_token_counts(ROOT, input_tokens=1),
    "set_session_title": lambda db: db.set_session_title(ROOT, "no"),
    "delete_session": lambda db: db.delete_session(ROOT),
    "tag_session": lambda db: db.tag_session(ROOT, "no"),
    "compress_session": lambda db: db.compress_session(TIP, "new", summary="no"),
    "set_meta": lambda db: db.set_meta("key", "value"),
    "acquire_lease": lambda db: db.acquire_lease("name", "holder"),
    "import_session": lambda db: db.import_session({"id": "new", "source": "cli", "started_at": 1.0, "messages": []}),
    "vacuum": lambda db: db.vacuum(),
}


def answer(write: Callable[[Any], Any], db: Any) -> Any:
    try:
        return write(db)
    except StoreError as error:
        return error


@pytest.mark.parametrize("version", [12, 19, 30])
def test_every_write_to_a_newer_file_is_refused(version, tmp_path):
    path = tmp_path / "theirs" / "state.db"
    made = build_foreign(path, version)
    before = digest(path)
    with open_foreign(path) as db:
        said = {name: answer(write, db) for name, write in WRITES.items()}
        assert {name: error for name, error in said.items() if not isinstance(error, StoreReadOnly)} == {}
        assert all("state.db" in str(error) for error in said.values())
        assert_rows_kept(db, made)
    assert digest(path) == before


# ── import ──


def source_file(path: Path, version: int, **how: Any) -> dict[str, Any]:
    if version > 11:
        return build_foreign(path, version, **how)
    return build(path, version, **{"fill": "small", **how})


@pytest.mark.parametrize("version", [1, 6, 11, 12, 19, 30])
@pytest.mark.filterwarnings("ignore")
def test_importing_brings_everything_once_and_leaves_the_source_alone(version, tmp_path):
    source = tmp_path / "theirs.db"
    made = source_file(source, version)
    before = digest(source)
    with SessionDB(db_path=tmp_path / "ours" / "state.db") as db:
        done = db.import_database(source)
        assert done == {"sessions": len(made["sessions"]), "messages": len(made["messages"]), "skipped": 0}
        numbers = assert_rows_kept(db, made)
        assert_all_found(db, made, numbers)
        assert listing(db) == expected_listing(made)
        assert db.get_compression_tip(ROOT) == TIP

        again = db.import_database(source)
        assert (again["sessions"], again["messages"]) == (0, 0)
        assert again["skipped"] >= len(made["sessions"])
        assert assert_rows_kept(db, made) == numbers
        db.catch_up()
        assert_all_found(db, made, numbers)
        assert db.check() == []
    assert digest(source) == before


@pytest.mark.parametrize("kind", ["missing", "text", "directory", "truncated"])
def test_importing_what_is_no_database_is_a_typed_error_and_brings_nothing(kind, tmp_path):
    source = tmp_path / "theirs.db"
    if kind == "text":
        not_a_database(source)
    elif kind == "directory":
        source.mkdir()
    elif kind == "truncated":
        truncated(source)
    with SessionDB(db_path=tmp_path / "ours" / "state.db") as db:
        with pytest.raises(HermesError, match=r"theirs\.db"):
            db.import_database(source)
        assert db.check() == []
    assert source.exists() == (kind != "missing")


# ── another program writes into our file ──


class OldProgram:
    """What a schema 11 program does with a file: Python's sqlite3 and the statements such a program runs."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, timeout=20, isolation_level=None)
        self.db.execute("PRAGMA foreign_keys = ON")

    def run(self, *statements: tuple[str, list[Any]]) -> list[int | None]:
        self.db.execute("BEGIN IMMEDIATE")
        numbers = [self.db.execute(statement, values).lastrowid for statement, values in statements]
        self.db.execute("COMMIT")
        return numbers

    def start(self) -> None:
        """Start as that program does: make every missing table, index and trigger."""
        self.run(*((statement, []) for statement in schema(11)))

    def begin(self, session_id: str, at: float, title: str | None = None) -> None:
        added = (
            "INSERT OR IGNORE INTO sessions (id, source, user_id, model, model_config, system_prompt, "
            "parent_session_id, started_at) VALUES (?, 'cli', NULL, 'm', '{}', 'Be brief.', NULL, ?)"
        )
        self.run((added, [session_id, at]))
        if title:
            self.run(("UPDATE sessions SET title = ? WHERE id = ?", [title, session_id]))

    def say(self, session_id: str, role: str, text: str | None, at: float, **more: Any) -> Any:
        names = ["session_id", "role", "content", "timestamp", *more]
        values = [session_id, role, text, at, *more.values()]
        count = len(json.loads(more.get("tool_calls", "[]")))
        added = f"INSERT INTO messages ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        counted = (
            "UPDATE sessions SET message_count = message_count + 1, tool_call_count = tool_call_count + ? WHERE id = ?"
        )
        return self.run((added, values), (counted, [count, session_id]))[0]

    def delete(self, session_id: str) -> None:
        statements = ("DELETE FROM messages WHERE session_id = ?", "DELETE FROM sessions WHERE id = ?")
        self.run(*((statement, [session_id]) for statement in statements))


@contextlib.contextmanager
def old_program(path: Path) -> Iterator[OldProgram]:
    program = OldProgram(path)
    try:
        yield program
    finally:
        program.db.close()


LATER = 4_000_000_000.0  # after anything our own clock says
ARGUMENTS = json.dumps({"command": "x\nfennelbrook 検索"})
CALL = json.dumps([{"id": "c", "type": "function", "function": {"name": "terminal", "arguments": ARGUMENTS}}])
OUTPUT = json.dumps({"out": "a\npipistrel"})
either_way = pytest.mark.parametrize("with_triggers", [False, True], ids=["plain inserts", "own triggers"])


@either_way
def test_rows_of_another_program_are_found_and_listed_at_once(with_triggers, tmp_path):
    path = tmp_path / "ours" / "state.db"
    with SessionDB(db_path=path) as db:
        db.create_session("ours", "cli")
        mine = db.append_message("ours", "user", "We began with bramblekin")
        db.catch_up()
        with old_program(path) as other:
            if with_triggers:
                other.start()
            in_ours = other.say("ours", "assistant", "They answered tansyvale", LATER)
            assert found(db, "tansyvale") == [in_ours]
            assert listing(db)[0] == ("ours", "We began with bramblekin", LATER)

            other.begin("theirs", LATER + 1)
            assert listing(db)[0] == ("theirs", "", LATER + 1)
            first = other.say("theirs", "user", "  Asked   about\n捜査 sedgewhistle ", LATER + 2)
            called = other.say("theirs", "assistant", None, LATER + 3, tool_calls=CALL)
            answer = other.say("theirs", "tool", OUTPUT, LATER + 4, tool_name="terminal")
            texts = {"sedgewhistle": first, "捜": first, "捜査": first, "fennelbrook": called, "検索": called}
            texts |= {"pipistrel": answer, "bramblekin": mine, "tansyvale": in_ours}
            for text, number in texts.items():
                assert found(db, text) == [number], text
            assert found(db, "nfennelbrook") == found(db, "npipistrel") == []
            assert listing(db)[0] == ("theirs", "Asked about 捜査 sedgewhistle", LATER + 4)
            row = db.get_session("theirs")
            assert (row["message_count"], row["tool_call_count"], row["system_prompt"]) == (3, 1, "Be brief.")

            next_own = db.append_message("theirs", "assistant", "And we went on: cloverhythe")
            last = other.say("theirs", "user", "So did they: orrisroot", LATER + 5)
            assert [one["id"] for one in db.get_messages("theirs")] == [first, called, answer, next_own, last]
            assert [*found(db, "cloverhythe"), *found(db, "orrisroot")] == [next_own, last]
            assert db.get_session("theirs")["message_count"] == 5
            assert listing(db, order_by_last_active=True)[0][0] == "theirs"


def test_an_old_program_that_was_running_before_the_upgrade_can_go_on_writing(tmp_path):
    path = tmp_path / "ours" / "state.db"
    made = build(path, 11, fill="small")
    with old_program(path) as other:
        before = other.say(TIP, "user", "Before the upgrade: sallowfen", LATER)
        with SessionDB(db_path=path) as db:
            during = other.say(TIP, "user", "While both are open: reedmarsh", LATER + 1)
            assert [*found(db, "sallowfen"), *found(db, "reedmarsh")] == [before, during]
            own = db.append_message(TIP, "assistant", "Ours: bulrushing")
        after = other.say(TIP, "user", "After we closed: cattailed", LATER + 2)
    with SessionDB(db_path=path) as db:
        assert [one["id"] for one in db.get_messages(TIP)][-4:] == [before, during, own, after]
        assert [*found(db, "cattailed"), *found(db, "bulrushing")] == [after, own]
        assert_all_found(db, made)
        db.catch_up()
        assert db.check() == []


def test_titles_that_another_program_gave_resolve_by_their_family(tmp_path):
    path = tmp_path / "ours" / "state.db"
    with SessionDB(db_path=path) as db:
        for name, title in (("one", "garden"), ("two", "kitchen")):
            db.create_session(name, "cli")
            db.append_message(name, "user", "hello")
            db.set_session_title(name, title)
        with old_program(path) as other:
            other.begin("three", LATER, title="garden #2")
            assert db.resolve_session_by_title("garden") == "three"
            assert db.get_next_title_in_lineage("garden") == "garden #3"
            other.run(("UPDATE sessions SET title = 'cellar' WHERE id = 'two'", []))
            assert db.get_session_by_title("cellar")["id"] == db.resolve_session_by_title("cellar") == "two"
            assert db.resolve_session_by_title("kitchen") is None


# ── what is no store ──


OTHER_FILES = {
    "a word": b"hello",
    "a diary": b"Dear diary.\n" * 900,
    "all bytes": bytes(range(256)) * 64,
    "zeros": bytes(4096),
}


@pytest.mark.parametrize("text", OTHER_FILES.values(), ids=OTHER_FILES)
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_named_and_left_alone(text, read_only, tmp_path):
    path = tmp_path / "ours" / "state.db"
    path.parent.mkdir()
    not_a_database(path, text)
    with pytest.raises(NotADatabase, match=r"state\.db"):
        SessionDB(db_path=path, read_only=read_only)
    assert path.read_bytes() == text
    assert [one.name for one in path.parent.iterdir()] == ["state.db"]


def test_an_empty_file_becomes_a_fresh_store(tmp_path):
    path = tmp_path / "ours" / "state.db"
    path.parent.mkdir()
    path.touch()
    assert_fresh(path)


def test_a_database_in_which_nothing_was_made_yet_becomes_a_fresh_store(tmp_path):
    path = tmp_path / "ours" / "state.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    assert path.stat().st_size
    assert_fresh(path)


def assert_fresh(path: Path) -> None:
    with SessionDB(db_path=path) as db:
        assert db.read_only is False
        assert db.session_count() == 0
        db.create_session("s", "cli")
        number = db.append_message("s", "user", "The first word: primrosely")
        assert found(db, "primrosely") == [number]
        assert db.check() == []
    assert plain_sql(path, "SELECT version FROM schema_version") == [(11,)]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_directory_in_place_of_the_file_is_a_typed_error(read_only, tmp_path):
    path = tmp_path / "ours" / "state.db"
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"state\.db"):
        SessionDB(db_path=path, read_only=read_only)
    assert list(path.iterdir()) == []


def test_the_database_of_some_other_program_is_called_so_and_never_altered(tmp_path):
    path = tmp_path / "ours" / "state.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE sessions (token TEXT, expires INTEGER)")
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.execute("INSERT INTO bookmarks VALUES ('https://example.org/')")
    before = digest(path)
    with pytest.raises(NotADatabase, match=r"state\.db"):
        SessionDB(db_path=path)
    assert digest(path) == before


@pytest.mark.parametrize("version", [6, 11])
@pytest.mark.parametrize("keep", [0.0002, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_truncated_file_is_called_corrupt_and_left_as_it_is(version, keep, read_only, tmp_path):
    path = tmp_path / "ours" / "state.db"
    truncated(path, version, keep=keep)
    before = digest(path)
    with pytest.raises(StoreCorrupt, match=r"state\.db"), SessionDB(db_path=path, read_only=read_only) as db:
        db.export_all()
    assert digest(path) == before


def test_what_another_program_deletes_is_neither_found_nor_listed(tmp_path):
    path = tmp_path / "ours" / "state.db"
    with SessionDB(db_path=path) as db:
        for name in ("kept", "gone"):
            db.create_session(name, "cli")
            db.append_message(name, "user", f"The {name} one: swiftlight")
        db.catch_up()
        [kept] = [one["id"] for one in db.get_messages("kept")]
        with old_program(path) as other:
            deleted = ("DELETE FROM messages WHERE session_id = ?", "DELETE FROM sessions WHERE id = ?")
            other.run(*((statement, ["gone"]) for statement in deleted))
            assert found(db, "swiftlight") == [kept]
            assert [row[0] for row in listing(db)] == ["kept"]
            assert db.get_session("gone") is None


@either_way
def test_rows_of_another_program_stay_found_when_indexed_and_after_reopening(with_triggers, tmp_path):
    path = tmp_path / "ours" / "state.db"
    SessionDB(db_path=path).close()
    with old_program(path) as other:
        if with_triggers:
            other.start()
        other.begin("theirs", LATER, title="river trip")
        wanted = {}
        for place in range(30):
            word = f"rivulet{place:02d}"
            wanted[word] = [other.say("theirs", "user", f"About {word} and 渓流{place:02d}", LATER + place)]
    with SessionDB(db_path=path) as db:
        for _ in range(2):
            assert {word: found(db, word) for word in wanted} == wanted
            assert len(found(db, "渓流")) == 30
            db.catch_up()
        assert listing(db) == [("theirs", "About rivulet00 and 渓流00", LATER + 29)]
        if with_triggers:  # they wrote into our index; that can be seen and put right
            db.repair()
        assert db.check() == []
        assert {word: found(db, word) for word in wanted} == wanted


@pytest.mark.filterwarnings("ignore")
def test_importing_again_brings_what_was_added_meanwhile(tmp_path):
    source = tmp_path / "theirs.db"
    made = source_file(source, 11)
    with SessionDB(db_path=tmp_path / "ours" / "state.db") as db:
        db.import_database(source)
        plain_sql(
            source,
            "INSERT INTO sessions (id, source, started_at, message_count) VALUES ('later', 'cli', 1.8e9, 1)",
        )
        plain_sql(
            source,
            "INSERT INTO messages (session_id, role, content, timestamp) "
            "VALUES ('later', 'user', 'Added ploverdale', 1.8e9)",
        )
        done = db.import_database(source)
        assert (done["sessions"], done["messages"]) == (1, 1)
        assert len(found(db, "ploverdale")) == 1
        assert db.session_count() == len(made["sessions"]) + 1

"""Bad files, by name: no database, a newer or foreign version, a directory. None is ever altered."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings

import pytest

from . import found, plain_sql, shown, talk


@pytest.mark.parametrize(
    "text", [b"this is not a database, it is a diary\n" * 200, b"x", b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_a_file_that_is_not_a_database(make_db, tmp_path, sqlite_only, text):
    from hermes.errors import NotADatabase

    path = tmp_path / "store-x" / "state.db"
    path.parent.mkdir()
    path.write_bytes(text)
    with pytest.raises(NotADatabase) as error:
        make_db(name="x")
    assert str(path) in str(error.value)
    assert path.read_bytes() == text, "it is never altered"


def test_a_database_of_something_else_is_never_altered(make_db, tmp_path, sqlite_only):
    from hermes.errors import HermesError

    path = tmp_path / "store-x" / "state.db"
    path.parent.mkdir()
    plain_sql(path, "CREATE TABLE recipes(name TEXT)", "INSERT INTO recipes VALUES ('soup')")
    before = path.read_bytes()
    with warnings.catch_warnings(), contextlib.suppress(HermesError):
        warnings.simplefilter("ignore")
        db = make_db(name="x")
        with contextlib.suppress(HermesError):
            db.create_session("s", "cli")
        db.close()
    assert plain_sql(path, "SELECT name FROM recipes") == [[("soup",)]]
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(make_db, tmp_path, sqlite_only):
    path = tmp_path / "store-x" / "state.db"
    path.parent.mkdir()
    path.touch()
    talk(make_db(name="x"), "s", "hello")
    assert shown(make_db(name="x"), "s") == ["hello"]


def test_a_directory_in_place_of_the_file(make_db, tmp_path, sqlite_only):
    from hermes.errors import StoreError

    path = tmp_path / "store-x" / "state.db"
    path.mkdir(parents=True)
    with pytest.raises(StoreError) as error:
        make_db(name="x")
    assert str(path) in str(error.value)
    assert list(path.iterdir()) == []


def test_a_file_in_place_of_the_folder(make_db, tmp_path, sqlite_only):
    from hermes.errors import HermesError

    (tmp_path / "store-x").write_text("in the way")
    with pytest.raises(HermesError):
        make_db(name="x")
    assert (tmp_path / "store-x").read_text() == "in the way"


PUBLIC_TABLES = """
CREATE TABLE schema_version(version INTEGER NOT NULL);
CREATE TABLE state_meta(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE sessions(
    id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, model TEXT, model_config TEXT,
    system_prompt TEXT, parent_session_id TEXT REFERENCES sessions(id), started_at REAL NOT NULL,
    ended_at REAL, end_reason TEXT, message_count INTEGER DEFAULT 0, tool_call_count INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0, output_tokens INTEGER DEFAULT 0, cache_read_tokens INTEGER DEFAULT 0,
    cache_write_tokens INTEGER DEFAULT 0, reasoning_tokens INTEGER DEFAULT 0, billing_provider TEXT,
    billing_base_url TEXT, billing_mode TEXT, estimated_cost_usd REAL, actual_cost_usd REAL,
    cost_status TEXT, cost_source TEXT, pricing_version TEXT, title TEXT, api_call_count INTEGER DEFAULT 0,
    handoff_state TEXT, handoff_platform TEXT, handoff_error TEXT, from_the_future TEXT DEFAULT 'hello');
CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL;
CREATE TABLE messages(
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL, content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT,
    timestamp REAL NOT NULL, token_count INTEGER, finish_reason TEXT, reasoning TEXT,
    reasoning_content TEXT, reasoning_details TEXT, codex_reasoning_items TEXT, codex_message_items TEXT,
    from_the_future INTEGER);
"""


def foreign_file(path, version):
    """Make a file as a newer program may leave it: the public columns, additional ones, its own version."""
    path.parent.mkdir()
    calls = json.dumps([{"id": "1", "function": {"name": "f", "arguments": "{}"}}])
    message = "INSERT INTO messages(session_id, role, content, tool_calls, timestamp) VALUES ('f', ?, ?, ?, ?)"
    plain_sql(
        path,
        *PUBLIC_TABLES.split(";")[:-1],
        ("INSERT INTO schema_version VALUES (?)", [version]),
        (
            "INSERT INTO sessions(id, source, started_at, title) VALUES (?, ?, ?, ?)",
            ["f", "cli", 1.0, "future"],
        ),
        (message, ["user", "a lynx 文件 getLynxById", None, 1001.0]),
        (message, ["assistant", "ok", calls, 1002.0]),
    )


@pytest.mark.parametrize("version", [12, 17, 30, 999])
def test_a_newer_or_foreign_version_opens_read_only_with_a_word_and_is_never_altered(
    make_db, tmp_path, sqlite_only, version
):
    from hermes.errors import StoreReadOnly

    path = tmp_path / "store-x" / "state.db"
    foreign_file(path, version)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.warns(UserWarning, match="Hermes Agent") as said:
        db = make_db(name="x")
    (warning,) = (one for one in said if one.category is UserWarning)
    assert str(path) in str(warning.message)
    assert db.read_only is True
    assert shown(db, "f") == ["a lynx 文件 getLynxById", "ok"]
    assert db.get_messages("f")[1]["tool_calls"][0]["id"] == "1"
    assert [row["id"] for row in db.list_sessions_rich()] == ["f"]
    assert db.list_sessions_rich()[0]["preview"] == "a lynx 文件 getLynxById"
    assert db.resolve_session_by_title("future") == "f"
    for query in ("lynx", "文件", "件", "LynxBy"):
        assert len(found(db, query)) == 1, query
    with pytest.raises(StoreReadOnly):
        db.append_message("f", "user", "x")
    with pytest.raises(StoreReadOnly):
        db.create_session("g", "cli")
    db.close()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_a_file_of_a_newer_version_of_this_program_says_to_upgrade(make_db, tmp_path, sqlite_only):
    db = make_db(name="n")
    db.create_session("s", "cli")
    db.close()
    path = tmp_path / "store-n" / "state.db"
    plain_sql(path, "PRAGMA user_version = 99")
    with pytest.warns(UserWarning, match="a newer Hermes Sessions .version 99.; .* Upgrade this program") as said:
        db = make_db(name="n")
    assert len(said) == 1 and str(path) in str(said[0].message)
    assert db.read_only is True and [row["id"] for row in db.list_sessions_rich()] == ["s"]


def test_a_newer_or_foreign_version_can_be_imported(make_db, tmp_path, sqlite_only):
    path = tmp_path / "store-x" / "state.db"
    foreign_file(path, 17)
    before = path.read_bytes()
    db = make_db()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert db.import_database(path) == {"sessions": 1, "messages": 2, "skipped": 0}
    assert shown(db, "f") == ["a lynx 文件 getLynxById", "ok"] and len(found(db, "lynx")) == 1
    assert db.get_session_by_title("future")["id"] == "f"
    assert path.read_bytes() == before


def test_rows_written_by_another_program_are_found(make_db, sqlite_only):
    """An older Hermes may append to the same file; what it wrote is known by a watermark, not by triggers."""
    db = make_db(name="x")
    talk(db, "s", "ours")
    db.catch_up()
    insert = "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('s', 'user', ?, 5e9)"
    plain_sql(db.path, (insert, ["a stray lynx 文件"]))
    assert shown(db, "s") == ["ours", "a stray lynx 文件"]
    assert len(found(db, "lynx")) == len(found(db, "文件")) == 1
    db.catch_up()
    assert len(found(db, "lynx")) == len(found(db, "文件")) == 1

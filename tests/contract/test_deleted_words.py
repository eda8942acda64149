"""A word leaves the record with the last message that has it: at the latest when the store is tidied."""

from __future__ import annotations

from typing import Any

from . import found, talk

SECRET = "zaubersesamwort"
NAME = "geheim_schluessel_qx"


def listed(db: Any, engine: str) -> set[str]:
    """Everything in the list of words."""
    return {row["word"] for row in db.sql("SELECT word FROM words")}


def held_in_tables(db: Any, engine: str, word: str) -> list[str]:
    """The tables a word can be read in. (FTS5 has no rows of its own: the bytes of its pages are looked at below.)"""
    if engine == "sqlite":
        asked = "SELECT name AS name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
        names = [row["name"] for row in db.sql(asked)]
        return [name for name in names for row in db.sql(f"SELECT * FROM {name}") if word in repr(row)]
    tables = db.sql("SELECT tablename AS name FROM pg_tables WHERE schemaname = current_schema()")
    return [
        row["name"] for row in tables if db.sql(f"SELECT 1 FROM {row['name']} t WHERE t::text LIKE ?", [f"%{word}%"])
    ]


def test_words_of_deleted_messages_are_gone_after_tidying(db: Any, engine: str) -> None:
    talk(db, "kept", "plain words stay", "and shared ones")
    talk(db, "gone", f"the {SECRET} opens it", f"call {NAME}(shared)")
    db.catch_up()
    assert SECRET in listed(db, engine)
    assert found(db, SECRET[3:-2]), "a part of it is found"
    db.trash_session("gone")
    assert db.empty_trash(0) == 1
    db.catch_up()
    db.vacuum()
    assert held_in_tables(db, engine, SECRET) == []
    assert held_in_tables(db, engine, "schluessel") == []
    assert {"plain", "words", "shared"} <= listed(db, engine), "what other messages have stays"
    assert found(db, "lain") and found(db, "hared")
    assert db.check() == []


def test_nothing_of_them_is_left_in_the_bytes_of_a_file(make_db: Any, engine: str) -> None:
    if engine != "sqlite":
        return  # what a server's pages hold is the server's: VACUUM and time overwrite it
    db = make_db("bytes")
    talk(db, "kept", *(f"plain words number {number} stay" for number in range(200)))
    talk(db, "gone", *(f"the {SECRET}{number} opens it {NAME}" for number in range(50)))
    talk(db, "late", *(f"more words number {number}" for number in range(200)))
    db.catch_up()
    folder = db.path.parent
    assert db.delete_session("gone")
    db.vacuum()
    db.close()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = file.read_bytes()
        assert SECRET.encode() not in data, file
        assert b"sesamwort" not in data and b"schluessel" not in data, file


def test_a_word_that_comes_back_is_listed_again_by_every_process(make_db: Any, engine: str) -> None:
    """Another process remembers that the word is listed; it must not believe so when it was taken out meanwhile."""
    one, other = make_db("both"), make_db("both")
    talk(other, "a", f"the {SECRET} is known to it")
    other.catch_up()
    assert other.delete_session("a")
    one.vacuum()
    assert SECRET not in listed(one, engine)
    talk(other, "b", f"the {SECRET} is back")
    other.catch_up()
    assert SECRET in listed(one, engine)
    assert len(found(one, SECRET[2:-2])) == 1
    data = other.export_session("b")
    assert other.delete_session("b")
    one.vacuum()
    assert SECRET not in listed(one, engine)
    other.import_session(data)
    other.catch_up()
    assert SECRET in listed(other, engine)
    assert len(found(one, SECRET[2:-2])) == 1

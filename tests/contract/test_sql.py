"""SQL of one's own over the store's connection: it reads, and nothing else."""

from __future__ import annotations

import pytest

from hermes.errors import InvalidInput, StoreClosed
from hermes_state import SessionDB


@pytest.fixture
def talk(db: SessionDB) -> SessionDB:
    db.create_session("talk", "cli")
    for number in range(3):
        db.append_message("talk", "user", f"message {number}")
    return db


def test_rows_are_dicts_keyed_by_column(talk: SessionDB) -> None:
    rows = talk.sql("SELECT role, content AS text FROM messages WHERE session_id = ? ORDER BY id LIMIT ?", ("talk", 2))
    assert rows == [{"role": "user", "text": "message 0"}, {"role": "user", "text": "message 1"}]
    assert talk.sql("SELECT count(*) AS n FROM messages WHERE content LIKE '%2'") == [{"n": 1}]
    assert talk.sql("SELECT id FROM sessions WHERE id = 'nobody'") == []
    assert talk.sql("WITH t(n) AS (VALUES (1), (2)) SELECT sum(n) AS n FROM t") == [{"n": 3}]
    assert talk.sql("EXPLAIN SELECT 1 AS n") != []


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM messages",
        "UPDATE messages SET content = 'x'",
        "UPDATE messages SET content = 'x' RETURNING id",
        "INSERT INTO state_meta(key, value) VALUES('a', 'b')",
        "WITH gone AS (DELETE FROM messages RETURNING id) SELECT * FROM gone",
        "DROP TABLE messages",
        "CREATE TABLE more(a TEXT)",
        "SELECT 1; DELETE FROM messages",
        "COMMIT; DELETE FROM messages",
        "SELECT 1; SELECT 2",
        "VACUUM",
        "SELEC",
        "SELECT nothing FROM messages",
        "SELECT * FROM nowhere",
        "SELECT ?",
        "",
    ],
)
def test_whatever_is_no_question_is_refused_and_changes_nothing(talk: SessionDB, query: str) -> None:
    with pytest.raises(InvalidInput):
        talk.sql(query)
    assert [row["content"] for row in talk.get_messages("talk")] == ["message 0", "message 1", "message 2"]
    assert talk.append_message("talk", "user", "on it goes") > 0
    assert talk.sql("SELECT count(*) AS n FROM messages") == [{"n": 4}]


def test_it_sees_what_was_just_stored_and_a_closed_store_refuses(talk: SessionDB) -> None:
    new = talk.append_message("talk", "user", "new")
    assert talk.sql("SELECT max(id) AS id FROM messages") == [{"id": new}]
    talk.close()
    with pytest.raises(StoreClosed):
        talk.sql("SELECT 1 AS n")

"""Text that PostgreSQL can't store comes back unchanged, and its index has the same words as SQLite's."""

from __future__ import annotations

import re
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.store.engines.postgres import connection as transaction
from hermes.store.engines.postgres import lexemes
from hermes.store.engines.postgres.connection import translated
from hermes.store.engines.sqlite.schema import TOKENIZER
from hermes.store.records.codec import Blob
from hermes.store.text.index_text import index_text, index_words
from hermes_state import SessionDB

pytestmark = pytest.mark.mechanism

ANY = st.text(st.characters())  # lone surrogates and NUL among them
ODD = st.text(st.sampled_from("\0\ud800\udfff\ufdd0a0fd部"))


@given(ANY | ODD, ANY | ODD)
def test_every_text_comes_back_and_equal_ones_stay_equal(one: str, other: str) -> None:
    stored = transaction.fit(one)
    assert transaction.unfit(stored) == one
    assert "\0" not in stored and stored.encode().decode() == stored
    assert (stored == transaction.fit(other)) == (one == other)
    assert transaction.fit(one + other) == stored + transaction.fit(other)  # so what begins alike still does


@given(st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.booleans() | ANY | st.floats(allow_nan=False)))
def test_parameters_keep_their_values(given_values: list[object]) -> None:
    assert [
        transaction.unfit(v) if isinstance(v, str) else v for v in transaction.fit_values(given_values)
    ] == given_values


@given(st.lists(ANY | ODD | st.text(st.sampled_from('"\\{},\x01 nul')) | st.just("NULL"), min_size=1))
def test_arrays_keep_their_texts(texts: list[str]) -> None:
    """By the rules of the server's array literals, read as it reads them."""
    written = transaction.array_text(texts)
    assert written[0] == "{" and written[-1] == "}"
    read = re.findall(r'"((?:[^"\\]|\\.)*)"(?:,|$)', written[1:-1], re.DOTALL)
    assert [re.sub(r"\\(.)", r"\1", one, flags=re.DOTALL) for one in read] == texts


def test_the_server_reads_such_arrays(url: str) -> None:
    texts = ['"', "\\", "a,b", "{}", "", "NULL", "null", "\x01", "部\0", "\ud800", " x ", "%s ?"]
    with SessionDB(url=url) as db, db._engine.read() as tx:
        for some in (texts, texts[:5], texts[:1], []):
            these, params = tx.among("one", some)
            found = tx.rows(
                f"SELECT one FROM unnest(?::text[]) one WHERE {these}", (transaction.array_text(texts), *params)
            )
            assert [row[0] for row in found] == some
        assert tx.rows("SELECT unnest(?::bigint[])", (transaction.array_text([3, -1]),)) == [(3,), (-1,)]


def test_bytes_are_text_unless_they_say_otherwise() -> None:
    assert transaction.fit_value("x\ud800".encode("utf-8", "surrogatepass")) == "x\ufdd0d800"
    assert transaction.fit_value(Blob(b"\xff\0")) == b"\xff\0"
    assert transaction.fit_value(float("nan")) is None and transaction.fit_value(True) == 1
    with pytest.raises(TypeError, match="list"):
        transaction.fit_value([1])


@given(ANY | ODD, ANY | ODD)
def test_any_text_goes_through_a_server(server: SessionDB, key: str, value: str) -> None:
    server.set_meta(key, value)
    assert server.get_meta(key) == value


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> SessionDB:
    from tests.support import postgres

    return SessionDB(tmp_path_factory.mktemp("texts") / "state.db", url=postgres.server().store("test_texts"))


@given(st.lists(st.sampled_from(["a = ?", "'?'", "'it''s ? 50%'", "b LIKE '%x%'", "c % 2 = ?", " "])).map(" ".join))
def test_question_marks_outside_quotes_become_parameters(sql: str) -> None:
    ours = translated(sql).decode()
    outside = re.sub(r"'(?:[^']|'')*'", "", sql)
    assert len(re.findall(r"(?<!%)(?:%%)*%s", ours)) == outside.count("?")
    assert ours.replace("%s", "?").replace("%%", "%") == sql


# ------------------------------------------------------------------------------------------ words

LETTERS = st.sampled_from("abcXYZ019_ .,-/'\"\n()éÜßđøł\u0301ñ部署配置文テスト한글ไทยกहिन्दी🙂❶½²ªΩЖё") | st.characters(
    categories=["Lu", "Ll", "Nd", "Po", "Zs", "Sm"], max_codepoint=0x24F
)


@pytest.fixture(scope="module")
def fts5() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute(f"CREATE VIRTUAL TABLE x USING fts5(content, content='', tokenize='{TOKENIZER}')")
    connection.execute("CREATE VIRTUAL TABLE v USING fts5vocab(x, instance)")
    return connection


@given(st.text(LETTERS, max_size=60))
def test_the_words_are_those_of_the_sqlite_index(fts5: sqlite3.Connection, text: str) -> None:
    fts5.execute("INSERT INTO x(x) VALUES('delete-all')")
    fts5.execute("INSERT INTO x(rowid, content) VALUES(1, ?)", (index_text(text),))
    assert list(index_words(text)) == [row[0] for row in fts5.execute("SELECT term FROM v ORDER BY offset")]


@given(st.lists(st.text(st.sampled_from("ab_ 部署🙂é"), max_size=30), min_size=1, max_size=3))
def test_every_word_has_its_place_and_columns_do_not_touch(columns: list[str]) -> None:
    ((_, _, whole, size, written),) = lexemes.entries(7, columns)
    assert whole
    places = {
        int(place): word for word, numbers in re.findall(r"'([^']+)':([\d,]+)", written) for place in numbers.split(",")
    }
    expected: list[str] = []
    for column in filter(None, columns):
        expected += [""] if expected else []
        expected += index_words(column)
    assert [places.get(number, "") for number in range(1, len(expected) + 1)] == expected
    assert size == sum(map(bool, expected))


@pytest.mark.parametrize(
    "text", ["x " * 200_000, "x y " * 50_000, " ".join(f"w{n}" for n in range(40_000)), "z" * 500_000]
)
def test_a_long_text_becomes_parts_that_overlap_by_a_phrase(text: str) -> None:
    rows = lexemes.entries(7, (text, "", ""))
    assert {size for _, _, _, size, _ in rows} == {len(index_words(text))}
    found = [written for _, _, whole, _, written in rows if not whole or len(rows) == 1]
    if len(rows) > 1:
        assert (
            rows[0][2] and {row[2] for row in rows[1:]} == {False} and [row[1] for row in rows] == [*range(len(rows))]
        )
        unplaced = re.findall(r"'([^']+)'", rows[0][4])
        assert {lexemes.LONG, *map(lexemes.lexeme, index_words(text))} <= set(unplaced)
        assert "':" not in rows[0][4] and len(rows[0][4]) < 1_000_000
    words = list(map(lexemes.lexeme, index_words(text)))
    held: set[tuple[str, ...]] = set()
    for written in found:
        assert len(written) < 1_000_000
        places: dict[int, str] = {}
        for word, numbers in re.findall(r"'([^']+)':([\d,]+)", written):
            every = numbers.split(",")
            assert len(every) <= 255
            places.update((int(place), word) for place in every)
        row = [places[number] for number in sorted(places)]
        assert len(row) <= lexemes.PART_WORDS + 1
        held.update(tuple(row[i : i + 8]) for i in range(max(1, len(row) - 7)))
    assert all(tuple(words[i : i + 8]) in held for i in range(0, max(1, len(words) - 7), 97))


def test_of_an_enormous_text_there_are_the_parts_only() -> None:
    text = " ".join(f"w{n}" for n in range(90_000))
    rows = lexemes.entries(7, (text, "", ""))
    assert not any(whole for _, _, whole, _, _ in rows) and [row[1] for row in rows] == [*range(len(rows))]
    everything = {word for row in rows for word in re.findall(r"'([^']+)'", row[4])}
    assert {*index_words(text)} <= everything
    assert lexemes.LONG not in everything and max(len(row[4]) for row in rows) < 1_000_000

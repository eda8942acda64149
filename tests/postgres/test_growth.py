"""Listing, resuming and searching touch as much of a large store as of a small one; no table is read from end to end.

What the server's own counters say of each table is compared: rows and pages, never time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.store.engines.postgres.id_ranges import SHIFTS, Widening, names, window
from hermes.store.engines.postgres.lexemes import entries
from hermes_state import SessionDB
from tests.support import postgres
from tests.support.labs.base import until
from tests.support.sizes import some

SMALL, LARGE = 12_000, 96_000
EACH = 6  # messages in a session
BIG_TABLES = ("messages", "message_words", "words", "sessions")
Ask = Callable[[SessionDB], Any]


def _text(number: int) -> str:
    long = "filler words all around " * 40 if number % 50 == 0 else ""
    return (
        f"common usual tenth{number % 10} rare{number} wordly{number % 300} 数据{'库' if number % 4 else '表'} {long}"
    )


def _fill(url: str, count: int) -> None:
    """Many short messages, by COPY; what stands in the index is made by the engine's own code."""
    SessionDB(url=url).close()
    with psycopg.connect(url) as connection:
        with connection.cursor().copy(
            b"COPY sessions (id, source, user_id, started_at, last_active, message_count, title) FROM STDIN"
        ) as copy:
            for number in range(0, count, EACH):
                copy.write_row((f"s{number:07}", "cli", None, 1e9 + number, 1e9 + number, EACH, f"title {number}"))
        with connection.cursor().copy(b"COPY messages (id, session_id, role, content, timestamp) FROM STDIN") as copy:
            for number in range(count):
                session = f"s{number // EACH * EACH:07}"
                copy.write_row((number + 1, session, ("user", "assistant")[number % 2], _text(number), 1e9 + number))
        with connection.cursor().copy(b"COPY message_words FROM STDIN") as copy:
            for number in range(count):
                for row in entries(number + 1, (_text(number), "", ""), ()):
                    copy.write_row(row)
        words = {word for number in range(count) for word in _text(number).split() if word.isascii()}
        with connection.cursor().copy(b"COPY words (word) FROM STDIN") as copy:
            for word in sorted(words):
                copy.write_row((word,))
        connection.execute("SELECT setval(pg_get_serial_sequence('messages', 'id'), %s)", (count,))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"VACUUM ANALYZE")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, str]]:
    folder = tmp_path_factory.mktemp("growth")
    server = postgres.server()
    urls = {count: server.store(f"{folder} {count}") for count in (SMALL, LARGE)}
    for count, url in urls.items():
        _fill(url, count)
    yield urls
    for count in urls:
        server.forget(f"{folder} {count}")


_COUNTERS = (
    "SELECT s.relname, s.seq_scan, s.seq_tup_read, io.heap_blks_read + io.heap_blks_hit + coalesce(io.idx_blks_read, 0)"
    " + coalesce(io.idx_blks_hit, 0) + coalesce(io.toast_blks_read, 0) + coalesce(io.toast_blks_hit, 0)"
    " FROM pg_stat_user_tables s JOIN pg_statio_user_tables io USING (relid) WHERE s.schemaname = current_schema()"
)


def _counters(url: str) -> dict[str, tuple[int, int, int]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return {row[0]: row[1:] for row in connection.execute(_COUNTERS.encode()).fetchall()}


def _touched(url: str, ask: Ask) -> dict[str, tuple[int, int, int]]:
    """By table: scans of the whole of it, rows read by these, and pages looked at, of tables and indexes."""
    counted = []
    for _ in range(2):  # the first time for what is looked up once
        name = f"growth_{os.urandom(4).hex()}"
        with SessionDB(url=f"{url}&application_name={name}", read_only=True) as db:
            ask(db)
        # a connection's counts are in when it is gone; those of the first time must not come in during the second
        until(lambda name=name: not _connected(url, name), what="the connections are still open")  # type: ignore[misc]
        counted.append(_counters(url))
    before, after = counted
    return {table: tuple(map(int.__sub__, after[table], before[table])) for table in after}  # type: ignore[misc]


def _connected(url: str, name: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = %s", (name,)).fetchone()
    return row is not None


def _found(query: str) -> Ask:
    def ask(db: SessionDB) -> None:
        assert len(db.search_messages(query, limit=20)) == 20, query

    return ask


def _nothing(db: SessionDB) -> None:
    assert db.search_messages("nowheretobefound") == []


def _one(db: SessionDB) -> None:
    assert len(db.search_messages("rare11999")) >= 1


ASKED: dict[str, Ask] = {
    "a word in every message": _found("common"),
    "two common words": _found("common usual"),
    "two, one of them in a tenth": _found("common tenth7"),
    "a phrase of common words": _found('"common usual"'),
    "a beginning": _found("usu*"),
    "either": _found("tenth3 OR tenth4"),
    "without": _found("common -tenth3"),
    "two characters of Chinese": _found("数据"),
    "three characters of Chinese": _found("数据表"),
    "a word in one message": _one,
    "a word in none": _nothing,
    "the list": lambda db: db.list_sessions_rich(limit=20, order_by_last_active=True),
    "a conversation": lambda db: db.get_messages_as_conversation("s0000060"),
    "a title": lambda db: db.resolve_session_by_title("title 60"),
    "the beginning of an id": lambda db: db.resolve_session_id("s0000060"),
}


@pytest.mark.parametrize("what", some(list(ASKED), 8))
def test_eight_times_the_messages_take_no_more_rows_or_pages(stores: dict[int, str], what: str) -> None:
    small, large = (_touched(stores[count], ASKED[what]) for count in (SMALL, LARGE))
    for table in BIG_TABLES:
        assert large[table][0] == 0, f"{table} was read from end to end"
    pages = [sum(touched[table][2] for table in BIG_TABLES) for touched in (small, large)]
    assert pages[1] <= 3 * pages[0], f"{pages[0]} pages, then {pages[1]}"  # indexes are deeper, not wider


def test_parts_of_words_are_looked_up_among_the_words_not_in_the_messages(stores: dict[int, str]) -> None:
    def ask(db: SessionDB) -> None:
        assert len(db.search_messages("ordly1", limit=20)) == 20

    touched = _touched(stores[LARGE], ask)
    for table in BIG_TABLES:
        assert touched[table][0] == 0, f"{table} was read from end to end"


def test_insights_read_the_messages_once(stores: dict[int, str]) -> None:
    def ask(db: SessionDB) -> None:
        assert db.insights(days=100_000, now=2e9)["messages"] == SMALL

    scans, rows, _ = _touched(stores[SMALL], ask)["messages"]
    assert scans <= 1 and rows <= SMALL, f"{scans} times from end to end, {rows} rows"


def test_the_newest_matches_are_the_ones_that_are_ranked(stores: dict[int, str]) -> None:
    with SessionDB(url=stores[LARGE], read_only=True) as db:
        assert min(hit["id"] for hit in db.search_messages("common", limit=20)) > LARGE - 4096
        found = db.search_messages("tenth7", limit=400)
    assert len(found) == 400
    assert {hit["id"] for hit in found} <= set([n + 1 for n in range(LARGE) if n % 10 == 7][-500:])


# ---------------------------------------------------------------------------------------------- stretches

IDS = st.integers(0, 1 << 40)


@given(IDS, st.integers(1, 1 << 40))
def test_a_window_holds_at_least_the_newest_ids_and_names_the_stretches_they_lie_in(newest: int, length: int) -> None:
    found = window(newest, length)
    assert found.first <= max(0, newest - length + 1)
    if found.condition is None:
        assert found.first == 0
        return
    asked = set(found.condition.strip("()").split(" | "))
    for message_id in {newest, found.first, (newest + found.first) // 2, max(found.first, newest - length + 1)}:
        assert asked & set(names(message_id).split())
    if found.first:
        assert not asked & set(names(found.first - 1).split())
    assert newest - found.first < 8 * (length + (1 << SHIFTS[0]))  # and not much more


@given(IDS, st.integers(1, 5000), st.lists(st.integers(0, 50), max_size=40))
def test_windows_lie_below_each_other_until_enough_was_found_or_everything_was_looked_at(
    newest: int, needed: int, finds: list[int]
) -> None:
    widening = Widening(newest, needed)
    end, seen = newest + 1, 0
    for number, looked_at in enumerate(widening):
        assert widening.found < needed or number == 0
        assert looked_at.end == end
        assert looked_at.first < end
        asked = set((looked_at.condition or "").strip("()").split(" | "))
        for message_id in {looked_at.first, (looked_at.first + end) // 2, end - 1}:
            assert looked_at.condition is None or asked & set(names(message_id).split())
        end, seen = looked_at.first, seen + 1
        widening.found += finds[number] if number < len(finds) else 0
    assert (end == 0 or widening.found >= needed) and seen <= 32

"""What appends and indexing cost the server, by its own counters: no clock is looked at."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg

from hermes_state import SessionDB
from tests.support.labs.base import until

from . import paced


def ask(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def test_an_append_writes_to_no_index_of_the_sessions(url: str, tmp_path: Path) -> None:
    with SessionDB(db_path=tmp_path / "a.db", url=url) as db:
        db.create_session("s", "cli")
        for number in range(200):
            db.append_message("s", "user", f"n{number}", timestamp=1_700_000_000.0 + number / 10)
    counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'sessions' AND schemaname = current_schema()"
    until(lambda: ask(url, counted)[0][0] >= 200, what="the connection has closed and its counts are in")
    changed, hot = ask(url, counted)[0]
    assert hot >= 0.9 * changed, f"{hot} of {changed} changes left the indexes alone"


def test_lists_are_ordered_by_the_moment_of_the_last_message(url: str, tmp_path: Path) -> None:
    """Though the index knows only its minute."""
    with SessionDB(db_path=tmp_path / "a.db", url=url) as db:
        at = 1_700_000_040.0  # a minute begins
        for number in range(30):
            db.create_session(f"s{number:02}", "cli", started_at=at - 1000)
        moments = {f"s{number:02}": at + (number * 7 % 30) * 4.3 for number in range(30)}
        for name, moment in moments.items():
            db.append_message(name, "user", "first", timestamp=at - 500)
            db.append_message(name, "user", "x", timestamp=moment)
        db.append_message("s11", "user", "late", timestamp=at + 0.25)  # not newer than its newest
        wanted = sorted(moments, key=moments.__getitem__, reverse=True)
        listed = [row["id"] for row in db.list_sessions_rich(limit=10, order_by_last_active=True)]
        more = [row["id"] for row in db.list_sessions_rich(limit=30, offset=10, order_by_last_active=True)]
        assert listed + more == wanted


def test_only_the_process_that_indexed_last_tidies_up(url: str, tmp_path: Path) -> None:
    """While messages come none does (the server has a limit of its own); afterwards one does, once."""
    later = {"tidy_after": 3600.0}
    with paced(url, tmp_path / "a.db", **later) as one, paced(url, tmp_path / "b.db", **later) as other:
        one.create_session("s", "cli")
        for number in range(300):
            (one, other)[number % 2].append_message("s", "user", f"n{number} {'words of it ' * 20}")
        one.catch_up()
        other.catch_up()
    assert pending(url) > 0, "300 messages are not worth moving their words"
    with paced(url, tmp_path / "a.db", tidy_after=0.1) as one:
        one.append_message("s", "user", "the last one")
        until(lambda: keepers() == 1 and pending(url) == 0, what="it has become quiet, and it was tidied")


def keepers() -> int:
    return sum(thread.name == "hermes-keeper" for thread in threading.enumerate())


def pending(url: str) -> int:
    """Pages of the index's list of new words, as its first page says (nPendingPages of GinMetaPageData, after the head)."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        row = connection.execute("SELECT pg_read_binary_file(pg_relation_filepath('idx_words'), 24, 16)").fetchone()
    assert row is not None
    return int.from_bytes(row[0][12:16], "little")

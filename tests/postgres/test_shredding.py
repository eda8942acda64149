"""Shredding on a server: the files of its tables and indexes hold no word of it, and what could not be rewritten is told."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg

from hermes_state import SessionDB
from tests.support import postgres
from tests.support.waiting import until


def files_with(word: str) -> list[Path]:
    """The files of all tables and indexes of the server that have these bytes; its log of changes is not among them."""
    server = postgres.server()
    server.sql("CHECKPOINT")
    found = []
    for path in (server.data / "base").rglob("*"):
        try:
            if path.is_file() and word.encode() in path.read_bytes():
                found.append(path)
        except FileNotFoundError:
            continue  # another test's, removed meanwhile
    return found


def conversation(db: SessionDB, word: str) -> None:
    for number in range(60):
        db.ensure_session("kept", "cli")
        db.append_message("kept", "user", f"plain words number {number}")
    db.create_session("gone", "cli", system_prompt=f"{word} prompt")
    for number in range(20):
        db.append_message("gone", "user", f"{word} {number} get_{word}_name")
    db.set_session_title("gone", f"{word} title")
    db.catch_up()


def test_the_servers_tables_and_indexes_are_written_again(url: str) -> None:
    word = f"xq{os.urandom(8).hex()}zl"
    with SessionDB(url=url) as db:
        conversation(db, word)
        db.vacuum()  # the planner's samples are taken
        assert files_with(word)
        done = db.shred_session("gone")
        assert done is not None and done["unfinished"] == []
        assert "write-ahead log and backups" in done["copies"][0] and "other hosts" in done["copies"][1]
        left = files_with(word)
        statistics = postgres.server().sql("SELECT pg_relation_filepath('pg_statistic')")[0][0]
        toast = "SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE relname = 'pg_statistic'"
        shared = {statistics.partition(".")[0], postgres.server().sql(toast)[0][0]}
        assert {str(path.relative_to(postgres.server().data)) for path in left} <= shared, "only the server's own pages"
        assert db.sql("SELECT count(*) AS n FROM pg_stats s WHERE s::text LIKE ?", [f"%{word}%"]) == [{"n": 0}]
        assert len(db.search_messages("plain", limit=100)) == 60 and db.check() == []


def test_a_table_in_use_is_named_and_a_second_try_rewrites_it(url: str) -> None:
    word = f"xq{os.urandom(8).hex()}zl"
    with SessionDB(url=url, patience=1.0) as db:
        conversation(db, word)
        with psycopg.connect(url) as other:
            other.execute("SELECT count(*) FROM attachments")  # its transaction stays open
            done = db.shred_session("gone")
            assert done is not None and len(done["unfinished"]) == 1 and "attachments in" in done["unfinished"][0]
        done = db.shred_session("gone")
        assert done is not None and (done["messages"], done["unfinished"]) == (20, [])


def test_rows_that_another_transaction_may_still_see_are_named(url: str) -> None:
    word = f"xq{os.urandom(8).hex()}zl"
    with SessionDB(url=url, patience=1.0) as db:
        conversation(db, word)
        with psycopg.connect(url) as other:
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT 1")  # its snapshot stays; it locks no table
            done = db.shred_session("gone")
            assert done is not None
            assert any("messages" in line and "open transaction" in line for line in done["unfinished"]), done
            assert files_with(word)
        # the server's own ANALYZE is such a transaction as well
        until(lambda: not (db.shred_session("gone") or {"unfinished": True})["unfinished"])

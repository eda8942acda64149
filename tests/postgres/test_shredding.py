"""Shredding on a server: no row of its tables holds a word of it, and what its owner has left to do is told."""

from __future__ import annotations

import os

from hermes_state import SessionDB


def conversation(db: SessionDB, word: str) -> None:
    for number in range(60):
        db.ensure_session("kept", "cli")
        db.append_message("kept", "user", f"plain words number {number}")
    db.create_session("gone", "cli", system_prompt=f"{word} prompt")
    for number in range(20):
        db.append_message("gone", "user", f"{word} {number} get_{word}_name")
    db.set_session_title("gone", f"{word} title")
    db.catch_up()


def test_no_row_and_no_statistics_have_a_word_of_it_and_vacuum_full_is_named(url: str) -> None:
    word = f"xq{os.urandom(8).hex()}zl"
    with SessionDB(url=url) as db:
        conversation(db, word)
        db.vacuum()  # the planner's samples are taken
        done = db.shred_session("gone")
        assert done is not None and done["unfinished"] == []
        assert "VACUUM FULL" in done["copies"][0] and "write-ahead log and backups" in done["copies"][1]
        for table in ("messages", "sessions", "message_words", "words", "unindexed", "system_prompts", "pg_stats"):
            assert db.sql(f"SELECT count(*) AS n FROM {table} t WHERE t::text LIKE ?", [f"%{word}%"]) == [{"n": 0}], (
                table
            )
        assert len(db.search_messages("plain", limit=100)) == 60 and db.check() == []

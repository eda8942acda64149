"""The index of parts of words stays in few segments: a search looks into every one of them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hermes_state import SessionDB

MESSAGES = 1_600  # 25 chunks of words, each of which is a segment at first


def test_noted_words_are_merged_on_the_way(tmp_path: Path) -> None:
    db = SessionDB(tmp_path / "state.db", durability="normal", transcripts="off")
    db.create_session("s", "cli")
    db.replace_messages("s", [{"role": "user", "content": f"alpha{n:x}word omega{n:x}term"} for n in range(MESSAGES)])
    db.catch_up()
    with sqlite3.connect(tmp_path / "state.db") as file:  # before anything is tidied in a quiet moment
        (segments,) = file.execute("SELECT count(DISTINCT segid) FROM messages_fts_trigram_idx").fetchone()
    found = db.search_messages("lpha3ffwor")
    db.close()
    assert len(found) == 1
    assert segments <= 10

"""Files with larger pages than new ones have, as earlier versions made them, go on as they are."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hermes_state import SessionDB


def page_size(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA page_size").fetchone()[0])
    finally:
        connection.close()


def test_a_file_with_pages_of_8_kb_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    said = [f"message {number} about larches " + "and other words " * 300 for number in range(20)]
    with SessionDB(db_path=path) as db:
        db.create_session("one", "cli")
        for text in said[:10]:
            db.append_message("one", "user", text)
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode=DELETE", "PRAGMA page_size=8192", "VACUUM"):
        connection.execute(statement).fetchall()
    connection.close()
    with SessionDB(db_path=path) as db:
        for text in said[10:]:
            db.append_message("one", "user", text)
        assert [message["content"] for message in db.get_messages_as_conversation("one")] == said
        for number in (3, 15):
            assert len(db.search_messages(f'"message {number}"')) == 1
        assert db.check() == []
    assert page_size(path) == 8192

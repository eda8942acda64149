"""A store on a server that has no table of file changes yet gets it."""

from __future__ import annotations

import json

from hermes_state import SessionDB
from tests.support.waiting import until


def test_a_store_of_an_earlier_program_gets_the_table(url: str) -> None:
    arguments = json.dumps({"path": "a.py", "content": "a line"})
    call = {"id": "c1", "type": "function", "function": {"name": "write_file", "arguments": arguments}}
    with SessionDB(url=url) as db:
        db.create_session("s", "cli")
        db.append_message("s", "assistant", None, tool_calls=[call])
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE file_changes")
    with SessionDB(url=url, read_only=True) as db:
        assert [row["path"] for row in db.file_changes(["a.py"])] == ["a.py"]
    with SessionDB(url=url) as db:
        until(lambda: db.get_meta("file_changes_below") is None)
        assert db.sql("SELECT path, kind FROM file_changes") == [{"path": "a.py", "kind": "write"}]
        db.append_message("s", "assistant", None, tool_calls=[call])
        assert len(db.file_changes(["a.py"])) == 2

"""A program that ends without closing its store ends as it would have, and the store is whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hermes_state import SessionDB

PROGRAM = """
import json, sys
from hermes_state import SessionDB

def hook():  # another module keeps it, and it keeps the globals here: they are freed by the interpreter's last collection
    return db

json.JSONEncoder.hook = hook
db = SessionDB(sys.argv[1])
db.create_session("s", "cli")
db.append_message("s", "user", "the words")
"""


def test_a_store_that_is_left_open_does_not_crash_the_program(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    with SessionDB(path) as db:
        assert [row["content"] for row in db.get_messages("s")] == ["the words"] and db.check() == []
    assert not path.with_name("state.db-wal").exists() or path.with_name("state.db-wal").stat().st_size == 0

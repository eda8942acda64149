"""check() while others write: what a line on its way explains is no finding. And opening after many crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hermes_state import SessionDB

from . import settled, size

BUSY = """
import sys
from hermes_state import SessionDB
db, number = SessionDB(sys.argv[1], durability="normal"), 0
while True:
    number += 1
    name = f"{sys.argv[2]}-{number}"
    db.create_session(name, "cli", system_prompt="be kind")
    for text in range(3):
        db.append_message(name, "user", f"note {text}")
    db.set_session_title(name, f"title {name}")
    db.rewind(name, db.get_messages(name)[0]["id"])
    if number % 3 == 0:
        db.replace_messages(name, [{"role": "user", "content": "instead"}])
    if number % 4 == 0:
        db.delete_session(name)
    print(number, flush=True)
"""


def test_a_store_that_others_write_to_is_sound(folder: Path) -> None:
    path = folder / "state.db"
    SessionDB(path).close()
    writers = [
        subprocess.Popen([sys.executable, "-c", BUSY, str(path), f"w{n}"], stdout=subprocess.PIPE) for n in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline()  # it has begun
        with SessionDB(path) as db:
            found = [finding for _ in range(size(3, 20)) for finding in db.check()]
        assert all(writer.poll() is None for writer in writers), "a writer died"
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert found == []
    with SessionDB(path) as db:
        settled(db)  # a deletion may have been cut short

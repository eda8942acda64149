"""A process forks while its threads read and write: the child opens the store, and everything that either stores is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import contents, size, store

CHILDREN = size(6, 30)
PROGRAM = """
import os, sys, threading
from pathlib import Path
from hermes_state import SessionDB

path, children = Path(sys.argv[1]), int(sys.argv[2])
db = SessionDB(db_path=path)
db.create_session("talk", "cli")
db.append_message("talk", "user", "first words")
db.search_messages("words")  # loads what is loaded late: a child of a process that is importing can't import that module
stop = threading.Event()
stored = []

def write(name):
    number = 0
    while not stop.is_set():
        text = f"{name} {number} " + "some words " * 200
        db.append_message("talk", "user", text)
        stored.append(text)
        number += 1

def read():
    while not stop.is_set():
        db.search_messages("words")
        db.get_messages("talk")[-1]

threads = [threading.Thread(target=write, args=(name,)) for name in "ab"] + [threading.Thread(target=read)]
for thread in threads:
    thread.start()
failed = 0
for child in range(children):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with SessionDB(db_path=path) as mine:
                mine.append_message("talk", "user", f"child {child}")
                mine.search_messages("words")
                assert mine.get_messages("talk")[-1]
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    failed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
stop.set()
for thread in threads:
    thread.join()
db.close()
print(failed, len(stored))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_of_a_busy_process_opens_the_store_and_nothing_is_lost(folder: Path) -> None:
    path = folder / "state.db"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(CHILDREN)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.stdout.split()[0] == "0", done.stderr
    with store(path) as db:
        texts = contents(db.get_messages("talk"))
        assert [text for text in texts if text.startswith("child")] == [f"child {number}" for number in range(CHILDREN)]
        assert len(texts) == 1 + CHILDREN + int(done.stdout.split()[1])
        assert db.check() == []

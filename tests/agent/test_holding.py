"""A session is live while a process works with it, and not a moment longer than it takes to notice that it died."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from hermes.agent.holding import Hold, free_from_the_dead, is_gone


@pytest.fixture
def held(db: Any) -> Any:
    db.create_session("one", "cli")
    db.create_session("two", "cli")
    return db


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
    return child.pid


def test_a_hold_outlives_its_time_as_long_as_the_process_does(held: Any) -> None:
    hold = Hold(held, ttl=2.0)
    assert hold.take("one")
    until = time.monotonic() + 4.0
    while time.monotonic() < until:
        assert held.is_live("one")
        time.sleep(0.1)
    hold.release()
    assert not held.is_live("one")


def test_one_session_at_a_time(held: Any) -> None:
    hold = Hold(held)
    hold.take("one")
    hold.take("two")
    assert (held.is_live("one"), held.is_live("two")) == (False, True)
    hold.release()
    assert not held.is_live("two")
    assert hold.take("one")  # and it can be taken up again
    hold.release()


def test_what_another_holds_is_theirs(held: Any) -> None:
    mine, theirs = Hold(held), Hold(held)
    assert theirs.take("one")
    assert not mine.take("one")
    mine.release()
    assert held.is_live("one")
    theirs.release()
    assert mine.take("one")
    mine.release()


def test_a_dead_process_of_this_machine_does_not_keep_its_session(held: Any) -> None:
    held.hold_session("one", f"{socket.gethostname()}:{dead_process()}:abcd", 120.0)
    hold = Hold(held)
    assert hold.take("one")
    hold.release()


def test_a_process_of_another_machine_is_believed_until_its_time_is_over(held: Any) -> None:
    held.hold_session("one", f"elsewhere:{dead_process()}:abcd", 120.0)
    assert not free_from_the_dead(held, "one")
    assert not Hold(held).take("one")
    assert held.is_live("one")


@pytest.mark.parametrize(
    "holder", ["", "nonsense", "a:b:c", f"{socket.gethostname()}:x", f"{socket.gethostname()}:1:x"]
)
def test_nobody_is_taken_for_dead_without_proof(holder: str) -> None:
    assert not is_gone(holder)

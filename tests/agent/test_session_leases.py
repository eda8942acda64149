"""A session is live while a process works with it, and not a moment longer than it takes to notice that it died."""

from __future__ import annotations

import gc
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from hermes.agent.session_leases import SessionLease, is_gone, release_dead


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
    hold = SessionLease(held, ttl=2.0)
    assert hold.take("one")
    until = time.monotonic() + 4.0
    while time.monotonic() < until:
        assert held.is_live("one")
        time.sleep(0.1)
    hold.release()
    assert not held.is_live("one")


def test_one_session_at_a_time(held: Any) -> None:
    hold = SessionLease(held)
    hold.take("one")
    hold.take("two")
    assert (held.is_live("one"), held.is_live("two")) == (False, True)
    hold.release()
    assert not held.is_live("two")
    assert hold.take("one")  # and it can be taken up again
    hold.release()


def test_what_another_holds_is_theirs(held: Any) -> None:
    mine, theirs = SessionLease(held), SessionLease(held)
    assert theirs.take("one")
    assert not mine.take("one")
    mine.release()
    assert held.is_live("one")
    theirs.release()
    assert mine.take("one")
    mine.release()


def test_a_dead_process_of_this_machine_does_not_keep_its_session(held: Any) -> None:
    held.hold_session("one", f"{socket.gethostname()}:{dead_process()}:abcd", 120.0)
    hold = SessionLease(held)
    assert hold.take("one")
    hold.release()


def test_a_process_of_another_machine_is_believed_until_its_time_is_over(held: Any) -> None:
    held.hold_session("one", f"elsewhere:{dead_process()}:abcd", 120.0)
    assert not release_dead(held, "one")
    assert not SessionLease(held).take("one")
    assert held.is_live("one")


@pytest.mark.parametrize(
    "holder", ["", "nonsense", "a:b:c", f"{socket.gethostname()}:x", f"{socket.gethostname()}:1:x"]
)
def test_nobody_is_taken_for_dead_without_proof(holder: str) -> None:
    assert not is_gone(holder)


def beating() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hermes-leases"]


def until(true: Any) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_many_holds_of_a_store_have_one_heart(db: Any) -> None:
    until(lambda: not beating())
    holds = [SessionLease(db, ttl=2.0) for _ in range(50)]
    for number, hold in enumerate(holds):
        db.create_session(f"s{number}", "cli")
        assert hold.take(f"s{number}")
    assert len(beating()) == 1
    end = time.monotonic() + 4.0
    while time.monotonic() < end:
        assert all(db.is_live(f"s{number}") for number in range(50))
        time.sleep(0.2)
    for hold in holds:
        hold.release()
    assert not any(db.is_live(f"s{number}") for number in range(50))
    until(lambda: not beating())


def test_a_closed_store_stops_its_heart(make_db: Any) -> None:
    until(lambda: not beating())
    db = make_db()
    db.create_session("one", "cli")
    hold = SessionLease(db, ttl=0.4)
    assert hold.take("one")
    db.close()
    until(lambda: not beating())
    hold.release()


def test_who_forgets_to_let_go_holds_on_no_longer_than_its_lease(held: Any) -> None:
    until(lambda: not beating())
    hold = SessionLease(held, ttl=1.0)
    assert hold.take("one")
    del hold
    gc.collect()
    until(lambda: not held.is_live("one"))
    until(lambda: not beating())


def test_what_was_lost_in_a_long_sleep_is_taken_again_when_it_is_free(held: Any) -> None:
    hold = SessionLease(held, ttl=1.0)
    assert hold.take("one")
    with closing(sqlite3.connect(held.path)) as sql:  # as if this machine had slept, and another had come and gone
        sql.execute("UPDATE leases SET holder = 'elsewhere:1:x', token = token + 1, expires_at = 0")
        sql.commit()
    until(lambda: (held.session_holder("one") or "").startswith(socket.gethostname()))
    hold.release()
    assert not held.is_live("one")


def test_the_session_of_another_is_taken_when_they_leave(held: Any) -> None:
    theirs, mine = SessionLease(held), SessionLease(held, ttl=1.0)
    assert theirs.take("one")
    assert not mine.take("one")
    theirs.release()
    until(lambda: held.is_live("one"))
    mine.release()


def test_letting_go_soon_lets_go_and_a_turn_that_comes_before_keeps_it(held: Any) -> None:
    hold, other = SessionLease(held), SessionLease(held)
    assert hold.take("one")
    assert other.take("two")
    hold.release_soon()
    other.release_soon()
    assert other.take("two")  # before the moment has come
    until = time.monotonic() + 10
    while held.is_live("one"):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert held.is_live("two")
    assert not SessionLease(held).take("two")
    other.release()
    assert SessionLease(held).take("two")


def test_leases_are_renewed_though_others_let_go_all_the_time(held: Any) -> None:
    hold, busy = SessionLease(held, ttl=1.2), SessionLease(held)
    assert hold.take("one")
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        assert held.is_live("one")
        assert busy.take("two")
        busy.release_soon()
        time.sleep(0.02)
    hold.release()


def test_many_that_take_and_let_go_at_once_end_with_nobody_holding(held: Any) -> None:
    names = [f"s{n}" for n in range(8)]
    for name in names:
        held.create_session(name, "cli")

    def work(name: str) -> None:
        hold = SessionLease(held)
        for _ in range(40):
            assert hold.take(name)
            hold.release_soon()

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    until = time.monotonic() + 10
    while any(held.is_live(name) for name in names):
        assert time.monotonic() < until
        time.sleep(0.02)

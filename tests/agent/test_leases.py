"""A process renews its leases while it works, in one thread for all; a session is live while a process works with it."""

from __future__ import annotations

import gc
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from typing import Any

import pytest

from hermes.agent.leases import Lease, SessionLease, renewing
from hermes.agent.turn import Text
from hermes.errors import Fenced, SessionBusy
from hermes.store.api.session_db import Transactions
from hermes.store.leases import holder_name
from hermes_state import SessionDB
from tests.support.waiting import PATIENCE, until
from tests.support.wire import Wire, delta, end, said, sse

pytestmark = pytest.mark.mechanism

SHORT = 2.0  # seconds: a busy machine lets a thread wait for more than half of one


def beating() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "hermes-leases"]


def taken(db: Any, name: str, ttl: float = SHORT) -> tuple[str, int]:
    return name, db.acquire_lease(name, "here", ttl)


# ------------------------------------------------------------------ jobs


def outlives(db: Any, *names: str) -> None:
    """These leases are renewed: they end later than they would have."""
    before = ends(db, *names)
    until(lambda: all(now > then for now, then in zip(ends(db, *names), before, strict=True)))


def ends(db: Any, *names: str) -> list[float]:
    with closing(sqlite3.connect(db.path)) as other:
        known = dict(other.execute("SELECT name, expires_at FROM leases WHERE holder IS NOT NULL").fetchall())
    return [known[name] for name in names]


def test_a_kept_lease_outlives_its_time_and_runs_out_afterwards(db: Any) -> None:
    with renewing(Lease(db, taken(db, "work"), SHORT)):
        outlives(db, "work")
    until(lambda: db.lease_holder("work") is None)


def test_leases_of_different_length_and_store_are_renewed_side_by_side(make_db: Any) -> None:
    until(lambda: not beating())
    one, two = make_db(name="one"), make_db(name="two")
    with (
        renewing(Lease(one, taken(one, "long", 60.0), 60.0)),
        renewing(Lease(one, taken(one, "short"), SHORT)),
        renewing(Lease(two, taken(two, "short"), SHORT)),
    ):
        outlives(one, "short")
        outlives(two, "short")
        assert len(beating()) == 1
    until(lambda: not beating())


def test_a_lease_that_passed_to_another_is_reported_once(db: Any) -> None:
    work = taken(db, "work")
    db.release_lease(*work)
    assert db.acquire_lease("work", "there", 60.0) == work[1] + 1
    lost: list[str] = []
    with (
        renewing(Lease(db, work, SHORT, lost=lambda: lost.append("work"))),
        renewing(Lease(db, taken(db, "other"), SHORT)),
    ):
        until(lambda: lost)
        outlives(db, "other")  # the others go on
    assert lost == ["work"]
    assert db.lease_holder("work") == "there"


FORKING = """
import os, sqlite3, sys, time
from hermes.agent.leases import Lease, renewing
from hermes_state import SessionDB
with SessionDB(sys.argv[1]) as db, renewing(Lease(db, ("a", db.acquire_lease("a", "here", 60.0)), 60.0)):
    child = os.fork()
    if child == 0:
        with SessionDB(sys.argv[1]) as own, renewing(Lease(own, ("b", own.acquire_lease("b", "here", 0.8)), 0.8)):
            ends = lambda: sqlite3.connect(sys.argv[1]).execute("SELECT expires_at FROM leases WHERE name = 'b'").fetchone()
            first = ends()
            while ends() == first:
                time.sleep(0.02)
            os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_renews_its_own(db: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    assert (
        subprocess.run([sys.executable, "-c", FORKING, str(db.path)], env=environment, timeout=PATIENCE).returncode == 0
    )


# ------------------------------------------------------------------ sessions


@pytest.fixture
def held(db: Any) -> Any:
    db.create_session("one", "cli")
    db.create_session("two", "cli")
    return db


def test_a_dead_process_of_this_machine_does_not_keep_its_session(held: Any) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
    held.take_turn("one", f"{socket.gethostname()}:{child.pid}:abcd:cli", 120.0)
    lease = SessionLease(held)
    assert lease.open("one")
    lease.release()


def test_an_open_session_is_taken_for_a_turn_and_is_open_again_afterwards(held: Any) -> None:
    terminal, chat = SessionLease(held, ttl=SHORT, source="cli"), SessionLease(held, source="telegram")
    assert terminal.open("one")
    chat.take("one")
    with pytest.raises(SessionBusy, match="telegram"):
        terminal.take("one")
    with pytest.raises(Fenced), terminal.fenced():
        held.append_message("one", "user", "late")
    chat.release()
    until(lambda: (held.session_holder("one") or "").endswith(":cli"))
    assert held.turn_holder("one") is None
    terminal.take("one")
    terminal.end_turn()
    assert held.is_live("one")
    chat.take("one")
    chat.release()
    terminal.release()


def test_what_a_turn_began_with_counts_though_the_session_is_open_here_again(held: Any) -> None:
    late, other = SessionLease(held, ttl=SHORT), SessionLease(held)
    late.take("one")
    name, token = late.fence
    held.release_lease(name, token)  # as if it had slept for long
    other.take("one")
    other.release()
    until(lambda: held.is_live("one"))
    with pytest.raises(Fenced), late.fenced():
        held.append_message("one", "assistant", "late")
    late.take("one")
    with late.fenced():
        held.append_message("one", "user", "in time")
    late.release()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_closed_store_stops_its_heart_also_if_another_has_the_session(make_db: Any, elsewhere: bool) -> None:
    until(lambda: not beating())
    db = make_db()
    db.create_session("one", "cli")
    if elsewhere:
        db.hold_session("one", "elsewhere:1:x:cli")
    lease = SessionLease(db, ttl=0.4)
    assert lease.open("one") is not elsewhere
    db.close()
    until(lambda: not beating())
    lease.release()


def test_who_forgets_to_let_go_holds_on_no_longer_than_its_lease(held: Any) -> None:
    until(lambda: not beating())
    lease = SessionLease(held, ttl=1.0)
    assert lease.open("one")
    del lease
    gc.collect()
    until(lambda: not held.is_live("one"))
    until(lambda: not beating())


# ------------------------------------------------------------------ taken with the message, released with the reply


def test_a_session_used_elsewhere_after_it_was_read_is_read_again_before_the_message_is_stored(
    make_db: Any, make_agent: Any
) -> None:
    db = make_db()
    db.create_session("s1", "cli")
    elsewhere = SessionDB(db_path=db.path)

    def keep(session_id: str, content: Any, also: Any) -> int:
        if not elsewhere.get_messages("s1"):  # the other process comes at this very moment, and is gone again
            token = elsewhere.take_turn("s1", holder_name("telegram"))
            elsewhere.append_message("s1", "user", "from my phone")
            elsewhere.append_message("s1", "assistant", "answered there")
            elsewhere.release_lease("session:s1", token)
        return Transactions(db).store_message(session_id, {"role": "user", "content": content}, lambda tx, _: also(tx))

    with Wire([said("here")]) as wire:
        agent = make_agent(wire, db=db)
        assert agent.wait_for_turn(lambda who: None, lambda seconds: False)
        for _ in agent.turn("from my desk", keep=keep):
            pass
        told = [one["content"] for one in wire.bodies[0]["messages"] if one["role"] != "system"]
    elsewhere.close()
    assert told == ["from my phone", "answered there", "from my desk"]
    assert [row["content"] for row in db.get_messages("s1")] == [*told, "here"]


def test_a_session_is_released_in_the_transaction_of_the_reply(make_db: Any, make_agent: Any) -> None:
    db = make_db()
    seen: list[str | None] = []
    with Wire([said("one"), said("two")]) as wire:
        agent = make_agent(wire, db=db)
        agent.gathers = True

        def with_reply(tx: Any) -> None:
            seen.append(db.turn_holder("s1"))
            agent.lease.release_in(tx)

        for words in ("first", "second"):
            for _ in agent.turn(words, with_reply=with_reply):
                pass
            assert not db.is_live("s1")
    assert all(holder is not None and holder.endswith(":cli") for holder in seen) and len(seen) == 2
    assert [row["content"] for row in db.get_messages("s1")] == ["first", "one", "second", "two"]


def test_a_turn_that_slept_while_another_process_went_on_stores_nothing_more(make_db: Any, make_agent: Any) -> None:
    db = make_db()
    half = sse(delta(content="Half of "), delta(content="an answer."), end())
    with Wire([half]) as wire, SessionDB(db_path=db.path) as elsewhere:
        agent, other = make_agent(wire, db=db), SessionLease(elsewhere)
        with pytest.raises(Fenced):
            for event in agent.turn("the question"):
                if isinstance(event, Text) and elsewhere.turn_holder("s1") and not other.held:
                    elsewhere.release_lease(*agent.lease.fence)  # as if it had expired
                    other.take("s1")
                    elsewhere.append_message("s1", "assistant", "Answered there.")
        other.release()
    assert [row["content"] for row in db.get_messages("s1")] == ["the question", "Answered there."]

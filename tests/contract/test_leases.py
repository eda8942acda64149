"""Leases: one holder at a time, a fencing token that only grows, and freedom by the clock when it is gone."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from hermes.errors import Fenced, SessionBusy, SessionNotFound
from tests.support.waiting import until

from . import in_threads, old_session, shown, talk


def test_one_holder_at_a_time(db):
    token = db.acquire_lease("indexer", "a")
    assert isinstance(token, int)
    assert db.acquire_lease("indexer", "b") is None
    assert isinstance(db.acquire_lease("another", "b"), int)


def test_release_lets_the_next_one_in_with_a_greater_token(db):
    tokens = []
    for holder in ("a", "b", "a", "c"):
        tokens.append(db.acquire_lease("x", holder))
        assert db.release_lease("x", tokens[-1]) is True
    assert tokens == sorted(set(tokens))


def test_an_expired_lease_is_taken_over_and_its_token_is_worthless(db):
    old = db.acquire_lease("x", "a", ttl=0.05)
    new = until(lambda: db.acquire_lease("x", "b", ttl=60))
    assert new > old
    assert db.renew_lease("x", old) is False
    assert db.release_lease("x", old) is False
    assert db.acquire_lease("x", "c") is None, "the old holder's release took nothing from the new one"
    assert db.renew_lease("x", new) is True


def test_renewing_keeps_the_lease(db):
    token = db.acquire_lease("x", "a", ttl=0.2)
    assert db.renew_lease("x", token, ttl=300) is True
    assert db.acquire_lease("x", "b") is None
    assert db.renew_lease("x", token + 1) is False
    assert db.renew_lease("nothing", 1) is False
    assert [db.release_lease("x", token), db.release_lease("x", token)] == [True, False]
    assert db.renew_lease("x", token) is False


def test_leases_hold_across_openers_and_tokens_grow_across_reopening(make_db):
    one, two = make_db(name="x"), make_db(name="x")
    first = one.acquire_lease("x", "a")
    assert two.acquire_lease("x", "b") is None
    one.release_lease("x", first)
    one.close()
    two.close()
    assert make_db(name="x").acquire_lease("x", "c") > first


def test_many_ask_at_once_and_one_gets_it(make_db):
    stores = [make_db(name="x") for _ in range(3)]
    for n in range(5):
        tokens = in_threads(*[lambda db=db, n=n: db.acquire_lease(f"lease{n}", f"holder{id(db)}") for db in stores])
        assert len([token for token in tokens if token is not None]) == 1


# ------------------------------------------------------------------ live sessions


def test_a_held_session_is_live_until_its_lease_runs_out(db):
    talk(db, "s", "x")
    assert db.is_live("s") is False
    assert db.hold_session("s", "process 1", ttl=0.1) is not None
    until(lambda: not db.is_live("s"))
    assert isinstance(db.hold_session("s", "process 2"), int)
    assert db.is_live("s") is True


def test_one_holder_answers_at_a_time_also_where_another_has_the_session_open(make_db):
    one, two = make_db(name="x"), make_db(name="x")
    talk(one, "s", "x")
    opened = one.hold_session("s", "host:1:aa:cli")
    assert one.turn_holder("s") is None
    turn = two.take_turn("s", "host:2:bb:telegram")  # an open session alone keeps nobody from answering
    assert one.renew_lease("session:s", opened) is False
    assert one.hold_session("s", "host:1:aa:cli") is None
    with pytest.raises(SessionBusy, match=r"another process \(telegram\) is answering in session s") as busy:
        one.take_turn("s", "host:1:aa:cli")
    assert (busy.value.source, busy.value.reason) == ("telegram", "turn")
    assert one.session_holder("s") == one.turn_holder("s") == "host:2:bb:telegram"
    with two.fenced("session:s", turn):
        two.append_message("s", "user", "from the chat")
    two.release_lease("session:s", turn)
    assert one.hold_session("s", "host:1:aa:cli") > turn
    assert one.take_turn("s", "host:1:aa:cli") > turn
    with pytest.raises(SessionNotFound):
        one.take_turn("missing", "terminal")


def test_a_turn_that_is_over_leaves_the_session_open_and_others_may_answer(make_db):
    one, two = make_db(name="x"), make_db(name="x")
    talk(one, "s", "x")
    turn = one.take_turn("s", "host:1:aa:cli")
    with pytest.raises(SessionBusy):
        two.take_turn("s", "host:2:bb:telegram")
    assert one.renew_lease("session:s", turn, reason="open") is True
    assert one.is_live("s") and one.turn_holder("s") is None
    assert two.take_turn("s", "host:2:bb:telegram") > turn


@pytest.mark.parametrize("reasons", [("turn", "compression"), ("compression", "turn")])
def test_a_session_is_compressed_by_one_and_nobody_answers_meanwhile(make_db, reasons):
    one, two = make_db(name="x"), make_db(name="x")
    talk(one, "s", "x")
    token = one.take_turn("s", "host:1:aa:cli", reason=reasons[0])
    with pytest.raises(SessionBusy) as busy:
        two.take_turn("s", "host:2:bb:telegram", reason=reasons[1])
    assert busy.value.reason == reasons[0]
    one.release_lease("session:s", token)
    assert two.take_turn("s", "host:2:bb:telegram", reason=reasons[1]) > token


def test_a_dead_process_of_this_machine_keeps_no_lease_and_one_of_another_machine_does(db):
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
    talk(db, "s", "x")
    dead = db.take_turn("s", f"{socket.gethostname()}:{child.pid}:aa:cli")
    assert db.take_turn("s", "host:2:bb:telegram") > dead
    assert db.acquire_lease("job:x", f"elsewhere:{child.pid}:aa:cli")
    assert db.acquire_lease("job:x", "host:2:bb:telegram") is None


@pytest.mark.parametrize(
    "holder", ["", "nonsense", "a:b:c", f"{socket.gethostname()}:x", f"{socket.gethostname()}:1:x"]
)
def test_nobody_is_taken_for_dead_without_proof(db, holder):
    assert db.acquire_lease("job:x", holder)
    assert db.acquire_lease("job:x", "another") is None


def test_abandoned_sessions_are_ended_and_live_ones_are_not(db):
    for name in ("crashed", "live"):
        old_session(db, name, 3, end=None)
    old_session(db, "ended", 3, end="user_exit")
    db.hold_session("crashed", "process 1", ttl=0.01)
    db.hold_session("live", "process 2", ttl=300)
    until(lambda: not db.is_live("crashed"))
    assert until(lambda: db.end_abandoned_sessions(after_hours=0)) == 1
    row = db.get_session("crashed")
    assert row["end_reason"] == "abandoned" and row["ended_at"] is not None
    assert shown(db, "crashed") == ["words of crashed"]
    assert db.get_session("live")["ended_at"] is None
    assert db.get_session("ended")["end_reason"] == "user_exit"
    assert db.end_abandoned_sessions(after_hours=0) == 0


def test_a_session_that_crashed_a_moment_ago_is_not_ended_yet(db):
    talk(db, "s", "x")
    db.hold_session("s", "process 1", ttl=0.01)
    until(lambda: not db.is_live("s"))
    assert db.end_abandoned_sessions() == 0
    assert db.get_session("s")["ended_at"] is None


def test_several_are_renewed_at_once_and_each_is_told_of(db):
    mine, lost = db.acquire_lease("mine", "me", ttl=5), db.acquire_lease("lost", "me", ttl=5)
    db.release_lease("lost", lost)
    assert db.renew_leases([("mine", mine, 300), ("lost", lost, 300), ("nothing", 1, 300)]) == [True, False, False]
    assert db.acquire_lease("mine", "you") is None
    assert db.renew_leases([]) == []
    new = db.acquire_lease("mine", "me", ttl=5)
    assert db.renew_leases([("mine", new, 300), ("mine", mine, 300)]) == [True, False]


# ------------------------------------------------------------------ fences


def taken_over(db, name="session:s"):
    """A lease that ran out and was taken by another: the old token and the new one."""
    old = db.acquire_lease(name, "a", ttl=0.01)
    return old, until(lambda: db.acquire_lease(name, "b"))


WRITES = {
    "append": lambda db: db.append_message("s", "assistant", "late"),
    "replace": lambda db: db.replace_messages("s", [{"role": "user", "content": "late"}]),
    "clear": lambda db: db.clear_messages("s"),
    "rewind": lambda db: db.rewind("s", 0),
    "compress": lambda db: db.compress_session("s", "child", summary="late"),
    "branch": lambda db: db.branch_session("s", "child"),
    "end": lambda db: db.end_session("s", "idle"),
    "prompt": lambda db: db.update_system_prompt("s", "late"),
    "usage": lambda db: db.update_token_counts("s", 5),
    "title": lambda db: db.set_session_title("s", "late"),
    "tag": lambda db: db.tag_session("s", "late"),
    "trash": lambda db: db.trash_session("s"),
    "handoff": lambda db: db.request_handoff("s", "telegram"),
    "create": lambda db: db.create_session("another", "cli"),
    "meta": lambda db: db.set_meta("late", "yes"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_who_lost_a_lease_can_write_nothing_that_depends_on_it(db, write):
    talk(db, "s", "x")
    old, new = taken_over(db)
    before = db.export_all()
    with pytest.raises(Fenced, match="another process has taken over session s") as raised, db.fenced("session:s", old):
        write(db)
    assert raised.value.lease == "session:s"
    assert db.export_all() == before and db.get_meta("late") is None
    with db.fenced("session:s", new):
        write(db)
    assert db.export_all() != before or db.get_meta("late") == "yes" or db.list_trash()
    assert db.check() == []


def test_a_lease_that_ran_out_counts_until_another_takes_it(db):
    talk(db, "s", "x")
    token = db.hold_session("s", "a", ttl=0.01)
    until(lambda: not db.is_live("s"))
    with db.fenced("session:s", token):
        db.append_message("s", "assistant", "y")
        assert db.hold_session("s", "b") is not None
        with pytest.raises(Fenced):
            db.append_message("s", "assistant", "z")
    assert shown(db, "s") == ["x", "y"]


@pytest.mark.parametrize("name", ["session:s", "never taken"])
def test_what_was_given_back_or_never_taken_fences_out(db, name):
    talk(db, "s", "x")
    token = db.hold_session("s", "a")
    db.release_lease("session:s", token)
    with pytest.raises(Fenced), db.fenced(name, token):
        db.append_message("s", "assistant", "y")
    assert shown(db, "s") == ["x"]


def test_all_fences_that_are_nested_must_hold_and_those_left_no_longer_count(db):
    talk(db, "s", "x")
    mine, other = db.acquire_lease("mine", "a"), db.acquire_lease("other", "a")
    with db.fenced("mine", mine):
        with pytest.raises(Fenced) as raised, db.fenced("other", other + 1):
            db.append_message("s", "assistant", "y")
        assert raised.value.lease == "other"
        with db.fenced("other", other):
            db.append_message("s", "assistant", "z")
    db.release_lease("mine", mine)
    db.append_message("s", "assistant", "free again")
    assert shown(db, "s") == ["x", "z", "free again"]


def test_a_fence_is_about_the_thread_that_set_it(db):
    talk(db, "s", "x")
    old, _ = taken_over(db)
    with db.fenced("session:s", old):
        in_threads(lambda: db.append_message("s", "assistant", "of another thread"))
    assert shown(db, "s") == ["x", "of another thread"]


def test_between_the_look_and_the_commit_nobody_takes_the_lease(make_db):
    """Whatever the order, either the write is before the taking or it is refused."""
    one, two = make_db(name="x"), make_db(name="x")
    talk(one, "s", "x")
    for number in range(15):
        token = one.hold_session("s", "a", ttl=0.0001)

        def write(token=token, number=number):
            try:
                with one.fenced("session:s", token):
                    return one.append_message("s", "assistant", f"n{number}")
            except Fenced:
                return None

        def take(number=number):
            taken = until(lambda: two.hold_session("s", "b", ttl=60))
            return taken, [row["id"] for row in two.get_messages("s")]

        written, (taken, seen) = in_threads(write, take)
        assert written is None or written in seen, "it was stored after another had taken over"
        two.release_lease("session:s", taken)

"""Leases: one holder at a time, a fencing token that only grows, and freedom by the clock when it is gone."""

from __future__ import annotations

from . import eventually, in_threads, old_session, shown, talk


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
    new = eventually(lambda: db.acquire_lease("x", "b", ttl=60))
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


def test_releasing_twice_is_false(db):
    token = db.acquire_lease("x", "a")
    assert db.release_lease("x", token) is True
    assert db.release_lease("x", token) is False
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
    eventually(lambda: not db.is_live("s"))
    assert isinstance(db.hold_session("s", "process 2"), int)
    assert db.is_live("s") is True


def test_a_session_is_held_by_one_process_at_a_time(make_db):
    one, two = make_db(name="x"), make_db(name="x")
    talk(one, "s", "x")
    assert one.hold_session("s", "process 1") is not None
    assert two.hold_session("s", "process 2") is None
    assert two.is_live("s") is True


def test_is_live_of_the_unknown_is_false(db):
    assert db.is_live("nobody") is False


def test_abandoned_sessions_are_ended_and_live_ones_are_not(db):
    for name in ("crashed", "live"):
        old_session(db, name, 3, end=None)
    old_session(db, "ended", 3, end="user_exit")
    db.hold_session("crashed", "process 1", ttl=0.01)
    db.hold_session("live", "process 2", ttl=300)
    eventually(lambda: not db.is_live("crashed"))
    assert eventually(lambda: db.end_abandoned_sessions(after_hours=0)) == 1
    row = db.get_session("crashed")
    assert row["end_reason"] == "abandoned" and row["ended_at"] is not None
    assert shown(db, "crashed") == ["words of crashed"]
    assert db.get_session("live")["ended_at"] is None
    assert db.get_session("ended")["end_reason"] == "user_exit"
    assert db.end_abandoned_sessions(after_hours=0) == 0


def test_a_session_that_crashed_a_moment_ago_is_not_ended_yet(db):
    talk(db, "s", "x")
    db.hold_session("s", "process 1", ttl=0.01)
    eventually(lambda: not db.is_live("s"))
    assert db.end_abandoned_sessions() == 0
    assert db.get_session("s")["ended_at"] is None


def test_whoever_holds_a_session_can_be_named(db):
    db.create_session("s", "cli")
    assert db.session_holder("s") is None and db.session_holder("nobody") is None
    token = db.hold_session("s", "host:1:abc")
    assert db.session_holder("s") == "host:1:abc"
    db.release_lease("session:s", token)
    assert db.session_holder("s") is None


def test_several_are_renewed_at_once_and_each_is_told_of(db):
    mine, lost = db.acquire_lease("mine", "me", ttl=5), db.acquire_lease("lost", "me", ttl=5)
    db.release_lease("lost", lost)
    assert db.renew_leases([("mine", mine, 300), ("lost", lost, 300), ("nothing", 1, 300)]) == [True, False, False]
    assert db.acquire_lease("mine", "you") is None
    assert db.renew_leases([]) == []

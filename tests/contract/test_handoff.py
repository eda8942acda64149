"""Handoff: NULL → pending → running → completed or failed; one winner; a failed one may be asked again."""

from __future__ import annotations

import pytest

from hermes.errors import Fenced, SessionBusy
from tests.support.waiting import until

from . import ids, in_threads, talk


@pytest.fixture
def ready(db):
    talk(db, "s", "hello")
    return db


def state(db, session_id="s"):
    return db.get_handoff_state(session_id)


def test_a_session_starts_without_a_handoff(ready):
    assert state(ready) == {"state": None, "platform": None, "error": None}
    assert ready.list_pending_handoffs() == []
    assert state(ready, "nobody") is None


def test_the_whole_way(ready):
    assert ready.request_handoff("s", "telegram") is True
    assert state(ready) == {"state": "pending", "platform": "telegram", "error": None}
    assert ids(ready.list_pending_handoffs()) == ["s"]
    assert ready.claim_handoff("s") is True
    assert state(ready)["state"] == "running" and state(ready)["platform"] == "telegram"
    assert ready.list_pending_handoffs() == []
    ready.complete_handoff("s")
    assert state(ready)["state"] == "completed" and state(ready)["error"] is None
    row = ready.get_session("s")
    assert (row["handoff_state"], row["handoff_platform"]) == ("completed", "telegram")
    assert row["ended_at"] is None, "a handoff does not end the session"


@pytest.mark.parametrize("claimed", [False, True])
def test_a_second_request_while_one_is_under_way_is_false(ready, claimed):
    ready.request_handoff("s", "telegram")
    if claimed:
        ready.claim_handoff("s")
    before = state(ready)
    assert ready.request_handoff("s", "discord") is False
    assert state(ready) == before


def test_only_a_pending_handoff_can_be_claimed_and_only_once(ready):
    assert ready.claim_handoff("s") is ready.heartbeat_handoff("s") is False
    ready.request_handoff("s", "telegram")
    assert ready.heartbeat_handoff("s") is False
    assert ready.claim_handoff("s") is True
    assert ready.claim_handoff("s") is False
    ready.complete_handoff("s")
    assert ready.claim_handoff("s") is False
    assert state(ready)["state"] == "completed"


def test_a_failed_handoff_tells_why_and_can_be_requested_again(ready):
    ready.request_handoff("s", "telegram")
    ready.claim_handoff("s")
    ready.fail_handoff("s", "no such topic")
    assert state(ready) == {"state": "failed", "platform": "telegram", "error": "no such topic"}
    assert ready.list_pending_handoffs() == [] and ready.claim_handoff("s") is False
    assert ready.request_handoff("s", "discord") is True
    assert state(ready) == {"state": "pending", "platform": "discord", "error": None}


@pytest.mark.parametrize("call", [lambda db: db.complete_handoff("s"), lambda db: db.fail_handoff("s", "late")])
def test_a_finished_handoff_is_not_finished_again(ready, call):
    """Somebody who comes too late changes nothing."""
    ready.request_handoff("s", "telegram")
    ready.claim_handoff("s")
    ready.complete_handoff("s")
    before = state(ready)
    call(ready)
    assert state(ready) == before


def test_an_unknown_session_has_no_handoff(ready):
    assert ready.request_handoff("nobody", "telegram") is False
    assert ready.claim_handoff("nobody") is False
    ready.complete_handoff("nobody")
    ready.fail_handoff("nobody", "x")
    assert state(ready, "nobody") is None and ready.session_count() == 1


def test_pending_handoffs_are_listed_with_their_platform(db):
    for name, platform in (("a", "telegram"), ("b", "discord"), ("c", "slack")):
        talk(db, name, "x")
        db.request_handoff(name, platform)
    db.claim_handoff("c")
    assert {row["id"]: row["handoff_platform"] for row in db.list_pending_handoffs()} == {
        "a": "telegram",
        "b": "discord",
    }


def test_two_gateways_claim_and_one_wins(make_db):
    one, two = make_db(name="x"), make_db(name="x")
    for n in range(10):
        talk(one, f"s{n}", "x")
        one.request_handoff(f"s{n}", "telegram")
        wins = in_threads(*[lambda db=db, n=n: db.claim_handoff(f"s{n}") for db in (one, two, one, two)])
        assert sorted(wins) == [False, False, False, True]


def test_two_requests_at_once_and_one_is_taken(make_db):
    one, two = make_db(name="x"), make_db(name="x")
    talk(one, "s", "x")
    wins = in_threads(lambda: one.request_handoff("s", "telegram"), lambda: two.request_handoff("s", "discord"))
    assert sorted(wins) == [False, True]
    assert one.get_handoff_state("s")["platform"] == ("telegram" if wins[0] else "discord")


def test_when_the_claimer_dies_another_can_claim_after_the_lease_has_run_out(ready):
    ready.request_handoff("s", "telegram")
    assert ready.claim_handoff("s", lease=600) is True
    assert ready.claim_handoff("s") is False, "the lease still runs"
    assert ready.heartbeat_handoff("s", lease=0.05) is True  # shorter or longer than what is left
    assert until(lambda: ids(ready.list_pending_handoffs()) == ["s"]), "it waits for somebody again"
    assert ready.claim_handoff("s", lease=600) is True
    assert ready.claim_handoff("s") is False, "one winner again"
    assert state(ready)["platform"] == "telegram"


LATE = [
    lambda db: db.heartbeat_handoff("s", lease=600),
    lambda db: db.complete_handoff("s"),
    lambda db: db.fail_handoff("s", "late"),
    lambda db: db.withdraw_handoff("s", "late"),
]


@pytest.mark.parametrize("call", LATE)
@pytest.mark.parametrize("since", ["claimed", "asked", "given up"])
def test_a_claimer_who_wakes_up_late_changes_nothing_of_what_was_claimed_or_asked_since(ready, call, since):
    ready.request_handoff("s", "telegram")
    late = ready.take_handoff("s", lease=0.01)
    assert isinstance(late, int)
    if since == "claimed":
        assert until(lambda: ready.take_handoff("s", lease=600)) > late
    elif since == "asked":
        assert until(lambda: ready.request_handoff("s", "discord"))
    else:
        assert ready.fail_handoff("s", "the gateway died") and ready.request_handoff("s", "discord")
    before = state(ready), ready.handoff_seconds_left("s") is None
    with pytest.raises(Fenced, match="another process has taken over the handoff of session s"):
        with ready.fenced("job:handoff:s", late):
            call(ready)
    assert (state(ready), ready.handoff_seconds_left("s") is None) == before


def test_whoever_has_the_claim_can_prolong_and_complete_it(ready):
    assert ready.take_handoff("s") is None
    ready.request_handoff("s", "telegram")
    token = ready.take_handoff("s")
    assert ready.take_handoff("s") is None, "one winner"
    with ready.fenced("job:handoff:s", token):
        assert ready.heartbeat_handoff("s", lease=600)
        assert ready.complete_handoff("s")
    with pytest.raises(Fenced), ready.fenced("job:handoff:s", token):
        ready.complete_handoff("s")
    assert state(ready)["state"] == "completed"


def aged(db, seconds):
    """Make the handoff request, and the claim on it, this many seconds older."""
    with db._engine.write() as tx:
        tx.run("UPDATE sessions SET handoff_requested_at = handoff_requested_at - ? WHERE id = 's'", (seconds,))
        tx.run("UPDATE leases SET expires_at = expires_at - ?", (seconds,))


def test_a_request_older_than_two_minutes_is_no_longer_taken_and_blocks_no_new_one(ready):
    ready.request_handoff("s", "telegram")
    aged(ready, 110)
    assert ids(ready.list_pending_handoffs()) == ["s"]
    aged(ready, 20)
    assert ready.list_pending_handoffs() == []
    assert ready.claim_handoff("s") is False
    assert ready.request_handoff("s", "discord") is True
    assert ids(ready.list_pending_handoffs()) == ["s"]
    assert ready.claim_handoff("s") is True


def test_a_claim_that_ran_out_more_than_two_minutes_ago_is_not_taken_up_again(ready):
    ready.request_handoff("s", "telegram")
    ready.claim_handoff("s", lease=60)
    aged(ready, 170)
    assert ids(ready.list_pending_handoffs()) == ["s"]
    aged(ready, 20)
    assert ready.list_pending_handoffs() == []
    assert ready.claim_handoff("s") is False
    assert ready.request_handoff("s", "discord") is True


def test_while_a_handoff_runs_only_the_platform_it_goes_to_answers_in_the_session(ready):
    desk, gateway = "host:1:aa:cli", "host:2:bb:telegram"
    ready.request_handoff("s", "telegram/work")
    ready.release_lease("session:s", ready.take_turn("s", desk))  # not claimed yet
    ready.claim_handoff("s")
    with pytest.raises(SessionBusy, match="handoff to telegram/work"):
        ready.take_turn("s", desk)
    ready.release_lease("session:s", ready.take_turn("s", gateway))
    ready.complete_handoff("s")
    assert ready.take_turn("s", desk)

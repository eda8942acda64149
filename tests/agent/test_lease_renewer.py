"""Leases that are handed to the renewer last as long as they are kept, and a lost one is reported."""

from __future__ import annotations

import threading
import time
from typing import Any

from hermes.agent.lease_renewer import BEATS, KeptLease, kept
from hermes.errors import HermesError

SHORT = 2.0  # seconds: a busy machine lets a thread wait for more than half of one


def outlive(db: Any, name: str) -> None:
    """Wait for one and a half lifetimes of a short lease, counted in renewals: this lease is still held then."""
    beats = threading.Semaphore(0)

    def beat() -> bool:
        beats.release()
        return True

    with kept(db, KeptLease("clock", db.acquire_lease("clock", "here", SHORT), SHORT, renew=beat)):
        assert all(beats.acquire(timeout=30) for _ in range(BEATS * 3 // 2))
    end = time.monotonic() + 10  # on a busy machine a renewal comes late, but it comes
    while db.lease_holder(name) != "here":
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_kept_lease_outlives_its_time_and_runs_out_afterwards(db: Any) -> None:
    token = db.acquire_lease("work", "here", SHORT)
    with kept(db, KeptLease("work", token, SHORT)):
        outlive(db, "work")
    end = time.monotonic() + 10
    while db.lease_holder("work") is not None:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_leases_of_different_length_are_renewed_side_by_side(db: Any) -> None:
    before = threading.enumerate()
    long, short = db.acquire_lease("long", "here", 60.0), db.acquire_lease("short", "here", SHORT)
    with kept(db, KeptLease("long", long, 60.0)), kept(db, KeptLease("short", short, SHORT)):
        outlive(db, "short")
        new = [thread for thread in threading.enumerate() if thread not in before]
        assert [thread.name for thread in new].count("hermes-leases") == 1


def test_a_lease_that_passed_to_another_is_reported_once(db: Any) -> None:
    token = db.acquire_lease("work", "here", SHORT)
    db.release_lease("work", token)
    assert db.acquire_lease("work", "there", 60.0) == token + 1
    lost: list[str] = []
    heard = threading.Event()

    def told() -> None:
        lost.append("work")
        heard.set()

    beats = threading.Semaphore(0)

    def beat() -> bool:
        beats.release()
        return True

    other = db.acquire_lease("other", "here", SHORT)
    third = KeptLease("third", db.acquire_lease("third", "here", SHORT), SHORT, renew=beat)
    with (
        kept(db, KeptLease("work", token, SHORT, lost=told)),
        kept(db, KeptLease("other", other, SHORT)),
        kept(db, third),
    ):
        assert heard.wait(10)
        while beats.acquire(blocking=False):
            pass
        assert all(beats.acquire(timeout=10) for _ in range(3)), "the leases are renewed again and again"
        assert lost == ["work"]
        assert db.lease_holder("other") == "here"  # the others go on
    assert db.lease_holder("work") == "there"


def test_a_renewal_that_fails_is_reported_and_tried_again(db: Any) -> None:
    token = db.acquire_lease("work", "here", SHORT)
    beats: list[str] = []
    again = threading.Event()

    def renew() -> bool:
        beats.append("beat")
        if len(beats) == 1:
            raise HermesError("the store is busy")
        again.set()
        return True

    failures: list[HermesError] = []
    with kept(db, KeptLease("work", token, SHORT, renew=renew, failed=failures.append)):
        assert again.wait(10)
    assert [str(error) for error in failures] == ["the store is busy"]

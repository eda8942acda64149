"""Jobs by the clock in the store: a time is claimed once among all, a run ends once, and all of it moves along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes.jobs.cron import claim_due
from hermes.store.exchange.copy import move
from hermes.store.gateway import outbox
from hermes.store.gateway.cron import KEPT_RUNS, CronDB
from hermes.store.gateway.gateway_db import GatewayDB
from hermes_state import SessionDB

from . import in_threads


def made(db: Any, **more: Any) -> CronDB:
    store = CronDB(db)
    settings: dict[str, Any] = {"deliver": "none", "session_id": None, "model": None, **more}
    store.add("j1", "* * * * *", "UTC", "say \0 \ud800 hello", next_at=store.clock() - 1, **settings)
    return store


def test_there_are_no_tables_before_the_first_job(db: Any) -> None:
    store = CronDB(db)
    assert (store.exists(), store.jobs(), store.due(), store.log(), store.remove("j1")) == (False, [], [], [], False)
    made(db)
    assert store.exists() and store.jobs()[0].prompt == "say \0 \ud800 hello"


def test_of_many_that_look_one_has_the_run(make_db: Any) -> None:
    stores = [CronDB(make_db(name="one")) for _ in range(6)]
    made(stores[0].db)
    found: list[Any] = []
    in_threads(*(lambda store=store: found.extend(claim_due(store)) for store in stores))
    assert len(found) == 1
    assert [run.status for run in stores[0].log()] == ["running"]
    assert list(claim_due(stores[0])) == []  # not due again, and somebody works on it


def test_a_run_that_ended_is_not_ended_again_and_says_what_it_has_to_once(db: Any) -> None:
    store = made(db)
    gateway = GatewayDB(db)
    (claimed,) = claim_due(store)
    parts = [("plain", "{}", "one"), ("plain", "{}", "two")]
    assert len(store.finish(claimed.run.id, "done", None, "s", parts) or []) == 2
    assert store.finish(claimed.run.id, "failed", "again", "s", parts) is None
    assert [part.text for part in gateway.read(outbox.unsent)] == ["one", "two"]
    assert [(run.status, run.text) for run in store.log()] == [("done", None)]


def test_the_prompt_is_stored_together_with_the_run_s_note_of_it(db: Any) -> None:
    store = made(db)
    (claimed,) = claim_due(store)
    db.create_session("s", "cron")
    number = store.store_prompt(claimed.run.id, "s", "hello")
    assert store.running()[0].message_id == number and db.get_messages("s")[0]["id"] == number


def test_a_time_during_the_run_before_is_skipped(db: Any) -> None:
    store = made(db)
    assert len(list(claim_due(store))) == 1
    store.run_soon("j1")
    assert list(claim_due(store)) == []
    assert sorted((run.status, run.text) for run in store.log()) == [
        ("running", None), ("skipped", "the run before was still under way")
    ]  # fmt: skip


def test_a_paused_job_is_not_due_and_a_wish_counts_all_the_same(db: Any) -> None:
    store = made(db)
    assert store.pause("j1") and not store.pause("j1") and store.due() == []
    assert store.run_soon("j1") and [job.id for job in store.due()] == ["j1"]
    assert store.resume("j1", store.clock() + 60) and not store.resume("j1", 0)


def test_a_secret_in_a_prompt_is_masked(db: Any) -> None:
    store = CronDB(db)
    secret = "sk-proj-" + "a1B2" * 12
    store.add("j", "* * * * *", "UTC", f"use {secret}", deliver="none", session_id=None, model=None, next_at=0)
    assert secret not in store.jobs()[0].prompt


def test_the_log_is_kept_short(db: Any) -> None:
    store = made(db)
    for number in range(KEPT_RUNS + 5):
        store.run_soon("j1")
        (job,) = store.due()
        store.claim(job, f"r{number}", next_at=None, session_id=None)
    assert len(store.log(limit=1000)) == KEPT_RUNS + 1  # with the first one, which is still under way


def test_jobs_move_to_another_store(db: Any, tmp_path: Path) -> None:
    store = made(db)
    list(claim_due(store))
    with SessionDB(tmp_path / "other.db") as other:
        move(db, other)
        assert CronDB(other).jobs() == store.jobs() and CronDB(other).log() == store.log()
        assert other.check() == []

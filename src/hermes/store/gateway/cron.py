"""Scheduled prompts, and their runs, in the same store as the sessions. The tables are made with the first job.

A run is claimed in one transaction: the job's next time moves on and the run's row appears, or neither, so of any number of
gateways one has it. While it is under way its claimer holds the lease `job:cron:<run>`; a run without a living claimer is
taken up again. A run ends in one transaction, too: its status, and what is to be sent, in the outbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from hermes.errors import InvalidInput
from hermes.store.api.session_db import SessionDB, Transactions
from hermes.store.engines.base import Tx
from hermes.store.gateway import outbox
from hermes.store.gateway.outbox import Outgoing
from hermes.store.records import codec

TABLES: tuple[str, ...] = (
    "CREATE TABLE IF NOT EXISTS cron_jobs (id TEXT PRIMARY KEY, schedule TEXT NOT NULL, timezone TEXT NOT NULL,"
    " prompt TEXT NOT NULL, deliver TEXT NOT NULL, session_id TEXT, model TEXT, created_at REAL NOT NULL,"
    " paused_at REAL, next_at REAL, wanted_at REAL)",
    "CREATE TABLE IF NOT EXISTS cron_runs (id TEXT PRIMARY KEY, job_id TEXT NOT NULL, due_at REAL NOT NULL,"
    " started_at REAL NOT NULL, finished_at REAL, status TEXT NOT NULL, session_id TEXT, message_id INTEGER, text TEXT)",
)  # fmt: skip
RUNNING, DONE, FAILED, SKIPPED = "running", "done", "failed", "skipped"
KEPT_RUNS = 200  # of a job, in its log


@dataclass(slots=True, frozen=True)
class Job:
    """A prompt and when it runs. `session_id`: every run continues this session; None: each has its own."""

    id: str
    schedule: str
    timezone: str
    prompt: str
    deliver: str
    session_id: str | None
    model: str | None
    created_at: float
    paused_at: float | None
    next_at: float | None
    wanted_at: float | None  # a run now was requested


@dataclass(slots=True, frozen=True)
class Run:
    """One run of a job. `text` says why it failed or was skipped; `message_id` is the prompt, once it is stored."""

    id: str
    job_id: str
    due_at: float
    started_at: float
    finished_at: float | None
    status: str
    session_id: str | None
    message_id: int | None
    text: str | None


_JOB = ", ".join(field.name for field in fields(Job))
_RUN = ", ".join(field.name for field in fields(Run))


def lease_of(run_id: str) -> str:
    """The lease of the process that works on a run."""
    return f"job:cron:{run_id}"


class CronDB:
    """The jobs of a store. `clock` tells the time, so that a test can move it."""

    def __init__(self, db: SessionDB, *, clock: Callable[[], float] = time.time) -> None:
        self.db, self.clock = db, clock
        self._store = Transactions(db)

    def exists(self) -> bool:
        """Whether a job was ever added."""
        with self._store.read() as tx:
            return tx.has_table("cron_runs")

    # ------------------------------------------------------------------------------------------ jobs

    def add(
        self, job_id: str, schedule: str, timezone: str, prompt: str, *, deliver: str, session_id: str | None,
        model: str | None, next_at: float,
    ) -> Job:  # fmt: skip
        """Store a job and return it."""
        self._store.make_tables(TABLES)
        text = self._store.masked(prompt) or ""
        job = Job(job_id, schedule, timezone, text, deliver, session_id, model, self.clock(), None, next_at, None)
        values = astuple(replace(job, prompt=codec.storable(text)))  # type: ignore[arg-type]
        with self._store.write() as tx:
            tx.run(f"INSERT INTO cron_jobs({_JOB}) VALUES({', '.join('?' * len(values))})", values)
        return job

    def jobs(self) -> list[Job]:
        """All jobs, the oldest first."""
        return self._jobs("ORDER BY created_at, id")

    def find(self, words: str) -> Job | None:
        """The job with this id, or the only one whose id has this prefix."""
        jobs = self.jobs()
        exact = [job for job in jobs if job.id == words]
        found = exact or [job for job in jobs if words and job.id.startswith(words)]
        if len(found) > 1:
            raise InvalidInput(f"several jobs begin with {words}: {', '.join(job.id for job in found)}")
        return found[0] if found else None

    def pause(self, job_id: str) -> bool:
        """Pause a job until `resume`; False when it is paused already."""
        return self._change("paused_at = ?, wanted_at = NULL WHERE id = ? AND paused_at IS NULL", self.clock(), job_id)

    def resume(self, job_id: str, next_at: float) -> bool:
        """Resume a paused job, whose next run is at this time; False when it is not paused."""
        return self._change("paused_at = NULL, next_at = ? WHERE id = ? AND paused_at IS NOT NULL", next_at, job_id)

    def run_soon(self, job_id: str) -> bool:
        """Run a job as soon as possible, also while it is paused."""
        return self._change("wanted_at = ? WHERE id = ?", self.clock(), job_id)

    def remove(self, job_id: str) -> bool:
        """Remove a job and its log; its sessions stay. A run under way comes to its end."""
        if not self.exists():
            return False
        with self._store.write() as tx:
            tx.run("DELETE FROM cron_runs WHERE job_id = ? AND status <> ?", (job_id, RUNNING))
            return bool(tx.run("DELETE FROM cron_jobs WHERE id = ?", (job_id,)))

    def _change(self, change: str, *values: Any) -> bool:
        if not self.exists():
            return False
        with self._store.write() as tx:
            return bool(tx.run(f"UPDATE cron_jobs SET {change}", values))

    # ------------------------------------------------------------------------------------------ runs

    def log(self, job_id: str | None = None, limit: int = 20) -> list[Run]:
        """The latest runs (of one job), the newest first."""
        return self._runs("WHERE job_id = coalesce(?, job_id) ORDER BY started_at DESC, id LIMIT ?", job_id, limit)

    def due(self) -> list[Job]:
        """Jobs whose time has come."""
        due = "WHERE wanted_at IS NOT NULL OR (paused_at IS NULL AND next_at <= ?) ORDER BY next_at, id"
        return self._jobs(due, self.clock())

    def running(self) -> list[Run]:
        """Runs that have begun and not ended, of all processes."""
        return self._runs("WHERE status = ? ORDER BY started_at, id", RUNNING)

    def _jobs(self, which: str, *values: Any) -> list[Job]:
        return [Job(*row) for row in self._rows(f"SELECT {_JOB} FROM cron_jobs {which}", values)]

    def _runs(self, which: str, *values: Any) -> list[Run]:
        return [Run(*row) for row in self._rows(f"SELECT {_RUN} FROM cron_runs {which}", values)]

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Iterable[Any]]:
        with self._store.read() as tx:
            return [map(codec.restored, row) for row in tx.rows(sql, values)] if tx.has_table("cron_runs") else []

    def claim(self, job: Job, run_id: str, *, next_at: float | None, session_id: str | None) -> bool:
        """Take the run that is due and move the job on to `next_at`; False when another process was quicker.

        A run that comes while the one before is under way is only noted as skipped.
        """
        now = self.clock()
        with self._store.write() as tx:
            if job.wanted_at is not None:
                sql = "UPDATE cron_jobs SET wanted_at = NULL WHERE id = ? AND wanted_at = ?"
                moved = tx.run(sql, (job.id, job.wanted_at))
            else:
                sql = "UPDATE cron_jobs SET next_at = ? WHERE id = ? AND next_at = ? AND paused_at IS NULL"
                moved = tx.run(sql, (next_at, job.id, job.next_at))
            if not moved:
                return False
            busy = tx.row("SELECT 1 FROM cron_runs WHERE job_id = ? AND status = ?", (job.id, RUNNING)) is not None
            due = job.wanted_at if job.wanted_at is not None else job.next_at
            status, ended, why = (SKIPPED, now, "the run before was still under way") if busy else (RUNNING, None, None)
            tx.run(
                f"INSERT INTO cron_runs({_RUN}) VALUES(?, ?, ?, ?, ?, ?, ?, NULL, ?)",
                (run_id, job.id, due, now, ended, status, None if busy else session_id, why),
            )
            tx.run(  # keep the log short
                "DELETE FROM cron_runs WHERE job_id = ? AND status <> ? AND id NOT IN"
                " (SELECT id FROM cron_runs WHERE job_id = ? ORDER BY started_at DESC, id LIMIT ?)",
                (job.id, RUNNING, job.id, KEPT_RUNS),
            )
        return not busy

    def store_prompt(
        self, run_id: str, session_id: str, content: Any, with_it: Callable[[Tx], None] = lambda tx: None
    ) -> int:
        """Store the prompt of this run as the user's message, with `with_it` in the same transaction; the message's id."""

        def also(tx: Tx, message_id: int) -> None:
            with_it(tx)
            tx.run("UPDATE cron_runs SET message_id = ? WHERE id = ?", (message_id, run_id))

        return self._store.store_message(session_id, {"role": "user", "content": content}, also)

    def finish(
        self, run_id: str, status: str, text: str | None, session_id: str | None, outgoing: Sequence[tuple[str, str, str]] = ()
    ) -> list[Outgoing] | None:  # fmt: skip
        """End a run, and put what it says into the outbox: (platform, chat, text) each. None when it has ended already."""
        note = None if text is None else codec.storable(self._store.masked(text) or "")
        with self._store.write() as tx:
            ended = tx.run(
                "UPDATE cron_runs SET status = ?, finished_at = ?, text = ?, session_id = ? WHERE id = ? AND status = ?",
                (status, self.clock(), note, session_id, run_id, RUNNING),
            )
            if not ended:
                return None
            key, now = f"cron-{run_id}", self.clock()
            return [outbox.post(tx, platform, chat, part, f"{key}-{number}", now, mask=self.db.masked)
                    for number, (platform, chat, part) in enumerate(outgoing)]  # fmt: skip

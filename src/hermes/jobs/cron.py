"""Scheduled prompts: finds those that are due, and runs them.

A run is a turn in a session of the source `cron`. It is claimed before it begins (hermes.store.gateway.cron), and if
its process dies, another continues it: the prompt is stored once, and the reply is stored and delivered once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.agent.conversations import new_session_id
from hermes.agent.leases import Lease, renewing
from hermes.agent.loop import Agent
from hermes.agent.turn import Done, Stop
from hermes.errors import Fenced, HermesError, InvalidInput
from hermes.home import write_whole
from hermes.store.gateway.cron import DONE, FAILED, Job, Run, lease_of
from hermes.store.leases import holder_name
from hermes.texts import shortened_line
from hermes.times import next_time

if TYPE_CHECKING:
    from hermes.agent.models.model import Model
    from hermes.agent.tools.tool import Tool
    from hermes.config import Config
    from hermes.store.gateway.cron import CronDB
    from hermes.store.gateway.outbox import Outgoing

SOURCE = "cron"
ENDED = "cron_done"  # the end_reason of a run's own session
LEASE_SECONDS = 60.0
FILE, NOWHERE = "file", "none"
Part = tuple[str, str, str]  # platform, chat, text


class CronAgent(Agent):
    """Answers a job. Titles never use a paid model."""

    titles = recalls = False


@dataclass(slots=True, frozen=True)
class Claimed:
    """A run that this process has claimed, and the token of its lease."""

    job: Job
    run: Run
    token: int


def claim_due(store: CronDB) -> Iterator[Claimed]:
    """Claim the runs that are due and those of dead processes; one process claims each run."""
    for job in store.due():
        now = store.clock()
        try:
            following: float | None = next_time(job.schedule, job.timezone, now)
        except InvalidInput:
            following = None
        run_id = f"{new_session_id()}{secrets.token_hex(2)}"
        store.claim(job, run_id, next_at=following, session_id=job.session_id or run_id)
    jobs = {job.id: job for job in store.jobs()}
    for known in store.running():
        token = store.db.acquire_lease(lease_of(known.id), holder_name(SOURCE), LEASE_SECONDS)
        if token is None:  # a live process runs it
            continue
        run = next((one for one in store.running() if one.id == known.id), None)  # as it is now that it is ours
        if run is not None and run.job_id in jobs:
            yield Claimed(jobs[run.job_id], run, token)
            continue
        if run is not None:
            store.finish(run.id, FAILED, "its job was removed", run.session_id)
        store.db.release_lease(lease_of(known.id), token)


@dataclass(slots=True)
class Runner:
    """Does claimed runs. `parts` says what goes to a platform: HermesError when nothing can."""

    store: CronDB
    config: Config
    model: Model
    home: Path
    tools: Callable[[], Sequence[Tool]]
    parts: Callable[[str, str], list[Part]]

    def work(self, claimed: Claimed, stop: Stop) -> list[Outgoing]:
        """Complete a run; returns what is in the outbox now. A run that was stopped is left for the next process."""
        db, held = self.store.db, (lease_of(claimed.run.id), claimed.token)
        try:
            with renewing(Lease(db, held, LEASE_SECONDS, lost=stop.want)):
                return self._run(claimed, stop)
        except Fenced:
            return []  # another process continues it
        finally:
            with suppress(HermesError):
                db.release_lease(*held)

    def _run(self, claimed: Claimed, stop: Stop) -> list[Outgoing]:
        job, run = claimed.job, claimed.run
        status, text, note = DONE, "", None
        session_id = run.session_id or run.id
        agent: CronAgent | None = None
        try:
            agent = self._agent(job, session_id)
            reply = self._turn(agent, job, run, stop)
            if reply is None:
                return []
            text, session_id = reply, agent.session_id
        except Fenced:
            raise
        except Exception as error:
            known = isinstance(error, HermesError | OSError)
            status, note = FAILED, str(error) if known else f"{type(error).__name__}: {error}"
            text = f"The job {job.id} ({shortened_line(job.prompt, 60)}) failed: {note}"
        finally:
            if agent is not None:
                agent.close(patience=0)
        outgoing: list[Part] = []
        try:
            outgoing = self._deliver(job, run, text)
        except (HermesError, OSError) as error:
            undelivered = f"this could not be delivered: {error}"
            status, note = FAILED, undelivered if note is None else f"{note}; {undelivered}"
        if job.session_id is None:
            self.store.db.end_session(session_id, ENDED)
        with self.store.db.fenced(lease_of(run.id), claimed.token):
            return self.store.finish(run.id, status, note, session_id, outgoing) or []

    def _agent(self, job: Job, session_id: str) -> CronAgent:
        model = self.model
        if job.model is not None and job.model != model.name:
            from hermes.agent.models.choice import named_model

            model = named_model(job.model, model)
        tools = self.tools() if model.calls_tools else ()
        return CronAgent(
            self.store.db, self.config, model, session_id=session_id, source=SOURCE, tools=tools, home=self.home,
            cwd=Path.home(),
        )  # fmt: skip

    def _turn(self, agent: CronAgent, job: Job, run: Run, stop: Stop) -> str | None:
        """Run the turn; returns the reply, or None when the run was stopped."""
        from threading import Event

        pause = Event().wait
        if stop.wanted or not agent.wait_for_turn(lambda who: None, lambda seconds: pause(seconds) or stop.wanted):
            return None
        if run.message_id is not None:
            turn = agent.resume(run.message_id)
        else:
            turn = agent.turn(job.prompt, keep=partial(self.store.store_prompt, run.id))
        reply: str | None = None
        for event in stop.bind(turn):
            if isinstance(event, Done) and not event.interrupted:
                reply = event.text
        return reply

    def _deliver(self, job: Job, run: Run, text: str) -> list[Part]:
        if job.deliver == NOWHERE or not text:
            return []
        if job.deliver != FILE:
            return self.parts(job.deliver, text)
        if self.store.db.is_encrypted:
            return []  # the reply is in the run's session
        folder = self.home / "cron" / job.id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(folder / f"{run.id}.md", (text + "\n").encode(errors="replace"))
        return []

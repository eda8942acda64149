"""`hermes cron …`: scheduled prompts. The gateway runs them; here they are added, listed, paused and removed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from hermes.cli.options import ROWS, CommandGroup, json_option, limit_option, model_option
from hermes.cli.output import Column, note, print_rows
from hermes.cli.record import configuration, opened, zone
from hermes.config import load_config, suggestion
from hermes.store.gateway.cron import CronDB
from hermes.times import clock, next_time, own_timezone, zone_of

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.gateway.cron import Job


@click.group(cls=CommandGroup)
def command() -> None:
    """Schedule prompts. The gateway (`hermes gateway`) runs them."""


def _job(store: CronDB, words: str) -> Job:
    job = store.find(words)
    if job is None:
        raise click.ClickException(f"no job matches {words!r}; `hermes cron list` lists them")
    return job


def _when(moment: float | None, job: Job) -> str:
    return clock(moment, zone_of(job.timezone))


@command.command("create")
@click.argument("schedule")
@click.argument("prompt")
@click.option(
    "--deliver", default="none", metavar="WHERE", show_default=True,
    help="Where replies and failures go: a platform's home chat (telegram, …), file, or none.",
)  # fmt: skip
@click.option(
    "--session", "mode", type=click.Choice(["new", "same"]), default="new", show_default=True,
    help="A new session for each run, or the same one for all runs.",
)  # fmt: skip
@model_option()
@click.option("--timezone", metavar="ZONE", help="Such as Europe/Berlin; else that of config.yaml, or of this machine.")
def create(schedule: str, prompt: str, deliver: str, mode: str, model_name: str | None, timezone: str | None) -> None:
    """Run PROMPT whenever SCHEDULE is due (minute hour day month weekday).

    \b
      hermes cron create "0 9 * * 1-5" "What is still open?" --deliver telegram
      hermes cron create "*/30 * * * *" "Check the build" --session same
    """
    from hermes.agent.conversations import new_session_id

    if not prompt.strip():
        raise click.UsageError("the prompt is empty", click.get_current_context())
    where = timezone or configuration().timezone or own_timezone()
    due = next_time(schedule, where, time.time())
    _check_delivery(deliver)
    with opened(writing=True) as db:
        job = CronDB(db).add(
            secrets.token_hex(4), " ".join(schedule.split()), where, prompt, deliver=deliver,
            session_id=new_session_id(gateway=True) if mode == "same" else None, model=model_name, next_at=due,
        )  # fmt: skip
        if not _gateway_runs(db):
            note("no gateway is running: `hermes gateway` runs the jobs")
    click.echo(f"{job.id}  next {_when(job.next_at, job)} ({job.timezone})")


def _check_delivery(deliver: str) -> None:
    config = load_config()
    known = ["file", "none", *config.enabled_platforms]
    wrong = config.why_answers_only(deliver)
    if wrong is None and deliver not in known:
        wrong = f"expected one of {', '.join(known)}, got {deliver!r}{suggestion(deliver, known)}"
        wrong += " (`hermes gateway setup` enables a platform)"
    if wrong is not None:
        raise click.UsageError(f"--deliver: {wrong}", click.get_current_context())


def _on_job(name: str, help: str) -> Callable[[Callable[[CronDB, Job], str]], click.Command]:
    """Make a command that changes one job and prints the result."""

    def made(change: Callable[[CronDB, Job], str]) -> click.Command:
        @command.command(name, help=help)
        @click.argument("job")
        def changing(job: str) -> None:
            with opened(writing=True) as db:
                store = CronDB(db)
                click.echo(change(store, _job(store, job)))

        return changing

    return made


def _gateway_runs(db: SessionDB) -> bool:
    from hermes.gateway.startup import running

    return bool(running(db))


@command.command("list")
@json_option(ROWS)
def list_(as_json: bool) -> int:
    """List all jobs and when each is due next."""
    with opened() as db:
        jobs = CronDB(db).jobs()
    columns = [Column("ID"), Column("Schedule"), Column("Next"), Column("Deliver"), Column("Prompt", 10, worth=1)]
    rows = []
    for job in jobs:
        due = "paused" if job.paused_at is not None else _when(job.next_at, job)
        rows.append([job.id, job.schedule, "now" if job.wanted_at is not None else due, job.deliver, job.prompt])
    none = 'No jobs. `hermes cron create "0 9 * * 1-5" "prompt"` makes one.'
    return print_rows(jobs, columns, rows, none=none, as_json=as_json)


@_on_job("run", help="Have the gateway run a job now.")
def run(store: CronDB, job: Job) -> str:
    if not _gateway_runs(store.db):
        raise click.ClickException("no gateway is running; `hermes gateway` starts it")
    store.run_soon(job.id)
    return f"The gateway runs it in a moment; `hermes cron log {job.id}` shows the result."


@_on_job("pause", help="Pause a job until `resume`.")
def pause(store: CronDB, job: Job) -> str:
    return f"{job.id} is paused." if store.pause(job.id) else f"{job.id} was already paused."


@_on_job("resume", help="Run a paused job again.")
def resume(store: CronDB, job: Job) -> str:
    due = next_time(job.schedule, job.timezone, time.time())
    resumed = store.resume(job.id, due)
    return f"{job.id}  next {_when(due, job)} ({job.timezone})" if resumed else f"{job.id} was not paused."


@_on_job("remove", help="Remove a job and its log; the sessions of its runs stay.")
def remove(store: CronDB, job: Job) -> str:
    store.remove(job.id)
    return f"Removed: {job.id}"


@command.command("log")
@click.argument("job", required=False)
@limit_option("Show at most N.")
@json_option(ROWS)
def log(job: str | None, limit: int, as_json: bool) -> int:
    """List the latest runs of one job, or of all."""
    with opened() as db:
        store = CronDB(db)
        runs = store.log(None if job is None else _job(store, job).id, limit)
    columns = [Column("Job"), Column("Due"), Column("Status"), Column("Session"), Column("Note", 10, worth=1)]
    rows = [[one.job_id, clock(one.due_at, zone()), one.status, one.session_id or "—", one.text or ""] for one in runs]
    return print_rows(runs, columns, rows, none="No runs yet.", as_json=as_json)

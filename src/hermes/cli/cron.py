"""`hermes cron …`: scheduled prompts. The gateway runs them; here they are added, listed, paused and removed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from hermes.cli.completion import complete_job
from hermes.cli.options import ROWS, CommandGroup, json_option, limit_option, model_option
from hermes.cli.output import Column, note, print_rows
from hermes.cli.record import configuration, opened, zone
from hermes.config import load_config, suggestion
from hermes.home import get_hermes_home
from hermes.store.coordination.cron import CronDB
from hermes.texts import harmless
from hermes.times import clock, next_time, own_timezone, zone_of

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.coordination.cron import Job


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
@click.option(
    "--missed", type=click.Choice(["skip", "once"]), default="once", show_default=True,
    help="If no gateway was running when a job was due: skip it, or run it once when one starts.",
)  # fmt: skip
def create(
    schedule: str, prompt: str, deliver: str, mode: str, model_name: str | None, timezone: str | None, missed: str
) -> int:
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
            session_id=new_session_id(gateway=True) if mode == "same" else None, model=model_name, missed=missed, next_at=due,
        )  # fmt: skip
        if not _gateway_runs(db):
            note("no gateway is running: `hermes gateway` runs the jobs")
    click.echo(f"{job.id}  next {_when(job.next_at, job)} ({job.timezone})")
    return 0


def _check_delivery(deliver: str) -> None:
    config = load_config()
    if (why := config.why_answers_only(deliver)) is not None:
        raise click.UsageError(f"--deliver: {why}", click.get_current_context())
    known = ["file", "none", *config.enabled_platforms]
    if deliver not in known:
        raise click.UsageError(
            f"--deliver: expected one of {', '.join(known)}, got {deliver!r}{suggestion(deliver, known)}"
            " (`hermes gateway setup` enables a platform)",
            click.get_current_context(),
        )


@contextmanager
def _opened_job(name: str) -> Iterator[tuple[CronDB, Job]]:
    """Open the store of jobs, and find the named one, to change it."""
    with opened(writing=True) as db:
        store = CronDB(db)
        yield store, _job(store, name)


def _on_job(name: str, help: str) -> Callable[[Callable[[CronDB, Job], str]], click.Command]:
    """Make a command that changes one job and prints the result."""

    def made(change: Callable[[CronDB, Job], str]) -> click.Command:
        @command.command(name, help=help)
        @click.argument("job", shell_complete=complete_job)
        def changing(job: str) -> None:
            with _opened_job(job) as (store, found):
                click.echo(change(store, found))

        return changing

    return made


def _gateway_runs(db: SessionDB) -> bool:
    from hermes.gateway.startup import running

    return bool(running(db))


@command.command("list", help="List all jobs and when each is due next.")
@json_option(ROWS)
def list_(as_json: bool) -> int:
    with opened() as db:
        jobs = CronDB(db).jobs()
    columns = [Column("ID"), Column("Schedule"), Column("Next"), Column("Deliver"), Column("Prompt", 10, worth=1)]
    rows = []
    for job in jobs:
        due = "paused" if job.paused_at is not None else _when(job.next_at, job)
        rows.append([job.id, job.schedule, "now" if job.wanted_at is not None else due, job.deliver, job.prompt])
    none = 'No jobs. `hermes cron create "0 9 * * 1-5" "prompt"` makes one.'
    return print_rows(jobs, columns, rows, none=none, as_json=as_json)


@command.command("run", help="Run a job now, in the gateway, or here if none is running.")
@click.argument("job", shell_complete=complete_job)
def run(job: str) -> int:
    with _opened_job(job) as (store, found):
        store.run_soon(found.id)
        if _gateway_runs(store.db):
            click.echo(f"The gateway runs it in a moment; `hermes cron log {found.id}` shows the result.")
            return 0
        if found.deliver not in ("file", "none"):
            note("no gateway is running: it runs when one starts (`hermes gateway`)")
            return 1
        return _run_here(store.db, store, found)


def _run_here(db: SessionDB, store: CronDB, job: Job) -> int:
    from hermes.agent.models.choice import choose_model
    from hermes.agent.tools.tool import Toolbox
    from hermes.agent.turn import Stop
    from hermes.jobs.cron import Runner, claim_due

    config = load_config()
    toolbox = Toolbox(config)
    runner = Runner(store, config, choose_model(config, db), get_hermes_home(), toolbox.tools, lambda *_: [])
    try:
        for claimed in claim_due(store, only=job.id):
            runner.work(claimed, Stop())
    finally:
        toolbox.close()
    (last,) = store.log(job.id, 1)
    if last.status != "done":
        raise click.ClickException(f"the run {last.status}: {last.text or 'it is under way elsewhere'}")
    replies = [row for row in db.get_messages(str(last.session_id)) if row["role"] == "assistant"]
    click.echo(harmless(str(replies[-1]["content"] or "")) if replies else "")
    return 0


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


@command.command("log", help="List the latest runs of one job, or of all.")
@click.argument("job", required=False, shell_complete=complete_job)
@limit_option("Show at most N.")
@json_option(ROWS)
def log(job: str | None, limit: int, as_json: bool) -> int:
    with opened() as db:
        store = CronDB(db)
        runs = store.log(None if job is None else _job(store, job).id, limit)
    columns = [Column("Job"), Column("Due"), Column("Status"), Column("Session"), Column("Note", 10, worth=1)]
    rows = [[one.job_id, clock(one.due_at, zone()), one.status, one.session_id or "—", one.text or ""] for one in runs]
    return print_rows(runs, columns, rows, none="No runs yet.", as_json=as_json)

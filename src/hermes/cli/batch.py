"""`hermes batch`: a file of prompts, each line a session of its own; the replies in a file of results."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import flag, model_option, yes_option, yes_to_option
from hermes.cli.output import bar, note, status_line
from hermes.config import load_config
from hermes.errors import InvalidInput
from hermes.texts import counted, one_line
from hermes.times import duration

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.jobs.batch import Batch, BatchProgress
    from hermes.jobs.batch_files import Lines, Results
    from hermes.store.api.session_db import SessionDB

_MOST_LISTED = 50  # bad lines


@click.command()
@click.argument("prompts", metavar="PROMPTS", type=click.Path(allow_dash=True))
@click.option(
    "--out", required=True, metavar="FILE", type=click.Path(allow_dash=True),
    help="The file of results; in a folder it is called results.jsonl.",
)  # fmt: skip
@click.option(
    "--workers", "--parallel", "parallel", type=click.IntRange(1, 256), default=8, metavar="N", show_default=True,
    help="Lines at a time.",
)  # fmt: skip
@model_option("Use this model instead of the configured one, also for lines that name one.")
@flag("--resume", "Continue an earlier run: finished lines are not run again.")
@flag("--no-tools", "Let the model answer without tools.")
@yes_to_option("Run such commands: 'git push', pytest, 'npm run *'.")
@yes_option("Run every command of the agent's (without it, those that the rules do not allow are refused).")
def command(
    prompts: str, out: str, parallel: int, model_name: str | None, resume: bool, no_tools: bool,
    yes_to: tuple[str, ...], yes: bool,
) -> int:  # fmt: skip
    """Run every prompt in a file (JSONL; `-` is standard input), each as a session. A line is one of

    \b
      "a prompt"
      {"prompt": "…", "id": "any name"}
      {"messages": [{"role": "user", "content": "…"}]}
      {"custom_id": "…", "method": "POST", "url": "/v1/…", "body": {…}}

    and gets one line in the file of results; a request of OpenAI's batch files gets a response of theirs. A run that was
    stopped or killed continues with --resume: lines that are done are not asked again, lines that failed are.
    """
    from hermes.agent.tools.permission import NO_USER
    from hermes.chat.terminal_conversation import folder_is_there
    from hermes.jobs.batch_files import Lines, opened

    folder_is_there()
    out = _results_file(out)
    config = load_config()
    config.permissions.allow += yes_to
    if model_name is not None:
        config.model.default = model_name
    if prompts != "-" and os.path.exists(out) and os.path.samefile(prompts, out):
        raise click.UsageError("the results can't go into the file of prompts", click.get_current_context())
    with opened(prompts) as stream:
        lines = Lines(stream)
        lines.scan()
        _name_bad(lines)
        settings = {"parallel": parallel, "one_model": model_name is not None, "confirm": lambda _: yes or NO_USER}
        return _run(config, lines, Path(out), resume=resume, tools=not no_tools, settings=settings)


def _results_file(out: str) -> str:
    """The file of results: `out` itself or, if that is a folder, a file in it. A name without a suffix means a new folder."""
    path = Path(out)
    if not (path.is_dir() or out.endswith(os.sep) or not (path.suffix or path.exists())):
        return out
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"can't make the folder {out}: {error.strerror}") from None
    return str(path / "results.jsonl")


def _name_bad(lines: Lines) -> None:
    for number, reason in lines.bad[:_MOST_LISTED]:
        note(f"line {number}: {one_line(reason)}")
    if len(lines.bad) > _MOST_LISTED:
        note(f"… and {counted(len(lines.bad) - _MOST_LISTED, 'more bad line')}")
    if lines.unused:
        note(f"request settings that are ignored: {one_line(', '.join(sorted(lines.unused)))}")
    if not lines.good:
        raise InvalidInput("no line has a prompt that can be run")


def _run(config: Config, lines: Lines, out: Path, *, resume: bool, tools: bool, settings: dict[str, Any]) -> int:
    from hermes.agent.models.choice import choose_model
    from hermes.agent.tools.tool import Toolbox
    from hermes.chat.keyboard import Terminated, signals_raise
    from hermes.cli.record import open_record
    from hermes.jobs.batch import Batch, Stopped
    from hermes.jobs.batch_files import Results

    toolbox = Toolbox(config)
    with open_record(config) as db, signals_raise():
        results = Results(out, resume=resume)
        try:
            model = choose_model(config, db)
            given = toolbox.tools() if tools and model.calls_tools else []
            for problem in toolbox.problems:
                note(problem)
            batch = Batch(db, config, model, lines, results, _name(db, results, resume), tools=given, **settings)
            status = 0
            try:
                with status_line(wait=0) as show:
                    batch.run(lambda now: show(lambda: _line(now)))
            except Stopped as why:
                note(str(why))
                status = 1
            except (KeyboardInterrupt, Terminated) as ending:
                status = 130 if isinstance(ending, KeyboardInterrupt) else 128 + ending.number
            results.put_in_order(batch.session_id(place) for place in lines.good)
            unfinished = _report(batch, lines, out)
            return status or unfinished
        finally:
            results.close()
            toolbox.close()


def _name(db: SessionDB, results: Results, resume: bool) -> str:
    """Prefix of this batch's session ids, stored before the first prompt runs."""
    from hermes.agent.conversations import new_session_id

    key = f"batch:{socket.gethostname()}:{os.path.realpath(results.path)}"
    known = (results.run or db.get_meta(key)) if resume else None
    name = known or new_session_id()
    db.set_meta(key, name)
    return name


def _report(batch: Batch, lines: Lines, out: Path) -> int:
    """Print how the batch ended; returns 1 when lines are left."""
    now = batch.progress
    left = now.total - now.done - now.failed
    parts = [f"{now.done} of {counted(now.total, 'line')} done"]
    parts += [f"{now.failed} failed"] if now.failed else []
    parts += [f"{left} left"] if left else []
    parts += [counted(len(lines.bad), "bad line")] if lines.bad else []
    unpriced = f" + {counted(now.unpriced, 'reply', 'replies')} without a price" if now.unpriced else ""
    parts.append(f"${now.cost:.4f}{unpriced}")
    click.echo(f"{', '.join(parts)}: {out}")
    if left or now.failed:
        note("run the same command with --resume to finish the rest")
    return 1 if left or now.failed or lines.bad else 0


def _line(now: BatchProgress) -> str:
    """The progress line: lines done, speed, cost, and the time left."""
    ended, left = now.done + now.failed, now.seconds_left()
    parts = [f"{bar(ended, now.total)} {ended}/{now.total}", f"{now.rate():.1f}/s", f"${now.cost:.4f}"]
    parts += [f"{now.failed} failed"] if now.failed else []
    parts += [f"{duration(left)} left"] if left is not None else []
    return " · ".join(parts)

"""`hermes sessions open`: a session goes on in another program."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from hermes.cli.common import find_session
from hermes.cli.completers import complete_session
from hermes.cli.sessions.exporting import say_left_out
from hermes.cli.shared import is_encrypted, note, opened, recover_drafts
from hermes.interop import other_programs


@click.command(
    help="Write a session to where another program looks, and print the command that resumes it there. Nothing that"
    " is there is changed."
)
@click.argument("session", metavar="ID", shell_complete=complete_session)
@click.option(
    "--in", "name", metavar="PROGRAM", required=True, type=click.Choice(list(other_programs.programs())),
    help=f"One of {', '.join(other_programs.names())}.",
)  # fmt: skip
@click.option("--run", is_flag=True, help="Run the command instead of printing it.")
def open_(session: str, name: str, run: bool) -> None:
    from hermes.commands.session_choice import continued

    chosen = other_programs.programs()[name]
    with opened() as db:
        session_id = continued(db, find_session(db, session, resuming=True))
        recover_drafts(db, session_id)
        made = other_programs.opened_in(db, session_id, chosen, Path.cwd())
    say_left_out(chosen, made.left_out)
    if made.written is not None and is_encrypted():
        note(f"this store is encrypted, {made.written} is not: anyone who can read the file can read the conversation")
    if not run:
        click.echo(f"cd {shlex.quote(str(made.folder))} && {shlex.join(made.words)}")
        return
    os.chdir(made.folder)
    try:
        os.execvp(made.words[0], made.words)
    except FileNotFoundError:
        raise click.ClickException(f"{made.words[0]} is not installed, or not in PATH") from None

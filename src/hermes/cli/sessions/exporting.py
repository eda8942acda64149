"""`hermes sessions export` and `open`: sessions to a file, to standard output or to another program, one at a time.

A file is written under a temporary name and renamed when it is complete; only its owner can read it.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.completion import complete_session
from hermes.cli.options import find_session, flag, session_option, source_option
from hermes.cli.output import note, progress, put
from hermes.cli.record import is_encrypted, opened, zone
from hermes.home import has_key_file, write_whole
from hermes.interop import formats, programs
from hermes.texts import counted

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import ExportedSession, SessionRow


@click.command(help=f"Write sessions to FILE (`-`: standard output).\n\nFormats: {formats.described(reading=False)}.")
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@source_option("Only sessions of this source.")
@session_option("--session-id", "--session", "session", text="Only this session (id, beginning of it, title).")
@click.option(
    "--format",
    "form",
    type=click.Choice(list(formats.writers())),
    help=f"The format; default: by the ending of FILE ({', '.join(formats.endings())}), else {formats.DEFAULT}.",
)
def export(file: str, source: str | None, session: str | None, form: str | None) -> None:
    known = formats.writers()
    chosen = known[form] if form else formats.writer_for(Path(file)) or known[formats.DEFAULT]
    with opened() as db:
        target = Path(file).expanduser()
        if file != "-":
            _keep_off(target, db)
            # names without an ending, or with a date there, are allowed
            if form is None and formats.writer_for(target) is None and target.suffix[1:2].isalpha():
                known_endings = f"{', '.join(formats.endings())} have one; --format chooses any"
                raise click.UsageError(
                    f"no format has the ending {target.suffix} ({known_endings})", click.get_current_context()
                )
        session_id = None if session is None else find_session(db, session)
        total = 1 if session_id else db.session_count(source)
        number = messages = 0

        def sessions() -> Iterator[ExportedSession]:
            nonlocal number, messages
            one = [db.export_session(session_id)] if session_id else []
            for session in filter(None, one) if session_id else db.iter_export(source):
                number += 1
                # Carried-over messages are counted in the session they belong to.
                messages += sum(one["session_id"] == session["id"] for one in session["messages"])
                yield session
                step(number)

        title = (db.get_session_title(session_id) or session_id) if session_id else "Hermes sessions"
        contents = _contents(db, source, total)
        export_ = formats.Export(
            sessions=sessions(), title=title, zone=zone(), attachments=db.read_attachment, contents=contents
        )
        with progress("exporting", total) as step:
            pieces = formats.written(chosen, export_)
            if file == "-":
                for piece in pieces:
                    put(piece)
                say_left_out(chosen, export_.left_out)
                return
            save(target, pieces)
        encrypted = not db.is_shared and has_key_file(db.path)
    say_left_out(chosen, export_.left_out)
    if encrypted:
        note(f"this store is encrypted, {target} is not: anyone who can read the file can read the conversations")
    click.echo(f"exported {counted(number, 'session')} ({counted(messages, 'message')}) to {target}", err=True)


def say_left_out(chosen: formats.Format, left_out: Mapping[str, int]) -> None:
    """Print the fields that the format can't hold."""
    if left_out:
        missing = ", ".join(f"{what} ({times:,})" for what, times in left_out.items())
        note(f"{chosen.name} can't hold: {missing}; --format jsonl keeps everything")


def _contents(db: SessionDB, source: str | None, total: int) -> Iterator[SessionRow]:
    """The table of contents, for more than one session: the newest first, a page of rows at a time."""
    page = 200
    for offset in range(0, total if total > 1 else 0, page):
        yield from db.list_sessions_rich(
            source=source, limit=page, offset=offset, include_children=True, project_compression_tips=False
        )


def _keep_off(target: Path, db: SessionDB) -> None:
    """Refuse to export over the store itself."""
    own = [db.path, *(db.path.with_name(db.path.name + end) for end in ("-wal", "-shm"))]
    if any(target.resolve() == one.resolve() for one in own):
        raise click.ClickException(f"{target} is the store itself; name another file")
    if target.is_dir():
        raise click.ClickException(f"{target} is a folder; name a file in it")
    if not target.resolve().parent.is_dir():
        raise click.ClickException(f"{target} can't be written: its folder does not exist")


def save(target: Path, pieces: Iterable[bytes]) -> None:
    """Write a file atomically, readable by its owner only. A pipe or device is written directly."""
    real = Path(os.path.realpath(target))
    if real.exists() and not stat.S_ISREG(real.stat().st_mode):
        with real.open("wb") as stream:
            stream.writelines(pieces)
        return
    write_whole(real, pieces)


# ------------------------------------------------------------------------------------------------ into another program


@click.command()
@click.argument("session", metavar="ID", shell_complete=complete_session)
@click.option(
    "--in", "name", metavar="PROGRAM", required=True, type=click.Choice(list(programs.programs())),
    help=f"One of {', '.join(programs.names())}.",
)  # fmt: skip
@flag("--run", "Run the command instead of printing it.")
def open_(session: str, name: str, run: bool) -> None:
    """Write a session where another program looks for its own, and print the command that resumes it there. Existing
    files are not changed.
    """
    from hermes.commands.session_commands import continued

    chosen = programs.programs()[name]
    with opened() as db:
        session_id = continued(db, find_session(db, session, resuming=True))
        made = programs.opened_in(db, session_id, chosen, Path.cwd())
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

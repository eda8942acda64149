"""`hermes sessions export` and `import`: sessions to a file and back, in every format of hermes.interop.formats.

An export is written beside its place and moved there when it is whole; only its owner can read it. The format of a file to
import is seen from its content; sessions that are here already are left as they are, so a second time changes nothing; a
damaged line costs that line and is named.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.common import find_session, session_option, source_option
from hermes.cli.completers import complete_files
from hermes.cli.shared import counted, index, opened, progress, put, zone
from hermes.errors import InvalidInput
from hermes.harmless import one_line
from hermes.interop import formats
from hermes.interop.formats import Found, Problem

if TYPE_CHECKING:
    from hermes.store.db import SessionDB


@click.command(
    help=f"Write sessions to FILE (`-`: standard output).\n\nFormats: {formats.described(reading=False)}.",
)
@click.argument("file", metavar="FILE", shell_complete=complete_files)
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
        told = _Told(db, source, None if session is None else find_session(db, session))
        with progress("exporting", told.total) as step:
            pieces = formats.written(chosen, told.export(step))
            if file == "-":
                for piece in pieces:
                    put(piece)
                return
            target = Path(file).expanduser()
            _keep_off(target, db)
            save(target, pieces)
    click.echo(f"exported {counted(told.count, 'session')} ({counted(told.messages, 'message')}) to {target}", err=True)


class _Told:
    """The sessions to export, counted as they go by."""

    def __init__(self, db: SessionDB, source: str | None, session_id: str | None) -> None:
        self.db, self.source, self.session_id = db, source, session_id
        self.total = 1 if session_id else db.session_count(source)
        self.count = self.messages = 0

    def export(self, step: Any) -> formats.Export:
        """All of it, for a format's writer."""
        title = "Hermes sessions"
        if self.session_id is not None:
            title = self.db.get_session_title(self.session_id) or self.session_id
        return formats.Export(sessions=self.sessions(step), title=title, zone=zone(), attachments=self.db.attachments_dir,
                              contents=self.contents())  # fmt: skip

    def sessions(self, step: Any) -> Iterator[dict[str, Any]]:
        if self.session_id is None:
            found: Iterable[dict[str, Any] | None] = self.db.iter_export(self.source)
        else:
            found = [self.db.export_session(self.session_id)]
        for session in found:
            if session is not None and (self.source is None or session["source"] == self.source):
                self.count += 1
                # What was carried over is counted where it was said.
                self.messages += sum(one["session_id"] == session["id"] for one in session["messages"])
                yield session
                step(self.count)

    def contents(self) -> Iterator[dict[str, Any]]:
        """What a list of contents shows, if there is more than one: the newest first, a page of rows at a time."""
        page = 200
        for offset in range(0, self.total if self.total > 1 else 0, page):
            yield from self.db.list_sessions_rich(
                source=self.source, limit=page, offset=offset, include_children=True, project_compression_tips=False
            )


def _keep_off(target: Path, db: SessionDB) -> None:
    """The record itself is not a place to export to."""
    own = [db.path, *(db.path.with_name(db.path.name + end) for end in ("-wal", "-shm"))]
    if any(target.resolve() == one.resolve() for one in own):
        raise click.ClickException(f"{target} is the record itself; name another file")
    if target.is_dir():
        raise click.ClickException(f"{target} is a folder; name a file in it")
    if not target.resolve().parent.is_dir():
        raise click.ClickException(f"{target} can't be written: its folder does not exist")


def save(target: Path, pieces: Iterable[bytes]) -> None:
    """Write a file whole or not at all, readable by its owner only. A pipe or device is written straight."""
    real = Path(os.path.realpath(target))
    if real.exists() and not stat.S_ISREG(real.stat().st_mode):
        with real.open("wb") as stream:
            stream.writelines(pieces)
        return
    part = real.with_name(f".{real.name[:100]}.{os.getpid()}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(pieces)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, real)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


_MOST_LISTED = 50
Counts = dict[str, int]


@click.command(
    "import",
    help="Import FILE (`-`: standard input). Its format is seen from its content."
    f"\n\nFormats: {formats.described(reading=True)}.",
)
@click.argument("file", metavar="FILE", shell_complete=complete_files)
@click.option("--dry-run", is_flag=True, help="Only show what would be imported.")
def import_(file: str, dry_run: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="hermes-import-") as folder:
        path = _source(file, Path(folder))
        with opened(writing=not dry_run, in_bulk=not dry_run) as db:
            counts, problems = _imported(db, path, Path(folder) / "attachments", dry_run)
            if counts["sessions"] and not dry_run:
                index(db)
    verb = "would come in" if dry_run else "came in"
    print(f"{counted(counts['sessions'], 'session')} with {counted(counts['messages'], 'message')} {verb},"
          f" {counted(counts['skipped'], 'session')} {'were' if counts['skipped'] != 1 else 'was'} here already")  # fmt: skip
    for problem in problems[:_MOST_LISTED]:
        print(f"hermes: line {problem.line}: {problem.reason}", file=sys.stderr)
    if len(problems) > _MOST_LISTED:
        print(f"hermes: … and {len(problems) - _MOST_LISTED} more lines", file=sys.stderr)
    return 1 if problems else 0


def _source(file: str, folder: Path) -> Path:
    """The file to read. A pipe is copied to a file first: a database can't be read from it, and sniffing takes its bytes."""
    path = Path(file).expanduser()
    if file != "-" and path.is_dir():
        raise click.ClickException(f"{path} is a folder; name an export or a state.db")
    if file != "-" and stat.S_ISREG(path.stat().st_mode):
        return path
    import shutil

    copied = folder / "standard-input"
    with sys.stdin.buffer if file == "-" else path.open("rb") as stream, copied.open("wb") as copy:
        shutil.copyfileobj(stream, copy)
    return copied


def _imported(db: SessionDB, path: Path, folder: Path, dry_run: bool) -> tuple[Counts, list[Problem]]:
    """Every session of a file that can be read, and the parts that can't."""
    if not db.is_shared and path.resolve() == db.path.resolve():
        raise click.ClickException(f"{path} is the record itself; there is nothing to import")
    module = formats.reader_for(path).load()
    problems: list[Problem] = []
    if not dry_run and hasattr(module, "take"):
        return module.take(db, path), problems
    found: Iterator[Found] = module.read(path, None if dry_run else folder, problems)
    if dry_run:
        return _compared(db, found), problems
    at = 0

    def sessions() -> Iterator[dict[str, Any]]:
        nonlocal at
        with progress("importing", path.stat().st_size) as step:
            for one in found:
                at = one.line
                yield one.session
                step(one.position)

    def refused(session: dict[str, Any], error: Exception) -> None:
        reason = str(error) if isinstance(error, InvalidInput) else f"a field is not what an export has there ({error})"
        problems.append(Problem(at, f"session {one_line(session['id'])}: {one_line(reason)}"))

    counts = db.import_sessions(sessions(), attachments_dir=folder, refused=refused)
    return counts, sorted(problems, key=lambda problem: problem.line)


def _compared(db: SessionDB, found: Iterator[Found]) -> Counts:
    """What an import would do."""
    counts = {"sessions": 0, "messages": 0, "skipped": 0}
    trashed = {row["id"] for row in db.list_trash()}
    seen: set[str] = set()
    for one in found:
        session = one.session
        if session["id"] in seen | trashed or db.get_session(session["id"]) is not None:
            counts["skipped"] += 1
            continue
        seen.add(session["id"])
        counts["sessions"] += 1
        told = session.get("messages") or []
        counts["messages"] += sum(message.get("session_id", session["id"]) == session["id"] for message in told)
    return counts

"""`hermes sessions import`: an export, or another Hermes state.db of any version, comes in with its ids.

What a file is, is seen from its first bytes. Sessions that are here already are left as they are, so a second time
changes nothing; a damaged line costs that line and is named.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from hermes.cli.sessions.shared import counted, index, opened, progress
from hermes.errors import InvalidInput
from hermes.harmless import one_line

if TYPE_CHECKING:
    from hermes.interop.jsonl import Problem
    from hermes.store.db import SessionDB

_DATABASE = b"SQLite format 3\0"
_MOST_LISTED = 50
Counts = dict[str, int]


@click.command("import", help="Bring in FILE: an export in JSONL, or another Hermes state.db (`-`: standard input).")
@click.argument("file", metavar="FILE")
@click.option("--dry-run", is_flag=True, help="Only say what would come in.")
def import_(file: str, dry_run: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="hermes-import-") as folder:
        with _source(file, Path(folder)) as stream, opened(writing=not dry_run, in_bulk=not dry_run) as db:
            if stream.peek(16)[:16] == _DATABASE:  # type: ignore[attr-defined]
                problems: list[Problem] = []
                counts = _from_database(db, Path(stream.name), dry_run)
            else:
                counts, problems = _from_lines(db, stream, Path(folder) / "attachments", dry_run)
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


def _source(file: str, folder: Path) -> BinaryIO:
    """The file to read; standard input is kept in a file of its own, because a database can't be read from a pipe."""
    if file != "-":
        path = Path(file).expanduser()
        if path.is_dir():
            raise click.ClickException(f"{path} is a folder; name an export or a state.db")
        return path.open("rb")
    import shutil

    path = folder / "standard-input"
    with path.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    return path.open("rb")


def _from_database(db: SessionDB, path: Path, dry_run: bool) -> Counts:
    """Every session of another store."""
    if not db.is_shared and path.resolve() == db.path.resolve():
        raise click.ClickException(f"{path} is the record itself; there is nothing to bring in")
    if not dry_run:
        return db.import_database(path)
    from hermes.store.db import SessionDB

    with SessionDB(db_path=path, read_only=True) as other:
        return _compared(db, ((0, session) for session in other.iter_export()))


def _from_lines(db: SessionDB, stream: BinaryIO, folder: Path, dry_run: bool) -> tuple[Counts, list[Problem]]:
    """Every session of an export that can be read, and the lines that can't."""
    from hermes.interop import jsonl

    problems: list[Problem] = []
    lines = jsonl.read(stream, None if dry_run else folder, problems)
    if dry_run:
        return _compared(db, lines), problems
    at = 0

    def sessions() -> Iterator[dict[str, Any]]:
        nonlocal at
        size = Path(stream.name).stat().st_size
        with progress("importing", size) as step:
            for number, session in lines:
                at = number
                yield session
                step(stream.tell())

    def refused(session: dict[str, Any], error: Exception) -> None:
        reason = str(error) if isinstance(error, InvalidInput) else f"a field is not what an export has there ({error})"
        problems.append(jsonl.Problem(at, f"session {one_line(session['id'])}: {one_line(reason)}"))

    counts = db.import_sessions(sessions(), attachments_dir=folder, refused=refused)
    return counts, sorted(problems, key=lambda problem: problem.line)


def _compared(db: SessionDB, lines: Iterator[tuple[int, dict[str, Any]]]) -> Counts:
    """What an import would do."""
    counts = {"sessions": 0, "messages": 0, "skipped": 0}
    trashed = {row["id"] for row in db.list_trash()}
    seen: set[str] = set()
    for _, session in lines:
        if session["id"] in seen | trashed or db.get_session(session["id"]) is not None:
            counts["skipped"] += 1
            continue
        seen.add(session["id"])
        counts["sessions"] += 1
        told = session.get("messages") or []
        counts["messages"] += sum(one.get("session_id", session["id"]) == session["id"] for one in told)
    return counts

"""`hermes sessions import`: an export, or another Hermes state.db of any version, comes in with its ids.

The format of a file is seen from its content (hermes.interop.formats).
Sessions that are here already are left as they are, so a second time
changes nothing; a damaged line costs that line and is named.
"""

from __future__ import annotations

import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.completing import complete_files
from hermes.cli.sessions.shared import counted, index, opened, progress
from hermes.errors import InvalidInput
from hermes.harmless import one_line
from hermes.interop import formats
from hermes.interop.formats import Found, Problem

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

_MOST_LISTED = 50
Counts = dict[str, int]


@click.command(
    "import",
    help="Import FILE (`-`: standard input). Its format is seen from its content."
    f"\n\nFormats: {formats.described(reading=True)}.",
)
@click.argument("file", metavar="FILE", shell_complete=complete_files)
@click.option("--dry-run", is_flag=True, help="Only say what would come in.")
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
        raise click.ClickException(f"{path} is the record itself; there is nothing to bring in")
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

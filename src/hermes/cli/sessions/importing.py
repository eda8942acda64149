"""`hermes sessions import`: exports, other Hermes state.db files, and the histories of other programs.

The format of a file is detected from its content (hermes.interop.formats). A second import changes nothing, except that a
session of another program gets its new messages; a damaged line is skipped and reported. The report has what was imported, and
the first problems.
"""

from __future__ import annotations

import signal
import stat
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.arrival import agents_home, settle
from hermes.cli.options import moment, yes_option
from hermes.cli.output import Column, note, printed, progress, size_of
from hermes.cli.record import configuration, index, is_encrypted, opened
from hermes.errors import HermesError, InvalidInput
from hermes.interop import formats, scratch
from hermes.interop.arrivals import alone, arriving, is_here, new_messages
from hermes.interop.formats import Format, Found, Problem
from hermes.interop.windows import Windows
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB


_MOST_LISTED = 20  # problems, and kinds of unknown records


@dataclass(slots=True)
class ImportReport:
    """Collects counts and problems of an import."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    def found(self) -> int:
        """How many sessions, imported or not, and how much damage the files have had so far."""
        sessions = sum(self.counts[name] for name in ("sessions", "updated", "skipped", "deleted"))
        return sessions + sum(one.unknown is None for one in self.problems)

    def nothing_in(self, name: str, *, is_chosen: bool) -> None:
        """Note that a named path contained nothing, which is a failure."""
        which = " that --since and --folder select" if is_chosen else ""
        self.problems.append(Problem(0, f"{one_line(name)}: there is no conversation in it{which}"))

    def print(self, dry_run: bool) -> int:
        """Print what was imported and what was not; returns the exit status."""
        verb, counts = ("would be imported" if dry_run else "imported"), self.counts
        updated = f", {counted(counts['updated'], 'session')} updated" if counts["updated"] else ""
        print(f"{counted(counts['sessions'], 'session')} with {counted(counts['messages'], 'message')} {verb}{updated};"
              f" {counted(counts['skipped'], 'session')} already here")  # fmt: skip
        if counts["trashed"]:
            print(f"{counts['trashed']} of them {'is' if counts['trashed'] == 1 else 'are'} in the trash;"
                  " `hermes sessions restore ID` brings one back")  # fmt: skip
        if counts["deleted"]:
            print(f"{counted(counts['deleted'], 'session')} deleted here before {'was' if counts['deleted'] == 1 else 'were'}"
                  " left out; --again imports what was not shredded")  # fmt: skip
        damaged = [one for one in self.problems if one.unknown is None]
        unknown = Counter[str]()
        for one in self.problems:
            if one.unknown is not None:
                unknown[one.unknown] += one.times
        skipped = (
            f"skipped {counted(times, 'record')} of an unknown type: {one_line(kind)}"
            for kind, times in unknown.most_common(_MOST_LISTED)
        )
        listed = [f"{place(one)}{one.reason}" for one in damaged[:_MOST_LISTED]]
        more = [f"… and {counted(len(damaged) - _MOST_LISTED, 'more problem')}"] if len(damaged) > _MOST_LISTED else []
        for line in (*listed, *more, *skipped):
            print(f"hermes: {line}", file=sys.stderr)
        return 1 if damaged else 0


def place(problem: Problem) -> str:
    """The place of a problem, printed before its reason."""
    file = f"{problem.path.name}: " if problem.path is not None else ""
    return f"{file}line {problem.line}: " if problem.line else file


Source = tuple[Format, Path]


@dataclass(slots=True)
class _Chosen:
    """Which sessions of the files are imported."""

    since: float | None
    folder: str | None
    again: bool = False

    def takes(self, session: Mapping[str, Any]) -> bool:
        if self.since is not None and (session.get("ended_at") or session.get("started_at") or 0.0) < self.since:
            return False
        cwd = session.get("cwd")
        return self.folder is None or cwd == self.folder or (isinstance(cwd, str) and cwd.startswith(self.folder + "/"))


@click.command(
    "import",
    help="Import each PATH: a file, a folder with histories of other programs, or `-` for standard input. The format of a"
    f" file is detected from its content.\n\nFormats: {formats.described(reading=True)}.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path(allow_dash=True))
@click.option(
    "--found", is_flag=True, help="List the histories of other programs on this machine, and ask which to import."
)
@click.option("--dry-run", is_flag=True, help="Show what would be imported, and import nothing.")
@click.option(
    "--since",
    metavar="WHEN",
    callback=moment(end=False),
    help="Only sessions that were active since then: 7d, yesterday, 2026-01-31.",
)
@click.option("--folder", metavar="DIR", help="Only sessions that worked in this folder or below it.")
@click.option(
    "--again", is_flag=True, help="Import sessions that were deleted here as well, unless they were shredded."
)
@yes_option()
def import_(
    paths: tuple[str, ...], found: bool, dry_run: bool, since: float | None, folder: str | None, again: bool, yes: bool
) -> int:
    if found == bool(paths):
        raise click.UsageError("name a PATH, or --found" if not paths else "--found takes no PATH")
    chosen = _Chosen(since, None if folder is None else str(Path(folder).expanduser().resolve()), again)
    report = ImportReport()
    with TemporaryDirectory(prefix="hermes-import-") as made:
        beside = Path(made)
        named = {"": _offered(dry_run, yes, chosen)} if found else {path: _sources(path, beside) for path in paths}
        theirs = agents_home(configuration())
        if theirs is not None and any(named.values()) and not dry_run:
            own = theirs.path.resolve()
            is_theirs = any(path.resolve() == own for sources in named.values() for _, path in sources)
            settle(configuration(), theirs, agreed=is_theirs, takes=chosen.takes)
            for name, sources in list(named.items()):
                named[name] = [one for one in sources if one[1].resolve() != own]
                if sources and not named[name]:
                    del named[name]  # all of its sessions are imported
        if not any(named.values()):
            return 0
        with _compared_with() if dry_run else opened(writing=True, in_bulk=True) as db:
            for name, sources in named.items():
                before = report.found()
                for source in sources:
                    _import_one(db, source, beside / "attachments", chosen, dry_run, report)
                if name and report.found() == before:
                    report.nothing_in(name, is_chosen=since is not None or folder is not None)
            if report.counts["sessions"] and not dry_run:
                index(db)
            if not dry_run:
                _tell_expiring(db)
    return report.print(dry_run)


def _compared_with() -> AbstractContextManager[SessionDB]:
    """The record, for reading; an empty one in a home of Hermes Agent, which has no record of ours yet."""
    from hermes.cli.chat import unsaved

    return unsaved() if agents_home(configuration()) else opened()


def _sources(file: str, beside: Path) -> list[Source]:
    """The files to read, each with its format. A pipe is copied to a file first: detecting the format consumes bytes."""
    path = Path(file).expanduser()
    if file != "-" and path.is_dir():
        own = [(one, path) for one in formats.histories() if one.load().sniff(path)]
        found = own or list(formats.found_in(path))
        if not found:
            raise click.ClickException(f"{path}: no history of another program was found in this folder")
        return found
    if file == "-" or not stat.S_ISREG(path.stat().st_mode):
        with sys.stdin.buffer if file == "-" else path.open("rb") as stream:
            path = scratch.copied(stream, beside, encrypted=is_encrypted())
    reader = formats.reader_for(path)
    if reader is None:
        kind = f"in no format that can be imported (looked for: {formats.looked_for()})"
        raise click.ClickException(f"{file} is {kind if path.stat().st_size else 'empty'}; nothing was imported")
    return [(reader, path)]


def _import_one(
    db: SessionDB, source: Source, folder: Path, chosen: _Chosen, dry_run: bool, report: ImportReport
) -> None:
    """Import every readable session of a file; unreadable parts go to the report."""
    chosen_format, path = source
    if not db.is_shared and path.resolve() == db.path.resolve():
        raise click.ClickException(f"{path} is the store itself; there is nothing to import")
    module = chosen_format.load()
    whole = chosen.since is None and chosen.folder is None
    if not dry_run and hasattr(module, "take"):
        report.counts.update(module.take(db, path, again=chosen.again, only=None if whole else chosen.takes))
        return
    problems: list[Problem] = []
    grows = bool(chosen_format.program)
    windows = Windows(module, path, folder, problems) if grows and whole and not dry_run else None
    raw = windows.sessions() if windows is not None else module.read(path, None if dry_run else folder, problems)
    read = _readable(raw, path, problems)
    found = (one for one in read if chosen.takes(one.session))
    if dry_run:
        report.counts.update(_compared(db, (one.session for one in found), grows, chosen.again))
        report.problems += problems
        return
    at = 0

    def sessions() -> Iterator[Mapping[str, Any]]:
        nonlocal at
        with progress("importing", path.stat().st_size) as step:
            for one in found:
                at = one.line
                yield one.session
                step(one.position)

    def refused(session: Mapping[str, Any], error: Exception) -> None:
        if windows is not None and windows.misplaced(error):
            return
        reason = str(error) if isinstance(error, InvalidInput) else f"a field is not what an export has there ({error})"
        problems.append(Problem(at, f"session {one_line(session['id'])}: {one_line(reason)}"))

    try:
        with alone(path) if grows else nullcontext():
            incoming = arriving(db, sessions(), report.counts) if grows else sessions()
            report.counts.update(
                db.import_sessions(incoming, attachments_dir=folder, refused=refused, update=grows, again=chosen.again)
            )
    finally:
        report.problems += sorted(problems, key=lambda problem: problem.line)


def _readable(found: Iterator[Found], path: Path, problems: list[Problem]) -> Iterator[Found]:
    """The sessions of a file, up to where it can't be read any further; other files are not affected."""
    from hermes.store.engines.sqlite.foreign import UnreadableDatabase

    try:
        yield from found
    except (UnreadableDatabase, OSError) as error:
        reason = str(error).removeprefix(f"{path}: ") if isinstance(error, UnreadableDatabase) else error.strerror
        problems.append(Problem(0, reason or str(error), path))


def _compared(db: SessionDB, sessions: Iterator[Mapping[str, Any]], updates: bool, again: bool) -> Counter[str]:
    """Count what an import would do."""
    counts = Counter[str]()
    trashed, deleted = {row["id"] for row in db.list_trash()}, db.deleted_sessions()
    seen: set[str] = set()
    for session in sessions:
        session_id, messages = session["id"], session.get("messages") or []
        if (gone := deleted.get(session_id)) is not None and (gone or not again):
            counts["deleted"] += 1
        elif session_id in seen | trashed:
            counts.update(skipped=1, trashed=session_id in trashed)
        elif is_here(db, session):
            new = len(new_messages(db, session)) if updates else 0
            counts.update(messages=new, updated=bool(new), skipped=not new)
        else:
            own = sum(message.get("session_id", session_id) == session_id for message in messages)
            counts.update(sessions=1, messages=own)
        seen.add(session_id)
    return counts


def _offered(dry_run: bool, yes: bool, chosen: _Chosen) -> list[Source]:
    """The files that --found found and the person selected."""
    by_program: dict[str, list[Source]] = {}
    for one in formats.found_here():
        by_program.setdefault(one[0].program, []).append(one)
    if not by_program:
        print("No history of another program was found in the usual places.")
        return []
    _list(by_program, chosen)
    if dry_run or yes:
        return [one for sources in by_program.values() for one in sources]
    if not sys.stdin.isatty():
        raise click.ClickException("nothing was imported; add --yes to import everything, or name a path")
    agreed = [sources for name, sources in by_program.items() if click.confirm(f"Import {name}?", default=True)]
    return [one for sources in agreed for one in sources]


def _list(by_program: dict[str, list[Source]], chosen: _Chosen) -> None:
    """Print a table: program, sessions, messages, size, how many messages are new."""
    rows = []
    with _compared_with() as db:
        for program, sources in by_program.items():
            sessions = messages = new = total = 0
            for chosen_format, path in sources:
                total += _bytes(path)
                try:
                    for one in chosen_format.load().read(path, None, []):
                        if chosen.takes(one.session):
                            sessions += 1
                            messages += len(one.session["messages"])
                            new += len(new_messages(db, one.session))
                except (HermesError, OSError) as error:
                    note(f"{path}: {one_line(str(error))}")
            rows.append((program, f"{sessions:,}", f"{messages:,}", size_of(total), f"{new:,}"))
    heads = ("Program", "Sessions", "Messages", "Size", "New messages")
    print(printed([Column(head) for head in heads], rows))


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(file.stat().st_size for file in files)


# ----------------------------------------------------------------------------------------------------
# `hermes sessions watch`: other programs' conversations come in while they are written.


@click.command(help="Follow the histories of other programs and import what they write, until Ctrl-C."
               " Without FOLDER: the usual places of this machine.")  # fmt: skip
@click.argument(
    "folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--once", is_flag=True, help="Import what has changed since the last time, and exit.")
@click.option("--install", is_flag=True, help="Run it permanently, as a user service (systemd; launchd on macOS).")
@click.option("--uninstall", is_flag=True, help="Stop and remove that service.")
def watch(folders: tuple[Path, ...], once: bool, install: bool, uninstall: bool) -> int:
    from hermes.interop.history_watch import HistoryWatcher
    from hermes.jobs.following import follow

    if once + install + uninstall > 1 or (uninstall and folders):
        raise click.UsageError("--once, --install and --uninstall go without each other; --uninstall takes no FOLDER")
    if install or uninstall:
        from hermes.cli import services
        from hermes.cli.services import WATCH

        words = (*WATCH.words, *(str(one.resolve()) for one in folders))
        (services.install if install else services.uninstall)(replace(WATCH, words=words))
        return 0
    stopped, listener = threading.Event(), _Watching()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    with opened(writing=True) as db:
        _tell_expiring(db)
        if once:
            watcher = HistoryWatcher(db, folders, listener.brought, listener.skipped)
            brought = watcher.catch_up(watcher.found())
            click.echo(f"{counted(brought, 'message')} imported")
            return 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        follow(db, folders, listener, stopped)
    return 0


def _tell_expiring(db: SessionDB) -> None:
    """Print the programs that are about to delete sessions of theirs that are kept here."""
    from hermes.interop.history_watch import expiring

    for program, number in expiring(db):
        kept = "it is" if number == 1 else "they are"
        note(f"{program} will delete {counted(number, 'session')} this week; {kept} kept here.")


class _Watching:
    """Prints the events of following histories."""

    def began(self) -> None:
        click.echo("Watching; Ctrl-C stops it.", err=True)

    def waits_for(self, holder: str) -> None:
        from hermes.jobs.following import described

        click.echo(f"{described(holder)} follows these places; waiting until it stops. Ctrl-C ends this.", err=True)

    def brought(self, chosen: Format, path: Path, counts: dict[str, int]) -> None:
        click.echo(f"{chosen.program}: {counted(counts['messages'], 'message')} from {path.name}")

    def skipped(self, problem: Problem) -> None:
        click.echo(f"hermes: {place(problem)}{problem.reason}", err=True)

    def failed(self, error: Exception) -> None:
        click.echo(f"hermes: {one_line(str(error))}; trying again", err=True)

"""`hermes sessions import`: exports, other Hermes state.db files, and the histories of other programs; and `watch`, which
follows those histories.

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
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import flag, yes_option
from hermes.cli.output import Column, note, printed, progress, size_of
from hermes.cli.record import agents_home, configuration, index, is_encrypted, opened, settle
from hermes.errors import HermesError, InvalidInput
from hermes.interop import arrivals, formats
from hermes.interop.arrivals import alone, arriving, new_messages
from hermes.interop.formats import Format, Found, Problem
from hermes.interop.windows import Windows
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB


_MOST_LISTED = 20  # problems, and kinds of unknown records
Source = tuple[Format, Path]


@dataclass(slots=True)
class ImportReport:
    """Collects counts and problems of an import."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    def found(self) -> int:
        """How many sessions, imported or not, and how much damage the files have had so far."""
        sessions = sum(self.counts[name] for name in ("sessions", "updated", "skipped", "deleted"))
        return sessions + sum(one.unknown is None for one in self.problems)

    def print(self) -> int:
        """Print what was imported and what was not; returns the exit status."""
        counts = self.counts
        updated = f", {counted(counts['updated'], 'session')} updated" if counts["updated"] else ""
        imported = f"{counted(counts['sessions'], 'session')} with {counted(counts['messages'], 'message')} imported"
        print(f"{imported}{updated}; {counted(counts['skipped'], 'session')} already here")
        if counts["trashed"]:
            print(f"{counts['trashed']} of them in the trash; `hermes sessions restore ID` brings one back")
        if counts["deleted"]:
            left_out = f"{counted(counts['deleted'], 'session')} deleted here before, and left out"
            print(f"{left_out}; --again imports what was not shredded")
        damaged = [one for one in self.problems if one.unknown is None]
        unknown = Counter[str]()
        for one in self.problems:
            if one.unknown is not None:
                unknown[one.unknown] += one.times
        for one in damaged[:_MOST_LISTED]:
            note(f"{place(one)}{one.reason}")
        if len(damaged) > _MOST_LISTED:
            note(f"… and {counted(len(damaged) - _MOST_LISTED, 'more problem')}")
        for kind, times in unknown.most_common(_MOST_LISTED):
            note(f"skipped {counted(times, 'record')} of an unknown type: {one_line(kind)}")
        return 1 if damaged else 0


def place(problem: Problem) -> str:
    """The place of a problem, printed before its reason."""
    file = f"{problem.path.name}: " if problem.path is not None else ""
    return f"{file}line {problem.line}: " if problem.line else file


@click.command(
    "import",
    help="Import each PATH: a file, a folder with histories of other programs, or `-` for standard input. The format of a"
    f" file is detected from its content.\n\nFormats: {formats.described(reading=True)}.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path())
@flag("--found", "List the histories of other programs on this machine, and ask which to import.")
@flag("--again", "Import sessions that were deleted here as well, unless they were shredded.")
@yes_option()
def import_(paths: tuple[str, ...], found: bool, again: bool, yes: bool) -> int:
    if found == bool(paths):
        raise click.UsageError("name a PATH, or --found" if not paths else "--found takes no PATH")
    report = ImportReport()
    with TemporaryDirectory(prefix="hermes-import-") as made:
        beside = Path(made)
        named = {"": _offered(yes)} if found else {path: _sources(path, beside) for path in paths}
        theirs = agents_home(configuration())
        if theirs is not None and any(named.values()):
            own = theirs.path.resolve()
            is_theirs = any(path.resolve() == own for sources in named.values() for _, path in sources)
            settle(configuration(), theirs, agreed=is_theirs)
            for name, sources in list(named.items()):
                named[name] = [one for one in sources if one[1].resolve() != own]
                if sources and not named[name]:
                    del named[name]  # all of its sessions are imported
        if not any(named.values()):
            return 0
        with opened(writing=True, in_bulk=True) as db:
            for name, sources in named.items():
                before = report.found()
                for source in sources:
                    _import_one(db, source, beside / "attachments", again, report)
                if name and report.found() == before:
                    report.problems.append(Problem(0, f"{one_line(name)}: there is no conversation in it"))
            if report.counts["sessions"]:
                index(db)
            _tell_expiring(db)
    return report.print()


def _sources(file: str, beside: Path) -> list[Source]:
    """The files to read, each with its format. A pipe is copied to a file first: detecting the format consumes bytes."""
    path = Path(file).expanduser()
    if file != "-" and path.is_dir():
        if not (found := list(formats.found_in(path))):
            raise click.ClickException(f"{path}: no history of another program was found in this folder")
        return found
    if file == "-" or not stat.S_ISREG(path.stat().st_mode):
        with sys.stdin.buffer if file == "-" else path.open("rb") as stream:
            path = arrivals.copied(stream, beside, encrypted=is_encrypted())
    reader = formats.reader_for(path)
    if reader is None:
        kind = f"in no format that can be imported (looked for: {formats.looked_for()})"
        raise click.ClickException(f"{file} is {kind if path.stat().st_size else 'empty'}; nothing was imported")
    return [(reader, path)]


def _import_one(db: SessionDB, source: Source, folder: Path, again: bool, report: ImportReport) -> None:
    """Import every readable session of a file; unreadable parts go to the report."""
    chosen, path = source
    if not db.is_shared and path.resolve() == db.path.resolve():
        raise click.ClickException(f"{path} is the store itself; there is nothing to import")
    module = chosen.load()
    if hasattr(module, "take"):
        report.counts.update(module.take(db, path, again=again))
        return
    problems: list[Problem] = []
    grows = bool(chosen.program)
    windows = Windows(module, path, folder, problems) if grows else None
    found = windows.sessions() if windows is not None else module.read(path, folder, problems)
    at = 0

    def sessions() -> Iterator[Mapping[str, Any]]:
        nonlocal at
        with progress("importing", path.stat().st_size) as step:
            for one in _readable(found, path, problems):
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
                db.import_sessions(incoming, attachments_dir=folder, refused=refused, update=grows, again=again)
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


def _offered(yes: bool) -> list[Source]:
    """The files that --found found and the person selected, after a table of what they have."""
    from hermes.cli.chat import unsaved

    by_program: dict[str, list[Source]] = {}
    for one in formats.found_here():
        by_program.setdefault(one[0].program, []).append(one)
    if not by_program:
        print("No history of another program was found in the usual places.")
        return []
    # a home of Hermes Agent has no record of ours yet
    with unsaved() if agents_home(configuration()) else opened() as db:
        rows = [_row(db, program, sources) for program, sources in by_program.items()]
    heads = ("Program", "Sessions", "Messages", "Size", "New messages")
    print(printed([Column(head) for head in heads], rows))
    if yes:
        return [one for sources in by_program.values() for one in sources]
    if not sys.stdin.isatty():
        raise click.ClickException("nothing was imported; add --yes to import everything, or name a path")
    agreed = [sources for name, sources in by_program.items() if click.confirm(f"Import {name}?", default=True)]
    return [one for sources in agreed for one in sources]


def _row(db: SessionDB, program: str, sources: list[Source]) -> tuple[str, ...]:
    """A program, and how many sessions, messages, bytes and new messages its files have."""
    sessions = messages = new = total = 0
    for chosen, path in sources:
        files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
        total += sum(file.stat().st_size for file in files)
        try:
            for one in chosen.load().read(path, None, []):
                sessions += 1
                messages += len(one.session["messages"])
                new += len(new_messages(db, one.session))
        except (HermesError, OSError) as error:
            note(f"{path}: {one_line(str(error))}")
    return program, f"{sessions:,}", f"{messages:,}", size_of(total), f"{new:,}"


# ----------------------------------------------------------------------------------------------------
# `hermes sessions watch`: other programs' conversations come in while they are written.


@click.command()
@click.argument(
    "folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@flag("--once", "Import what has changed since the last time, and exit.")
@flag("--install", "Run it permanently, as a user service (systemd; launchd on macOS).")
@flag("--uninstall", "Stop and remove that service.")
def watch(folders: tuple[Path, ...], once: bool, install: bool, uninstall: bool) -> None:
    """Follow the histories of other programs and import what they write, until Ctrl-C. Without FOLDER: the usual
    places of this machine.
    """
    from hermes.interop.programs import HistoryWatcher
    from hermes.jobs.following import follow

    if once + install + uninstall > 1 or (uninstall and folders):
        raise click.UsageError("--once, --install and --uninstall go without each other; --uninstall takes no FOLDER")
    if install or uninstall:
        from hermes.cli.services import WATCH

        service = replace(WATCH, words=(*WATCH.words, *(str(one.resolve()) for one in folders)))
        (service.install if install else service.uninstall)()
        return
    stopped, listener = threading.Event(), _Watching()
    with opened(writing=True) as db:
        _tell_expiring(db)
        if once:
            watcher = HistoryWatcher(db, folders, listener.brought, listener.skipped)
            click.echo(f"{counted(watcher.catch_up(watcher.found()), 'message')} imported")
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        follow(db, folders, listener, stopped)


def _tell_expiring(db: SessionDB) -> None:
    """Print the programs that are about to delete sessions of theirs that are kept here."""
    from hermes.interop.programs import expiring

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
        note(f"{place(problem)}{problem.reason}")

    def failed(self, error: Exception) -> None:
        note(f"{one_line(str(error))}; trying again")

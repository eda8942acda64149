"""`hermes sessions stats`, `check`, `repair`, `optimize` and `backup`: the size of the store, and keeping it sound."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.common import json_option
from hermes.cli.shared import configuration, index, opened, print_json, progress, size_of
from hermes.errors import StoreCorrupt, StoreReadOnly
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.store.db import SessionDB
    from hermes.store.rows import Finding

_MOST_SHOWN = 50


def database_bytes(path: Path) -> int:
    """The store's size on the disk: the file and the log that is not moved into it yet."""
    total = 0
    for end in ("", "-wal"):
        try:
            total += os.path.getsize(f"{path}{end}")
        except OSError:
            continue
    return total


@click.command(help="How many sessions and messages there are, by source, and how large the record is.")
@json_option("As a JSON object.")
def stats(as_json: bool) -> None:
    with opened() as db:
        sources = db.source_counts()
        messages = db.message_count()
        size, where = db.size(), db.where
    sessions = sum(sources.values())
    if as_json:
        print_json(
            {"sessions": sessions, "messages": messages, "sources": sources, "database_bytes": size, "path": where}
        )
        return
    print(f"Total sessions: {sessions}")
    print(f"Total messages: {messages}")
    for source, number in sources.items():
        print(f"  {one_line(source)}: {number} {'session' if number == 1 else 'sessions'}")
    print(f"Database size: {size_of(size)}")


@click.command(
    help="Check whether the record is sound: file, every row, index, references, counters, attachments, transcripts."
)
@json_option("What was found, as a JSON array.")
def check(as_json: bool) -> int:
    try:
        try:
            found, summary = _inspected(writing=True)
        except StoreReadOnly:  # a copy on a read-only disk can be checked as well
            found, summary = _inspected(writing=False)
    except StoreCorrupt as error:
        found, summary = [{"kind": "corruption", "where": "the file", "detail": str(error)}], ""
    if as_json:
        print_json(found)
    elif found:
        _list(found)
        click.echo("hermes: `hermes sessions repair` repairs what can be repaired", err=True)
    else:
        print(summary)
    return 1 if found else 0


def _inspected(*, writing: bool) -> tuple[list[Finding], str]:
    """What a check finds, and the line that is shown if that is nothing."""
    with opened(writing=writing) as db:
        found = _checked(db)
        return found, f"sound: {counted(db.session_count(), 'session')}, {counted(db.message_count(), 'message')}"


def _checked(db: SessionDB) -> list[Finding]:
    """All findings; a progress bar on a terminal."""
    with progress("checking", 1000) as step:
        shares = {"file": (0, 300), "messages": (300, 400), "index": (300, 400), "attachments": (700, 50)}

        def report(what: str, done: int, of: int) -> None:
            start, share = shares.get(what, (750, 250))
            step(start + share * done // max(of, 1))

        return db.check(progress=report)


def _list(found: list[Finding]) -> None:
    for finding in found[:_MOST_SHOWN]:
        print(one_line(f"{finding['kind']}: {finding['where']}: {finding['detail']}"))
    if len(found) > _MOST_SHOWN:
        print(f"… and {len(found) - _MOST_SHOWN} more")


@click.command(
    help="Repair what `check` finds. Nothing is dropped, and a copy of the file is kept beside it. Damaged rows are restored"
    " from the transcripts; what was changed or removed in the database on purpose is not."
)
@click.option("--rebuild-index", is_flag=True, help="Rebuild the full-text index in any case.")
@click.option(
    "--from-transcripts", is_flag=True, help="Where database and transcript differ, restore what the transcript has."
)
@click.option(
    "--from-database",
    is_flag=True,
    help="Where database and transcript differ, write the transcript from the database.",
)
def repair(rebuild_index: bool, from_transcripts: bool, from_database: bool) -> int:
    if from_transcripts and from_database:
        raise click.UsageError("give --from-transcripts or --from-database, not both")
    how = {"rebuild_index": rebuild_index, "from_transcripts": from_transcripts, "from_database": from_database}
    try:
        with opened(writing=True) as db:
            return _repaired(db, how, [])
    except StoreCorrupt:
        pass  # too damaged to be opened: what can be saved goes into a new file
    from hermes.home import companion, default_database
    from hermes.store.opening import store_url
    from hermes.store.repair import salvage

    path = default_database()
    if store_url(configuration()) is not None or path.is_dir():
        raise click.ClickException(f"{path} can't be repaired from here; restore a backup")
    steps = salvage(path, companion(path, "sessions"))
    with opened(writing=True) as db:
        return _repaired(db, how, steps)


def _repaired(db: SessionDB, how: dict[str, bool], steps: list[str]) -> int:
    steps = [*steps, *db.repair(**how)]
    for step in steps:
        print(f"repaired: {one_line(step)}")
    left = _checked(db)
    _list(left)
    if any(finding["kind"] == "transcript-differs" for finding in left):
        click.echo(
            "hermes: where database and transcript differ, nothing was changed: `hermes sessions repair --from-transcripts`"
            " restores what the transcripts have, `--from-database` rewrites the transcripts",
            err=True,
        )
    if not left:
        print("sound" if steps else "sound: nothing to repair")
    return 1 if left else 0


@click.command(help="Finish the full-text index and give free space back to the disk.")
@click.option(
    "--meaning",
    is_flag=True,
    help="Also make the vectors for search by meaning that are missing; the first time this switches it on.",
)
def optimize(meaning: bool) -> None:
    with opened(writing=True) as db:
        before = db.size()
        indexed = index(db)
        if meaning:
            _index_meaning(db)
        db.vacuum()
        shared, path = db.is_shared, db.path
        after = db.size()
    if not shared:  # closing has moved the rest of the WAL into the file
        after = database_bytes(path)
    if indexed:
        print(f"indexed {counted(indexed, 'message')}")
    print(f"{size_of(before)} → {size_of(after)}")


def _index_meaning(db: SessionDB) -> None:
    waiting = max((one["pending"] for one in db.meaning_status()), default=0)
    with progress("meaning", waiting) as step:
        db.index_meaning(progress=lambda done, total: step(done))
    for one in db.meaning_status():
        left = f", {counted(one['pending'], 'message')} to do" if one["pending"] else ""
        print(f"{one['model']}: {counted(one['vectors'], 'vector')}{left}")


@click.command(
    help="A consistent copy of the record in FILE, also while others write; attachments lie beside it. FILE must not exist."
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
def backup(file: Path) -> None:
    target = file.expanduser()
    with opened() as db:
        db.backup(target)
        if db.attachments_dir.is_dir() and not db.is_shared:  # attachments of a server's store are copied already
            import shutil

            from hermes.home import companion

            shutil.copytree(db.attachments_dir, companion(target, "attachments"), dirs_exist_ok=True)
    print(f"backed up to {target} ({size_of(database_bytes(target))})")

"""`hermes sessions stats`, `check`, `repair`, `optimize` and `backup`: how much there is, and that it stays whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.sessions.shared import configuration, counted, index, opened, print_json, size_of
from hermes.errors import StoreCorrupt
from hermes.harmless import one_line

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

_MOST_SHOWN = 50


def database_bytes(path: Path) -> int:
    """The room the record takes on the disk: the file and what has not been moved into it yet."""
    total = 0
    for end in ("", "-wal"):
        try:
            total += os.path.getsize(f"{path}{end}")
        except OSError:
            continue
    return total


@click.command(help="How many sessions and messages there are, by source, and how large the record is.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
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
        print(f"  {one_line(source)}: {number} sessions")
    print(f"Database size: {size_of(size)}")


@click.command(help="Whether the record is sound: file, index, references, counters, transcripts.")
@click.option("--json", "as_json", is_flag=True, help="What was found, as a JSON array.")
def check(as_json: bool) -> int:
    try:
        with opened(writing=True) as db:
            found = db.check()
            summary = f"sound: {counted(db.session_count(), 'session')}, {counted(db.message_count(), 'message')}"
    except StoreCorrupt as error:
        found, summary = [{"kind": "corruption", "where": "the file", "detail": str(error)}], ""
    if as_json:
        print_json(found)
    elif found:
        _list(found)
        click.echo("hermes: `hermes sessions repair` mends what can be mended", err=True)
    else:
        print(summary)
    return 1 if found else 0


def _list(found: list[dict[str, Any]]) -> None:
    for finding in found[:_MOST_SHOWN]:
        print(one_line(f"{finding['kind']}: {finding['where']}: {finding['detail']}"))
    if len(found) > _MOST_SHOWN:
        print(f"… and {len(found) - _MOST_SHOWN} more")


@click.command(help="Mend what `check` finds. Nothing is dropped, and a copy of the file is kept beside it.")
@click.option("--rebuild-index", is_flag=True, help="Make the full-text index anew in any case.")
def repair(rebuild_index: bool) -> int:
    try:
        with opened(writing=True) as db:
            return _repaired(db, rebuild_index, [])
    except StoreCorrupt:
        pass  # so damaged that it can't be opened: what can be saved goes into a new file
    from hermes.home import companion, default_database
    from hermes.store.opening import store_url
    from hermes.store.repairing import salvage

    path = default_database()
    if store_url(configuration()) is not None or path.is_dir():
        raise click.ClickException(f"{path} can't be mended from here; restore a backup")
    steps = salvage(path, companion(path, "sessions"))
    with opened(writing=True) as db:
        return _repaired(db, rebuild_index, steps)


def _repaired(db: SessionDB, rebuild_index: bool, steps: list[str]) -> int:
    steps = [*steps, *db.repair(rebuild_index=rebuild_index)]
    for step in steps:
        print(f"repaired: {one_line(step)}")
    left = db.check()
    _list(left)
    if not left:
        print("sound" if steps else "sound: nothing to repair")
    return 1 if left else 0


@click.command(help="Finish the full-text index and give free space back to the disk.")
def optimize() -> None:
    with opened(writing=True) as db:
        before = db.size()
        indexed = index(db)
        db.vacuum()
        shared, path = db.is_shared, db.path
        after = db.size()
    if not shared:  # closing has moved the rest of the log into the file
        after = database_bytes(path)
    if indexed:
        print(f"indexed {counted(indexed, 'message')}")
    print(f"{size_of(before)} → {size_of(after)}")


@click.command(
    help="A consistent copy of the record in FILE, also while others write; attachments lie beside it. FILE must not exist."
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
def backup(file: Path) -> None:
    target = file.expanduser()
    with opened() as db:
        db.backup(target)
        if db.attachments_dir.is_dir() and not db.is_shared:  # of a server's record they are beside it already
            import shutil

            from hermes.home import companion

            shutil.copytree(db.attachments_dir, companion(target, "attachments"), dirs_exist_ok=True)
    print(f"backed up to {target} ({size_of(database_bytes(target))})")

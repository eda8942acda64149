"""`hermes sessions stats`, `check`, `repair`, `optimize` and `backup`: the size of the store, and keeping it sound."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import flag, json_option
from hermes.cli.output import note, print_json, size_of
from hermes.cli.record import configuration, index, opened
from hermes.errors import StoreBusy, StoreCorrupt, StoreFull, StoreReadOnly
from hermes.home import companion, settled
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import Finding

_MOST_SHOWN = 50
_file_argument = click.argument(
    "path", metavar="[FILE]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


def database_bytes(path: Path) -> int:
    """The store's size on disk: the file and the log that is not merged into it yet."""
    return sum(os.path.getsize(one) for one in (path, f"{path}-wal") if os.path.exists(one))


@click.command()
@json_option("Print a JSON object.")
def stats(as_json: bool) -> None:
    """Count sessions and messages by source, and show how large the record is."""
    with opened() as db:
        sources, messages, size, where = db.source_counts(), db.message_count(), db.size(), db.where
    total = sum(sources.values())
    if as_json:
        found = {"sessions": total, "messages": messages, "sources": sources, "database_bytes": size, "path": where}
        print_json(found)
        return
    print(f"Total sessions: {total}\nTotal messages: {messages}")
    for source, number in sources.items():
        print(f"  {one_line(source)}: {counted(number, 'session')}")
    print(f"Database size: {size_of(size)}")


@click.command()
@_file_argument
@json_option("Print the findings as a JSON array.")
def check(path: Path | None, as_json: bool) -> int:
    """Check whether the record (or the one in FILE) is sound: file, every row, index, references, counters,
    transcripts.
    """
    found: list[Finding]
    try:
        with _opened(path) as db:
            found = db.check()
            sound = f"sound: {counted(db.session_count(), 'session')}, {counted(db.message_count(), 'message')}"
    except StoreCorrupt as error:
        found, sound = [{"kind": "corruption", "where": "the file", "detail": str(error)}], ""
    if as_json:
        print_json(found)
    elif found:
        _list(found)
        words = ["hermes", "sessions", "repair", *([str(path)] if path else [])]
        note(f"`{shlex.join(words)}` repairs what can be repaired")
    else:
        print(sound)
    return 1 if found else 0


@contextmanager
def _opened(path: Path | None = None) -> Iterator[SessionDB]:
    """The store for writing, or only for reading where that fails: on a read-only or full disk, or damaged."""
    with ExitStack() as stack:
        try:
            db = stack.enter_context(opened(writing=True, path=path))
        except (StoreBusy, StoreCorrupt, StoreFull, StoreReadOnly):
            db = stack.enter_context(opened(path=path))
        yield db


def _list(found: list[Finding]) -> None:
    for finding in found[:_MOST_SHOWN]:
        print(one_line(f"{finding['kind']}: {finding['where']}: {finding['detail']}"))
    if len(found) > _MOST_SHOWN:
        print(f"… and {len(found) - _MOST_SHOWN} more")


@click.command()
@_file_argument
@flag("--rebuild-index", "Always rebuild the full-text index.")
def repair(path: Path | None, rebuild_index: bool) -> int:
    """Repair what `check` finds, in the record or in FILE; a copy of the file is kept beside it. The database counts:
    transcripts that differ are written again. Where rows are damaged or lost, the database is rebuilt.
    """
    try:
        with opened(writing=True, path=path) as db:
            return _report(db, db.repair(rebuild_index=rebuild_index))
    except StoreCorrupt:
        return _rebuilt(path)  # too damaged to be opened


@click.command()
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(dir_okay=False, path_type=Path))
def rebuild(path: Path | None) -> int:
    """Rebuild the database (or FILE) if it or its -wal file was lost or is damaged, from all rows that can be read and
    what only the transcripts have. A copy of the old file is kept beside it.
    """
    return _rebuilt(path)


def _rebuilt(file: Path | None) -> int:
    from hermes.store.api.configured import store_file
    from hermes.store.upkeep.check import rebuild_store

    path = settled(file) if file else store_file(configuration())
    if path is None or path.is_dir():
        raise click.ClickException(f"{path or 'a store on a server'} can't be rebuilt from here; restore a backup")
    steps = rebuild_store(path, companion(path, "sessions"))
    with opened(writing=True, path=file) as db:
        return _report(db, [*steps, *db.repair()])


def _report(db: SessionDB, steps: list[str]) -> int:
    for step in steps:
        print(f"repaired: {one_line(step)}")
    left = db.check()
    _list(left)
    if not left:
        print("sound" if steps else "sound: nothing to repair")
    return 1 if left else 0


@click.command()
def optimize() -> None:
    """Finish the full-text index and free unused disk space."""
    with opened(writing=True) as db:
        before = db.size()
        indexed = index(db)
        db.vacuum()
        shared, path = db.is_shared, db.path
        after = db.size()
    if not shared:  # closing has moved the rest of the WAL into the file
        after = database_bytes(path)
    if indexed:
        print(f"indexed {counted(indexed, 'message')}")
    print(f"{size_of(before)} → {size_of(after)}")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
def backup(file: Path) -> None:
    """Write a consistent copy of the record to FILE, even while other processes write; attachments go beside it. FILE
    must not exist.
    """
    target = file.expanduser()
    with _opened() as db:
        db.backup(target)
        if db.attachments_dir.is_dir() and not db.is_shared:  # attachments of a server's store are copied already
            import shutil

            shutil.copytree(db.attachments_dir, companion(target, "attachments"), dirs_exist_ok=True)
    print(f"backed up to {target} ({size_of(database_bytes(target))})")

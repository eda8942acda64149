"""`hermes sessions watch`: imports other programs' conversations while they are written."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import click

from hermes.cli.shared import counted, opened
from hermes.interop.formats import Format


@click.command(help="Follow the histories of other programs and import what they write, until Ctrl-C."
               " Without FOLDER: the usual places of this machine.")  # fmt: skip
@click.argument(
    "folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--once", is_flag=True, help="Import what has changed since the last time, and exit.")
def watch(folders: tuple[Path, ...], once: bool) -> int:
    from hermes.interop.history_watch import HistoryWatcher

    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    def report(chosen: Format, path: Path, counts: dict[str, int]) -> None:
        click.echo(f"{chosen.program}: {counted(counts['messages'], 'message')} from {path.name}")

    with opened(writing=True) as db:
        watcher = HistoryWatcher(db, folders, report)
        if once:
            brought = watcher.catch_up(watcher.found())
            click.echo(f"{counted(brought, 'message')} imported")
            return 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        click.echo("Watching; Ctrl-C stops it.", err=True)
        watcher.run(stopped.is_set)
    return 0

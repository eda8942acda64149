"""`hermes sessions sync`: after it, this store and another place both hold what either had."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.output import amount, note, status_line
from hermes.cli.record import configuration, index, opened
from hermes.errors import InvalidInput
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.interop.sync_exchange import Progress, SyncResult
    from hermes.store.api.session_db import SessionDB


@click.command(
    help="Synchronise with DEST, so that both sides hold every conversation of either.\n\nDEST is a folder that machines share"
    " (Syncthing, a USB stick, a network mount), ssh://[USER@]HOST[:PORT][/PATH] (a machine with hermes; PATH is its Hermes"
    " home), or another store: postgresql://USER@HOST/DATABASE, sqlite:///PATH or the path of a state.db."
    "\n\nNothing is overwritten: a session that was continued on both sides becomes two branches. What was deleted goes to the"
    " other side's trash; what was shredded is shredded there, too. Interrupted, it continues with the next call."
)
@click.argument("dest", metavar="DEST", required=False, type=click.Path(allow_dash=True))
@click.option("--hermes", "program", metavar="COMMAND", default="hermes", show_default=True,
              help="The hermes command on the other machine, for ssh://.")  # fmt: skip
@click.option("--serve", is_flag=True, help="Answer another machine's calls on standard input and output.")
@click.option("--plain", is_flag=True, help="Into a folder: also unencrypted, though this store is encrypted.")
def sync(dest: str | None, program: str, serve: bool, plain: bool) -> int:
    if serve == (dest is not None):
        raise click.UsageError("--serve takes no DEST" if serve else "name a DEST: a folder, ssh://HOST or a store")
    if dest is None:
        return _serve()
    grace = configuration().sessions.trash_days
    with opened(writing=True) as db:
        with status_line() as show:

            def step(label: str, done: int, total: int) -> None:
                show(lambda: amount(label, done, total))

            result, there = _sync(db, dest, program, grace, step, plain)
        if result.here.messages:
            index(db)
    return _report(result, there)


def _serve() -> int:
    from hermes.interop.sync_exchange import StorePlace
    from hermes.interop.sync_ssh import serve

    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # standard output carries the protocol only
    with opened(writing=True) as db:
        serve(StorePlace(db, configuration().sessions.trash_days), sys.stdin.buffer, answers)
    return 0


def _sync(
    db: SessionDB, dest: str, program: str, grace: float, step: Progress, plain: bool
) -> tuple[SyncResult, tuple[int, int] | None]:
    """Synchronise with DEST; returns what was received and, if DEST is a store, how many sessions and messages it received."""
    from hermes.interop.sync_exchange import StorePlace, sync

    if dest.startswith("ssh://"):
        from hermes.interop.sync_ssh import RemotePlace

        with RemotePlace(dest, program) as remote:
            result = sync(db, remote, grace=grace, progress=step)
            return result, remote.done()
    if (where := _store(dest)) is None:
        from hermes.interop.sync_folder import FolderPlace

        folder = FolderPlace(Path(dest).expanduser(), db, plain=plain)
        return sync(db, folder, grace=grace, progress=step), None
    from hermes.store.api.session_db import SessionDB

    with SessionDB(**where, redact_secrets=False, transcripts=configuration().sessions.transcripts) as other:
        if other.where == db.where:
            raise InvalidInput(f"{one_line(other.where)} is the store in use; name another one")
        place = StorePlace(other, grace, step)
        result = sync(db, place, grace=grace, progress=step)
        return result, (place.counts.sessions, place.counts.messages)


def _store(dest: str) -> dict[str, Any] | None:
    """The function that opens DEST, if that is a store."""
    from hermes.cli.sessions.migrating import _filled_in

    if "://" in dest:
        return {"url": _filled_in(dest)}
    path = Path(dest).expanduser()
    if path.is_file():
        return {"db_path": path}
    return None


def _report(result: SyncResult, there: tuple[int, int] | None) -> int:
    here = result.here
    came = f"received {counted(here.sessions, 'session')} and {counted(here.messages, 'message')}"
    if there is not None:
        went = f"sent {counted(there[0], 'session')} and {counted(there[1], 'message')}"
    else:
        went = f"wrote {counted(result.sent, 'session')} to the folder"
    print(f"{came}, {went}")
    if here.forks:
        print(f"{counted(here.forks, 'branch', 'branches')} made for sessions that were continued on both sides")
    changes = (
        (here.trashed, "session", "deleted elsewhere, moved to the trash here"),
        (here.deleted, "session", "deleted here, as elsewhere"),
        (here.shredded, "session", "shredded here, as elsewhere"),
    )
    for count, what, how in changes:
        if count:
            print(f"{counted(count, what)} {how}")
    if here.waiting:
        note(f"{counted(here.waiting, 'session')} in use or not complete yet; the next sync takes them")
    for problem in result.problems[:20]:
        note(one_line(problem))
    return 1 if result.problems else 0

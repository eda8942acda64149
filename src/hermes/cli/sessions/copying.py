"""`hermes sessions sync`: after it, this store and another place both hold what either had; and `migrate`: copies the whole
store to another one, checked row by row."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import flag
from hermes.cli.output import amount, note, progress, status_line
from hermes.cli.record import configuration, index, opened
from hermes.config.loading import environment, expanded, unset_in
from hermes.errors import ConfigError, InvalidInput
from hermes.home import has_key_file
from hermes.store.engines import file_of, same_server, without_password
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.interop.sync import Progress, SyncResult
    from hermes.store.api.session_db import SessionDB


@click.command()
@click.argument("dest", metavar="DEST", required=False, type=click.Path())
@click.option(
    "--hermes", "program", metavar="COMMAND", default="hermes", show_default=True,
    help="The hermes command on the other machine, for ssh://.",
)  # fmt: skip
@flag("--serve", "Answer another machine's calls on standard input and output.")
@flag("--plain", "Into a folder: also unencrypted, though this store is encrypted.")
def sync(dest: str | None, program: str, serve: bool, plain: bool) -> int:
    """Synchronise with DEST, so that both sides hold every conversation of either.

    DEST is a folder that machines share (Syncthing, a USB stick, a network mount), ssh://[USER@]HOST[:PORT][/PATH]
    (a machine with hermes; PATH is its Hermes home), or another store: postgresql://USER@HOST/DATABASE,
    sqlite:///PATH or the path of a state.db.

    Nothing is overwritten: a session that was continued on both sides becomes two branches. What was deleted goes
    to the other side's trash; what was shredded is shredded there, too. Interrupted, it continues with the next
    call.
    """
    from hermes.interop.sync import StorePlace
    from hermes.interop.sync import serve as answer

    if serve == (dest is not None):
        raise click.UsageError("--serve takes no DEST" if serve else "name a DEST: a folder, ssh://HOST or a store")
    grace = configuration().sessions.trash_days
    with opened(writing=True) as db:
        if dest is None:
            answers = sys.stdout.buffer
            sys.stdout = sys.stderr  # standard output carries the protocol only
            answer(StorePlace(db, grace), sys.stdin.buffer, answers)
            return 0
        with status_line() as show:

            def step(label: str, done: int, total: int) -> None:
                show(lambda: amount(label, done, total))

            result, there = _synchronised(db, dest, program, grace, step, plain)
        if result.here.messages:
            index(db)
    return _report(result, there)


def _synchronised(
    db: SessionDB, dest: str, program: str, grace: float, step: Progress, plain: bool
) -> tuple[SyncResult, tuple[int, int] | None]:
    """Synchronise with DEST; returns what was received and, if DEST is a store, how many sessions and messages it received."""
    from hermes.interop.sync import FolderPlace, RemotePlace, StorePlace, sync

    if dest.startswith("ssh://"):
        with RemotePlace(dest, program) as remote:
            result = sync(db, remote, grace=grace, progress=step)
            return result, remote.done()
    path = Path(dest).expanduser()
    if "://" not in dest and not path.is_file():
        return sync(db, FolderPlace(path, db, plain=plain), grace=grace, progress=step), None
    with _store(_filled_in(dest) if "://" in dest else path) as other:
        if other.where == db.where:
            raise InvalidInput(f"{one_line(other.where)} is the store in use; name another one")
        place = StorePlace(other, grace, step)
        result = sync(db, place, grace=grace, progress=step)
        return result, (place.counts.sessions, place.counts.messages)


def _store(where: str | Path) -> SessionDB:
    """The store at a URL or in a file, for a copy of rows that were masked when they were stored."""
    from hermes.store.api.session_db import SessionDB

    place = {"db_path": where} if isinstance(where, Path) else {"url": where}
    return SessionDB(**place, redact_secrets=False, transcripts=configuration().sessions.transcripts)


def _report(result: SyncResult, there: tuple[int, int] | None) -> int:
    here = result.here
    went = f"wrote {counted(result.sent, 'session')} to the folder"
    if there is not None:
        went = f"sent {counted(there[0], 'session')} and {counted(there[1], 'message')}"
    print(f"received {counted(here.sessions, 'session')} and {counted(here.messages, 'message')}, {went}")
    changes = (
        (here.forks, "continued on both sides, made two branches"),
        (here.trashed, "deleted elsewhere, moved to the trash here"),
        (here.deleted, "deleted here, as elsewhere"),
        (here.shredded, "shredded here, as elsewhere"),
    )
    for count, how in changes:
        if count:
            print(f"{counted(count, 'session')} {how}")
    if here.waiting:
        note(f"{counted(here.waiting, 'session')} in use or not complete yet; the next sync takes them")
    for problem in result.problems[:20]:
        note(one_line(problem))
    return 1 if result.problems else 0


# ------------------------------------------------------------------------------------------------ to another store


@click.command()
@click.option("--to", "given", metavar="URL", required=True, help="Where to; ${NAME} is filled in.")
@flag("--plain", "From an encrypted store: write one that is not encrypted.")
def migrate(given: str, plain: bool) -> None:
    """Copy the whole record to another store: postgresql://USER@HOST/DATABASE, or sqlite:///PATH. Every row is
    compared afterwards. Run again after an interruption, it continues. The record here stays as it is. The copy of
    an encrypted store is encrypted with the same key; --plain makes one that is not.
    """
    from hermes.store.api.configured import store_url
    from hermes.store.exchange.copy import move

    url = _filled_in(given)
    if same_server(store_url(configuration()), url):
        hint = "`hermes config unset store.url` goes back to the file"
        raise InvalidInput(f"that store is in use already (store.url): there is nothing to copy; {hint}")
    with ExitStack() as stack:
        source = stack.enter_context(opened(writing=True))
        if not plain:
            _keep_encrypted(source, url)
        target = stack.enter_context(_store(url))
        with progress("copying", max(1, source.message_count())) as step:
            moved = move(source, target, lambda done, _: step(done))
        where = target.where
    if moved.written or moved.removed:
        more = f" and {counted(moved.attachments, 'attachment')}" if moved.attachments else ""
        removed = f", {counted(moved.removed, 'row')} removed there" if moved.removed else ""
        print(f"copied {counted(moved.written, 'row')}{more}{removed}")
    contents = f"{counted(moved.sessions, 'session')} and {counted(moved.messages, 'message')}"
    print(f"{one_line(where)} has {contents}; every row was compared")
    shown = without_password(given)
    if shown != given:
        note(
            "others can see a password in --to, in the list of processes; put HERMES_DB_PASSWORD=… in .env and write"
            " ${HERMES_DB_PASSWORD} in its place, or use ~/.pgpass"
        )
    print(f"To use it from now on: hermes config set store.url '{one_line(shown)}'")


def _filled_in(url: str) -> str:
    """A URL with its variables (passwords, for example) filled in."""
    variables = environment()
    if missing := unset_in(url, variables):
        needs = f"the address needs the variable {missing[0]}, which is not set"
        raise ConfigError(f"{needs}; set it in the environment or in .env")
    return expanded(url, variables) or ""


def _keep_encrypted(source: SessionDB, url: str) -> None:
    """Have the copy of an encrypted store encrypted with the same key; InvalidInput where it can't be."""
    from hermes.store import keys

    if source.is_shared or keys.vault_of(source.path) is None:
        return
    target = file_of(url)
    if target is None:
        plain = "this store is encrypted, and a PostgreSQL server would have it in plain text"
        raise InvalidInput(f"{plain}; pass --plain if it may (encrypt the server's disk)")
    if target.exists():
        if not has_key_file(target):
            raise InvalidInput(f"this store is encrypted, and {target} is not; name a new file, or pass --plain")
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys.share(source.path, target)

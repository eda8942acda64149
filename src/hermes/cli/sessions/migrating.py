"""`hermes sessions migrate`: copies the whole store to another one, checked row by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from hermes.cli.output import note, progress
from hermes.cli.record import configuration, opened
from hermes.config.loading import environment, expanded, unset_in
from hermes.errors import ConfigError, InvalidInput
from hermes.home import has_key_file
from hermes.store.engines import file_of, same_server, without_password
from hermes.texts import counted, one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB


@click.command(
    help="Copy the whole record to another store: postgresql://USER@HOST/DATABASE, or sqlite:///PATH. Every row is compared"
    " afterwards. Run again after an interruption, it continues. The record here stays as it is. The copy of an encrypted"
    " store is encrypted with the same key; --plain makes one that is not."
)
@click.option(
    "--to",
    "given",
    metavar="URL",
    help="Where to; ${NAME} is filled in from the environment or .env, as in config.yaml. May be left out with --rls or"
    " --no-rls: the store in use.",
)
@click.option(
    "--rls/--no-rls",
    default=None,
    help="Have PostgreSQL itself show each tenant's database role its own rows only, or undo that.",
)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="ROLE=SOURCE:USER_ID",
    help="With --rls: this database role sees what that user may see. Several times for several.",
)
@click.option(
    "--remove-tenant",
    "removed",
    multiple=True,
    metavar="ROLE",
    help="With --rls: this database role sees nothing any more. Several times for several.",
)
@click.option("--plain", is_flag=True, help="From an encrypted store: write one that is not encrypted.")
def migrate(
    given: str | None, rls: bool | None, tenants: tuple[str, ...], removed: tuple[str, ...], plain: bool
) -> None:
    pairs = [_tenant(given) for given in tenants]
    if (pairs or removed) and not rls:
        raise click.UsageError(f"{'--tenant' if pairs else '--remove-tenant'} goes with --rls")
    if given is None and rls is None:
        raise click.UsageError("give --to URL, or --rls")
    url = None if given is None else _filled_in(given)
    if url is not None:
        _copy(url, str(given), plain)
    if rls is not None:
        _keep_apart(url, rls, pairs, removed)


def _tenant(text: str) -> tuple[str, str, str]:
    role, sign, user = text.partition("=")
    source, colon, user_id = user.partition(":")
    if not (role and sign and source and colon and user_id):
        raise click.UsageError(f"--tenant: expected ROLE=SOURCE:USER_ID, such as alice=telegram:4711, got {text!r}")
    return role, source, user_id


def _keep_apart(url: str | None, rls: bool, tenants: list[tuple[str, str, str]], removed: tuple[str, ...]) -> None:
    from hermes.store.api.configured import store_url

    url = url or store_url(configuration())
    if url is None or file_of(url) is not None:
        raise InvalidInput("only PostgreSQL separates rows by role; this store is a file, which is read as a whole")
    from hermes.store.engines.postgres import tenants as security
    from hermes.store.engines.postgres.tenants import quoted

    if not rls:
        security.switch_off(url)
        print("row-level security is off")
        return
    apart = security.switch_on(url, tenants, removed)
    for line in apart.remarks:
        note(one_line(line))
    print(f"row-level security is on; {counted(len(apart.tenants), 'tenant')}")
    for role, source, user_id in apart.tenants:
        print(one_line(f"{role}  sees what {source}:{user_id} may see"))
    if apart.tenants:
        print(one_line(f"In SQL a tenant first runs: SET search_path = {quoted(apart.schema)}"))


def _filled_in(url: str) -> str:
    """A URL with its variables (passwords, for example) filled in."""
    variables = environment()
    if missing := unset_in(url, variables):
        raise ConfigError(
            f"--to needs the variable {missing[0]}, which is not set; set it in the environment or in .env"
        )
    return expanded(url, variables) or ""


@contextmanager
def _source(url: str) -> Iterator[tuple[SessionDB, bool]]:
    """The store to copy from: the one in use; if that is the target already, the file that was in use before.

    Also returns whether it is that file.
    """
    from hermes.store.api.configured import local_file, store_url
    from hermes.store.api.session_db import SessionDB

    if not same_server(store_url(configuration()), url):
        with opened(writing=True) as db:
            yield db, False
        return
    file = local_file(configuration())
    if not file.exists():
        raise InvalidInput(f"this store is in use already (store.url), and there is no file {file} to copy from")
    with SessionDB(db_path=file, redact_secrets=False, transcripts=_transcripts()) as db:
        yield db, True


def _keep_encrypted(source: SessionDB, url: str) -> None:
    """Have the copy of an encrypted store encrypted with the same key; InvalidInput where it can't be."""
    from hermes.store import keys

    if source.is_shared or keys.vault_of(source.path) is None:
        return
    target = file_of(url)
    if target is None:
        raise InvalidInput(
            "this store is encrypted, and a PostgreSQL server would have it in plain text; pass --plain if it may (encrypt the"
            " server's disk)"
        )
    if target.exists():
        if not has_key_file(target):
            raise InvalidInput(f"this store is encrypted, and {target} is not; name a new file, or pass --plain")
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys.share(source.path, target)


def _copy(url: str, typed_url: str, plain: bool) -> None:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.exchange.copy import move, refuse_in_use

    with ExitStack() as stack:
        source, is_file = stack.enter_context(_source(url))
        if not plain:
            _keep_encrypted(source, url)
        target = stack.enter_context(SessionDB(url=url, redact_secrets=False, transcripts=_transcripts()))
        if is_file:
            refuse_in_use(source, target)
            note(f"store.url names this store already; the record is copied from {one_line(source.where)}")
        with progress("copying", max(1, source.message_count())) as step:
            moved = move(source, target, lambda done, _: step(done))
        where = target.where
    if moved.written or moved.removed:
        more = f" and {counted(moved.attachments, 'attachment')}" if moved.attachments else ""
        removed = f", {counted(moved.removed, 'row')} removed there" if moved.removed else ""
        print(f"copied {counted(moved.written, 'row')}{more}{removed}")
    print(
        f"{one_line(where)} has {counted(moved.sessions, 'session')} and {counted(moved.messages, 'message')};"
        " every row was compared"
    )
    shown = without_password(typed_url)
    if shown != typed_url:
        note(
            "others can see a password in --to, in the list of processes; put HERMES_DB_PASSWORD=… in .env and write"
            " ${HERMES_DB_PASSWORD} in its place, or use ~/.pgpass"
        )
    if not is_file:
        print(f"To use it from now on: hermes config set store.url '{one_line(shown)}'")


def _transcripts() -> str:
    return configuration().sessions.transcripts

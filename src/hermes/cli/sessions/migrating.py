"""`hermes sessions migrate`: the whole record to another store, checked row by row."""

from __future__ import annotations

import click

from hermes.cli.sessions.shared import counted, note, opened, progress
from hermes.harmless import one_line


@click.command(
    help="Copy the whole record to another store: postgresql://USER@HOST/DATABASE, or sqlite:///PATH. Every row is compared"
    " afterwards. Said again after it was cut short, it goes on where it was. The record here stays as it is."
)
@click.option("--to", "url", metavar="URL", help="Where to. May be left out with --rls or --no-rls: the store in use.")
@click.option(
    "--rls/--no-rls",
    default=None,
    help="Have PostgreSQL itself show each tenant's database role its own rows only, or take that back.",
)
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    metavar="ROLE=SOURCE:USER_ID",
    help="With --rls: this database role sees what that user may see. Several times for several.",
)
def migrate(url: str | None, rls: bool | None, tenants: tuple[str, ...]) -> None:
    pairs = [_tenant(given) for given in tenants]
    if pairs and not rls:
        raise click.UsageError("--tenant goes with --rls.")
    if url is None and rls is None:
        raise click.UsageError("Say where to (--to URL), or --rls.")
    if url is not None:
        _copy(url)
    if rls is not None:
        _keep_apart(url, rls, pairs)


def _tenant(given: str) -> tuple[str, str, str]:
    role, sign, user = given.partition("=")
    source, colon, user_id = user.partition(":")
    if not (role and sign and source and colon and user_id):
        raise click.UsageError(f"A tenant is ROLE=SOURCE:USER_ID, as alice=telegram:4711, not {given!r}.")
    return role, source, user_id


def _keep_apart(url: str | None, rls: bool, tenants: list[tuple[str, str, str]]) -> None:
    from hermes.cli.sessions.shared import configuration
    from hermes.errors import InvalidInput
    from hermes.store.engines.choosing import file_of
    from hermes.store.opening import store_url

    url = url or store_url(configuration())
    if url is None or file_of(url) is not None:
        raise InvalidInput("only PostgreSQL keeps rows apart by role; the record is in a file, which is its reader's")
    from hermes.store.engines.postgres import security
    from hermes.store.engines.postgres.tenant_views import quoted

    if not rls:
        security.switch_off(url)
        print("row-level security is off")
        return
    apart = security.switch_on(url, tenants)
    for line in apart.said:
        note(one_line(line))
    print(f"row-level security is on; {counted(len(apart.tenants), 'tenant')}")
    for role, source, user_id in apart.tenants:
        print(one_line(f"{role}  sees what {source}:{user_id} may see"))
    if apart.tenants:
        print(one_line(f"In SQL a tenant first says: SET search_path = {quoted(apart.schema)}"))


def _copy(url: str) -> None:
    from hermes.store.db import SessionDB
    from hermes.store.moving import move

    with opened(writing=True) as source, SessionDB(url=url, redact_secrets=False, transcripts=_transcripts()) as target:
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
    print(f"To use it from now on: hermes config set store.url '{one_line(url)}'")


def _transcripts() -> str:
    from hermes.cli.sessions.shared import configuration

    return configuration().sessions.transcripts

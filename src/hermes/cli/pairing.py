"""`hermes pairing …`: let people in who wrote to the assistant, and shut them out again."""

from __future__ import annotations

import time

import click

from hermes.cli.common import json_option
from hermes.cli.shared import opened, print_json
from hermes.cli.table import Column, printed
from hermes.harmless import one_line


@click.group(help="Who may talk on chat platforms besides those named in config.yaml.")
def command() -> None:
    pass


@command.command("approve", help="Let in whoever was given this code.")
@click.argument("code")
@click.option("--owner", is_flag=True, help="It is yourself: this person sees every session and has every tool.")
def approve(code: str, owner: bool) -> int:
    from hermes.store.gateway_db import GatewayDB

    with opened(writing=True) as db:
        found = GatewayDB(db).approve_pairing(code)
    if found is None:
        raise click.ClickException(
            "nobody has this code; it works once and holds for an hour (`hermes pairing list` shows who waits)"
        )
    person = f"{found['platform']}:{found['user_id']}"
    click.echo(f"{one_line(found['name'] or found['user_id'])} ({one_line(person)}) may talk now.")
    if owner:
        make_owner(person)
        click.echo("They are an owner from the next start of the gateway on (`owner:` in config.yaml).")
    return 0


def make_owner(person: str) -> None:
    """Name somebody (PLATFORM:USER) in config.yaml as an owner."""
    import json

    from hermes.config import load_config
    from hermes.config.editing import set_value

    owners = dict.fromkeys([*load_config().owner, person])
    set_value("owner", json.dumps(list(owners), ensure_ascii=False))


@command.command("list", help="Who was let in, and who waits with a code.")
@json_option()
def list_(as_json: bool) -> int:
    from hermes.store.gateway_db import GatewayDB

    with opened(writing=True) as db:
        gateway = GatewayDB(db)
        people, waiting = gateway.people(), gateway.waiting_pairings()
    if as_json:
        print_json({"people": people, "waiting": waiting})
        return 0
    if not people and not waiting:
        click.echo("Nobody was let in by a code, and nobody waits.")
        return 0
    rows = [
        [f"{one['platform']}:{one['user_id']}", one["name"] or "—", f"since {_day(one['since'])}"] for one in people
    ]
    for one in waiting:
        minutes = max(0, int((one["expires_at"] - time.time()) // 60))
        rows.append([f"{one['platform']}:{one['user_id']}", one["name"] or "—", f"waits, {minutes} min left"])
    columns = (Column("Person"), Column("Name", least=8, most=40), Column("State"))
    click.echo(printed(columns, rows))
    return 0


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(moment))


@command.command("revoke", help="Shut somebody out again: PLATFORM:USER, as `list` shows them.")
@click.argument("person")
def revoke(person: str) -> int:
    from hermes.store.gateway_db import GatewayDB

    platform, sep, user_id = person.partition(":")
    if not sep or not user_id:
        raise click.UsageError("name somebody as PLATFORM:USER, as `hermes pairing list` shows them")
    with opened(writing=True) as db:
        done = GatewayDB(db).shut_out(platform, user_id)
    if not done:
        raise click.ClickException(
            f"{one_line(person)} was not let in by a code (who is named in config.yaml is removed there)"
        )
    click.echo(f"{one_line(person)} may no longer talk.")
    return 0

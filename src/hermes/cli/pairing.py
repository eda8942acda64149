"""`hermes pairing …`: approve people who wrote to the assistant, and revoke approvals."""

from __future__ import annotations

import time

import click

from hermes.cli.options import CommandGroup, json_option
from hermes.cli.output import Column, print_json, printed
from hermes.cli.record import opened, zone
from hermes.config import load_config
from hermes.config.editing import put_value
from hermes.store.gateway import approvals
from hermes.store.gateway.gateway_db import GatewayDB
from hermes.texts import one_line
from hermes.times import date


@click.group(cls=CommandGroup, help="Manage who may talk on chat platforms, besides the people named in config.yaml.")
def command() -> None:
    pass


@command.command("approve", help="Approve the person who was given this code.")
@click.argument("code")
@click.option("--owner", is_flag=True, help="This is you: an owner sees every session and may use every tool.")
def approve(code: str, owner: bool) -> int:
    from hermes.gateway.chats.access import welcome

    with opened(writing=True) as db:
        found = GatewayDB(db).approve_pairing(code, welcome)
    if found is None:
        raise click.ClickException(
            "unknown or expired code; a code works once, for one hour (`hermes pairing list` shows who waits)"
        )
    person = f"{found['platform']}:{found['user_id']}"
    click.echo(f"{one_line(found['name'] or found['user_id'])} ({one_line(person)}) may talk now.")
    if owner:
        make_owner(f"{found['platform'].partition('/')[0]}:{found['user_id']}")
        click.echo("They become an owner when the gateway starts next (`owner:` in config.yaml).")
    return 0


def make_owner(person: str) -> None:
    """Add a person (PLATFORM:USER) to the owners in config.yaml."""
    put_value("owner", list(dict.fromkeys([*load_config().owner, person])))


@command.command("list", help="List who is approved and who is waiting with a code.")
@json_option()
def list_(as_json: bool) -> int:
    with opened(writing=True) as db:
        gateway = GatewayDB(db)
        people, waiting = gateway.read(approvals.everyone), gateway.read(approvals.waiting, gateway.clock())
    if as_json:
        print_json({"people": people, "waiting": waiting})
        return 0
    if not people and not waiting:
        click.echo("No one has been approved by a code, and no code is waiting.")
        return 0
    rows = [
        [f"{one['platform']}:{one['user_id']}", one["name"] or "—", f"since {date(one['since'], zone())}"]
        for one in people
    ]
    for one in waiting:
        minutes = max(0, int((one["expires_at"] - time.time()) // 60))
        rows.append([f"{one['platform']}:{one['user_id']}", one["name"] or "—", f"waits, {minutes} min left"])
    columns = (Column("Person"), Column("Name", least=8, most=40), Column("State"))
    click.echo(printed(columns, rows))
    return 0


@command.command("revoke", help="Revoke an approval: PLATFORM:USER, as `list` shows it.")
@click.argument("person")
def revoke(person: str) -> int:
    platform, sep, user_id = person.partition(":")
    if not sep or not user_id:
        raise click.UsageError("give PLATFORM:USER, as `hermes pairing list` shows it")
    with opened(writing=True) as db:
        done = GatewayDB(db).write(approvals.revoke, platform, user_id)
    if not done:
        raise click.ClickException(
            f"{one_line(person)} was not approved by a code (people named in config.yaml are removed there)"
        )
    click.echo(f"{one_line(person)} may no longer talk.")
    return 0

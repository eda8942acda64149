"""`hermes pairing …`: let people in who wrote to the assistant, and shut them out again."""

from __future__ import annotations

import time

import click

from hermes.cli.common import NotFound, store
from hermes.harmless import harmless


@click.group(help="Who may talk on chat platforms besides those named in config.yaml.")
def command() -> None:
    pass


@command.command("approve", help="Let in whoever was given this code.")
@click.argument("code")
def approve(code: str) -> int:
    from hermes.store.gateway_db import GatewayDB

    with store() as db:
        found = GatewayDB(db).approve_pairing(code)
    if found is None:
        raise NotFound(
            "nobody has this code; it works once and holds for an hour (`hermes pairing list` shows who waits)"
        )
    who = harmless(found["name"] or found["user_id"])
    click.echo(f"{who} ({found['platform']}:{harmless(found['user_id'])}) may talk now.")
    return 0


@command.command("list", help="Who was let in, and who waits with a code.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> int:
    from hermes.store.gateway_db import GatewayDB

    with store() as db:
        gateway = GatewayDB(db)
        people, waiting = gateway.people(), gateway.waiting_pairings()
    if as_json:
        import json

        click.echo(json.dumps({"people": people, "waiting": waiting}, indent=2, ensure_ascii=False))
        return 0
    if not people and not waiting:
        click.echo("Nobody was let in by a code, and nobody waits.")
    for one in people:
        day = time.strftime("%Y-%m-%d", time.localtime(one["since"]))
        click.echo(f"{one['platform']}:{harmless(one['user_id'])}  {harmless(one['name'] or '—')}  since {day}")
    for one in waiting:
        minutes = max(0, int((one["expires_at"] - time.time()) // 60))
        name = harmless(one["name"] or "—")
        click.echo(f"{one['platform']}:{harmless(one['user_id'])}  {name}  waits with a code ({minutes} min left)")
    return 0


@command.command("revoke", help="Shut somebody out again: PLATFORM:USER, as `list` shows them.")
@click.argument("person")
def revoke(person: str) -> int:
    from hermes.store.gateway_db import GatewayDB

    platform, sep, user_id = person.partition(":")
    if not sep or not user_id:
        raise click.UsageError("name somebody as PLATFORM:USER, as `hermes pairing list` shows them")
    with store() as db:
        done = GatewayDB(db).shut_out(platform, user_id)
    if not done:
        raise NotFound(f"{person} was not let in by a code (who is named in config.yaml is removed there)")
    click.echo(f"{person} may no longer talk.")
    return 0

"""`hermes gateway …`: run the messengers, show their status, stop them, set one up, install them as a service; and
`hermes pairing …`: approve people who wrote to the assistant, and revoke approvals."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import CommandGroup, flag, json_option
from hermes.cli.output import Column, message_lines, print_json, printed, screen_width
from hermes.cli.record import open_record, opened, zone
from hermes.config import environment, load_config
from hermes.config.editing import put_value
from hermes.home import get_hermes_home
from hermes.store.gateway import approvals
from hermes.store.gateway.gateway_db import GatewayDB
from hermes.texts import one_line
from hermes.times import date, rough_duration

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.store.api.session_db import SessionDB


@click.group(cls=CommandGroup, invoke_without_command=True)
@flag("--insecure", "Let servers listen beyond this machine without a token.")
@flag("--verbose", "Log more.", "-v")
@click.pass_context
def gateway(context: click.Context, insecure: bool, verbose: bool) -> int:
    """Talk on chat platforms: alone, this runs every platform that config.yaml enables, until Ctrl-C."""
    import asyncio

    from hermes.gateway.logs import start_logging
    from hermes.gateway.startup import check_work, made_adapters, secrets_of, serve
    from hermes.store.api import configured

    if context.invoked_subcommand is not None:
        return 0
    config, home = load_config(), get_hermes_home()
    variables = environment(home)
    made = made_adapters(config, variables, home, insecure=insecure)
    log = start_logging(home, secrets_of(made.adapters, config, variables), verbose=verbose)
    with open_record(config) as db:
        check_work(made, db, config)
        configured.start(db, config)
        click.echo(f"The gateway starts; its log is {log}. Ctrl-C stops it.", err=True)
        asyncio.run(serve(config, db, home, made, insecure=insecure))
    click.echo("The gateway has stopped; nothing was lost.", err=True)
    return 0


@gateway.command()
@json_option()
def status(as_json: bool) -> int:
    """Show whether the gateway runs, and the state of each platform."""
    with opened() as db:
        found = report(db, load_config())
    if as_json:
        print_json(found)
    else:
        show(found)
    return 0 if found["running"] else 1


@gateway.command()
def stop() -> None:
    """Stop the gateway; running turns finish, or are resumed at the next start."""
    import signal

    from hermes.gateway.startup import running

    with opened() as db:
        found = running(db)
        if not found:
            raise click.ClickException("no gateway is running; `hermes gateway` starts it")
        here = [one for one in found if one.here]
        if not here:
            where = " and ".join(f"on {one.host} (process {one.process})" for one in found)
            raise click.ClickException(f"the gateway runs {where}; stop it there")
        try:
            for one in here:
                with suppress(ProcessLookupError):  # it ended at this very moment
                    os.kill(one.process, signal.SIGTERM)
        except PermissionError:
            raise click.ClickException("the gateway belongs to another user; stop it as that user") from None
        deadline = time.monotonic() + 20
        while left := [one for one in running(db) if one in here]:
            if time.monotonic() > deadline:
                raise click.ClickException(f"process {left[0].process} does not stop; see its log")
            time.sleep(0.05)
    click.echo("The gateway has stopped." if len(found) == len(here) else "The gateway of this machine has stopped.")


@gateway.command()
@click.argument("platform", metavar="[PLATFORM]", required=False)
@flag("--no-check", "Don't check the values with the platform.")
@click.option(
    "--set", "given", multiple=True, metavar="KEY=VALUE",
    help="A setting, `owner` (your user id) or `allowed_users`; nothing is asked then. Repeat it for each.",
)  # fmt: skip
def setup(platform: str | None, no_check: bool, given: tuple[str, ...]) -> int:
    """Ask for what a platform (or an account of it: telegram/work) needs, check it there, and write it to config.yaml."""
    from hermes.cli.gateway_setup import set_up

    return set_up(platform, check=not no_check, given=given)


@gateway.command()
def install() -> None:
    """Install the gateway as a user service (systemd; launchd on macOS), and start it."""
    from hermes.cli.services import GATEWAY

    GATEWAY.install()


@gateway.command()
def uninstall() -> None:
    """Stop and remove the service that `install` made."""
    from hermes.cli.services import GATEWAY

    GATEWAY.uninstall("install")


# ----------------------------------------------------------------------------------------------------
# `hermes gateway status`: what the store knows of the gateway and its platforms.

_COLUMNS = (
    Column("Platform"),
    Column("State"),
    Column("As", least=8, most=60, worth=2),
    Column("Since", least=5, worth=1),
    Column("Sessions", least=8, worth=0),
    Column("Queue"),
)


def report(db: SessionDB, config: Config) -> dict[str, Any]:
    """The whole status, as plain data."""
    from hermes.gateway.platforms import LOST_WHILE_DOWN
    from hermes.gateway.startup import API, WEBHOOK, connected_by, running

    tables, found = GatewayDB(db), running(db)
    known = {row["platform"]: row for row in tables.statuses()}
    counts, sessions = tables.mail_counts(), db.source_counts()
    parts = ({WEBHOOK: "webhooks"} if config.webhooks.routes else {}) | (
        {API: "api_server"} if config.api_server.enabled else {}
    )
    platforms = []
    for name in [*config.enabled_platforms, *parts]:
        row: Mapping[str, Any] = known.get(name) or {}
        state = row.get("state", "not started") if found else "stopped"
        is_connected, by = state == "connected", connected_by(db, name)
        # A connected gateway has its variables, whatever the environment of this command holds.
        unset = config.unset_in(parts[name]) if name in parts else config.unset_of(name)
        error = str(unset[0]) if unset and not is_connected else None
        platforms.append(
            {
                "platform": name,
                "state": state,
                "identity": row.get("identity"),
                **({} if by is None else {"host": by.host, "process": by.process}),
                "since": row.get("since") if is_connected else None,
                "sessions": sessions.get(name.partition("/")[0], 0),
                **{what: counts.get(name, {}).get(what, 0) for what in ("waiting", "unsent", "failed")},
                "lost_while_down": LOST_WHILE_DOWN.get(name.partition("/")[0]),
                "error": error or row.get("error"),
                "error_at": None if error else row.get("error_at"),
            }
        )
    gateways = [{"host": one.host, "process": one.process} for one in found]
    about = {"running": bool(found), **(gateways[0] if gateways else {}), "gateways": gateways}
    return {**about, "platforms": platforms, "now": time.time()}


def show(found: dict[str, Any]) -> None:
    """Print the status as a table, with notes beneath it."""
    now, gateways = found["now"], found["gateways"]
    who = ", ".join(f"process {one['process']} on {one['host']}" for one in gateways)
    if len(gateways) > 1:
        click.echo(f"{len(gateways)} gateways share the connections ({who}).")
    else:
        click.echo(f"The gateway runs ({who})." if who else "No gateway is running. `hermes gateway` starts it.")
    rows, notes = [], []
    for one in found["platforms"]:
        name, since = one["platform"], rough_duration(now - one["since"]) if one["since"] else "—"
        queue = one["waiting"] + one["unsent"]
        rows.append([name, one["state"], one["identity"] or "—", since, f"{one['sessions']:,}", f"{queue:,}"])
        if len(gateways) > 1 and "host" in one:
            notes.append(f"{name}: connected by process {one['process']} on {one['host']}")
        if one["failed"]:
            notes.append(f"{name}: {one['failed']:,} could not be delivered in the last days; the log has the reasons")
        if one["error"]:
            when = f" {rough_duration(now - one['error_at'])} ago" if one["error_at"] else ""
            notes.append(f"{name}: last error{when}: {one_line(one['error'])}")
        if one["lost_while_down"]:
            notes.append(f"{name}: {one['lost_while_down']}")
    table = "\n" + printed(_COLUMNS, rows) if rows else "No platform is set up: `hermes gateway setup` sets one up."
    click.echo(table + "\n" * bool(notes))
    for note in notes:
        click.echo("\n  ".join(message_lines(note, screen_width() - 2)))


# ----------------------------------------------------------------------------------------------------
# `hermes pairing`


@click.group(cls=CommandGroup)
def pairing() -> None:
    """Manage who may talk on chat platforms, besides the people named in config.yaml."""


@pairing.command()
@click.argument("code")
@flag("--owner", "This is you: an owner sees every session and may use every tool.")
def approve(code: str, owner: bool) -> None:
    """Approve the person who was given this code."""
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


def make_owner(person: str) -> None:
    """Add a person (PLATFORM:USER) to the owners in config.yaml."""
    put_value("owner", list(dict.fromkeys([*load_config().owner, person])))


@pairing.command("list")
@json_option()
def list_(as_json: bool) -> None:
    """List who is approved and who is waiting with a code."""
    with opened(writing=True) as db:
        tables = GatewayDB(db)
        people, waiting = tables.read(approvals.everyone), tables.read(approvals.waiting, tables.clock())
    rows = [
        [f"{one['platform']}:{one['user_id']}", one["name"] or "—", f"since {date(one['since'], zone())}"]
        for one in people
    ]
    for one in waiting:
        minutes = max(0, int((one["expires_at"] - time.time()) // 60))
        rows.append([f"{one['platform']}:{one['user_id']}", one["name"] or "—", f"waits, {minutes} min left"])
    columns = (Column("Person"), Column("Name", least=8, most=40), Column("State"))
    if as_json:
        print_json({"people": people, "waiting": waiting})
    elif rows:
        click.echo(printed(columns, rows))
    else:
        click.echo("No one has been approved by a code, and no code is waiting.")


@pairing.command()
@click.argument("person")
def revoke(person: str) -> None:
    """Revoke an approval: PLATFORM:USER, as `list` shows it."""
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

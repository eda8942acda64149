"""`hermes gateway status`: the state of the gateway and its platforms, from the store."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.table import Column, screen_width, table, wrap
from hermes.harmless import one_line

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.store.db import SessionDB

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
    from hermes.gateway.startup import API, WEBHOOK, connected_by, running
    from hermes.store.gateway_db import GatewayDB

    gateway, found = GatewayDB(db), running(db)
    known = {row["platform"]: row for row in gateway.statuses()}
    counts, sessions = gateway.mail_counts(), db.source_counts()
    names = list(config.enabled_platforms)
    names += [WEBHOOK] if config.webhooks.routes else []
    parts = {WEBHOOK: "webhooks", API: "api_server"}
    names += [API] if config.api_server.enabled else []
    platforms = []
    for name in names:
        row = known.get(name) or {}
        state = row.get("state", "not started") if found else "stopped"
        by = connected_by(db, name)
        # A connected gateway has its variables, whatever the environment of this command holds.
        unset = [] if state == "connected" else config.unset_in(parts.get(name, f"platforms.{name}"))
        platforms.append(
            {
                "platform": name,
                "state": state,
                "identity": row.get("identity"),
                **({} if by is None else {"host": by.host, "process": by.process}),
                "since": row.get("since") if state == "connected" else None,
                "sessions": sessions.get(name, 0),
                **{what: counts.get(name, {}).get(what, 0) for what in ("waiting", "unsent", "failed")},
                "error": str(unset[0]) if unset else row.get("error"),
                "error_at": None if unset else row.get("error_at"),
            }
        )
    gateways = [{"host": one.host, "process": one.process} for one in found]
    about = {"running": bool(found), **(gateways[0] if gateways else {}), "gateways": gateways}
    return {**about, "platforms": platforms, "now": time.time()}


def show(found: dict[str, Any]) -> None:
    """The same for people."""
    if len(found["gateways"]) > 1:
        who = ", ".join(f"process {one['process']} on {one['host']}" for one in found["gateways"])
        click.echo(f"{len(found['gateways'])} gateways share the chats ({who}).")
    elif found["running"]:
        click.echo(f"The gateway runs (process {found['process']} on {found['host']}).")
    else:
        click.echo("No gateway is running. `hermes gateway` starts it.")
    if not found["platforms"]:
        click.echo("No platform is set up: `hermes gateway setup` sets one up.")
        return
    rows = [
        [
            one["platform"],
            one["state"],
            one["identity"] or "—",
            _span(found["now"] - one["since"]) if one["since"] else "—",
            f"{one['sessions']:,}",
            f"{one['waiting'] + one['unsent']:,}",
        ]
        for one in found["platforms"]
    ]
    width = screen_width()
    click.echo()
    click.echo("\n".join(table(_COLUMNS, rows, width, terminal=sys.stdout.isatty())))
    notes = [note for one in found["platforms"] for note in _notes(one, found["now"], len(found["gateways"]) > 1)]
    if notes:
        click.echo()
    for note in notes:
        first, *others = wrap(note, width - 2)
        click.echo("\n".join([first, *(f"  {line}" for line in others)]))


def _notes(one: dict[str, Any], now: float, several: bool) -> list[str]:
    """The notes beneath the table."""
    name, notes = one["platform"], []
    if several and "host" in one:
        notes.append(f"{name}: connected by process {one['process']} on {one['host']}")
    if one["failed"]:
        notes.append(f"{name}: {one['failed']:,} could not be delivered in the last days; the log has the reasons")
    if one["error"]:
        when = f" {_span(now - one['error_at'])} ago" if one["error_at"] else ""
        notes.append(f"{name}: last error{when}: {one_line(one['error'])}")
    return notes


def _span(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 172_800:
        return f"{whole // 3600} h"
    return f"{whole // 86400} days"

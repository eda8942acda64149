"""`hermes gateway status`: what the store knows of the gateway and its platforms."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hermes.harmless import harmless

if TYPE_CHECKING:
    from hermes.config import Config
    from hermes.store.db import SessionDB


def report(db: SessionDB, config: Config) -> dict[str, Any]:
    """Everything there is to tell, as plain data."""
    from hermes.gateway.starting import LEASE
    from hermes.store.gateway_db import GatewayDB

    gateway = GatewayDB(db)
    holder = db.lease_holder(LEASE)
    known = {row["platform"]: row for row in gateway.statuses()}
    counts, sessions = gateway.mail_counts(), db.source_counts()
    names = [*config.enabled_platforms, *(["webhook"] if config.webhooks.routes else [])]
    platforms = []
    for name in dict.fromkeys((*names, *(one for one in known if one in names))):
        row = known.get(name) or {}
        state = row.get("state", "never connected") if holder is not None else "stopped"
        platforms.append(
            {
                "platform": name,
                "state": state,
                "identity": row.get("identity"),
                "since": row.get("since") if state != "stopped" else None,
                "sessions": sessions.get(name, 0),
                "waiting": counts.get(name, {}).get("waiting", 0),
                "unsent": counts.get(name, {}).get("unsent", 0),
                "failed": counts.get(name, {}).get("failed", 0),
                "error": row.get("error"),
                "error_at": row.get("error_at"),
            }
        )
    return {"running": holder is not None, "holder": holder, "platforms": platforms, "now": time.time()}


def show(found: dict[str, Any]) -> None:
    """The same for people."""
    holder = found["holder"]
    if holder is None:
        click.echo("No gateway runs. `hermes gateway` starts it.")
    else:
        host, _, rest = holder.partition(":")
        click.echo(f"The gateway runs (process {rest.partition(':')[0]} on {host}).")
    if not found["platforms"]:
        click.echo("No platform is set up: `hermes gateway setup`.")
        return
    click.echo()
    rows = [["Platform", "State", "As", "Since", "Sessions", "Queue"]]
    for one in found["platforms"]:
        queue = one["waiting"] + one["unsent"]
        since = _ago(found["now"] - one["since"]) if one["since"] else "—"
        rows.append(
            [
                one["platform"],
                one["state"],
                harmless(one["identity"] or "—"),
                since,
                f"{one['sessions']:,}",
                f"{queue:,}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            click.echo("─" * min(100, sum(widths) + 2 * (len(widths) - 1)))
    for one in found["platforms"]:
        if one["failed"]:
            click.echo(f"{one['platform']}: {one['failed']:,} could not be delivered")
        if one["error"]:
            when = _ago(found["now"] - one["error_at"]) if one["error_at"] else ""
            click.echo(f"{one['platform']}: last trouble {when} ago: {harmless(one['error'])}")


def _ago(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 172_800:
        return f"{whole // 3600} h"
    return f"{whole // 86400} days"

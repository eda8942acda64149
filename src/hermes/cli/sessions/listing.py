"""`hermes sessions list`: the latest conversations, one line each."""

from __future__ import annotations

import sys
from typing import Any

import click

from hermes.cli.sessions.shared import EVERY, opened, print_json, zone
from hermes.cli.table import Column, screen_width, table
from hermes.times import ago

NO_TITLE = "—"
START = "No sessions yet. `hermes` starts a conversation; it is kept from its first message on."


@click.command("list", help="The latest conversations, by their last activity.")
@click.option("--source", metavar="S", help="Only those of this source (cli, telegram, …).")
@click.option("--limit", "-n", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="How many.")
@click.option("--tag", metavar="TAG", help="Only those with this tag.")
@click.option("--pinned", is_flag=True, help="Only pinned ones.")
@click.option("--archived", is_flag=True, help="Only archived ones.")
@click.option("--all", "every", is_flag=True, help="Every one, archived ones too.")
@click.option("--json", "as_json", is_flag=True, help="The rows as a JSON array; times are seconds since 1970.")
def list_(
    source: str | None, limit: int, tag: str | None, pinned: bool, archived: bool, every: bool, as_json: bool
) -> None:
    with opened() as db:
        rows = db.list_sessions_rich(
            source=source, limit=EVERY if every or archived else limit, order_by_last_active=True,
            include_archived=every or archived, pinned=pinned, tag=tag,
        )  # fmt: skip
        if archived:
            rows = [row for row in rows if row["archived_at"] is not None][: None if every else limit]
        empty = not rows and db.session_count() == 0
    if as_json:
        print_json(rows)
    elif not rows:
        print(START if empty else "No session is like that. `hermes sessions list --all` shows every one.")
    else:
        print("\n".join(screen(rows)))


def screen(rows: list[dict[str, Any]]) -> list[str]:
    """The list as lines: with titles where there are any, else with sources."""
    where = zone()
    ages = [ago(row["last_active"], where) for row in rows]
    previews = [row["preview"] or "" for row in rows]
    ids = [row["id"] for row in rows]
    if any(row["title"] for row in rows):
        columns = [Column("Title", 8, 40, 3), Column("Preview", 8), Column("Last Active", 11, worth=2), Column("ID")]
        titles = [row["title"] or NO_TITLE for row in rows]
        lines = zip(titles, previews, ages, ids, strict=True)
        return table(columns, lines, screen_width(), terminal=sys.stdout.isatty())
    columns = [Column("Preview", 8, worth=3), Column("Last Active", 11, worth=2), Column("Src", 3, 12), Column("ID")]
    sources = [row["source"] for row in rows]
    lines = zip(previews, ages, sources, ids, strict=True)
    return table(columns, lines, screen_width(), terminal=sys.stdout.isatty())

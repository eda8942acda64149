"""`hermes sessions list`: the latest conversations, one line each."""

from __future__ import annotations

import click

from hermes.cli.common import ROWS, json_option, source_option
from hermes.cli.sessions.quick import print_list


@click.command("list", help="The latest conversations, by their last activity.")
@source_option("Only those of this source (cli, telegram, …).")
@click.option("--limit", "-n", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="How many.")
@click.option("--tag", metavar="TAG", help="Only those with this tag.")
@click.option("--pinned", is_flag=True, help="Only pinned ones.")
@click.option("--archived", is_flag=True, help="Only archived ones.")
@click.option("--all", "every", is_flag=True, help="Every one, archived ones too.")
@json_option(ROWS)
def list_(
    source: str | None, limit: int, tag: str | None, pinned: bool, archived: bool, every: bool, as_json: bool
) -> None:
    print_list(source, limit, tag, pinned, archived, every, as_json)

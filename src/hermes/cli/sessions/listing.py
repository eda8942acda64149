"""`hermes sessions list` and `browse`: the latest conversations, one line each, or all of them on a full screen."""

from __future__ import annotations

import os
import sys

import click

from hermes.cli.common import ROWS, json_option, source_option
from hermes.cli.sessions.quick_list import print_list
from hermes.cli.shared import configuration, opened, zone


@click.command("list", help="The latest conversations, by their last activity.")
@source_option("Only those of this source (cli, telegram, …).")
@click.option("--limit", "-n", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="How many.")
@click.option("--tag", metavar="TAG", help="Only those with this tag.")
@click.option("--pinned", is_flag=True, help="Only pinned ones.")
@click.option("--archived", is_flag=True, help="Only archived ones.")
@click.option("--subagents", is_flag=True, help="Only those of sub-agents, which other lists leave out.")
@click.option("--all", "every", is_flag=True, help="Every one, archived ones too.")
@click.option("--here", is_flag=True, help="Only those of this folder (its git root).")
@click.option(
    "--oneshots/--no-oneshots", default=None,
    help="With or without single questions (-q) that were not continued; else as terminal.list_oneshots says.",
)  # fmt: skip
@json_option(ROWS)
def list_(
    source: str | None, limit: int, tag: str | None, pinned: bool, archived: bool, subagents: bool, every: bool, here: bool,
    oneshots: bool | None, as_json: bool,
) -> None:  # fmt: skip
    print_list(source, limit, tag, pinned, archived, every, as_json, here, oneshots, subagents)


@click.command("browse")
def browse_() -> None:
    """Look through every conversation on a full screen: filter, search inside, preview, resume, rename, delete."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the browser needs a terminal; `hermes sessions list` and `search` work everywhere")
    from hermes.chat.browse import browse

    with opened(writing=True) as db:
        chosen = browse(db, zone(), theme=configuration().display.theme)
    if chosen is not None:
        sys.stdout.flush()
        # A fresh process: the conversation starts without the browser's memory and terminal state.
        os.execv(sys.executable, [sys.executable, "-m", "hermes.cli.main", f"--resume={chosen}"])

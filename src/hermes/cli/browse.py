"""`hermes sessions browse`: choose a conversation on a full screen, and resume it."""

from __future__ import annotations

import os
import sys

import click

from hermes.cli.common import store
from hermes.config import load_config
from hermes.times import zone_of


@click.command()
def command() -> None:
    """Look through every conversation on a full screen: filter, search inside, preview, resume, rename, delete."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the browser needs a terminal; `hermes sessions list` and `search` work everywhere")
    from hermes.chat.browse import browse

    with store() as db:
        chosen = browse(db, zone_of(load_config().timezone))
    if chosen is not None:
        sys.stdout.flush()
        # A fresh process: the conversation starts with nothing of the browser left in memory or in the terminal.
        os.execv(sys.executable, [sys.executable, "-m", "hermes.cli.main", f"--resume={chosen}"])

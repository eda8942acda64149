"""`hermes sessions …`: the store, from the shell.

One file for each subject; a file is loaded when one of its commands is used, so that `list` starts as fast as it can.
"""

from __future__ import annotations

import click

from hermes.cli.options import LazyGroup

_FILES = {
    "listing": ("list", "browse"),
    "searching": ("search",),
    "showing": ("show",),
    "marks": ("rename", "tag", "untag", "pin", "unpin", "archive", "unarchive"),
    "exporting": ("export", "open"),
    "importing": ("import", "watch"),
    "removing": ("delete", "restore", "trash", "prune"),
    "upkeep": ("stats", "check", "repair", "rebuild", "optimize", "backup"),
    "encrypting": ("encrypt", "decrypt", "rekey"),
    "copying": ("sync", "migrate"),
}
COMMANDS = {name: f"hermes.cli.sessions.{file}" for file, names in _FILES.items() for name in names}


@click.group(cls=LazyGroup, table=COMMANDS, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List, find, show, export and tidy conversations.

    A session is named by its id, the beginning of its id, or its exact title.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())

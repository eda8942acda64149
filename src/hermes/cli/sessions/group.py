"""`hermes sessions …`: the store, from the shell.

One file for each subject; a file is loaded when one of its commands is used, so that `list` starts as fast as it can.
"""

from __future__ import annotations

import click

from hermes.cli.groups import Commands, LazyGroup

COMMANDS: Commands = {
    "list": ("hermes.cli.sessions.listing", "The latest conversations."),
    "browse": ("hermes.cli.sessions.listing", "Pick one on a full screen: filter, search, preview, resume."),
    "search": ("hermes.cli.sessions.searching", "Search the messages."),
    "show": ("hermes.cli.sessions.showing", "A conversation, rendered; --follow waits for more."),
    "rename": ("hermes.cli.sessions.marks", "Give a session a title."),
    "export": ("hermes.cli.sessions.exporting", "Write sessions to a file: JSONL, Markdown, HTML, training data."),
    "import": ("hermes.cli.sessions.importing", "Import an export, another state.db, or another program's history."),
    "watch": ("hermes.cli.sessions.importing", "Follow other programs' histories as they are written."),
    "sync": ("hermes.cli.sessions.syncing", "Synchronise with a folder, another machine or another store."),
    "delete": ("hermes.cli.sessions.removing", "Put a session in the trash."),
    "restore": ("hermes.cli.sessions.removing", "Take a session out of the trash."),
    "trash": ("hermes.cli.sessions.removing", "List the trash."),
    "prune": ("hermes.cli.sessions.removing", "Put old, ended sessions in the trash."),
    "tag": ("hermes.cli.sessions.marks", "Add tags."),
    "untag": ("hermes.cli.sessions.marks", "Remove tags."),
    "pin": ("hermes.cli.sessions.marks", "Pin: never pruned."),
    "unpin": ("hermes.cli.sessions.marks", "Remove the pin."),
    "archive": ("hermes.cli.sessions.marks", "Archive: not listed, still found."),
    "unarchive": ("hermes.cli.sessions.marks", "List an archived session again."),
    "move-folder": ("hermes.cli.sessions.marks", "Move the sessions of a folder to another, as the project did."),
    "stats": ("hermes.cli.sessions.upkeep", "Count sessions and messages, by source."),
    "check": ("hermes.cli.sessions.upkeep", "Check the record for damage."),
    "repair": ("hermes.cli.sessions.upkeep", "Repair what check finds."),
    "rebuild": ("hermes.cli.sessions.upkeep", "Make a lost or damaged database anew."),
    "optimize": ("hermes.cli.sessions.upkeep", "Finish the index and give free space back."),
    "backup": ("hermes.cli.sessions.upkeep", "A consistent copy, also while others write."),
    "encrypt": ("hermes.cli.sessions.encrypting", "Encrypt the record with a passphrase, a key file or the keyring."),
    "decrypt": ("hermes.cli.sessions.encrypting", "Make an encrypted record plain again."),
    "rekey": ("hermes.cli.sessions.encrypting", "Change the key of an encrypted record."),
    "migrate": ("hermes.cli.sessions.migrating", "Copy the record to a server, or back to a file."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    invoke_without_command=True,
    help="List, find, show, export and tidy conversations.\n\nA session is named by its id, the beginning of its id, or"
    " its exact title.",
)
@click.pass_context
def command(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())

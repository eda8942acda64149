"""`hermes sessions …`: the store, from the shell.

One file for each subject; a file is loaded when one of its commands is used, so that `list` starts as fast as it can.
"""

from __future__ import annotations

import click

from hermes.cli.options import Commands, LazyGroup

COMMANDS: Commands = {
    "list": ("hermes.cli.sessions.listing", "List the latest conversations."),
    "browse": ("hermes.cli.sessions.listing", "Choose a session on a full screen: filter, search, preview, resume."),
    "search": ("hermes.cli.sessions.searching", "Search the messages."),
    "show": ("hermes.cli.sessions.showing", "Show a conversation; --follow waits for more."),
    "rename": ("hermes.cli.sessions.marks", "Give a session a title."),
    "export": (
        "hermes.cli.sessions.exporting",
        "Write sessions to a file: JSONL, Markdown, HTML, or for another program.",
    ),
    "import": ("hermes.cli.sessions.importing", "Import an export, another state.db, or another program's history."),
    "watch": ("hermes.cli.sessions.importing", "Follow other programs' histories as they are written."),
    "open": ("hermes.cli.sessions.exporting", "Continue a session in another program."),
    "sync": ("hermes.cli.sessions.syncing", "Synchronise with a folder, another machine or another store."),
    "delete": ("hermes.cli.sessions.removing", "Put a session in the trash."),
    "restore": ("hermes.cli.sessions.removing", "Restore a session from the trash."),
    "trash": ("hermes.cli.sessions.removing", "List the trash."),
    "prune": ("hermes.cli.sessions.removing", "Put old, ended sessions in the trash."),
    "tag": ("hermes.cli.sessions.marks", "Add tags."),
    "untag": ("hermes.cli.sessions.marks", "Remove tags."),
    "pin": ("hermes.cli.sessions.marks", "Pin a session, so that it is never pruned."),
    "unpin": ("hermes.cli.sessions.marks", "Remove the pin."),
    "archive": ("hermes.cli.sessions.marks", "Archive a session: no longer listed, still found by search."),
    "unarchive": ("hermes.cli.sessions.marks", "List an archived session again."),
    "move-folder": (
        "hermes.cli.sessions.marks",
        "Assign the sessions of a folder to another, after a project has moved.",
    ),
    "stats": ("hermes.cli.sessions.upkeep", "Count sessions and messages, by source."),
    "check": ("hermes.cli.sessions.upkeep", "Check the record for damage."),
    "repair": ("hermes.cli.sessions.upkeep", "Repair what check finds."),
    "rebuild": ("hermes.cli.sessions.upkeep", "Rebuild a lost or damaged database."),
    "optimize": ("hermes.cli.sessions.upkeep", "Finish the search index and free unused disk space."),
    "backup": ("hermes.cli.sessions.upkeep", "Make a consistent copy, even while other processes write."),
    "encrypt": ("hermes.cli.sessions.encrypting", "Encrypt the record with a passphrase, a key file or the keyring."),
    "decrypt": ("hermes.cli.sessions.encrypting", "Decrypt an encrypted record."),
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

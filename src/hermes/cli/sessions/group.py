"""`hermes sessions …`: the record, from the shell.

One file a subject; a file is loaded when one of its commands is asked for, so that `list` starts as fast as it can.
"""

from __future__ import annotations

from importlib import import_module

import click

# name → (module, what it says in --help). The object in the module has the command's name (and `_` after it where
# Python needs the word itself).
COMMANDS: dict[str, tuple[str, str]] = {
    "list": ("hermes.cli.sessions.listing", "The latest conversations."),
    "browse": ("hermes.cli.browse", "Pick one on a full screen: filter, search, preview, resume."),
    "search": ("hermes.cli.sessions.searching", "Find what was said."),
    "show": ("hermes.cli.sessions.showing", "A conversation, rendered; --follow waits for more."),
    "rename": ("hermes.cli.sessions.marks", "Give a session a title."),
    "export": ("hermes.cli.sessions.exporting", "Write sessions to a file: JSONL, Markdown, HTML, training data."),
    "import": ("hermes.cli.sessions.importing", "Bring in an export, another state.db, or another program's history."),
    "watch": ("hermes.cli.sessions.watching", "Follow other programs' histories as they are written."),
    "delete": ("hermes.cli.sessions.removing", "Put a session in the trash."),
    "restore": ("hermes.cli.sessions.removing", "Take a session out of the trash."),
    "trash": ("hermes.cli.sessions.removing", "What is in the trash."),
    "prune": ("hermes.cli.sessions.removing", "Delete old, ended sessions."),
    "tag": ("hermes.cli.sessions.marks", "Add tags."),
    "untag": ("hermes.cli.sessions.marks", "Remove tags."),
    "pin": ("hermes.cli.sessions.marks", "Pin: never pruned."),
    "unpin": ("hermes.cli.sessions.marks", "The opposite of pin."),
    "archive": ("hermes.cli.sessions.marks", "Archive: not listed, still found."),
    "unarchive": ("hermes.cli.sessions.marks", "The opposite of archive."),
    "stats": ("hermes.cli.sessions.upkeep", "How much there is."),
    "check": ("hermes.cli.sessions.upkeep", "Whether the record is sound."),
    "repair": ("hermes.cli.sessions.upkeep", "Mend what check finds."),
    "optimize": ("hermes.cli.sessions.upkeep", "Finish the index and give free space back."),
    "backup": ("hermes.cli.sessions.upkeep", "A consistent copy, also while others write."),
    "migrate": ("hermes.cli.sessions.migrating", "Copy the record to a server, or back to a file."),
}


class Sessions(click.Group):
    """Loads a command's file when it is asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(COMMANDS[name][0])
        wanted = "command" if name == "browse" else name
        found: click.Command = getattr(module, wanted, None) or getattr(module, f"{wanted}_")
        return found

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = words[0]
        if name not in COMMANDS and not name.startswith("-"):
            from hermes.config import suggestion

            context.fail(f"there is no command `hermes sessions {name}`{suggestion(name, COMMANDS)}")
        return super().resolve_command(context, words)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=Sessions,
    invoke_without_command=True,
    help="List, find, show, export and tidy conversations.\n\nA session is named by its id, the beginning of its id, or"
    " its title (the newest of that name).",
)
@click.pass_context
def command(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())

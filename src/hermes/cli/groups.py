"""Groups of commands: their help, and files that are loaded when a command is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


Commands = dict[str, tuple[str, str]]  # name → (module, help text)


class CommandGroup(click.Group):
    """Lists its commands with their whole first sentence, wrapped; click would cut it to one line."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(context, name)) for name in self.list_commands(context)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(1000)) for name, one in found if one and not one.hidden])


class LazyGroup(click.Group):
    """Finds a command in its module: as `command`, or by its own name (with `_` after it where Python needs the word)."""

    def __init__(self, *args: Any, table: Commands, **options: Any) -> None:
        super().__init__(*args, **options)
        self.table = table

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.table:
            return None
        module = vars(import_module(self.table[name][0]))
        found: click.Command = module.get("command") or module.get(own := name.replace("-", "_")) or module[f"{own}_"]
        return found

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words[0] not in self.table and not words[0].startswith("-"):
            from hermes.config import suggestion

            hint = suggestion(words[0], self.table)
            context.fail(f"unknown command `{context.command_path} {words[0]}`{hint}")
        return super().resolve_command(context, words)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        named = [
            CompletionItem(name, help=text) for name, (_, text) in self.table.items() if name.startswith(incomplete)
        ]
        return named + click.Command.shell_complete(self, context, incomplete)


def usage_text(error: click.UsageError) -> str:
    """One line about wrong usage: the option (by its longest name) or the argument, and what is wrong with it."""
    text, parameter = error.format_message(), getattr(error, "param", None)
    if isinstance(parameter, click.Parameter):
        is_option = isinstance(parameter, click.Option)
        name = (
            max(parameter.opts, key=len) if is_option else str(parameter.metavar or parameter.name).rstrip(".…").upper()
        )
        text = f"{name} is missing" if isinstance(error, click.MissingParameter) else f"{name}: {error.message}"
    text = " ".join(text.split()).removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text

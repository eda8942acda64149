"""Click as this program uses it: groups that load a command's file when it is used, and our own messages about wrong usage.

Such a message is one line. A message that a command raised itself passes unchanged; click's own are recognised by their
wording, since click keeps the wrong value only in the text.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


Commands = dict[str, tuple[str, str]]  # name → (module, help text)


class CommandGroup(click.Group):
    """Lists its commands with their whole first sentence, where click would cut it, and suggests one for a mistyped name."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(context, name)) for name in self.list_commands(context)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(1000)) for name, one in found if one and not one.hidden])

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words[0] not in (known := self.list_commands(context)) and not words[0].startswith("-"):
            from hermes.config import suggestion

            hint = suggestion(words[0], known)
            context.fail(f"unknown command `{context.command_path} {words[0]}`{hint}")
        return super().resolve_command(context, words)


class LazyGroup(CommandGroup):
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

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        named = [
            CompletionItem(name, help=text) for name, (_, text) in self.table.items() if name.startswith(incomplete)
        ]
        return named + click.Command.shell_complete(self, context, incomplete)


# ------------------------------------------------------------------------------------------------ wrong usage


_WRONG_TYPE = r"(?s)(?P<value>.+) is not (?:a valid |in the range |one of )"
_EXTRA = r"(?s)Got unexpected extra arguments? \((?P<words>.*)\)"
_PATH = r"(?s)(?:File|Directory|Path) '(?P<path>.*)' (?P<what>does not exist|is a \w+|is not \w+)\.?"


def usage_text(error: click.UsageError) -> str:
    """One line about wrong usage."""
    if isinstance(error, click.NoSuchOption):
        hint = " or ".join(sorted(error.possibilities or ()))
        return f"unknown option {error.option_name}" + (f"; did you mean {hint}?" if hint else "")
    if isinstance(error, click.BadOptionUsage):
        return f"{error.option_name} {'takes no' if 'not take a value' in error.message else 'needs a'} value"
    if isinstance(error, click.MissingParameter):
        choices = _choices(error.param)
        return f"{_called(error.param)} is missing" + (f": give {choices}" if choices else "")
    if isinstance(error, click.BadParameter) and (name := _called(error.param)):
        return f"{name}: {_wrong_value(error)}"
    extra = re.fullmatch(_EXTRA, error.message)
    return f"unexpected argument: {extra['words']}" if extra else error.message


def _wrong_value(error: click.BadParameter) -> str:
    if path := re.fullmatch(_PATH, error.message):
        return f"{path['path']} {path['what']}"
    wrong, expected = re.match(_WRONG_TYPE, error.message), _expected(error.param)
    if wrong is None or not expected:
        return error.message
    value = wrong["value"]
    return f"expected {expected}, got {value if value.startswith(chr(39)) else repr(value)}"


def _called(parameter: click.Parameter | None) -> str:
    """An option by its longest name, an argument by what `--help` calls it."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    if parameter is not None and isinstance(parameter.type, click.Choice):
        return str(parameter.name).upper()
    return parameter.human_readable_name.rstrip(".…") if parameter is not None else ""


def _expected(parameter: click.Parameter | None) -> str:
    kind = parameter.type if parameter is not None else None
    number = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    if isinstance(kind, click.IntRange | click.FloatRange) and kind.min is not None:
        return f"{number} of {kind.min} or more" if kind.max is None else f"{number} from {kind.min} to {kind.max}"
    return number if isinstance(kind, click.types.FloatParamType | click.types.IntParamType) else _choices(parameter)


def _choices(parameter: click.Parameter | None) -> str:
    if parameter is None or not isinstance(parameter.type, click.Choice):
        return ""
    *names, last = map(str, parameter.type.choices)
    return f"{', '.join(names)} or {last}" if names else last

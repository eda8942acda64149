"""Click as this program uses it: groups that load a command when it is used, options that several commands share, and
finding sessions by name or filter."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.completion import complete_session, complete_source
from hermes.cli.output import wrapped
from hermes.cli.record import EVERY, typed, zone
from hermes.texts import one_line

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB


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


def usage_text(error: click.UsageError) -> str:
    """One line about wrong usage, in this program's words; the wrong value stands in click's text alone."""
    if isinstance(error, click.NoSuchOption):
        hint = " or ".join(sorted(error.possibilities or ()))
        return f"unknown option {error.option_name}" + (f"; did you mean {hint}?" if hint else "")
    if not isinstance(error, click.BadParameter) or (parameter := error.param) is None:
        return " ".join(error.format_message().split()).rstrip(".")
    is_option = isinstance(parameter, click.Option)
    name = max(parameter.opts, key=len) if is_option else parameter.human_readable_name.rstrip(".…")
    kind = parameter.type
    choices = ", ".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else ""
    if isinstance(error, click.MissingParameter):
        return f"{name} is missing" + (f": give one of {choices}" if choices else "")
    wrong = re.match(r"(?s)'?(.+?)'? is not (?:a valid|in the range|one of)", error.message)
    if wrong is None:
        return f"{name}: {error.message}"
    expected = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    if choices:
        expected = f"one of {choices}"
    elif isinstance(kind, click.IntRange | click.FloatRange) and kind.min is not None:
        expected += f" of {kind.min} or more" if kind.max is None else f" from {kind.min} to {kind.max}"
    return f"{name}: expected {expected}, got {wrong[1]!r}"


class LazyGroup(CommandGroup):
    """Finds a command in its module: as `command`, or by its own name (with `_` after it where Python needs the word)."""

    def __init__(self, *args: Any, table: dict[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self.table = table

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.table:
            return None
        module = vars(import_module(self.table[name]))
        found: click.Command = module.get("command") or module.get(own := name.replace("-", "_")) or module[f"{own}_"]
        return found


# ------------------------------------------------------------------------------------------------ options

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
ROWS = "Print the rows as a JSON array; times are seconds since 1970."


def flag(name: str, text: str, *argument: str) -> Decorator:
    """A switch; `argument` is the name of its parameter if it is another."""
    return click.option(name, *argument, is_flag=True, help=text)


def json_option(text: str = "Print JSON.") -> Decorator:
    """`--json`, as the argument `as_json`."""
    return flag("--json", text, "as_json")


def source_option(text: str = "Only sessions of this source (cli, telegram, …).", **more: Any) -> Decorator:
    """`--source S`, with the sources in the record offered by the shell."""
    return click.option("--source", metavar="S", shell_complete=complete_source, help=text, **more)


def session_option(*names: str, text: str, **more: Any) -> Decorator:
    """An option whose value is a session, with sessions offered by the shell."""
    return click.option(*names, **{"metavar": "ID", "shell_complete": complete_session, "help": text, **more})


def file_option() -> Decorator:
    """`--file PATH`, as the argument `file`."""
    text = "Only sessions that changed this file (see `hermes why`)."
    return click.option("--file", metavar="PATH", type=click.Path(), help=text)


def sessions_of_file(db: SessionDB, file: str | None) -> list[str] | None:
    """The sessions that changed the file of --file; None without that option."""
    if file is None:
        return None
    from hermes.why import sessions_that_changed

    return sessions_that_changed(db, Path(file))


def limit_option(text: str, default: int = 20) -> Decorator:
    """`--limit N`, also as `-n`."""
    kind = click.IntRange(min=1)
    return click.option("--limit", "-n", type=kind, default=default, show_default=True, metavar="N", help=text)


def model_option(text: str = "Use this model instead of the configured one.") -> Decorator:
    """`--model NAME`, as the argument `model_name`."""
    return click.option("--model", "model_name", metavar="NAME", help=text)


def yes_to_option(text: str) -> Decorator:
    """`--yes-to KIND`, several times; the kinds of commands, as rules."""

    def parsed(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(str.strip, value)):
            raise click.BadParameter("a kind of command is missing, such as pytest or 'git push'", context, parameter)
        return tuple(map(typed, value))

    return click.option("--yes-to", metavar="KIND", multiple=True, callback=parsed, help=text)


def yes_option(text: str = "Don't ask.") -> Decorator:
    """`--yes`."""
    return flag("--yes", text, "-y")


# ------------------------------------------------------------------------------------------------ sessions by name


class Ambiguous(click.ClickException):
    """Several sessions match; exit status 2."""

    exit_code = 2


def find_session(db: SessionDB, words: str, *, resuming: bool = False) -> str:
    """The session with this exact id, else this title, else the only one with this id prefix."""
    from hermes.commands.session_commands import find

    found = find(db, words, resuming=resuming)
    if found.session_id is not None:
        return found.session_id
    if found.candidates:
        width = max(map(len, found.candidates))
        listed = "\n".join(f"  {one:<{width}}  {db.get_session_title(one) or '—'}" for one in found.candidates)
        more = "\n  … and more" if found.more else ""
        raise Ambiguous(f"several sessions match {words}; give more of the id or the title:\n{listed}{more}")
    meant = ", ".join(f'"{title}"' for title in found.suggestions)
    hint = f"did you mean {meant}?" if meant else "`hermes sessions list` lists them"
    if (trashed := in_trash(db, words)) is not None:
        hint = f"`hermes sessions restore {trashed}` brings it back" + (f" ({hint})" if meant else "")
        raise click.ClickException(f"{one_line(words)} is in the trash; {hint}")
    raise click.ClickException(f"no session matches {words!r}; {hint}")


def in_trash(db: SessionDB, word: str) -> str | None:
    """The session in the trash with this id or title, or the only one with this id prefix (of a compressed conversation
    the newest part)."""
    trashed = db.list_trash()
    for found in (
        [row["id"] for row in trashed if row["id"] == word],
        [row["id"] for row in trashed if row["trashed_title"] == word],
        list({db.get_compression_chain(row["id"])[-1]: 0 for row in trashed if word and row["id"].startswith(word)}),
    ):
        if len(found) > 1:
            listed = "\n".join(f"  {one}" for one in found[:10])
            raise Ambiguous(f"several sessions in the trash match {word}; give one of these ids:\n{listed}")
        if found:
            return found[0]
    return None


def find_sessions(db: SessionDB, words: Sequence[str]) -> list[str]:
    """The sessions that several words name, one each. The error mentions quotes where a title with spaces has none."""
    try:
        return list(dict.fromkeys(find_session(db, word) for word in words))
    except click.ClickException as error:
        if len(words) == 1 or isinstance(error, Ambiguous):
            raise
        hint = f'a title with spaces is put in quotes: "{" ".join(words)}"'
        raise click.ClickException(f"{error.message} ({hint})") from None


def confirmed(question: str, *, yes: bool) -> None:
    """Ask before something is deleted; without a terminal --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.ClickException(f"no terminal to ask on; add --yes to answer yes: {question}")
    click.confirm(wrapped(question), abort=True, err=True)


def days(value: str | float) -> float:
    """An age in days: 90, 90d, 2w, 12h."""
    text = str(value).strip().lower()
    unit = {"h": 1 / 24, "d": 1.0, "w": 7.0}.get(text[-1:])
    try:
        number = float(text) if unit is None else float(text[:-1]) * unit
    except ValueError:
        number = -1.0
    if not 0 <= number < 1_000_000:
        raise click.BadParameter(f"{value!r} is not an age: use days (90), or 12h, 90d, 2w")
    return number


def parsed_user(text: str) -> tuple[str, str]:
    """A user as SOURCE:ID, as the pair of both."""
    source, _, user_id = text.partition(":")
    if not (source and user_id):
        raise click.BadParameter(f"expected SOURCE:ID, such as telegram:42, got {text!r}")
    return source, user_id


def user_option(text: str) -> Decorator:
    """--user SOURCE:ID, as the pair of both; None if it is not given."""
    return click.option("--user", metavar="SOURCE:ID", type=parsed_user, help=text)


def moment(end: bool) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """A callback for --since and --until: the first, or the last, moment of the named time."""

    def parsed(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        from hermes.times import span

        try:
            return None if value is None else span(value, zone())[1 if end else 0]
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None

    return parsed


# ------------------------------------------------------------------------------------------------ choosing

Filtered = dict[str, Any]


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose several sessions at once."""
    for option in (
        click.option("--search", "query", metavar="QUERY", help="Sessions with messages that match."),
        click.option("--with-tag", metavar="TAG", help="Sessions with this tag."),
        click.option("--older-than", type=days, metavar="D", help="Sessions not active for this long: 90, 12h, 2w."),
        source_option("Sessions of this source."),
    ):
        function = option(function)
    return function


def is_filter(filtered: Filtered) -> bool:
    """Whether any of the options of `filters` was given."""
    return any(value is not None for value in filtered.values())


def filtered_ids(db: SessionDB, filtered: Filtered) -> list[str]:
    """The conversations that match all options of `filters`; for a compressed one its newest part."""
    rows = db.list_sessions_rich(
        source=filtered["source"], tag=filtered["with_tag"], limit=EVERY, include_children=True,
        project_compression_tips=False, order_by_last_active=True,
    )  # fmt: skip
    if filtered["older_than"] is not None:
        before = time.time() - filtered["older_than"] * 86_400
        rows = [row for row in rows if row["last_active"] < before]
    ids = [
        one["id"]
        for one in rows
        if one["end_reason"] != "compression" or db.get_compression_tip(one["id"]) == one["id"]
    ]
    if filtered["query"] is None:
        return ids
    hits = db.search_messages(filtered["query"], limit=100_000)
    # Approximate matches are good to read, not to act upon.
    found = {db.get_compression_tip(one) for one in {hit["session_id"] for hit in hits if not hit["relaxed"]}}
    return [one for one in ids if one in found]

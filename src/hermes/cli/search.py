"""`hermes search`: sets up search by meaning in one step: lists, fetches and installs what it needs, and indexes messages."""

from __future__ import annotations

import shlex
import sys

import click

from hermes.cli.options import CommandGroup, confirmed, yes_option
from hermes.cli.output import Column, message, note, printed, progress
from hermes.cli.record import opened
from hermes.texts import counted


class SearchGroup(CommandGroup):
    """Given words to search for, names the command that searches."""

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words[0] not in self.commands:
            context.fail(
                f"`{context.command_path}` sets up search; to search: hermes sessions search {shlex.join(words)}"
            )
        return super().resolve_command(context, words)


@click.group(cls=SearchGroup, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Search by meaning: show how far it is, or set it up.

    `hermes sessions search "words or a question"` searches.
    """
    if context.invoked_subcommand is None:
        _print_status()


@command.command()
def status() -> None:
    """Show how far search by meaning is: not installed, indexing, or ready."""
    _print_status()


def _print_status() -> None:
    from hermes.cli.doctor import meaning, rows_with_vectors

    with opened() as db:
        for one in meaning(*rows_with_vectors(db)):
            text = f"Search by meaning: {one.text}" + (f"; `{one.hint}`" if one.hint else "")
            click.echo(message(text, sys.stdout))


@command.command()
@click.option("--multilingual", is_flag=True, help="Also fetch the model for sixteen languages (without: English).")
@yes_option("Fetch what is needed without asking.")
def setup(multilingual: bool, yes: bool) -> int:
    """Fetch and install what search by meaning needs here, and index every message.

    What is fetched is listed first, with sizes and licences. Ctrl-C while messages are indexed leaves the rest to the
    background: programs that store messages go on with it, and so does this command.
    """
    from hermes.store.search.meaning.encoders import Multilingual, installed

    if not installed() or (multilingual and not Multilingual.is_installed()):
        _fetch(multilingual, yes)
    return _index()


def _fetch(multilingual: bool, yes: bool) -> None:
    """List what is missing, ask, and install it; a failure leaves nothing behind."""
    from hermes.agent.models.files import (
        LIBRARIES,
        MODELS,
        install,
        install_libraries,
        missing_libraries,
        models_folder,
        place_of,
        remove,
    )
    from hermes.cli.model import megabytes

    model = MODELS["arctic-embed-s"]
    libraries = missing_libraries("meaning", *(["multilingual"] if multilingual else []))
    rows = [(name, LIBRARIES[name][0], LIBRARIES[name][1], sys.prefix) for name in libraries]
    if fetch_model := place_of(model.name) is None:
        rows.insert(0, (f"{model.name} (model)", model.download, model.licence, str(models_folder())))
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
            with progress(model.name, model.download) as step:
                install(model.name, lambda done, total: step(done))
        if libraries:
            with progress("libraries", sum(LIBRARIES[name][0] for name in libraries)) as step:
                install_libraries(libraries, lambda done, total: step(done))
    except BaseException:
        if fetch_model:
            remove(model.name)
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
    _print_status()
    return 0

"""`hermes why FILE[:LINE[-LINE]]`: the conversations that made a file or a line, newest first."""

from __future__ import annotations

from pathlib import Path

import click

from hermes.cli.options import json_option
from hermes.cli.output import note, print_json, screen_width, wrap
from hermes.cli.record import opened, zone
from hermes.errors import InvalidInput


@click.command()
@click.argument("where", metavar="FILE[:LINE[-LINE]]", type=click.Path())
@click.option("--tests", is_flag=True, help="Add the tests that were run after each change, and whether they passed.")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show at most N changes. Default: 20; with --json, 200.",
)
@json_option("Print one JSON object; times are seconds since 1970.")
def command(where: str, tests: bool, limit: int | None, as_json: bool) -> int:
    """Show which conversation made a file or a line, on whose request, and what the agent said beside it."""
    from hermes.why import MOST, described, parsed, why

    path, lines = parsed(where, Path.cwd())
    with opened() as db:
        try:
            answer = why(db, path, lines, limit=limit or (MOST if as_json else 20), tests=tests)
        except InvalidInput as error:
            raise click.UsageError(str(error)) from error
    if as_json:
        print_json(answer)
    elif answer["changes"]:
        width = screen_width()
        print("\n".join(part for text in described(answer, zone()) for part in wrap(text, width) or [""]))
    if not answer["changes"]:
        note(f"no conversation in the record changed {where}")
    return 0 if answer["changes"] else 1

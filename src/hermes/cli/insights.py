"""`hermes insights`: what was used in the last days, drawn with bars."""

from __future__ import annotations

import click

from hermes.cli.common import json_option, source_option, store
from hermes.config import load_config


@click.command()
@click.option("--days", type=click.IntRange(min=1), default=30, show_default=True, help="How far back.")
@source_option()
@json_option("One JSON object instead of a picture.")
def command(days: int, source: str | None, as_json: bool) -> None:
    """Sessions, messages, tokens and cost of the last days, by model, source and tool, and when you talked."""
    from hermes.times import now, zone_of

    zone = zone_of(load_config().timezone)
    with store(read_only=True) as db:
        found = db.insights(days, source, now=now(), timezone=zone)
    if as_json:
        click.echo(_as_json(found))
        return
    from hermes.cli.insights_screen import colours, draw
    from hermes.cli.table import screen_width

    click.echo(draw(found, width=screen_width(), zone=zone, colour=colours()))


def _as_json(found: object) -> str:
    """JSON as people read it; only what no encoding can hold is escaped."""
    import json

    text = json.dumps(found, ensure_ascii=False, indent=2)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(found, indent=2)
    return text

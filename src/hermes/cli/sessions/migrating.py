"""`hermes sessions migrate`: the whole record to another store, checked row by row."""

from __future__ import annotations

import click

from hermes.cli.sessions.shared import counted, opened, progress
from hermes.harmless import one_line


@click.command(
    help="Copy the whole record to another store: postgresql://USER@HOST/DATABASE, or sqlite:///PATH. Every row is compared"
    " afterwards. Said again after it was cut short, it goes on where it was. The record here stays as it is."
)
@click.option("--to", "url", required=True, metavar="URL", help="Where to.")
def migrate(url: str) -> None:
    from hermes.store.db import SessionDB
    from hermes.store.moving import move

    with opened(writing=True) as source, SessionDB(url=url, redact_secrets=False, transcripts=_transcripts()) as target:
        with progress("copying", max(1, source.message_count())) as step:
            moved = move(source, target, lambda done, _: step(done))
        where = target.where
    if moved.written or moved.removed:
        more = f" and {counted(moved.attachments, 'attachment')}" if moved.attachments else ""
        removed = f", {counted(moved.removed, 'row')} removed there" if moved.removed else ""
        print(f"copied {counted(moved.written, 'row')}{more}{removed}")
    print(
        f"{one_line(where)} has {counted(moved.sessions, 'session')} and {counted(moved.messages, 'message')};"
        " every row was compared"
    )
    print(f"To use it from now on: hermes config set store.url '{one_line(url)}'")


def _transcripts() -> str:
    from hermes.cli.sessions.shared import configuration

    return configuration().sessions.transcripts

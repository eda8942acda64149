"""`hermes sessions list` and `browse`: the latest conversations, one line each, or all of them on a full screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from hermes.cli.options import ROWS, file_option, flag, json_option, limit_option, sessions_of_file, source_option
from hermes.cli.output import DIM, Column, colourful, message, print_json, printed, screen_width, styled
from hermes.cli.record import EVERY, opened, zone
from hermes.commands.info_commands import is_oneshot, message_counts
from hermes.home import project_folder
from hermes.texts import counted
from hermes.times import ago

START = "No sessions yet. `hermes` starts a conversation; it is kept from its first message on."
NO_MATCH = "No session matches. `hermes sessions list --all` lists every session."
_WIDE = 140  # cells; only then there is room for marks (a single question is marked from 120 on)
LOST = "The database has no sessions, but transcripts exist: `hermes sessions rebuild` restores them."


@click.command("list")
@source_option("Only sessions of this source (cli, telegram, …).")
@limit_option("How many to list.")
@click.option("--tag", metavar="TAG", help="Only sessions with this tag.")
@flag("--pinned", "Only pinned sessions.")
@flag("--archived", "Only archived sessions.")
@flag("--all", "All sessions, also archived ones and automated runs.", "every")
@flag("--here", "Only sessions of this folder (its git root).")
@file_option()
@json_option(ROWS)
def list_(
    source: str | None, limit: int, tag: str | None, pinned: bool, archived: bool, every: bool, here: bool,
    file: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List the latest conversations by their last activity.

    Automated runs (cron, batch, sub-agents, single questions that were not continued) are listed with --all, or if a filter
    such as --source or --tag selects them.
    """
    folder = str(project_folder(Path.cwd())) if here else None
    automated = True if every else None if source or tag or pinned or archived or file else False
    with opened() as db:
        changed = sessions_of_file(db, file)
        if changed is not None:  # a compressed conversation is listed as its newest part
            changed += [tip for one in changed if (tip := db.get_compression_tip(one)) is not None]
        rows = db.list_sessions_rich(
            source=source, limit=EVERY if every or archived or changed is not None else limit, tag=tag, pinned=pinned,
            order_by_last_active=True, include_archived=every or archived, cwd=folder, automated=automated,
        )  # fmt: skip
        if archived:
            rows = [row for row in rows if row["archived_at"] is not None]
        if changed is not None:
            rows = [row for row in rows if row["id"] in changed]
        rows = rows if every else rows[:limit]
        listed: list[Mapping[str, Any]] = [
            {**row, "tags": db.get_tags(row["id"]), "messages": count}
            for row, count in zip(rows, message_counts(db, rows), strict=True)
        ]
        hidden = db.automated_count(cwd=folder) if automated is False and not as_json else 0
        empty = not rows and db.session_count() == 0
        is_lost = empty and not db.is_shared and not db.list_trash() and any(db.sessions_dir.glob("*.jsonl"))
    if as_json:
        print_json(listed)
    elif listed:
        print(_screen(listed))
    elif not hidden:
        print(message(LOST if is_lost else START if empty else NO_MATCH, sys.stdout))
    if hidden:
        print(styled(f"{counted(hidden, 'automated run')} hidden; --all shows them", DIM, on=colourful()))


@click.command("browse")
def browse_() -> None:
    """Look through every conversation on a full screen: filter, search inside, preview, resume, rename, delete."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the browser needs a terminal; `hermes sessions list` and `search` work everywhere")
    from hermes.chat.browse import browse

    with opened(writing=True) as db:
        chosen = browse(db, zone())
    if chosen is not None:
        sys.stdout.flush()
        # A fresh process: the conversation starts without the browser's memory and terminal state.
        os.execv(sys.executable, [sys.executable, "-m", "hermes.cli.main", f"--resume={chosen}"])


def _screen(rows: Sequence[Mapping[str, Any]]) -> str:
    """The list as a table: with titles if there are any, else with sources; and pins and tags where there is room."""
    where = zone()
    preview = [row["preview"] or "" for row in rows]
    active = Column("Last Active", 11, worth=2), [ago(row["last_active"], where) for row in rows]
    if any(row["title"] for row in rows):
        titles = Column("Title", 8, 40, 3), [row["title"] or "—" for row in rows]
        shown = [titles, (Column("Preview", 8), preview), active]
    else:
        sources = Column("Src", 3, 12), [row["source"] for row in rows]
        shown = [(Column("Preview", 8, worth=3), preview), active, sources]
    marks = [_marks(row) for row in rows]
    if any(marks) and screen_width() >= (120 if any(map(is_oneshot, rows)) else _WIDE):
        shown.append((Column("Marks", 6, 24), marks))
    shown.append((Column("ID"), [row["id"] for row in rows]))
    return printed([column for column, _ in shown], zip(*(values for _, values in shown), strict=True))


def _marks(row: Mapping[str, Any]) -> str:
    """The marks of a session: pinned, a single question, and its tags."""
    pinned = ["pinned"] if row["pinned_at"] is not None else []
    once = ["one-shot"] if is_oneshot(row) else []
    return " ".join([*pinned, *once, *(f"#{tag}" for tag in row.get("tags") or ())])

"""`hermes sessions list` and `browse`: the latest conversations, one line each, or all of them on a full screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import ROWS, file_option, json_option, limit_option, sessions_of_file, source_option
from hermes.cli.output import DIM, GAP, Column, cells, colourful, message, print_json, printed, screen_width, styled
from hermes.cli.record import EVERY, opened, zone
from hermes.commands.info_commands import is_oneshot, message_counts
from hermes.home import project_folder
from hermes.texts import counted, one_line
from hermes.times import ago

if TYPE_CHECKING:
    from hermes.store.records.rows import SessionRow

NO_TITLE = "—"
PAGE = 1000  # sessions read at once for a list that leaves some out
START = "No sessions yet. `hermes` starts a conversation; it is kept from its first message on."
NO_MATCH = "No session matches. `hermes sessions list --all` lists every session."
LOST = "The database has no sessions, but transcripts exist: `hermes sessions rebuild` restores them."


@click.command(
    "list",
    help=(
        "List the latest conversations by their last activity.\n\nAutomated runs (cron, batch, sub-agents, single questions"
        " that were not continued) are listed with --all, or if a filter such as --source or --tag selects them."
    ),
)
@source_option("Only sessions of this source (cli, telegram, …).")
@limit_option("How many to list.")
@click.option("--tag", metavar="TAG", help="Only sessions with this tag.")
@click.option("--pinned", is_flag=True, help="Only pinned sessions.")
@click.option("--archived", is_flag=True, help="Only archived sessions.")
@click.option("--all", "every", is_flag=True, help="All sessions, also archived ones and automated runs.")
@click.option("--here", is_flag=True, help="Only sessions of this folder (its git root).")
@file_option()
@json_option(ROWS)
def list_(
    source: str | None, limit: int, tag: str | None, pinned: bool, archived: bool, every: bool, here: bool,
    file: str | None, as_json: bool,
) -> None:  # fmt: skip
    folder = str(project_folder(Path.cwd())) if here else None
    automated = True if every else None if source or tag or pinned or archived or file else False

    def is_wanted(row: SessionRow) -> bool:
        return (not archived or row["archived_at"] is not None) and (changed is None or row["id"] in changed)

    with opened() as db:
        rows: list[SessionRow] = []
        changed = sessions_of_file(db, file)
        if changed is not None:  # a compressed conversation is listed as its newest part
            changed += [tip for one in changed if (tip := db.get_compression_tip(one)) is not None]
        is_narrowed = every or archived or changed is not None
        wanted, size = EVERY if every else limit, EVERY if is_narrowed else limit
        offset = 0
        while len(rows) < wanted:  # one page, unless some of it is left out
            page = db.list_sessions_rich(
                source=source, limit=size, offset=offset, order_by_last_active=True, include_archived=every or archived,
                pinned=pinned, tag=tag, cwd=folder, automated=automated,
            )  # fmt: skip
            rows += [row for row in page if is_wanted(row)][: wanted - len(rows)]
            if len(page) < size:
                break
            offset, size = offset + size, max(size, PAGE)
        counts = message_counts(db, rows)
        listed: list[Mapping[str, Any]] = [
            {**row, "tags": db.get_tags(row["id"]), "messages": shown} for row, shown in zip(rows, counts, strict=True)
        ]
        hidden = db.automated_count(cwd=folder) if automated is False and not as_json else 0
        empty = not rows and db.session_count() == 0
        is_lost = empty and not db.is_shared and not db.list_trash() and any(db.sessions_dir.glob("*.jsonl"))
    if as_json:
        print_json(listed)
    elif not listed and not hidden:
        nothing = LOST if is_lost else START if empty else NO_MATCH
        print(message(nothing, sys.stdout))
    elif listed:
        print(_screen(listed))
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
    """The list as a table: with titles if there are any, else with sources."""
    where = zone()
    ages = [ago(row["last_active"], where) for row in rows]
    previews = [row["preview"] or "" for row in rows]
    if any(row["title"] for row in rows):
        columns = [Column("Title", 8, 40, 3), Column("Preview", 8), Column("Last Active", 11, worth=2), Column("ID")]
        values = [[row["title"] or NO_TITLE for row in rows], previews, ages, [row["id"] for row in rows]]
    else:
        columns = [
            Column("Preview", 8, worth=3),
            Column("Last Active", 11, worth=2),
            Column("Src", 3, 12),
            Column("ID"),
        ]
        values = [previews, ages, [row["source"] for row in rows], [row["id"] for row in rows]]
    room = screen_width() - sum(_width(column, one) + len(GAP) for column, one in zip(columns, values, strict=True))
    for column, one in _more(rows):
        width = _width(column, one) + len(GAP)
        spare = 20 if column.head == "Marks" and any(map(is_oneshot, rows)) else 0  # half the room of a preview
        if any(one) and width <= room + spare:
            columns.insert(-1, column)
            values.insert(-1, one)
            room -= width
    return printed(columns, zip(*values, strict=True))


def _width(column: Column, values: Sequence[str]) -> int:
    """The cells that a column needs; a preview is useful from 40 on."""
    widest = max(map(cells, map(one_line, [column.head, *values])))
    return min(widest, 40 if column.head == "Preview" else column.most) if column.least is not None else widest


def _more(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Column, list[str]]]:
    """The columns of the list that are shown where there is room, the most useful first."""
    return [
        (Column("Marks", 6, 24), [_marks(row) for row in rows]),
        (Column("Msgs", 4), [f"{row['messages']:,}" for row in rows]),
        (Column("Model", 6, 24), [row["model"] or "" for row in rows]),
        (Column("Folder", 6, 32), [_folder(row["cwd"]) for row in rows]),
    ]


def _folder(path: str | None) -> str:
    """A folder as people write it: `~/…` in the home; only the end of a long one."""
    home = os.path.expanduser("~")
    shown = (
        "~" + (path or "").removeprefix(home) if home != os.sep and f"{path}/".startswith(f"{home}/") else path or ""
    )
    return shown if len(shown) <= 32 else "…" + shown[-31:]


def _marks(row: Mapping[str, Any]) -> str:
    """The marks of a session: pinned, a single question, and its tags."""
    pinned = ["pinned"] if row["pinned_at"] is not None else []
    once = ["one-shot"] if is_oneshot(row) else []
    return " ".join([*pinned, *once, *(f"#{tag}" for tag in row.get("tags") or ())])

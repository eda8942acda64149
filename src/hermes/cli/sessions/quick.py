"""`hermes sessions list`, and its usual options parsed without click, which would be a fifth of its running time."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hermes.cli.shared import EVERY, opened, print_json, zone
from hermes.cli.table import Column, printed, screen_width, table
from hermes.times import ago

if TYPE_CHECKING:
    pass

NO_TITLE = "—"
START = "No sessions yet. `hermes` starts a conversation; it is kept from its first message on."


def quick_list(words: Sequence[str]) -> int | None:
    """The list, if the words after `hermes sessions list` are simple; None when click must parse them."""
    given = _read(list(words))
    if given is None:
        return None
    print_list(**given)
    return 0


def _read(words: list[str]) -> dict[str, Any] | None:
    given: dict[str, Any] = {}
    while words:
        word = words.pop(0)
        if word == "--json":
            given["as_json"] = True
        elif word in ("--limit", "-n") and words and words[0].isascii() and words[0].isdigit() and int(words[0]) > 0:
            given["limit"] = int(words.pop(0))
        elif word == "--source" and words and not words[0].startswith("-"):
            given["source"] = words.pop(0)
        else:
            return None
    return given


def print_list(
    source: str | None = None, limit: int = 20, tag: str | None = None, pinned: bool = False, archived: bool = False,
    every: bool = False, as_json: bool = False, subagents: bool = False,
) -> None:  # fmt: skip
    """The latest conversations, one line each."""
    with opened() as db:
        rows = db.list_sessions_rich(
            source=source, limit=EVERY if every or archived or subagents else limit, order_by_last_active=True,
            include_archived=every or archived, pinned=pinned, tag=tag, include_children=subagents,
        )  # fmt: skip
        if subagents:
            rows = [row for row in rows if row["kind"] == "subagent"][: None if every else limit]
        if archived:
            rows = [row for row in rows if row["archived_at"] is not None][: None if every else limit]
        listed: list[Mapping[str, Any]] = [{**row, "tags": db.get_tags(row["id"])} for row in rows]
        empty = not rows and db.session_count() == 0
    if as_json:
        print_json(listed)
    elif not listed:
        print(START if empty else "No session matches. `hermes sessions list --all` lists every session.")
    else:
        print(screen(listed))


def screen(rows: Sequence[Mapping[str, Any]]) -> str:
    """The list as a table: with titles where there are any, else with sources."""
    where = zone()
    ages = [ago(row["last_active"], where) for row in rows]
    previews = [row["preview"] or "" for row in rows]
    ids = [row["id"] for row in rows]
    marks = [_marks(row) for row in rows]
    if any(row["title"] for row in rows):
        columns = [Column("Title", 8, 40, 3), Column("Preview", 8), Column("Last Active", 11, worth=2), Column("ID")]
        cells = [[row["title"] or NO_TITLE for row in rows], previews, ages, ids]
    else:
        columns = [
            Column("Preview", 8, worth=3),
            Column("Last Active", 11, worth=2),
            Column("Src", 3, 12),
            Column("ID"),
        ]
        cells = [previews, ages, [row["source"] for row in rows], ids]
    if any(marks):
        wider = [*columns[:-1], Column("Marks", 6, 24), columns[-1]]
        lines = table(wider, zip(*cells[:-1], marks, ids, strict=True), 1_000, terminal=sys.stdout.isatty())
        if len(lines[1]) <= screen_width():  # where there is room for it without taking any from the others
            return "\n".join(lines)
    return printed(columns, zip(*cells, strict=True))


def _marks(row: Mapping[str, Any]) -> str:
    """That a session is pinned, and its tags."""
    pinned = ["pinned"] if row["pinned_at"] is not None else []
    return " ".join([*pinned, *(f"#{tag}" for tag in row.get("tags") or ())])

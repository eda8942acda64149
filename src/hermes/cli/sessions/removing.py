"""`hermes sessions delete`, `restore`, `trash` and `prune`: what goes, and how it comes back.

Deleting puts a session in the trash for some days; pruning deletes for good, and only what has ended. A session that a
running process holds is never touched.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.common import Ambiguous, NotFound, confirmed, find_session
from hermes.cli.sessions.shared import age, configuration, counted, days, note, opened, print_json, progress, zone
from hermes.cli.table import Column, screen_width, table
from hermes.harmless import one_line
from hermes.times import ago, date

if TYPE_CHECKING:
    from hermes.store.db import SessionDB

DAY = 86_400
_SHOWN = 20


class Refused(click.ClickException):
    """It may not be done; exit status 1."""

    exit_code = 1


def called(session: dict[str, Any]) -> str:
    """A session as a sentence names it: its title and id."""
    title = one_line(session.get("title") or session.get("trashed_title"))
    return f'"{title}" ({session["id"]})' if title else str(session["id"])


@click.command(help="Put sessions in the trash. ID is an id, the beginning of one, or a title.")
@click.argument("words", nargs=-1, required=True, metavar="ID…")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def delete(words: tuple[str, ...], yes: bool) -> None:
    with opened(writing=True) as db:
        ids = list(dict.fromkeys(find_session(db, word) for word in words))
        sessions = [db.get_session(session_id) or {"id": session_id} for session_id in ids]
        for session in sessions:
            _refuse_live(db, session)
        names = ", ".join(f"{called(one)}, {counted(one.get('message_count') or 0, 'message')}" for one in sessions)
        confirmed(f"Put {names} in the trash?", yes=yes)
        for session in sessions:
            _refuse_live(db, session)  # while the question stood, someone may have come back to it
            db.trash_session(session["id"], by="hermes sessions delete")
            _say_trashed(db, session)


def _refuse_live(db: SessionDB, session: dict[str, Any]) -> None:
    if db.is_live(session["id"]):
        raise Refused(f"{called(session)} is live: a running process holds it; leave it there first")


def _say_trashed(db: SessionDB, session: dict[str, Any]) -> None:
    until = date(time.time() + configuration().sessions.trash_days * DAY, zone())
    print(f"{called(session)} is in the trash until {until}; `hermes sessions restore {session['id']}` brings it back")
    before = session.get("parent_session_id")
    if session.get("kind") == "compression" and before and db.get_session(before) is not None:
        print(f"what was said before its compression is still in {before}")


@click.command(help="Take sessions out of the trash. ID is an id, the beginning of one, or the title it had.")
@click.argument("words", nargs=-1, required=True, metavar="ID…")
def restore(words: tuple[str, ...]) -> None:
    with opened(writing=True) as db:
        trashed = db.list_trash()
        for session_id in list(dict.fromkeys(_in_trash(trashed, word, db) for word in words)):
            db.restore_session(session_id)
            print(f"{called(db.get_session(session_id) or {'id': session_id})} is back")


def _in_trash(trashed: list[dict[str, Any]], word: str, db: SessionDB) -> str:
    """The session in the trash that a person means."""
    for found in (
        [row["id"] for row in trashed if row["id"] == word],
        [row["id"] for row in trashed if row["trashed_title"] == word],
        [row["id"] for row in trashed if word and row["id"].startswith(word)],
    ):
        if len(found) == 1:
            return str(found[0])
        if found:
            listed = "\n".join(f"  {one}" for one in found[:10])
            raise Ambiguous(f"several sessions in the trash are called {word}; name one of these:\n{listed}")
    if db.get_session(word) is not None:
        raise Refused(f"{word} is not in the trash")
    raise NotFound(f"nothing in the trash is called {word!r}; `hermes sessions trash` shows what there is")


@click.command(help="What is in the trash, and until when it can be restored.")
@click.option("--empty", is_flag=True, help="Delete all of it for good, now.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@click.option("--json", "as_json", is_flag=True, help="The rows as a JSON array; times are seconds since 1970.")
def trash(empty: bool, yes: bool, as_json: bool) -> None:
    with opened(writing=empty) as db:
        rows = db.list_trash()
        if as_json and not empty:
            print_json(rows)
        elif not rows:
            print("The trash is empty.")
        elif empty:
            confirmed(f"Delete {counted(len(rows), 'session')} for good?", yes=yes)
            with progress("deleting", len(rows)) as step:
                for number, row in enumerate(rows, 1):
                    db.delete_session(row["id"], by="hermes sessions trash --empty")
                    step(number)
            print(f"deleted {counted(len(rows), 'session')} for good")
        else:
            print("\n".join(_trash_screen(rows)))


def _trash_screen(rows: list[dict[str, Any]]) -> list[str]:
    where, kept_for = zone(), configuration().sessions.trash_days
    columns = [
        Column("Title", 8, 40, 2),
        Column("Preview", 8),
        Column("Deleted", 10, worth=1),
        Column("Until", 10, worth=3),
        Column("ID"),
    ]
    cells = [
        (
            row["trashed_title"] or "—", row["preview"] or "", ago(row["trashed_at"], where),
            date(row["trashed_at"] + kept_for * DAY, where), row["id"],
        )
        for row in rows
    ]  # fmt: skip
    return table(columns, cells, screen_width(), terminal=sys.stdout.isatty())


@click.command(help="Delete sessions that ended and had no activity for a while. Pinned and live ones stay.")
@click.option(
    "--older-than", type=days, default=90.0, metavar="D", help="Days without activity: 90 (the default), 12h, 2w."
)
@click.option("--source", metavar="S", help="Only sessions of this source.")
@click.option("--trash", "to_trash", is_flag=True, help="Into the trash instead of for good.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
def prune(older_than: float, source: str | None, to_trash: bool, yes: bool, dry_run: bool) -> None:
    with opened(writing=not dry_run) as db:
        ids = db.prunable_sessions(older_than, source)
        if not ids:
            print(f"Nothing to prune: no ended session is older than {age(older_than)}.")
            return
        print("\n".join(_prune_screen(db, ids)))
        where = "in the trash" if to_trash else "for good"
        if dry_run:
            print(f"{counted(len(ids), 'session')} would go (nothing was changed).")
            return
        confirmed(f"{'Put' if to_trash else 'Delete'} {counted(len(ids), 'session')} {where}?", yes=yes)
        # What was reopened or pinned while the question stood is no longer meant; what has aged meanwhile was not shown.
        still = set(db.prunable_sessions(older_than, source))
        gone = _remove(db, [session_id for session_id in ids if session_id in still], to_trash)
    print(f"{'put' if to_trash else 'deleted'} {counted(gone, 'session')} {where}")
    if gone and not to_trash:
        note("`hermes sessions optimize` gives the space back to the disk")


def _remove(db: SessionDB, ids: list[str], to_trash: bool) -> int:
    gone = 0
    with progress("pruning", len(ids)) as step:
        for session_id in ids:
            by = "hermes sessions prune"
            gone += db.trash_session(session_id, by=by) if to_trash else db.delete_session(session_id, by=by)
            step(gone)
    return gone


def _prune_screen(db: SessionDB, ids: list[str]) -> list[str]:
    """What would go: the first few by name."""
    where = zone()
    rows = []
    for session_id in ids[:_SHOWN]:
        session = db.get_session(session_id) or {}
        active = session.get("last_active") or session.get("started_at")
        rows.append(
            (
                session.get("title") or "—", session.get("preview") or "", ago(active, where),
                str(session.get("message_count") or 0), session_id,
            )
        )  # fmt: skip
    columns = [
        Column("Title", 8, 40, 3),
        Column("Preview", 8),
        Column("Last Active", 11, worth=2),
        Column("Msgs", 4, worth=1),
        Column("ID"),
    ]
    lines = table(columns, rows, screen_width(), terminal=sys.stdout.isatty())
    return [*lines, f"… and {len(ids) - _SHOWN} more"] if len(ids) > _SHOWN else lines

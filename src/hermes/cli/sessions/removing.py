"""`hermes sessions delete`, `restore`, `trash` and `prune`: removing sessions, and restoring them.

Both put sessions in the trash for some days (`--now` skips it); pruning takes only what has ended. `delete --shred` leaves
nothing of a conversation in any file of the store. A session that a running process holds is never touched. A conversation
that was compressed is removed as a whole, whichever part is named.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.completion import complete_sessions, complete_trashed
from hermes.cli.options import (
    ROWS,
    Ambiguous,
    confirmed,
    days,
    find_session,
    find_sessions,
    flag,
    in_trash,
    json_option,
    source_option,
    yes_option,
)
from hermes.cli.output import Column, note, print_json, printed, progress
from hermes.cli.record import configuration, opened, zone
from hermes.store.records.codec import from_json
from hermes.texts import counted, one_line
from hermes.times import ago, date

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB

DAY = 86_400
_SHOWN = 20


def called(session: Mapping[str, Any]) -> str:
    """The title and id of a session, for a sentence."""
    title = one_line(session.get("title") or session.get("trashed_title"))
    return f'"{title}" ({session["id"]})' if title else str(session["id"])


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="ID…", shell_complete=complete_sessions)
@flag("--now", "Delete permanently instead of moving to the trash.")
@flag("--shred", "Delete for good, and leave nothing of it in any file of the store. Rewrites the whole store.")
@yes_option()
def delete(words: tuple[str, ...], now: bool, shred: bool, yes: bool) -> None:
    """Put sessions in the trash. ID is an id, the beginning of one, or a title; with --now and --shred also of one in the
    trash. A compressed conversation is removed with all its parts. --shred says which copies still hold it."""
    with opened(writing=True) as db:
        trashed = {row["id"]: row for row in db.list_trash()}
        found = [_named(db, word, shred) for word in words] if now or shred else find_sessions(db, words)
        names: dict[str, str] = {}  # of the conversations by the id of their newest part
        to_confirm: list[str] = []  # what an earlier try left unfinished is finished without asking
        for parts in {chain[-1]: chain for chain in map(db.get_compression_chain, found)}.values():
            rows: list[Mapping[str, Any]] = [db.get_session(part) or trashed.get(part) or {} for part in parts]
            names[parts[-1]] = called(rows[-1] or {"id": parts[-1]}) + _with_earlier(parts)
            if rows[-1]:
                messages = sum(row.get("message_count") or 0 for row in rows)
                to_confirm.append(f"{names[parts[-1]]}, {counted(messages, 'message')}")
        if what := ", ".join(to_confirm):
            goes = f"Delete {what}, for good?" if now else f"Put {what} in the trash?"
            confirmed(f"Shred {what}? Nothing brings it back." if shred else goes, yes=yes)
        for session_id, name in names.items():
            if any(map(db.is_live, db.get_compression_chain(session_id))):
                raise click.ClickException(f"{name} is in use by a running process; leave it there first")
        unfinished: list[str] = []
        for session_id, name in names.items():
            if shred:
                unfinished += _shred_one(db, session_id, name)
                continue
            remove(db, session_id, now=now, by="hermes sessions delete")
            back = f"is in the trash until {_until()}; `hermes sessions restore {session_id}` brings it back"
            print(f"{name} {'is deleted for good' if now else back}")
    if unfinished:
        raise click.ClickException("\n".join(unfinished))


def _named(db: SessionDB, word: str, shred: bool) -> str:
    """The session that a word names, also in the trash; to shred, also the id of one that was shredded in part."""
    try:
        return find_session(db, word)
    except click.ClickException as error:
        found = None if isinstance(error, Ambiguous) else in_trash(db, word) or (word if shred else None)
        if found is None:
            raise
        return found


def _shred_one(db: SessionDB, session_id: str, called: str) -> list[str]:
    """Shred one conversation and print the result, with a line for each thing that is left to do."""
    session: Mapping[str, Any] = db.get_session(session_id) or {}
    meta = from_json(session.get("meta"))
    elsewhere = meta.get("imported") if isinstance(meta, dict) else None
    done = db.shred_session(session_id, by="hermes sessions delete --shred")
    if done is None:
        raise click.ClickException(f"no session matches {session_id!r}; `hermes sessions list` lists them")
    if isinstance(elsewhere, dict):
        note(f"{called} was imported from {elsewhere.get('from')}, which may still have it in its own files")
    if done["shared_with"]:
        note(f"messages that {called} shared with {', '.join(done['shared_with'])} stay there")
    for copy in done["copies"]:
        note(f"may still be in {copy}")
    if done["unfinished"]:
        again = f"then run `hermes sessions delete --shred {done['parts'][-1]}` again"
        return [f"{called} is deleted, but not out of every file: {line}; {again}" for line in done["unfinished"]]
    print(f"{called} is shredded: {counted(done['messages'], 'message')}")
    return []


def _with_earlier(parts: list[str]) -> str:
    """The note that a conversation has earlier, compressed parts."""
    return f" with its {counted(len(parts) - 1, 'earlier part')}" if len(parts) > 1 else ""


def remove(db: SessionDB, session_id: str, *, now: bool, by: str) -> bool:
    """Put a conversation in the trash, or delete it for good, with all its parts."""
    if not now:
        return db.trash_session(session_id, by=by, whole=True)
    # The oldest first: if this is interrupted, the rest is still one conversation.
    return sum(db.delete_session(part, by=by) for part in db.get_compression_chain(session_id)) > 0


def _until() -> str:
    """The day on which a session that is trashed now is deleted for good."""
    return date(time.time() + configuration().sessions.trash_days * DAY, zone())


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="ID…", shell_complete=complete_trashed)
def restore(words: tuple[str, ...]) -> None:
    """Restore sessions from the trash. ID is an id, the beginning of one, or the title it had."""
    with opened(writing=True) as db:
        found = [in_trash(db, word) for word in words]
        if None in found:
            word = words[found.index(None)]
            hint = "`hermes sessions trash` lists them"
            raise click.ClickException(f"no session in the trash matches {word!r}; {hint}")
        for session_id in dict.fromkeys(db.get_compression_chain(one)[-1] for one in found if one is not None):
            parts = db.get_compression_chain(session_id)
            db.restore_session(session_id, whole=True)
            print(f"{called(db.get_session(session_id) or {'id': session_id})}{_with_earlier(parts)} is restored")


@click.command()
@flag("--empty", "Delete everything in the trash permanently, now.")
@yes_option()
@json_option(ROWS)
def trash(empty: bool, yes: bool, as_json: bool) -> None:
    """List the trash, and until when each session can be restored."""
    where, kept_for = zone(), configuration().sessions.trash_days * DAY
    with opened(writing=empty) as db:
        trashed = db.list_trash()
        # each conversation once
        rows = [row for row in trashed if db.get_compression_chain(row["id"])[-1] == row["id"]]
        if as_json and not empty:
            print_json(trashed)
        elif not rows:
            print("The trash is empty.")
        elif empty:
            number = counted(len(rows), "session")
            confirmed(f"Delete {number} for good?", yes=yes)
            db.empty_trash(0, by="hermes sessions trash --empty")
            print(f"deleted {number} for good")
        else:
            cells = [
                (row["trashed_title"], row["preview"], ago(row["trashed_at"], where),
                 date(row["trashed_at"] + kept_for, where), row["id"])
                for row in rows
            ]  # fmt: skip
            print(_table(cells, Column("Deleted", 10, worth=1), Column("Until", 10, worth=3)))


def _table(rows: Iterable[tuple[str | None, ...]], *columns: Column) -> str:
    """Sessions, each with its title and preview first and its id last."""
    cells = [(title or "—", *(one or "" for one in others)) for title, *others in rows]
    return printed([Column("Title", 8, 40, 3), Column("Preview", 8), *columns, Column("ID")], cells)


@click.command()
@click.option(
    "--older-than", type=days, metavar="D", help="Days without activity: 90, 12h, 2w; default: retention_days."
)
@source_option("Only sessions of this source.")
@flag("--now", "Delete permanently instead of moving to the trash.")
@yes_option()
@flag("--dry-run", "Show what would be removed, and remove nothing.")
def prune(older_than: float | None, source: str | None, now: bool, yes: bool, dry_run: bool) -> None:
    """Put sessions in the trash that ended and had no activity for a while. Pinned and live ones stay. A compressed
    conversation is removed with all its parts or not at all.
    """
    after = configuration().sessions.retention_days if older_than is None else older_than
    with opened(writing=not dry_run) as db:
        ids = db.prunable_sessions(after, source, whole=True)
        if not ids:
            print(f"Nothing to prune: no ended session is older than {after:g} {'day' if after == 1 else 'days'}.")
            return
        print(_prune_screen(db, ids))
        if dry_run:
            print(f"{counted(len(ids), 'session')} would be removed (nothing was changed).")
            return
        where = "for good" if now else "in the trash"
        confirmed(f"{'Delete' if now else 'Put'} {counted(len(ids), 'session')} {where}?", yes=yes)
        # Sessions reopened or pinned while the question was open are left out; newly aged ones were not shown.
        still = set(db.prunable_sessions(after, source, whole=True))
        gone = 0
        with progress("pruning", len(ids)) as step:
            for session_id in (one for one in ids if one in still):
                gone += remove(db, session_id, now=now, by="hermes sessions prune")
                step(gone)
    if now:
        print(f"deleted {counted(gone, 'session')} for good")
        note("`hermes sessions optimize` gives the space back to the disk")
    else:
        back = "`hermes sessions restore ID` brings one back"
        print(f"put {counted(gone, 'session')} in the trash until {_until()}; {back}")


def _prune_screen(db: SessionDB, ids: list[str]) -> str:
    """The sessions to prune: the first few by name."""
    rows = []
    for session_id in ids[:_SHOWN]:
        one: Mapping[str, Any] = db.get_session(session_id) or {}
        active = ago(one.get("last_active") or one.get("started_at"), zone())
        rows.append((one.get("title"), one.get("preview"), active, str(one.get("message_count") or 0), session_id))
    shown = _table(rows, Column("Last Active", 11, worth=2), Column("Msgs", 4, worth=1))
    return shown + (f"\n… and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")

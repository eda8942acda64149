"""`hermes sessions delete`, `restore`, `trash` and `prune`: removing sessions, and restoring them.

Both put sessions in the trash for some days (`--now` skips it); pruning takes only what has ended. `delete --shred` leaves
nothing of a conversation in any file of the store. A session that a running process holds is never touched. A conversation
that was compressed is one thing here, whichever part is named.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from functools import partial
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
    json_option,
    source_option,
    yes_option,
)
from hermes.cli.output import Column, age, note, print_json, printed, progress
from hermes.cli.record import configuration, opened, zone
from hermes.home import get_hermes_home
from hermes.texts import counted, one_line
from hermes.times import ago, date

if TYPE_CHECKING:
    from hermes.store.api.session_db import SessionDB
    from hermes.store.records.rows import TrashedSession

DAY = 86_400
_SHOWN = 20


def called(session: Mapping[str, Any]) -> str:
    """A session as a sentence names it: its title and id."""
    title = one_line(session.get("title") or session.get("trashed_title"))
    return f'"{title}" ({session["id"]})' if title else str(session["id"])


@click.command(
    help="Put sessions in the trash. ID is an id, the beginning of one, or a title. A compressed conversation is removed"
    " with all its parts."
)
@click.argument("words", nargs=-1, required=True, metavar="ID…", shell_complete=complete_sessions)
@click.option("--now", is_flag=True, help="Delete permanently instead of moving to the trash.")
@click.option(
    "--shred",
    is_flag=True,
    help="Delete for good, and leave nothing of it in any file of the store; says which copies still hold it."
    " Rewrites the whole store. ID may be in the trash.",
)
@yes_option()
def delete(words: tuple[str, ...], now: bool, shred: bool, yes: bool) -> None:
    with opened(writing=True) as db:
        trashed = db.list_trash()
        named = [_named(db, trashed, word, shred) for word in words] if now or shred else find_sessions(db, words)
        ends = dict.fromkeys(db.get_compression_chain(one)[-1] for one in named)
        meant = [_Removal(db, session_id, trashed) for session_id in ends]
        asked = [one for one in meant if one.known]  # what an earlier try left unfinished is finished without asking
        for one in asked:
            one.refuse_live()
        if names := ", ".join(f"{one.called}, {counted(one.messages, 'message')}" for one in asked):
            kept = f"Delete {names}, for good?" if now else f"Put {names} in the trash?"
            confirmed(f"Shred {names}? Nothing brings it back." if shred else kept, yes=yes)
        unfinished: list[str] = []
        for one in meant:
            one.refuse_live()  # a process may have opened it while the question was open
            if shred:
                unfinished += _shred_one(db, one.session_id, one.called)
                continue
            remove(db, one.session_id, now=now, by="hermes sessions delete")
            back = f"is in the trash until {_until()}; `hermes sessions restore {one.session_id}` brings it back"
            print(f"{one.called} {'is deleted for good' if now else back}")
    if unfinished:
        raise click.ClickException("\n".join(unfinished))


def _named(db: SessionDB, trashed: list[TrashedSession], word: str, shred: bool) -> str:
    """The session that a word names, in the trash as well; to shred, also the id of one that was half shredded."""
    for find in (find_session, partial(_in_trash, trashed)):
        try:
            return find(db, word)
        except Ambiguous:
            raise
        except click.ClickException as error:
            missing = error
    if shred:
        return word
    raise missing


class _Removal:
    """A conversation to remove: a session, and its earlier parts if it was compressed."""

    def __init__(self, db: SessionDB, session_id: str, trashed: list[TrashedSession]) -> None:
        self.db, self.session_id = db, session_id
        self.parts = db.get_compression_chain(session_id)
        gone = {row["id"]: row for row in trashed}
        rows: list[Mapping[str, Any] | None] = [db.get_session(part) or gone.get(part) for part in self.parts]
        self.known = rows[-1] is not None
        self.messages = sum((row or {}).get("message_count") or 0 for row in rows)
        self.called = called(rows[-1] or {"id": session_id}) + _with_earlier(self.parts)

    def refuse_live(self) -> None:
        if any(self.db.is_live(part) for part in self.parts):
            raise click.ClickException(f"{self.called} is in use by a running process; leave it there first")


def _shred_one(db: SessionDB, session_id: str, called: str) -> list[str]:
    """Shred one conversation and say what became of it; a line for each thing that is left to do."""
    elsewhere = _imported_from(db, session_id)
    done = db.shred_session(session_id, by="hermes sessions delete --shred", history=get_hermes_home() / "history")
    if done is None:
        raise click.ClickException(f"no session matches {session_id!r}; `hermes sessions list` lists them")
    if done["shared_with"]:
        others = ", ".join(done["shared_with"])
        note(f"messages that {called} shared with {others} stay there")
    if elsewhere is not None:
        note(f"{called} was imported: {elsewhere} may still have it in its own files")
    for copy in done["copies"]:
        note(f"may still be in {copy}")
    if done["unfinished"]:
        again = f"then run `hermes sessions delete --shred {done['parts'][-1]}` again"
        return [f"{called} is deleted, but not out of every file: {line}; {again}" for line in done["unfinished"]]
    print(f"{called} is shredded: {counted(done['messages'], 'message')}")
    return []


def _imported_from(db: SessionDB, session_id: str) -> str | None:
    """The program whose history a conversation was imported from, and the id it has there."""
    from hermes.interop import formats

    row = db.get_session(session_id)
    try:
        meta = json.loads(str(row.get("meta") or "{}")) if row is not None else None
    except ValueError:
        meta = None
    source = meta.get("imported") if isinstance(meta, dict) else None
    if not isinstance(source, dict) or not isinstance(source.get("from"), str):
        return None
    name = {one.name: one.program for one in formats.histories()}.get(source["from"], source["from"])
    return f"{name} ({source.get('id')})"


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


@click.command(help="Restore sessions from the trash. ID is an id, the beginning of one, or the title it had.")
@click.argument("words", nargs=-1, required=True, metavar="ID…", shell_complete=complete_trashed)
def restore(words: tuple[str, ...]) -> None:
    with opened(writing=True) as db:
        trashed = db.list_trash()
        named = (db.get_compression_chain(_in_trash(trashed, db, word))[-1] for word in words)
        for session_id in list(dict.fromkeys(named)):
            parts = db.get_compression_chain(session_id)
            db.restore_session(session_id, whole=True)
            print(f"{called(db.get_session(session_id) or {'id': session_id})}{_with_earlier(parts)} is restored")


def _in_trash(trashed: list[TrashedSession], db: SessionDB, word: str) -> str:
    """The session in the trash that matches a word."""
    for found in (
        [row["id"] for row in trashed if row["id"] == word],
        [row["id"] for row in trashed if row["trashed_title"] == word],
        [row["id"] for row in _newest(trashed) if word and row["id"].startswith(word)],
        [row["id"] for row in trashed if word and row["id"].startswith(word)],
    ):
        if len(found) == 1:
            return str(found[0])
        if found:
            listed = "\n".join(f"  {one}" for one in found[:10])
            raise Ambiguous(f"several sessions in the trash match {word}; give one of these ids:\n{listed}")
    if db.get_session(word) is not None:
        raise click.ClickException(f"{word} is not in the trash")
    raise click.ClickException(f"no session in the trash matches {word!r}; `hermes sessions trash` lists them")


def _newest(trashed: list[TrashedSession]) -> list[TrashedSession]:
    """Each conversation in the trash once, as its newest part."""
    compressed = {row["id"] for row in trashed if row["end_reason"] == "compression"}
    continued = {row["parent_session_id"] for row in trashed if row["kind"] in (None, "compression")} & compressed
    return [row for row in trashed if row["id"] not in continued]


@click.command(help="List the trash, and until when each session can be restored.")
@click.option("--empty", is_flag=True, help="Delete everything in the trash permanently, now.")
@yes_option()
@json_option(ROWS)
def trash(empty: bool, yes: bool, as_json: bool) -> None:
    with opened(writing=empty) as db:
        rows = db.list_trash()
        if as_json and not empty:
            print_json(rows)
        elif not rows:
            print("The trash is empty.")
        elif empty:
            number = counted(len(_newest(rows)), "session")
            confirmed(f"Delete {number} for good?", yes=yes)
            with progress("deleting", len(rows)) as step:
                for done, row in enumerate(rows, 1):
                    db.delete_session(row["id"], by="hermes sessions trash --empty")
                    step(done)
            print(f"deleted {number} for good")
        else:
            print(_trash_screen(_newest(rows)))


def _trash_screen(rows: list[TrashedSession]) -> str:
    where, kept_for = zone(), configuration().sessions.trash_days * DAY
    cells = []
    for row in rows:
        at = row["trashed_at"]
        cells.append((row["trashed_title"], row["preview"], ago(at, where), date(at + kept_for, where), row["id"]))
    return _table(cells, Column("Deleted", 10, worth=1), Column("Until", 10, worth=3))


def _table(rows: Iterable[tuple[str | None, ...]], *columns: Column) -> str:
    """Sessions, each with its title and preview first and its id last."""
    cells = [(title or "—", *(one or "" for one in others)) for title, *others in rows]
    return printed([Column("Title", 8, 40, 3), Column("Preview", 8), *columns, Column("ID")], cells)


@click.command(
    help="Put sessions in the trash that ended and had no activity for a while. Pinned and live ones stay. A compressed"
    " conversation is removed with all its parts or not at all."
)
@click.option(
    "--older-than", type=days, metavar="D",
    help="Days without activity: 90, 12h, 2w. Default: sessions.retention_days (90).",
)  # fmt: skip
@source_option("Only sessions of this source.")
@click.option("--now", is_flag=True, help="Delete permanently instead of moving to the trash.")
@yes_option()
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
def prune(older_than: float | None, source: str | None, now: bool, yes: bool, dry_run: bool) -> None:
    after = configuration().sessions.retention_days if older_than is None else older_than
    with opened(writing=not dry_run) as db:
        ids = db.prunable_sessions(after, source, whole=True)
        if not ids:
            print(f"Nothing to prune: no ended session is older than {age(after)}.")
            return
        print(_prune_screen(db, ids))
        if dry_run:
            print(f"{counted(len(ids), 'session')} would be removed (nothing was changed).")
            return
        where = "for good" if now else "in the trash"
        confirmed(f"{'Delete' if now else 'Put'} {counted(len(ids), 'session')} {where}?", yes=yes)
        # Sessions reopened or pinned while the question was open are left out; newly aged ones were not shown.
        still = set(db.prunable_sessions(after, source, whole=True))
        gone = _remove(db, [session_id for session_id in ids if session_id in still], now)
    if now:
        print(f"deleted {counted(gone, 'session')} for good")
        note("`hermes sessions optimize` gives the space back to the disk")
    else:
        print(
            f"put {counted(gone, 'session')} in the trash until {_until()}; `hermes sessions restore ID` brings one back"
        )


def _remove(db: SessionDB, ids: list[str], now: bool) -> int:
    gone = 0
    with progress("pruning", len(ids)) as step:
        for session_id in ids:
            gone += remove(db, session_id, now=now, by="hermes sessions prune")
            step(gone)
    return gone


def _prune_screen(db: SessionDB, ids: list[str]) -> str:
    """The sessions to prune: the first few by name."""
    where = zone()
    rows = []
    for session_id in ids[:_SHOWN]:
        session: Mapping[str, Any] = db.get_session(session_id) or {}
        active = ago(session.get("last_active") or session.get("started_at"), where)
        number = str(session.get("message_count") or 0)
        rows.append((session.get("title"), session.get("preview"), active, number, session_id))
    shown = _table(rows, Column("Last Active", 11, worth=2), Column("Msgs", 4, worth=1))
    return shown + (f"\n… and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")

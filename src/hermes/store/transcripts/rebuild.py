"""Rebuilds a database that is damaged or lost (or whose WAL is): the only code that reads transcripts into rows.

Every row that can still be read stays, and every message, event and change that only the transcripts have is added, under
its own id. A transcript that has messages the database lacks is newer than the database: then its title, tags and other state
count, too. A message that either side knows as redacted stays redacted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.errors import InvalidInput
from hermes.home import has_key_file
from hermes.store.engines.base import REDACTED, Engine, Tx, drop_meta
from hermes.store.exchange.ingest import Ingest, as_row
from hermes.store.records import codec, file_changes, messages, sessions
from hermes.store.records.lineage import StoredRow, references_kept
from hermes.store.transcripts import replay
from hermes.store.transcripts.replay import Entry, ReplayedSession, file_name
from hermes.store.transcripts.writer import LOST, TranscriptFolder, highest_id, tail
from hermes.store.upkeep import retention
from hermes.store.upkeep.check import is_deleted, mend_orphans
from hermes.texts import counted

_HIDDEN = "SELECT id, hidden FROM messages WHERE session_id = ?"


def rebuild_store(path: Path, folder: Path) -> list[str]:
    """Make a database again from its readable rows and its transcripts; what was done. The old file is kept as a copy."""
    from hermes.store import keys
    from hermes.store.engines.sqlite import connection as driver
    from hermes.store.engines.sqlite.check import Later, copy_rows, set_aside, store_rest, write_lock
    from hermes.store.engines.sqlite.engine import SqliteEngine
    from hermes.store.engines.sqlite.foreign import is_database

    files = [] if driver.is_encrypted(path) else TranscriptFolder(folder).all()
    if not files and not (is_database(path) or has_key_file(path)):
        state = "is no database" if path.exists() else "does not exist"
        raise InvalidInput(f"{path} {state}, and {folder} has no transcripts: there is nothing to rebuild")
    fresh = path.with_name(f"{path.name}.rebuilt")
    keys.vault_of(path)  # a missing passphrase is an error before anything is copied
    done = [f"copied the database to {set_aside(path).name}"] if path.exists() else []
    unread: list[str] = []
    with write_lock(path):
        _remove(fresh, "", "-wal", "-shm")
        keys.share(path, fresh)  # an encrypted store stays encrypted
        engine = SqliteEngine(fresh)
        rows, later = copy_rows(engine, path) if path.exists() else (0, Later())
        if not rows and driver.is_encrypted(path):
            engine.close()
            _remove(fresh, "", "-wal", "-shm", "-queue", "-key")
            raise InvalidInput(
                f"no row of {path} can be read, and an encrypted store has no transcripts; restore a backup"
            )
        with engine.write() as tx:
            is_noted = drop_meta(tx, LOST)
            is_lost = is_noted or any(_lacks_newest(tx, file) for file in files)
        sessions, count = _read_transcripts(engine, files, unread, is_lost=is_lost)
        rows += store_rest(engine, later)
        with engine.write() as tx:
            mended = [*mend_orphans(tx), *(_trash_unknown(tx, folder) if is_lost and not later else ())]
            for (session_id,) in tx.rows("SELECT id FROM sessions"):
                messages.recount(tx, session_id)
        engine.rebuild_index()
        file_changes.note_again(engine)
        engine.close()
        _remove(path, "-wal", "-shm")  # first: SQLite would read the old -wal into the new file
        os.replace(fresh, path)
        keys.remove(fresh)
        _remove(fresh, "-queue")
    restored = f"{counted(sessions, 'session')} and {counted(count, 'message')}"
    done += [f"read {counted(rows, 'row')}", f"restored {restored} from transcripts"]
    return [*done, *([f"skipped {', '.join(unread)}, which can't be read"] if unread else []), *mended]


def _remove(path: Path, *ends: str) -> None:
    for end in ends:
        path.with_name(path.name + end).unlink(missing_ok=True)


def _lacks_newest(tx: Tx, path: Path) -> bool:
    """Whether the newest message of a transcript is not in the database."""
    newest = highest_id(tail(path))
    owner = tx.value("SELECT session_id FROM messages WHERE id = ?", (newest,))
    return newest > 0 and file_name(owner or "") != path.name


@dataclass(slots=True)
class _Merged:
    session: ReplayedSession
    ids: dict[int, int]  # by the id in the transcript, the id of each message that was added or moved
    added: int
    is_new: bool  # only the transcript had the session
    counts: bool  # the transcript is newer than the rows


def _read_transcripts(engine: Engine, files: Iterable[Path], unread: list[str], *, is_lost: bool) -> tuple[int, int]:
    """Add what only the transcripts have; how many sessions and messages. `is_lost`: the database lost its newest changes.

    Files that can't be read are added to `unread`.
    """
    merged: dict[str, _Merged] = {}
    for path in files:
        try:
            session = replay.read_transcript(path)
            if session.is_none(path):
                continue
            with engine.write() as tx:
                one = _merge(engine, tx, session, path, is_lost)
            if one is not None:
                merged[session.columns["id"]] = one
        except (InvalidInput, OSError, *replay.MALFORMED):  # an invalid file must not stop the others
            unread.append(path.name)
    ids = {(owner, old): new for owner, one in merged.items() for old, new in one.ids.items()}
    for one in merged.values():  # now that every session they may refer to exists
        with suppress(*replay.MALFORMED), engine.write() as tx:
            _set_state(tx, one, ids)
    fresh = [one for one in merged.values() if one.is_new and not one.session.columns.get("purged")]
    return len(fresh), sum(one.added for one in merged.values())


def _merge(engine: Engine, tx: Tx, session: ReplayedSession, path: Path, is_lost: bool) -> _Merged | None:
    """Add what a transcript has to the rows of its session; None for a session that was deleted since."""
    session_id = session.columns["id"]
    row = tx.row("SELECT purged, transcript FROM sessions WHERE id = ?", (session_id,))
    is_new = row is None or (row[0] is not None and not session.columns.get("purged"))
    if is_new:
        if is_deleted(tx, path, session):
            return None
        replay.insert_session(tx, session.columns)
    sql = "SELECT id, role, timestamp, content FROM messages WHERE session_id = ?"
    stored = {number: (role, at, text) for number, role, at, text in tx.rows(sql, (session_id,))}
    lacking = session.messages.keys() - stored.keys()
    unwritten = stored.keys() - session.messages.keys()
    removed = [one for one in unwritten if one <= session.complete_to and not session.unread]
    is_behind = row is not None and ((row[1] == 0 and not is_lost) or len(removed) < len(unwritten))
    counts = is_new or bool(lacking) or not is_behind
    if counts and session.columns.get("purged") and row is not None and row[0] is None:
        retention.mark_deleted(tx, session_id)
    there = {*map(_identity, session.messages.values()), *(stored[one] for one in unwritten)}
    if counts:
        rows = [replay.message(tx, one) for one in stored.keys() - unwritten]
        for now in replay.with_attachments(tx, session_id, rows):
            if session.messages[now["id"]] != replay.as_read(now):
                messages.set_values(tx, now["id"], as_row(session.messages[now["id"]]))  # a lost edit, or damage
        messages.remove_own(engine, tx, session_id, removed)
    into, ids = Ingest(engine, tx), dict[int, int]()
    if any(tx.row("SELECT 1 FROM messages WHERE id = ?", (one,)) is not None for one in lacking):
        # Another session uses one of these ids: they get new ones, and so do the messages after them.
        rows_here = {row[0]: StoredRow(row[0], session_id, row[1]) for row in tx.rows(_HIDDEN, (session_id,))}
        order = sorted(rows_here.keys() | lacking)
        with references_kept(tx, {session_id}, into.touched) as moved:
            final = into.arrange(session_id, [(session.messages.get(one), rows_here.get(one)) for one in order], moved)
        ids = dict(zip(order, final, strict=True))
    elif lacking:
        tx.reserve(max(lacking))
        ids = {one: into.add(session_id, as_row(session.messages[one]), one) for one in sorted(lacking)}
    loose = [into.add(session_id, as_row(one)) for one in session.loose if _identity(one) not in there]
    if session.events:
        sessions.add_missing_events(tx, session_id, session.events, ids)
    return _Merged(session, ids, len(lacking) + len(loose), is_new, counts)


def _identity(entry: Entry) -> tuple[Any, ...]:
    content = entry.get("content")
    text = content if isinstance(content, (str, type(None))) else codec.to_json(content)
    return entry.get("role"), entry.get("timestamp"), text


def _trash_unknown(tx: Tx, folder: Path) -> list[str]:
    """Of a database that lost its newest changes: sessions that had a transcript and have none now were deleted since."""
    known = tx.column("SELECT id FROM sessions WHERE transcript IS NOT NULL AND trashed_at IS NULL")
    unknown = [one for one in known if not (folder / file_name(one)).exists()]
    gone = [session_id for session_id in unknown if retention.trash(tx, session_id, "rebuild")]
    return [f"moved {len(gone)} sessions without a transcript to the trash"] if gone else []


def _set_state(tx: Tx, one: _Merged, ids: dict[tuple[str, int], int]) -> None:
    """Set columns, tags, members, carried ranges and rewinds as a newer transcript has them; what is redacted stays so."""
    session, session_id = one.session, one.session.columns["id"]
    state, columns = session.state, session.columns

    def new(old: int, *owners: str) -> int:
        return next((ids[owner, old] for owner in owners if (owner, old) in ids), old)

    if one.counts and session.is_begun:  # what its lines leave out is empty
        if not one.is_new:
            tx.run("DELETE FROM sessions WHERE id = ?", (session_id,))
            replay.insert_session(tx, {**columns, "title": None} if columns.get("trashed_at") else columns)
        tx.run("UPDATE messages SET hidden = NULL WHERE session_id = ? AND hidden > 0", (session_id,))
        owners = (session_id, *(owner for _, owner, *_ in state["refs"]))
        refs = [
            [number, owner, new(first, owner), new(last, owner), new(after, session_id), *rest]
            for number, owner, first, last, after, *rest in state["refs"]
        ]
        rewinds = [[batch, new(cut, *owners)] for batch, cut in state["rewinds"]]
        hidden = [[new(old, session_id), kind] for old, kind in state["hidden"]]
        state = {**state, "refs": refs, "rewinds": rewinds, "hidden": hidden}
        replay.set_state(tx, session_id, state)
    for message_id in session.redacted:
        sql = "UPDATE messages SET hidden = ? WHERE id = ? AND session_id = ?"
        tx.run(sql, (REDACTED, new(message_id, session_id), session_id))
    tx.run("UPDATE sessions SET transcript = 1 WHERE id = ?", (session_id,))

"""Makes a database anew, where it (or its WAL) was lost or is damaged: the only code that reads transcripts into rows.

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

from hermes.errors import InvalidInput
from hermes.home import companion, has_key_file
from hermes.store import codec, message_values, messages, retention, session_events, sessions, transcript_replay
from hermes.store.check import is_deleted
from hermes.store.engines.base import REDACTED, Engine, Tx
from hermes.store.repair import mend_orphans
from hermes.store.transcript import Entry, file_name, highest_id, tail
from hermes.store.transcript_replay import ReplayedSession
from hermes.store.transcript_writer import LOST


def rebuild(folder: Path, target: Path) -> dict[str, int]:
    """Read every transcript of a folder into a new database; {"sessions", "messages", "skipped"}."""
    from hermes.store.engines.sqlite import SqliteEngine

    if target.exists():
        raise InvalidInput(f"{target} exists already; choose the name of a new file")
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder of transcripts")
    engine = SqliteEngine(target)
    try:
        beside = folder.resolve() == companion(target, "sessions").resolve()
        counts = _read_transcripts(engine, _transcripts(folder), [], beside=beside)
        engine.catch_up()
    finally:
        engine.close()
    return counts


def rebuild_store(path: Path, folder: Path) -> list[str]:
    """Make a database again from its readable rows and its transcripts; what was done. The old file is kept as a copy."""
    from hermes.store import encryption_keys
    from hermes.store.engines.sqlite import cipher
    from hermes.store.engines.sqlite.engine import SqliteEngine
    from hermes.store.engines.sqlite.foreign_database import is_database
    from hermes.store.engines.sqlite.salvage import Later, copy_rows, set_aside, store_rest, write_lock

    files = [] if cipher.is_encrypted(path) else _transcripts(folder)
    if not files and not (is_database(path) or has_key_file(path)):
        state = "is no database" if path.exists() else "does not exist"
        raise InvalidInput(f"{path} {state}, and {folder} has no transcripts: there is nothing to rebuild")
    fresh = path.with_name(f"{path.name}.rebuilt")
    encryption_keys.vault_of(path)  # a missing passphrase is an error before anything is copied
    done = [f"copied the database to {set_aside(path).name}"] if path.exists() else []
    unread: list[str] = []
    with write_lock(path):
        for suffix in ("", "-wal", "-shm"):
            fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
        encryption_keys.share(path, fresh)  # an encrypted store stays encrypted
        engine = SqliteEngine(fresh)
        rows, later = copy_rows(engine, path) if path.exists() else (0, Later())
        if not rows and cipher.is_encrypted(path):
            engine.close()
            for suffix in ("", "-wal", "-shm", "-queue", "-key"):
                fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
            raise InvalidInput(
                f"no row of {path} can be read, and an encrypted store has no transcripts; restore a backup"
            )
        with engine.write() as tx:
            is_noted = tx.run("DELETE FROM state_meta WHERE key = ?", (LOST,)) > 0
            is_lost = is_noted or any(_lacks_newest(tx, file) for file in files)
        counts = _read_transcripts(engine, files, unread, beside=True, is_lost=is_lost)
        rows += store_rest(engine, later)
        with engine.write() as tx:
            mended = [*mend_orphans(tx), *(_trash_unknown(tx, folder) if is_lost and not later else ())]
            for (session_id,) in tx.rows("SELECT id FROM sessions"):
                messages.recount(tx, session_id)
        engine.rebuild_index()
        engine.close()
        for suffix in ("-wal", "-shm"):  # first: SQLite would read the old -wal into the new file
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        os.replace(fresh, path)
        encryption_keys.remove(fresh)
        fresh.with_name(fresh.name + "-queue").unlink(missing_ok=True)
    back = f"restored {counts['sessions']} sessions and {counts['messages']} messages from transcripts"
    if cipher.is_encrypted(path):
        back = "an encrypted store has no transcripts"
    skipped = [f"skipped {', '.join(unread)}, which can't be read"] if unread else []
    return [*done, f"read {rows} rows", back, *skipped, *mended]


def _transcripts(folder: Path) -> list[Path]:
    """The transcripts in a folder, in the order of their names."""
    return sorted(path for path in folder.glob("*.jsonl") if path.is_file())


def _lacks_newest(tx: Tx, path: Path) -> bool:
    """Whether the newest message of a transcript is not in the database."""
    newest = highest_id(tail(path))
    return (
        newest > 0 and file_name(tx.value("SELECT session_id FROM messages WHERE id = ?", (newest,)) or "") != path.name
    )


@dataclass(slots=True)
class _Merged:
    session: ReplayedSession
    ids: dict[int, int]  # by the id in the transcript, the id of each message that was added
    is_new: bool  # only the transcript had the session
    counts: bool  # the transcript is newer than the rows


def _read_transcripts(
    engine: Engine, files: Iterable[Path], unread: list[str], *, beside: bool, is_lost: bool = True
) -> dict[str, int]:
    """Add what only the transcripts have. `beside`: they are the database's own from now on; `is_lost`: it lost its newest
    changes. Those that can't be read are added to `unread`."""
    counts = {"sessions": 0, "messages": 0, "skipped": 0}
    merged: dict[str, _Merged] = {}
    for path in files:
        try:
            session = transcript_replay.read_transcript(path)
            if session.is_empty or session.is_copy(path):
                counts["skipped"] += 1
                continue
            if session.events:
                session_events.prepare(engine)
            with engine.write() as tx:
                known = tx.value("SELECT count(*) FROM sessions WHERE purged IS NULL")
                one = _merge(engine, tx, session, path, is_lost)
                if one is None:
                    continue
                counts["sessions"] += tx.value("SELECT count(*) FROM sessions WHERE purged IS NULL") - known
        except (InvalidInput, OSError, *transcript_replay.MALFORMED):  # an invalid file must not stop the others
            counts["skipped"] += 1
            unread.append(path.name)
            continue
        counts["messages"] += len(one.ids)
        merged[session.columns["id"]] = one
    ids = {session_id: one.ids for session_id, one in merged.items()}
    for session_id, one in merged.items():  # now that every session they may refer to exists
        with suppress(*transcript_replay.MALFORMED), engine.write() as tx:
            _set_state(tx, session_id, one, ids)
    with engine.write() as tx:
        transcript_replay.cut_loose_parents(tx)
        for session_id in merged:
            messages.recount(tx, session_id)
            tx.run("UPDATE sessions SET transcript = ? WHERE id = ?", (1 if beside else None, session_id))
    return counts


def _merge(engine: Engine, tx: Tx, session: ReplayedSession, path: Path, is_lost: bool) -> _Merged | None:
    """Add what a transcript has to the rows of its session; None for a session that was deleted since."""
    session_id = session.columns["id"]
    row = tx.row("SELECT purged, transcript FROM sessions WHERE id = ?", (session_id,))
    is_new = row is None or (row[0] is not None and not session.columns.get("purged"))
    if is_new:
        if is_deleted(tx, path, session):
            return None
        transcript_replay.insert_session(tx, session.columns)
    sql = "SELECT id, role, timestamp, content FROM messages WHERE session_id = ?"
    stored = {number: (role, at, text) for number, role, at, text in tx.rows(sql, (session_id,))}
    lacking = session.messages.keys() - stored.keys()
    untold = stored.keys() - session.messages.keys()
    removed = [one for one in untold if one <= session.complete_to and not session.unread]
    is_behind = row is not None and ((row[1] == 0 and not is_lost) or len(removed) < len(untold))
    counts = is_new or bool(lacking) or not is_behind
    if counts and session.columns.get("purged") and row is not None and row[0] is None:
        retention.mark_deleted(tx, session_id)
    there = {(one.get("role"), one.get("timestamp"), _text(one)) for one in session.messages.values()}
    there.update(stored[one] for one in untold)
    session.loose = [one for one in session.loose if (one.get("role"), one.get("timestamp"), _text(one)) not in there]
    for message_id in stored.keys() & session.messages.keys() if counts else ():
        (row_now,) = transcript_replay.with_attachments(tx, session_id, [transcript_replay.message(tx, message_id)])
        if not transcript_replay.same_message(session.messages[message_id], transcript_replay.message_entry(row_now)):
            ready = message_values.make_ready(session.messages[message_id], mask=None, lift=None)
            messages.set_values(tx, message_id, ready)  # an edit that was lost, or damage that can be read
            engine.fulltext.reindex(tx, [message_id])
    if counts:
        messages.remove_own(engine, tx, session_id, removed)
    ids = transcript_replay.insert_messages(engine, tx, session)
    if session.events:
        session_events.bring_in(tx, session_id, session.events, ids)
    return _Merged(session, ids, is_new, counts)


def _trash_unknown(tx: Tx, folder: Path) -> list[str]:
    """Of a database that lost its newest changes: sessions that had a transcript and have none now were deleted since."""
    known = [row[0] for row in tx.rows("SELECT id FROM sessions WHERE transcript IS NOT NULL AND trashed_at IS NULL")]
    unknown = [one for one in known if not (folder / file_name(one)).exists()]
    gone = [session_id for session_id in unknown if retention.trash(tx, session_id, "rebuild")]
    return [f"moved {len(gone)} sessions without a transcript to the trash"] if gone else []


def _text(entry: Entry) -> str | None:
    content = entry.get("content")
    return content if isinstance(content, (str, type(None))) else codec.to_json(content)


def _set_state(tx: Tx, session_id: str, one: _Merged, ids: dict[str, dict[int, int]]) -> None:
    session = one.session
    if one.counts and session.is_begun:  # what its lines leave out is empty
        if not one.is_new:
            _replace_row(tx, session_id, session.columns)
        told: transcript_replay.ToldState = {"tags": [], "members": [], "refs": [], "rewinds": [], "hidden": []}
        tx.run("UPDATE messages SET hidden = NULL WHERE session_id = ? AND hidden > 0", (session_id,))
        state = transcript_replay.state_here(session_id, {**told, **session.state}, ids)
        transcript_replay.set_state(tx, session_id, state)
    for message_id in session.redacted:
        sql = "UPDATE messages SET hidden = ? WHERE id = ? AND session_id = ?"
        tx.run(sql, (REDACTED, one.ids.get(message_id, message_id), session_id))


def _replace_row(tx: Tx, session_id: str, columns: transcript_replay.Columns) -> None:
    """Set a session's columns as its transcript tells them; a prompt whose file is missing stays."""
    if columns.get("system_prompt") is None and columns.get("system_prompt_hash") is not None:
        was = tx.value(f"SELECT {sessions.PROMPT} FROM sessions s WHERE s.id = ?", (session_id,))
        columns = {**columns, "system_prompt": codec.restored(was)}
    tx.run("DELETE FROM sessions WHERE id = ?", (session_id,))
    transcript_replay.insert_session(tx, {**columns, "title": None} if columns.get("trashed_at") else columns)

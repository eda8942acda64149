"""Repairs what check() finds, after making a copy of the file.

The database is authoritative. Repair restores what damage destroyed from the transcripts, and rewrites transcripts where
they are wrong; it never undoes a change or deletion made on purpose. Where damage and intent can't be distinguished it
leaves both sides as they are, unless the caller says which one counts. A file too damaged for that is rebuilt
from the rows that can still be read and from the transcripts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import StoreCorrupt
from hermes.store import codec, message_values, messages, session_events, sessions, transcript_replay
from hermes.store.attachments import Attachments
from hermes.store.consistency import UNDECIDED, Difference, check, transcripts
from hermes.store.engines.base import Engine, Tx
from hermes.store.engines.sqlite.inspection import copy_name, set_aside
from hermes.store.retention import finish_deletions
from hermes.store.transcript_comparison import Comparer, Comparison, read
from hermes.store.transcript_restore import (
    Restored,
    bring_home,
    insert_lost,
    overwrite,
    restore_session,
    restore_state,
    set_columns,
    set_told_state,
)
from hermes.store.transcript_writer import TranscriptWriter

if TYPE_CHECKING:
    from hermes.store.rows import Finding

DATABASE, TRANSCRIPTS = "database", "transcripts"


def repair(
    engine: Engine,
    scribe: TranscriptWriter,
    attachments: Attachments,
    path: Path,
    backup: Callable[[Path], None],
    *,
    rebuild_index: bool = False,
    side: str | None = None,
) -> list[str] | None:
    """Repair what check() finds; returns what was done, or None when the file itself is damaged (see salvage).

    `side` selects the version that counts where database and transcripts differ and neither is known to be damaged.
    """
    found = check(engine, scribe, attachments)
    kinds = {finding["kind"] for finding in found}
    if "corruption" in kinds:
        return None
    if not found and not rebuild_index:
        return []
    if kinds <= {UNDECIDED, "attachment", "half-shredded"} and side is None and not rebuild_index:
        return []  # nothing of it can be repaired: the caller decides, or a backup is needed
    copy = copy_name(path)
    backup(copy)
    done = [f"copied the database to {copy.name}"]
    if "damaged-row" in kinds:
        count = engine.put_values_right(_Known(engine, scribe))
        done.append(f"corrected {count} damaged values")
        found = check(engine, scribe, attachments)
        kinds = {finding["kind"] for finding in found}
    if "half-deleted" in kinds:
        count = finish_deletions(engine, scribe)
        done.append(f"finished {count} deletions that had been interrupted")
    done += _mend_prompts(engine, scribe, found)
    done += _mend_transcripts(engine, scribe, transcripts(engine, scribe), side)
    done += _mend_texts(engine, scribe, found)
    with engine.write() as tx:
        done += _mend_orphans(tx)
        wrong = [finding["where"].removeprefix("session ") for finding in found if finding["kind"] == "counters"]
        for session_id in wrong:
            messages.recount(tx, session_id)
        if wrong:
            done.append(f"recounted {len(wrong)} sessions")
    if rebuild_index or any(kind.startswith("fts-") and kind != "fts-waiting" for kind in kinds):
        engine.rebuild_index()
        done.append("rebuilt the full-text index")
    elif "fts-waiting" in kinds:
        done.append(f"indexed {engine.catch_up()} messages")
    return done


class _Known:
    """Restore damaged values that the transcripts have."""

    def __init__(self, engine: Engine, scribe: TranscriptWriter) -> None:
        self._engine = engine
        self._journal = scribe.journal

    def __call__(self, table: str, key: Any, column: str) -> Any:
        if table == "messages":
            return self._of_message(key, column)
        if table == "sessions":
            return self._of_session(key, column)
        raise LookupError

    def _told(self, sql: str, key: Any) -> transcript_replay.ReplayedSession:
        try:
            with self._engine.read() as tx:
                raw = tx.value(sql, (key,))
            session_id = raw.decode("utf-8", "strict") if isinstance(raw, bytes) else str(raw)
            return read(self._journal.path(session_id), session_id).session
        except (UnicodeDecodeError, OSError):
            raise LookupError from None

    def _of_message(self, message_id: int, column: str) -> Any:
        if column == "session_id":
            raise LookupError
        told = self._told("SELECT CAST(session_id AS BLOB) FROM messages WHERE id = ?", message_id)
        ready = message_values.make_ready(told.messages[message_id], mask=None, lift=None)
        return ready.values._asdict()[column]

    def _of_session(self, rowid: int, column: str) -> Any:
        if column == "id" or column not in transcript_replay.COLUMNS:
            raise LookupError
        value = self._told("SELECT CAST(id AS BLOB) FROM sessions WHERE rowid = ?", rowid).columns.get(column)
        if value is None and column in ("source", "started_at"):
            raise LookupError
        return codec.storable(value) if isinstance(value, str) else value


# ----------------------------------------------------------------------------------------- transcripts


def _mend_transcripts(
    engine: Engine,
    scribe: TranscriptWriter,
    differences: list[Difference],
    side: str | None,
) -> list[str]:
    tally = {"back": 0, "changed": 0, "moved": 0, "written": 0, "sessions": 0}
    done = []
    for finding, path in differences:
        if isinstance(path, Path):
            done += _mend_file(engine, scribe, finding, path, side, tally)
    sessions_found = {one.session_id: one for _, one in differences if isinstance(one, Comparison)}
    # Move messages to their sessions first: else the session they are stored under writes them into its transcript.
    for one in sorted(sessions_found.values(), key=lambda one: not (one.astray or one.moved)):
        _mend_session(engine, scribe, one, side, tally)
    texts = {
        "sessions": "restored {} sessions from transcripts",
        "back": "restored {} messages from transcripts",
        "changed": "restored the text of {} messages from transcripts",
        "moved": "moved {} messages back to their session",
        "written": "rewrote {} transcripts",
    }
    return [*done, *(text.format(tally[name]) for name, text in texts.items() if tally[name])]


def _mend_file(
    engine: Engine, scribe: TranscriptWriter, finding: Finding, path: Path, side: str | None, tally: dict[str, int]
) -> list[str]:
    """A transcript whose session is not in the database."""
    kind, by_sql = finding["kind"], "with SQL" in finding["detail"]
    if kind == "lost-session" or (side == TRANSCRIPTS and (kind == UNDECIDED or by_sql)):
        set_aside(path)
        session_id, restored, back = restore_session(engine, path)
        restore_state(engine, {session_id: restored})
        tally["sessions"] += 1
        tally["back"] += back
        scribe.rewritten(session_id)
        return []
    if kind == "transcript-left" and not by_sql:
        path.unlink(missing_ok=True)
        return [f"removed the transcript {path.name} of a deleted session"]
    if kind == "transcript-left" or side == DATABASE:
        copy = set_aside(path)
        path.unlink(missing_ok=True)
        return [f"renamed the transcript {path.name} to {copy.name}: its session is not in the database"]
    return []


def _mend_session(
    engine: Engine,
    scribe: TranscriptWriter,
    one: Comparison,
    side: str | None,
    tally: dict[str, int],
) -> None:
    path = scribe.journal.path(one.session_id)
    restore = side == TRANSCRIPTS
    if path.exists():
        set_aside(path)
    if restore and one.events:
        session_events.prepare(engine)
    with engine.write() as tx:
        fresh = (
            Comparer(engine, tx, scribe.journal.path, [one.session_id]).compare(one.session_id) or one
        )  # read again under the lock
        tally["changed"] += overwrite(engine, tx, fresh, restore=restore, salvaging=False)
        home = {**fresh.astray, **(fresh.moved if restore else {})}
        for holder in bring_home(tx, one.session_id, home):
            messages.recount(tx, holder)
        tally["moved"] += len(home)
        back = [*fresh.lost, *(fresh.absent.values() if restore else ())]
        if restore and fresh.removed:
            told = read(path, one.session_id).session.messages
            back += [told[i] for i in fresh.removed if not tx.row("SELECT 1 FROM messages WHERE id = ?", (i,))]
        count, places = insert_lost(engine, tx, one.session_id, back)
        tally["back"] += count
        if restore:
            set_columns(tx, one.session_id, fresh.columns)
            set_told_state(tx, one.session_id, fresh.state, places)
            if one.events:
                session_events.put_back(tx, one.session_id, fresh.events, places)
        messages.recount(tx, one.session_id)
        settled = side is not None or not fresh.undecided()
        if settled:  # the transcript will be rewritten from the rows
            tx.changed_by_us([*fresh.edited, *fresh.removed])
    if settled:
        scribe.rewritten(one.session_id)
        tally["written"] += 1


# ----------------------------------------------------------------------------------------- rows


def _mend_texts(engine: Engine, scribe: TranscriptWriter, found: list[Finding]) -> list[str]:
    """Texts that no transcript has: store what can be read of them."""
    damaged = [int(one["where"].removeprefix("message ")) for one in found if one["kind"] == "damaged-text"]
    if not damaged:
        return []
    with engine.write() as tx:
        left = [message_id for message_id in damaged if not _is_whole(tx, message_id)]
        for message_id in left:
            head, rest = tx.row("SELECT content, content_rest FROM messages WHERE id = ?", (message_id,)) or (
                None,
                None,
            )
            text = head.decode("utf-8", "replace") if isinstance(head, bytes) else head or ""
            text = text if codec.is_whole(rest) and rest is None else text + codec.DAMAGED
            sql = "UPDATE messages SET content = ?, content_rest = NULL, content_format = NULL WHERE id = ?"
            tx.run(sql, (text, message_id))
        tx.changed_by_us(left)
        engine.fulltext.reindex(tx, left)
        touched = {tx.value("SELECT session_id FROM messages WHERE id = ?", (message_id,)) for message_id in left}
    for session_id in touched if scribe.journal.folder.is_dir() else ():
        scribe.rewritten(session_id)
    return [f"stored what can be read of {len(left)} damaged messages"] if left else []


def _is_whole(tx: Tx, message_id: int) -> bool:
    row = tx.row("SELECT content, content_rest, content_format FROM messages WHERE id = ?", (message_id,))
    if row is None:
        return True
    head, rest, form = row
    try:
        text = codec.joined(head, rest)
    except StoreCorrupt:
        return False
    return form in (None, "text") or (form == "json" and isinstance(codec.from_json(text), (list, dict)))


def _mend_orphans(tx: Tx) -> list[str]:
    done = []
    lost = tx.rows(
        "SELECT m.session_id, min(m.timestamp) FROM messages m LEFT JOIN sessions s ON s.id = m.session_id WHERE s.id IS NULL"
        " GROUP BY m.session_id"
    )
    for session_id, started in lost:
        sessions.create(tx, session_id, "unknown", {"started_at": started})
        messages.recount(tx, session_id)
    if lost:
        done.append(f"recreated {len(lost)} sessions that messages belong to")
    cut = transcript_replay.cut_loose_parents(tx)
    if cut:
        done.append(f"cut {cut} links to parents that do not exist")
    for table in ("session_refs", "session_tags", "session_members", "session_rewinds"):
        gone = tx.run(
            f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = {table}.session_id)"
        )
        if gone:
            done.append(f"removed {gone} rows of {table} without a session")
    return done


def _mend_prompts(engine: Engine, scribe: TranscriptWriter, found: list[Finding]) -> list[str]:
    wrong = [finding["where"].removeprefix("session ") for finding in found if finding["kind"] == "prompt"]
    for session_id in wrong:
        path = scribe.journal.path(session_id)
        text = transcript_replay.read_transcript(path).columns.get("system_prompt") if path.exists() else None
        with engine.write() as tx:
            digest = tx.value("SELECT system_prompt_hash FROM sessions WHERE id = ?", (session_id,))
            if isinstance(text, str):
                tx.run("DELETE FROM system_prompts WHERE hash = ?", (digest,))
                sessions.set_prompt(tx, session_id, text)
            else:  # the remaining text counts from now on
                left = tx.value(f"SELECT {sessions.PROMPT} FROM sessions s WHERE s.id = ?", (session_id,))
                sessions.set_prompt(tx, session_id, codec.restored(left))
    return [f"corrected {len(wrong)} system prompts"] if wrong else []


# ----------------------------------------------------------------------------------------- salvage


def salvage(path: Path, folder: Path) -> list[str]:
    """Rebuild a damaged database from the rows that can be read and from the transcripts."""
    from hermes.store import encryption_keys
    from hermes.store.engines.sqlite.engine import SqliteEngine
    from hermes.store.engines.sqlite.salvage import copy_rows

    copy = set_aside(path)
    fresh = path.with_name(f"{path.name}.rebuilt")
    for suffix in ("", "-wal", "-shm"):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    encryption_keys.share(path, fresh)  # an encrypted store stays encrypted
    engine = SqliteEngine(fresh)
    rows = copy_rows(engine, path)
    tally = {"back": 0, "changed": 0, "moved": 0, "sessions": 0}
    restored: dict[str, Restored] = {}
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    for file in files:
        _salvage_session(engine, file, tally, restored)
    restore_state(engine, restored)
    for file in files:
        _salvage_messages(engine, file, tally)
    with engine.write() as tx:
        done = _mend_orphans(tx)
        for (session_id,) in tx.rows("SELECT id FROM sessions"):
            messages.recount(tx, session_id)
    engine.rebuild_index()
    engine.close()
    os.replace(fresh, path)
    encryption_keys.remove(fresh)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    fresh.with_name(fresh.name + "-queue").unlink(missing_ok=True)
    return [
        f"copied the damaged file to {copy.name}",
        f"read {rows} rows out of it",
        f"restored {tally['sessions']} sessions and {tally['back']} messages from transcripts",
        f"restored the text of {tally['changed']} messages from transcripts",
        *done,
    ]


def _salvage_session(engine: Engine, file: Path, tally: dict[str, int], restored: dict[str, Restored]) -> None:
    session_id = transcript_replay.read_transcript(file).columns["id"]
    with engine.read() as tx:
        known = tx.row("SELECT 1 FROM sessions WHERE id = ?", (session_id,)) is not None
        deleted = not known and tx.row("SELECT 1 FROM audit WHERE session_id = ? AND action = 'delete'", (session_id,))
    if known or deleted:
        return
    _, restored[session_id], back = restore_session(engine, file)
    tally["sessions"] += 1
    tally["back"] += back


def _salvage_messages(engine: Engine, file: Path, tally: dict[str, int]) -> None:
    session = transcript_replay.read_transcript(file)
    session_id = session.columns["id"]
    if session.events:
        session_events.prepare(engine)
    with engine.write() as tx:
        if not tx.run("UPDATE sessions SET transcript = 1 WHERE id = ?", (session_id,)):
            return  # it was deleted
        one = Comparer(engine, tx, lambda _: file, [session_id]).compare(session_id)
        if one is None:
            return
        tally["changed"] += overwrite(engine, tx, one, restore=False, salvaging=True)
        count, places = insert_lost(engine, tx, session_id, [*one.lost, *one.absent.values()])
        tally["back"] += count
        bring_home(tx, session_id, one.astray)
        set_told_state(tx, session_id, one.state, places)
        if one.events:
            session_events.put_back(tx, session_id, one.events, places)

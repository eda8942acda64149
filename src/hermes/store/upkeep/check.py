"""Checks that a store is complete and consistent, repairs what it finds, and rebuilds a damaged or lost database.

`check` reads the file, every value of every row, the index, the references, the counters and the transcripts. Other processes
may write meanwhile: only what a second look finds as well counts.

`repair` makes a copy of the file first. The database is the truth: index, counters and references are made again from its rows,
and transcripts that differ are written again (the old file is set aside).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes.errors import InvalidInput, StoreCorrupt
from hermes.home import has_key_file
from hermes.store.engines.base import REDACTED, Engine, Tx, drop_meta, finding, get_meta, meta_names
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite import migrate
from hermes.store.engines.sqlite.check import copy_name
from hermes.store.engines.sqlite.connection import Connection, SqliteTx, holder_of
from hermes.store.engines.sqlite.fulltext import SqliteFullText
from hermes.store.exchange.ingest import Ingest, as_row
from hermes.store.records import codec, file_changes, message_reading, message_values, messages, sessions
from hermes.store.records.lineage import StoredRow, references_kept
from hermes.store.records.rows import Finding
from hermes.store.search import vectors
from hermes.store.transcripts import replay
from hermes.store.transcripts.replay import Entry, ReplayedSession, file_name
from hermes.store.transcripts.writer import LOST, TranscriptFolder, TranscriptWriter, highest_id, tail
from hermes.store.upkeep import retention
from hermes.store.upkeep.retention import SHREDDING, finish_deletions, half_deleted
from hermes.texts import counted

_PAUSE = 1.0  # seconds before a second look at what is wrong: while others write, a line follows its commit
DAMAGED = frozenset(("corruption", "damaged-row", "damaged-text", "lost"))  # only a rebuild helps
_LOST = "its newest messages were lost, the transcripts have them; `hermes sessions rebuild` brings them back"
DELETED = "its session was deleted, the transcript was not"
TABLES = ("session_refs", "session_tags", "session_members", "session_rewinds")  # whose rows belong to a session
_HIDDEN = "SELECT id, hidden FROM messages WHERE session_id = ?"


def check(engine: Engine, transcripts: TranscriptWriter) -> list[Finding]:
    """Everything that is wrong, [] when the store is sound."""
    found = _look(engine, transcripts)
    if not found or not DAMAGED.isdisjoint(one["kind"] for one in found):
        return found
    time.sleep(_PAUSE)  # other processes may have been in the middle of something
    first = {(one["kind"], one["where"]) for one in found}
    return [one for one in _look(engine, transcripts) if (one["kind"], one["where"]) in first]


def _look(engine: Engine, transcripts: TranscriptWriter) -> list[Finding]:
    try:
        transcripts.settle()
        found = engine.problems()
        if not DAMAGED.isdisjoint(one["kind"] for one in found):
            return found
        with engine.read() as tx:
            found += [*_orphans(tx), *_counters(tx), *_recorded(tx)]
            is_empty = tx.row("SELECT 1 FROM sessions LIMIT 1") is None
        findings = list(_transcripts(engine, transcripts))
        if is_empty and any("rebuild" in one["detail"] for one in findings):
            found.append(finding("lost", "the database", _LOST))
        return found + findings
    except StoreCorrupt as error:
        return [finding("corruption", "file", str(error))]


def _orphans(tx: Tx) -> Iterator[Finding]:
    for table in ("messages", *TABLES):
        kind = "orphan-messages" if table == "messages" else "orphan-rows"
        sql = f"SELECT session_id, count(*) FROM {table} WHERE session_id NOT IN (SELECT id FROM sessions) GROUP BY session_id"
        for session_id, count in tx.rows(sql):
            yield finding(kind, f"session {session_id}", f"{count} {table} of a session that does not exist")
    for session_id, parent in tx.rows(
        "SELECT s.id, s.parent_session_id FROM sessions s LEFT JOIN sessions p ON p.id = s.parent_session_id"
        " WHERE s.parent_session_id IS NOT NULL AND p.id IS NULL"
    ):
        yield finding("orphan-parent", f"session {session_id}", f"its parent {parent} does not exist")


def _recorded(tx: Tx) -> Iterator[Finding]:
    """Deletions that were interrupted, and notes of the store itself: lost newer messages, unfinished shreddings."""
    for session_id in half_deleted(tx):
        yield finding("half-deleted", f"session {session_id}", "its deletion was interrupted")
    if get_meta(tx, LOST) is not None:
        yield finding("lost", "the database", _LOST)
    for session_id in meta_names(tx, SHREDDING):
        hint = f"files may still hold deleted text of it; `hermes sessions delete --shred {session_id}` removes it"
        yield finding("half-shredded", f"session {session_id}", hint)


def _counters(tx: Tx) -> Iterator[Finding]:
    """Sessions whose counters are not those of the messages they show."""
    sql = "SELECT session_id, count(*), 0, max(timestamp) FROM messages WHERE hidden IS NULL GROUP BY session_id"
    right = {session_id: counted for session_id, *counted in tx.rows(sql)}
    for session_id, calls in tx.rows(
        "SELECT session_id, tool_calls FROM messages WHERE hidden IS NULL AND tool_calls IS NOT NULL"
    ):
        right[session_id][1] += message_values.count_calls(codec.restored(calls))
    sql = "SELECT id, coalesce(message_count, 0), coalesce(tool_call_count, 0), active_at FROM sessions WHERE purged IS NULL"
    for session_id, *counters in tx.rows(sql):
        wanted = right.get(session_id, [0, 0, None])
        if counters != wanted:
            detail = f"the row has {counters}, its messages give {wanted}"
            yield finding("counters", f"session {session_id}", detail)


# ---------------------------------------------------------------------------------------- transcripts


def _transcripts(engine: Engine, transcripts: TranscriptWriter) -> Iterator[Finding]:
    """Transcripts that differ from their sessions, are missing or can't be read, and those without a session."""
    if transcripts.which == "off" or engine.shared or not transcripts.files.folder.is_dir():
        return  # of a shared store each host has the transcripts of the sessions it served: copies
    with engine.read() as tx:
        left = set(half_deleted(tx))
        ids = [one for one in tx.column("SELECT id FROM sessions ORDER BY id") if one not in left]
    for session_id in ids:
        with engine.read() as tx:
            row = tx.row("SELECT transcript FROM sessions WHERE id = ?", (session_id,))
            detail = None if row is None else _difference(tx, transcripts, session_id, row[0] is not None)
        if detail is not None:
            yield finding("transcript", f"session {session_id}", detail)
    for where, detail in _stray_files(engine, transcripts):
        yield finding("transcript", where, detail)


def _difference(tx: Tx, transcripts: TranscriptWriter, session_id: str, had_one: bool) -> str | None:
    """How a session's transcript differs from its rows, which count; None where it agrees, or none is wanted."""
    try:
        replayed = replay.read_transcript(transcripts.files.path(session_id))
    except FileNotFoundError:
        showing = tx.rows("SELECT DISTINCT session_id FROM session_refs WHERE from_session = ?", (session_id,))
        is_missed = had_one or any(transcripts.files.exists(row[0]) for row in showing)  # they have not its messages
        return "its transcript is missing" if is_missed else None
    except OSError as error:
        return f"its transcript is unreadable: {error.strerror or error}"
    if replayed.loose and not replayed.is_begun:
        return None  # another program's file
    found = replay.differences(tx, session_id, replayed)
    return f"its transcript differs: {', '.join(found)}" if found else None


def _stray_files(engine: Engine, transcripts: TranscriptWriter) -> Iterator[tuple[str, str]]:
    """The files of transcripts whose session the database does not have, each with the reason."""
    paths = sorted(transcripts.files.folder.glob("*.jsonl"))  # before the names: files follow their sessions
    with engine.read() as tx:
        known = {transcripts.files.path(row[0]).name for row in tx.rows("SELECT id FROM sessions")}
        for path in (one for one in paths if one.name not in known and one.is_file()):
            try:
                replayed = replay.read_transcript(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield path.name, f"it is unreadable: {error.strerror or error}"
                continue
            if replayed.is_none(path):
                continue
            if is_deleted(tx, path, replayed):
                yield path.name, DELETED
            else:
                yield path.name, "its session is not in the database; `hermes sessions rebuild` brings it back"


def is_deleted(tx: Tx, path: Path, replayed: replay.ReplayedSession) -> bool:
    """Whether the session of a transcript was deleted after the file was written; an import may have brought it back since."""
    sql = "SELECT at, detail FROM audit WHERE session_id = ? AND action = 'delete' ORDER BY id DESC LIMIT 1"
    row = tx.row(sql, (str(replayed.columns["id"]),))
    if row is None or str(row[1] or "").startswith("shredded"):
        return row is not None  # what was shredded never comes back
    stamps = [replayed.columns.get("started_at"), *(one.get("timestamp") for one in replayed.messages.values())]
    if not replayed.columns.get("purged"):  # that of a tombstone is written after the deletion
        stamps.append(path.stat().st_mtime)
    return all(stamp <= row[0] for stamp in stamps if isinstance(stamp, (int, float)))


# ---------------------------------------------------------------------------------------- repairing


def repair(
    engine: Engine,
    transcripts: TranscriptWriter,
    path: Path,
    backup: Callable[[Path], object],
    *,
    rebuild_index: bool = False,
) -> list[str] | None:
    """Repair what check() finds; returns what was done, or None when rows can't be read: then a rebuild is needed."""
    found = check(engine, transcripts)
    by_kind: dict[str, list[str]] = {}
    for one in found:
        by_kind.setdefault(one["kind"], []).append(one["where"].removeprefix("session "))
    if not by_kind.keys().isdisjoint(DAMAGED):
        return None
    if not rebuild_index and by_kind.keys() <= {"half-shredded"}:  # only shredding again helps
        return []
    copy = copy_name(path)
    backup(copy)
    done = [f"copied the database to {copy.name}"]
    if "half-deleted" in by_kind:
        done.append(f"finished {finish_deletions(engine, transcripts)} deletions that had been interrupted")
    with engine.write() as tx:
        done += mend_orphans(tx)
        for session_id in by_kind.get("counters", ()):
            messages.recount(tx, session_id)
    if "counters" in by_kind:
        done.append(f"corrected {len(by_kind['counters'])} counters of sessions")
    if rebuild_index or any(kind.startswith("fts-") for kind in by_kind):
        engine.rebuild_index()
        file_changes.note_again(engine)
        done.append("rebuilt the full-text index")
    return done + _rewrite_transcripts(transcripts, found)


def _rewrite_transcripts(transcripts: TranscriptWriter, found: list[Finding]) -> list[str]:
    done = []
    for where, detail in ((one["where"], one["detail"]) for one in found if one["kind"] == "transcript"):
        if detail == DELETED:
            (transcripts.files.folder / where).unlink(missing_ok=True)
            done.append(f"removed the transcript {where} of a deleted session")
        elif where.startswith("session "):
            path = transcripts.files.path(where.removeprefix("session "))
            aside = f"; the old one is {path.rename(copy_name(path)).name}" if path.exists() else ""
            transcripts.rewritten(where.removeprefix("session "), needed=True)
            done.append(f"wrote the transcript of {where} again{aside}")
    return done


def mend_orphans(tx: Tx) -> list[str]:
    """Recreate sessions that messages belong to; cut references to what does not exist."""
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
    cut = tx.run(
        "UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM sessions p WHERE p.id = sessions.parent_session_id)"
    )
    if cut:
        done.append(f"cut {cut} links to parents that do not exist")
    for table in TABLES:
        gone = tx.run(
            f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = {table}.session_id)"
        )
        if gone:
            done.append(f"removed {gone} rows of {table} without a session")
    return done


# ---------------------------------------------------------------------------------------- rebuilding
#
# A database that is damaged or lost (or whose WAL is) is made again; nothing else reads transcripts into rows. Every row that can
# still be read stays, and every message, event and change that only the transcripts have is added, under its own id. A transcript
# that has messages the database lacks is newer than the database: then its title, tags and other state count, too. A message that
# either side knows as redacted stays redacted.


def rebuild_store(path: Path, folder: Path) -> list[str]:
    """Make a database again from its readable rows and its transcripts; what was done. The old file is kept as a copy."""
    from hermes.store import keys
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


# ---------------------------------------------------------------------------------------------- a quick look
#
# A quick check of a store's file, for `hermes doctor`: what can be checked in a few seconds, and which processes use it.
#
# Nothing is changed: an older file keeps its tables, and where no process has the file open no other file is created next to
# it. The thorough check is `SessionDB.check()`.


@dataclass(frozen=True, slots=True)
class AgentStore:
    """A database that the program Hermes Agent wrote. It is read here, and never changed."""

    path: Path
    schema: int
    sessions: int

    def __str__(self) -> str:
        return f"Hermes Agent (schema {self.schema}, {counted(self.sessions, 'session')})"


def agent_store(path: Path) -> AgentStore | None:
    """Hermes Agent's own store in a file; None where the file is missing, unreadable or another program's."""
    if not path.is_file() or not driver.is_plain(path):
        return None
    try:
        with closing(_reading(path)) as connection:
            state = migrate.inspect(connection)
            if not state.foreign:
                return None
            return AgentStore(path, state.version, connection.execute("SELECT count(*) FROM sessions").fetchone()[0])
    except driver.Error:
        return None


def _reading(path: Path) -> Connection:
    """A connection that creates no file next to a database that no process has open."""
    alone = not driver.file_size(f"{path}-wal")
    return driver.connect(path, key=driver.key_of(path), read_only=True, immutable=alone)


@dataclass(slots=True)
class Health:
    """The result of a quick check. Only a file of the current version is counted."""

    kind: str  # current, old, newer, empty or foreign-application
    bytes: int
    sessions: int = 0
    messages: int = 0
    pending: int = 0  # messages that are not in the index yet
    vectors: dict[str, tuple[int, int]] | None = None  # rows of each model, and those with a vector; None: switched off
    all_rows: int = 0  # messages, hidden ones too
    damage: list[str] = field(default_factory=list)
    used_by: str = ""


def look(path: Path) -> Health:
    """Check a database file quickly. StoreCorrupt when it can't be read."""
    try:
        with closing(_reading(path)) as connection:
            health = Health(migrate.inspect(connection).kind, driver.file_size(path))
            health.used_by = holder_of(path).strip(" ()")
            found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(5)")]
            health.damage = [text for text in found if text != "ok"]
            if health.kind == "current" and not health.damage:
                _count(SqliteTx(connection), health)
            return health
    except driver.Error as error:
        raise StoreCorrupt(f"{path} can't be read ({error})") from error


def _count(tx: Tx, health: Health) -> None:
    health.sessions, health.messages = sessions.count(tx, None, None), message_reading.count(tx, None, None)
    health.pending = SqliteFullText().pending(tx)
    if vectors.is_switched_on(tx):
        health.vectors = vectors.counts(tx)
        health.all_rows = int(tx.value("SELECT count(*) FROM messages"))

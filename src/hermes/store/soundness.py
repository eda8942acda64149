"""Is everything there, and does everything agree? And mending what is not.

`check` looks at the file, the index, the references, the counters and the transcripts. `repair` takes a copy first,
then mends each finding without dropping a message; a file too damaged for that is put together anew from the rows
that can still be read and from the transcripts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes.errors import StoreCorrupt
from hermes.store import agreement, codec, messages, recovery, sessions
from hermes.store.carried import SHELL
from hermes.store.engines.base import Engine, Tx
from hermes.store.engines.sqlite.inspection import set_aside
from hermes.store.retention import finish_deletions
from hermes.store.scribe import Scribe
from hermes.store.transcript import entries

Problem = dict[str, Any]
_COMPARED = ("role", "content", "tool_calls", "tool_name", "tool_call_id", "timestamp")


def problem(kind: str, where: str, detail: str) -> Problem:
    """One finding."""
    return {"kind": kind, "where": where, "detail": detail}


def check(engine: Engine, scribe: Scribe) -> list[Problem]:
    """Everything that is wrong, [] when the store is sound."""
    try:
        found = engine.problems()
        if any(finding["kind"] == "corruption" for finding in found):
            return found
        with engine.read() as tx:
            found += [*_orphans(tx), *_half_deleted(tx), *_counters(tx), *_prompts(tx)]
        return found + _transcripts(engine, scribe)
    except StoreCorrupt as error:
        return [problem("corruption", "file", str(error))]


def _orphans(tx: Tx) -> list[Problem]:
    found = [
        problem("orphan-messages", f"session {row[0]}", f"{row[1]} messages of a session that does not exist")
        for row in tx.rows(
            "SELECT m.session_id, count(*) FROM messages m LEFT JOIN sessions s ON s.id = m.session_id WHERE s.id IS NULL"
            " GROUP BY m.session_id"
        )
    ]
    found += [
        problem("orphan-parent", f"session {row[0]}", f"its parent {row[1]} does not exist")
        for row in tx.rows(
            "SELECT s.id, s.parent_session_id FROM sessions s LEFT JOIN sessions p ON p.id = s.parent_session_id"
            " WHERE s.parent_session_id IS NOT NULL AND p.id IS NULL"
        )
    ]
    for table in ("session_refs", "session_tags", "session_members", "session_rewinds"):
        found += [
            problem("orphan-rows", f"session {row[0]}", f"rows of {table} for a session that does not exist")
            for row in tx.rows(
                f"SELECT DISTINCT x.session_id FROM {table} x LEFT JOIN sessions s ON s.id = x.session_id WHERE s.id IS NULL"
            )
        ]
    return found


def _half_deleted(tx: Tx) -> list[Problem]:
    return [
        problem("half-deleted", f"session {row[0]}", "its deletion was cut short")
        for row in tx.rows(
            "SELECT s.id FROM sessions s WHERE s.purged IS NOT NULL AND (NOT EXISTS (SELECT 1 FROM messages m WHERE"
            " m.session_id = s.id) OR EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id"
            " AND (m.hidden IS NULL OR m.hidden <> -1)))"
        )
    ]


def _prompts(tx: Tx) -> list[Problem]:
    found = []
    for session_id, digest, text in tx.rows(
        f"SELECT s.id, s.system_prompt_hash, {sessions.PROMPT} FROM sessions s WHERE s.system_prompt_hash IS NOT NULL"
        " AND s.system_prompt IS NULL"
    ):
        raw = text if isinstance(text, bytes) else (text or "").encode("utf-8", "surrogatepass")
        if hashlib.sha256(raw).hexdigest() != digest:
            found.append(problem("prompt", f"session {session_id}", "its system prompt is not the one that was stored"))
    return found


def _counters(tx: Tx) -> list[Problem]:
    found = []
    truth: dict[str, list[Any]] = {}
    for session_id, calls, stamp in tx.rows(
        "SELECT session_id, tool_calls, timestamp FROM messages WHERE hidden IS NULL"
    ):
        seen = truth.setdefault(session_id, [0, 0, None])
        seen[0] += 1
        seen[1] += messages.count_calls(codec.restored(calls)) if calls is not None else 0
        seen[2] = stamp if seen[2] is None else max(seen[2], stamp)
    for session_id, count, calls, last in tx.rows(
        "SELECT id, coalesce(message_count, 0), coalesce(tool_call_count, 0), last_active FROM sessions WHERE purged IS NULL"
    ):
        right = truth.get(session_id, [0, 0, None])
        if [count, calls, last] != right:
            found.append(
                problem("counters", f"session {session_id}", f"says {[count, calls, last]}, its messages say {right}")
            )
    return found


def _transcripts(engine: Engine, scribe: Scribe) -> list[Problem]:
    if scribe.which == "off" or engine.shared or not scribe.journal.folder.is_dir():
        return []  # of a shared store each host has the transcripts of what it served: copies, not the record
    found = []
    with engine.read() as tx:
        rows = tx.rows("SELECT id, purged FROM sessions ORDER BY id")
    for session_id, purged in rows:
        if purged and not session_id.startswith(SHELL):
            continue
        with engine.read() as tx:
            detail = _disagreement(tx, scribe, session_id)
        if detail:
            found.append(problem("transcript", f"session {session_id}", detail))
    named = {finding["where"] for finding in found}
    found += [
        problem("transcript", f"session {owner}", detail)
        for owner, detail in agreement.ownerless(engine, scribe)
        if f"session {owner}" not in named
    ]
    known = {scribe.journal.path(session_id).name for session_id, _ in rows}
    for path in sorted(scribe.journal.folder.glob("*.jsonl")):
        if path.name not in known:
            with engine.read() as tx:
                found.append(_without_session(tx, path))
    return found


def _without_session(tx: Tx, path: Path) -> Problem:
    session_id = recovery.read_transcript(path).columns["id"]
    if tx.row("SELECT 1 FROM audit WHERE session_id = ? AND action = 'delete'", (session_id,)) is not None:
        return problem("transcript-left", path.name, f"session {session_id} was deleted, its transcript was not")
    return problem("lost-session", path.name, f"session {session_id} is not in the database")


def _disagreement(tx: Tx, scribe: Scribe, session_id: str) -> str | None:
    path = scribe.journal.path(session_id)
    if not path.exists():
        had_one = tx.value("SELECT transcript FROM sessions WHERE id = ?", (session_id,))
        return "its transcript is gone" if had_one else None
    told: set[int] = set()
    replayed = recovery.Replayed(session_id)
    for entry in entries(path):
        replayed.take(entry)
        if entry.get("type") == "message" and isinstance(entry.get("id"), int):
            if entry["id"] in told and entry["id"] in replayed.messages:
                return f"message {entry['id']} has more than one line"
            told.add(entry["id"])
    try:
        stored = {message["id"]: message for message in recovery.own_messages(tx, session_id)}
    except (StoreCorrupt, UnicodeDecodeError) as error:
        return f"a message can't be read: {error}"
    missing, extra = stored.keys() - replayed.messages.keys(), replayed.messages.keys() - stored.keys()
    if missing:
        return f"{len(missing)} messages have no line in the transcript"
    if extra:
        return f"{len(extra)} messages of the transcript are not in the database"
    for message_id, message in stored.items():
        entry = replayed.messages[message_id]
        if any(not _same(entry.get(name), message[name]) for name in _COMPARED):
            return f"message {message_id} reads differently in the transcript"
    return agreement.difference(tx, scribe, session_id, replayed)


def _same(told: Any, stored: Any) -> bool:
    """Equal as far as JSON can tell (it joins the halves of a surrogate pair)."""
    return bool(told == stored or told == json.loads(json.dumps(stored)))


# --------------------------------------------------------------------------------------------- repair


def repair(
    engine: Engine, scribe: Scribe, path: Path, backup: Callable[[Path], None], *, rebuild_index: bool = False
) -> list[str] | None:
    """Mend what check() finds; what was done, or None when the file itself is damaged (see salvage)."""
    found = check(engine, scribe)
    kinds = {finding["kind"] for finding in found}
    if not found and not rebuild_index:
        return []
    if "corruption" in kinds:
        return None
    copy = _copy_beside(path, backup)
    done = [f"copied the database to {copy.name}"]
    if rebuild_index or any(kind.startswith("fts-") for kind in kinds):
        engine.rebuild_index()
        done.append("rebuilt the full-text index")
    if "half-deleted" in kinds:
        count = finish_deletions(engine, scribe)
        done.append(f"finished {count} deletions that had been cut short")
    with engine.write() as tx:
        done += _mend_orphans(tx)
        wrong = [finding["where"].removeprefix("session ") for finding in found if finding["kind"] == "counters"]
        for session_id in wrong:
            messages.recount(tx, session_id)
        if wrong:
            done.append(f"recounted {len(wrong)} sessions")
    done += _mend_prompts(engine, scribe, found)
    done += _mend_transcripts(engine, scribe, found)
    damaged = [int(finding["where"].removeprefix("message ")) for finding in found if finding["kind"] == "damaged-text"]
    if damaged:
        with engine.write() as tx:
            left = [message_id for message_id in damaged if not _is_whole(tx, message_id)]
            for message_id in left:
                sql = "UPDATE messages SET content = coalesce(content, '') || ?, content_rest = NULL WHERE id = ?"
                tx.run(sql, (codec.DAMAGED, message_id))
            engine.fulltext.reindex(tx, left)
            touched = {tx.value("SELECT session_id FROM messages WHERE id = ?", (message_id,)) for message_id in left}
        for session_id in touched if scribe.journal.folder.is_dir() else ():
            scribe.rewritten(session_id)
        done.append(f"kept what can be read of {len(left)} damaged messages")
    return done


def _is_whole(tx: Tx, message_id: int) -> bool:
    return codec.is_whole(tx.value("SELECT content_rest FROM messages WHERE id = ?", (message_id,)))


def _copy_beside(path: Path, backup: Callable[[Path], None]) -> Path:
    import time

    stem = f"{path.name}.before-repair-{time.strftime('%Y%m%d-%H%M%S')}"
    copy, number = path.with_name(stem), 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{stem}-{number}")
    backup(copy)
    return copy


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
        done.append(f"gave {len(lost)} groups of messages their session back")
    cut = recovery.cut_loose_parents(tx)
    if cut:
        done.append(f"cut {cut} links to parents that do not exist")
    for table in ("session_refs", "session_tags", "session_members", "session_rewinds"):
        gone = tx.run(
            f"DELETE FROM {table} WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = {table}.session_id)"
        )
        if gone:
            done.append(f"removed {gone} rows of {table} that belonged to nobody")
    return done


def _mend_transcripts(engine: Engine, scribe: Scribe, found: list[Problem]) -> list[str]:
    done = []
    wrong = [finding["where"].removeprefix("session ") for finding in found if finding["kind"] == "transcript"]
    back = changed = 0
    for session_id in wrong:
        path = scribe.journal.path(session_id)
        if path.exists():  # what only the transcript has, or has whole, comes back first
            set_aside(path)
            with engine.write() as tx:
                fresh, mended = _take_back(engine, tx, session_id, path)
            back, changed = back + fresh, changed + mended
        scribe.rewritten(session_id)
    lost = [scribe.journal.folder / finding["where"] for finding in found if finding["kind"] == "lost-session"]
    if lost:
        counts = recovery.replay(engine, scribe.journal.folder, lost)
        for file in lost:
            scribe.rewritten(recovery.read_transcript(file).columns["id"])
        done.append(f"brought {counts['sessions']} sessions and {counts['messages']} messages back from transcripts")
    for finding in found:
        if finding["kind"] == "transcript-left":
            (scribe.journal.folder / finding["where"]).unlink(missing_ok=True)
            done.append(f"removed the transcript {finding['where']} of a deleted session")
    if wrong:
        done.append(f"wrote {len(wrong)} transcripts anew")
    if back:
        done.append(f"brought {back} messages back from transcripts")
    if changed:
        done.append(f"took the text of {changed} messages from transcripts")
    return done


def _mend_prompts(engine: Engine, scribe: Scribe, found: list[Problem]) -> list[str]:
    wrong = [finding["where"].removeprefix("session ") for finding in found if finding["kind"] == "prompt"]
    for session_id in wrong:
        path = scribe.journal.path(session_id)
        text = recovery.read_transcript(path).columns.get("system_prompt") if path.exists() else None
        with engine.write() as tx:
            digest = tx.value("SELECT system_prompt_hash FROM sessions WHERE id = ?", (session_id,))
            if isinstance(text, str):
                tx.run("DELETE FROM system_prompts WHERE hash = ?", (digest,))
                sessions.set_prompt(tx, session_id, text)
            else:  # what is left of it counts from now on
                left = tx.value(f"SELECT {sessions.PROMPT} FROM sessions s WHERE s.id = ?", (session_id,))
                sessions.set_prompt(tx, session_id, codec.restored(left))
    return [f"put {len(wrong)} system prompts right"] if wrong else []


def _take_back(engine: Engine, tx: Tx, session_id: str, path: Path) -> tuple[int, int]:
    """Messages that only a transcript has, and the text of those that the database has otherwise.

    A stored message is never changed, and its line is written with it: where the two differ, the row was damaged. Where
    an id has several lines, it was given twice, and both messages count.
    """
    replayed = recovery.Replayed(session_id)
    twice: list[dict[str, Any]] = []
    for entry in entries(path):
        first = replayed.messages.get(entry["id"]) if isinstance(entry.get("id"), int) else None
        replayed.take(entry)
        if first is not None and entry.get("type") == "message" and entry.get("timestamp") != first.get("timestamp"):
            twice.append(entry)
    mended = 0
    for message_id, entry in list(replayed.messages.items()):
        row = tx.row("SELECT timestamp FROM messages WHERE id = ? AND session_id = ?", (message_id, session_id))
        if row is None:
            continue
        versions = [entry, *(other for other in twice if other["id"] == message_id)]
        same = next((version for version in versions if version.get("timestamp") == row[0]), None)
        if len(versions) == 1:
            same = entry  # even its time was damaged
        for version in versions:
            if version is not same:
                replayed.loose.append(version)
        if same is not None and not _reads_same(tx, message_id, same):
            messages.overwrite(tx, message_id, messages.make_ready(same, mask=None, lift=None))
            engine.fulltext.reindex(tx, [message_id])
            mended += 1
    given = recovery.insert_messages(engine, tx, replayed)
    if replayed.loose:
        _put_in_order(engine, tx, session_id)
    messages.recount(tx, session_id)
    return len(given), mended


def _put_in_order(engine: Engine, tx: Tx, session_id: str) -> None:
    """Messages that came back under new ids go to their place in time, unless another session refers to some by id."""
    if tx.row("SELECT 1 FROM session_refs WHERE from_session = ? OR session_id = ?", (session_id, session_id)):
        return
    rows = recovery.own_messages(tx, session_id)
    ordered = sorted(rows, key=lambda message: message["timestamp"])
    if [m["id"] for m in rows] == [m["id"] for m in ordered]:
        return
    hidden = tx.rows("SELECT 1 FROM messages WHERE session_id = ? AND hidden IS NOT NULL", (session_id,))
    if hidden:
        return
    messages.remove_own(engine, tx, session_id)
    for message in ordered:
        messages.insert(tx, session_id, messages.make_ready(message, mask=None, lift=None), None)


def _reads_same(tx: Tx, message_id: int, entry: dict[str, Any]) -> bool:
    try:
        stored = recovery.message(tx, message_id)
    except (StoreCorrupt, UnicodeDecodeError):
        return False
    return all(_same(entry.get(name), stored[name]) for name in _COMPARED)


def salvage(path: Path, transcripts: Path) -> list[str]:
    """Put a damaged database together anew from what can be read of it and from the transcripts."""
    from hermes.store.engines.sqlite.engine import SqliteEngine
    from hermes.store.engines.sqlite.salvage import copy_rows

    copy = set_aside(path)
    fresh = path.with_name(f"{path.name}.rebuilt")
    for suffix in ("", "-wal", "-shm"):
        fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
    engine = SqliteEngine(fresh)
    rows = copy_rows(engine, path)
    files = sorted(transcripts.glob("*.jsonl")) if transcripts.is_dir() else []
    counts = recovery.replay(engine, transcripts, files, beside=True)
    mended = 0
    for file in files:
        session_id = recovery.read_transcript(file).columns["id"]
        with engine.write() as tx:
            found_again, changed = _take_back(engine, tx, session_id, file)
        counts["messages"] += found_again
        mended += changed
    with engine.write() as tx:
        done = _mend_orphans(tx)
        for (session_id,) in tx.rows("SELECT id FROM sessions"):
            messages.recount(tx, session_id)
    engine.rebuild_index()
    engine.close()
    os.replace(fresh, path)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    fresh.with_name(fresh.name + "-queue").unlink(missing_ok=True)
    return [
        f"kept the damaged file as {copy.name}",
        f"read {rows} rows out of it",
        f"brought {counts['sessions']} sessions and {counts['messages']} messages back from transcripts",
        f"took the text of {mended} messages from transcripts",
        *done,
    ]

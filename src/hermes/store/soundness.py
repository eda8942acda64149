"""Is everything there, and does everything agree?

`check` looks at the file, every value of every row, the index, the references, the counters, the attachments and the
transcripts. Others may write meanwhile: what they could have had a hand in is looked at again before it is reported.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hermes.errors import StoreCorrupt
from hermes.store import codec, messages, recovery, sessions
from hermes.store.attachments import GONE, Attachments, noted
from hermes.store.carried import SHELL
from hermes.store.comparing import Comparer, Comparison, confirmed, is_same_message, read
from hermes.store.engines.base import Engine, Tx
from hermes.store.scribe import Scribe

Problem = dict[str, Any]
Progress = Callable[[str, int, int], None]
_LOOKS = (0.0, 0.1, 0.4, 1.0)  # seconds before each further look while others write: a line follows its commit
_AT_ONCE = 32  # sessions compared within one view of the database
UNDECIDED = "transcript-differs"
DECIDE = "`hermes sessions repair --from-transcripts` takes the transcript's, `--from-database` the database's"


def problem(kind: str, where: str, detail: str) -> Problem:
    """One finding."""
    return {"kind": kind, "where": where, "detail": detail}


def check(engine: Engine, scribe: Scribe, attachments: Attachments, progress: Progress | None = None) -> list[Problem]:
    """Everything that is wrong, [] when the store is sound. `progress` is told (what, done, of)."""
    found: list[Problem] = []
    try:
        found = engine.problems(progress)
        if any(finding["kind"] == "corruption" for finding in found):
            return found
        with engine.read() as tx:
            found += [*_orphans(tx), *_counters(tx), *_prompts(tx)]
        found += _cut_short(engine, scribe)
        found += _attachments(engine, attachments, progress)
        found += [finding for finding, _ in transcripts(engine, scribe, progress)]
    except StoreCorrupt as error:
        if not any(finding["kind"] == "damaged-row" for finding in found):  # else that is why
            found.append(problem("corruption", "file", str(error)))
    return found


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


def _cut_short(engine: Engine, scribe: Scribe) -> list[Problem]:
    """Deletions that were cut short, not those that are just being made."""
    with engine.read() as tx:
        found = _half_deleted(tx)
    for pause in _LOOKS[1:]:
        if not found or not scribe.journal.is_busy():
            break
        time.sleep(pause)
        with engine.read() as tx:
            again = _half_deleted(tx)
        found = [one for one in found if one in again]
    return found


def _half_deleted(tx: Tx) -> list[Problem]:
    return [
        problem("half-deleted", f"session {row[0]}", "its deletion was cut short")
        for row in tx.rows(
            "SELECT s.id FROM sessions s WHERE s.purged IS NOT NULL AND (NOT EXISTS (SELECT 1 FROM messages m WHERE"
            f" m.session_id = s.id) OR EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id AND {messages.UNSETTLED}))"
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
    shown = "FROM messages WHERE hidden IS NULL"
    for session_id, count, last in tx.rows(f"SELECT session_id, count(*), max(timestamp) {shown} GROUP BY session_id"):
        truth[session_id] = [count, 0, last]
    for session_id, calls in tx.rows(f"SELECT session_id, tool_calls {shown} AND tool_calls IS NOT NULL"):
        truth[session_id][1] += messages.count_calls(codec.restored(calls))
    for session_id, count, calls, last in tx.rows(
        "SELECT id, coalesce(message_count, 0), coalesce(tool_call_count, 0), last_active FROM sessions WHERE purged IS NULL"
    ):
        right = truth.get(session_id, [0, 0, None])
        if [count, calls, last] != right:
            found.append(
                problem("counters", f"session {session_id}", f"says {[count, calls, last]}, its messages say {right}")
            )
    return found


def _attachments(engine: Engine, attachments: Attachments, progress: Progress | None) -> list[Problem]:
    """Files that are gone or whose bytes are not those that were stored: their name is their SHA-256.

    What an import of sessions alone did not bring is noted and no finding. Files of before that was noted: without any
    place for attachments none was ever here.
    """
    with engine.read() as tx:
        had_some, absent = noted(tx)
        rows = tx.rows("SELECT hash, max(bytes), min(message_id) FROM attachments GROUP BY hash ORDER BY hash")
    found = []
    may_be_gone = had_some or (bool(rows) and attachments.any_here())
    for number, (digest, size, message_id) in enumerate(rows):
        detail = attachments.damage(digest)
        if detail == GONE and (
            not size or not may_be_gone or digest in absent
        ):  # a text may name one that never was here
            detail = None
        if detail is not None:
            with engine.read() as tx:  # it may have been deleted meanwhile
                if tx.row("SELECT 1 FROM attachments WHERE hash = ?", (digest,)) is None:
                    continue
            found.append(problem("attachment", f"attachment {digest}", f"{detail} (of message {message_id})"))
        if progress is not None:
            progress("attachments", number + 1, len(rows))
    return found


# ---------------------------------------------------------------------------------------- transcripts

Difference = tuple[Problem, Comparison | Path]


def transcripts(engine: Engine, scribe: Scribe, progress: Progress | None = None) -> list[Difference]:
    """Where sessions and transcripts differ: the finding, and what repair needs to know."""
    if scribe.which == "off" or engine.shared or not scribe.journal.folder.is_dir():
        return []  # of a shared store each host has the transcripts of what it served: copies, not the record
    with engine.read() as tx:
        rows = tx.rows("SELECT id, purged FROM sessions ORDER BY id")
    wanted = [row[0] for row in rows if not row[1] or row[0].startswith(SHELL)]
    compared = _compared(engine, scribe, wanted, progress)
    left = _without_session(engine, scribe, None)
    for pause in _LOOKS:
        if (not compared and not left) or (pause and not scribe.journal.is_busy()):
            break
        time.sleep(pause)
        again = _compared(engine, scribe, compared)
        agreed = ((key, confirmed(one, again.get(key))) for key, one in compared.items())
        compared = {key: one for key, one in agreed if one is not None}
        before, left = left, _without_session(engine, scribe, [path for _, path in left])
        left = [one for one in left if one in before]
    found: list[Difference] = []
    for session_id, one in compared.items():
        where = f"session {session_id}"
        if one.mendable():
            found.append((problem("transcript", where, "; ".join(one.mendable())), one))
        if one.undecided():
            found.append((problem(UNDECIDED, where, f"{'; '.join(one.undecided())}; {DECIDE}"), one))
    return [*found, *left]


def _compared(
    engine: Engine, scribe: Scribe, session_ids: Iterable[str], progress: Progress | None = None
) -> dict[str, Comparison]:
    out = {}
    ids = list(session_ids)
    for start in range(0, len(ids), _AT_ONCE):
        with engine.read() as tx:
            some = ids[start : start + _AT_ONCE]
            comparer = Comparer(engine, tx, scribe.journal.path, some)
            for session_id in some:
                difference = comparer.compare(session_id)
                if difference is not None:
                    out[session_id] = difference
        if progress is not None:
            progress("transcripts", min(start + _AT_ONCE, len(ids)), len(ids))
    return out


def _without_session(engine: Engine, scribe: Scribe, files: list[Any] | None) -> list[Difference]:
    """Transcripts of sessions that the database does not have."""
    folder = scribe.journal.folder
    paths = sorted(folder.glob("*.jsonl")) if files is None else files  # before the names: files follow their sessions
    with engine.read() as tx:
        known = {scribe.journal.path(row[0]).name for row in tx.rows("SELECT id FROM sessions")}
        found: list[Difference] = []
        for path in paths:
            if path.name not in known and path.exists():
                found.append((_judge_file(engine, tx, path), path))
    return found


def _judge_file(engine: Engine, tx: Tx, path: Path) -> Problem:
    """A transcript without its session: was the session deleted, or lost?"""
    session_id = recovery.read_transcript(path).columns["id"]
    if tx.row("SELECT 1 FROM audit WHERE session_id = ? AND action = 'delete'", (session_id,)) is not None:
        return problem("transcript-left", path.name, f"session {session_id} was deleted, its transcript was not")
    told = read(path, session_id)
    rows = {i: tx.row("SELECT session_id FROM messages WHERE id = ?", (i,)) for i in told.session.messages}
    changed = set()
    if engine.has_table(tx, "changed_messages"):
        changed = {row[0] for row in tx.rows("SELECT id FROM changed_messages")} & rows.keys()
    if rows and changed >= {i for i, row in rows.items() if row is None} and not all(rows.values()):
        detail = f"session {session_id} was deleted with SQL, its transcript was not"
        return problem("transcript-left", path.name, detail)
    top = tx.last_number("messages")
    lost = any(i > top or (row is not None and _is_other(tx, i, told.session.messages[i])) for i, row in rows.items())
    orphaned = tx.row("SELECT 1 FROM messages WHERE session_id = ?", (session_id,)) is not None
    if lost or orphaned or told.session.loose or tx.row("SELECT 1 FROM sessions") is None:
        return problem("lost-session", path.name, f"session {session_id} is not in the database")
    detail = f"session {session_id} is not in the database (deleted, or lost); {DECIDE}"
    return problem(UNDECIDED, path.name, detail)


def _is_other(tx: Tx, message_id: int, entry: dict[str, Any]) -> bool:
    """Whether an id was given to another message."""
    try:
        return not is_same_message(entry, recovery.message(tx, message_id))
    except (StoreCorrupt, UnicodeDecodeError):
        return False

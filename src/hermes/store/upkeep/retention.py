"""Retention: trash, deletion in small steps, pruning by last activity.

Deleting first makes a session invisible, then deletes its rows a few at a time, so that no writer waits long for the
write lock and a crash half-way leaves a deletion to finish later. Rows that other sessions refer to stay for them under
the session's own id, with an empty session row (`purged`): a tombstone. Creating or importing that id revives it.
"""

from __future__ import annotations

import time
from typing import Any

from hermes.store import leases
from hermes.store.api.arguments import checked_period, checked_text
from hermes.store.engines.base import KEPT, REDACTED, Engine, Tx, drop_meta, get_meta, set_meta
from hermes.store.records import codec, lineage, message_reading, messages, sessions, titles
from hermes.store.records.message_reading import NEEDED, UNSETTLED
from hermes.store.records.rows import AuditEntry, TrashedSession
from hermes.store.transcripts.writer import TranscriptWriter

ROWS_AT_ONCE = 200
DAY = 86_400.0
GHOST_AGE = DAY
ORPHAN_AGE = 7 * DAY
META_LAST_PRUNE = "last_auto_prune"
SHREDDING = "shred:"  # keys of state_meta, followed by a session's id: what is left to do of its shredding
_ACTIVE = "coalesce(s.active_at, s.started_at)"
OWN_ACTIONS = frozenset(("trash", "restore", "delete", "replace", "clear"))  # in the audit log
MOVED = ("trashed_at", "trashed_title", "title", "title_base", "title_no")  # what trashing and restoring change


def audit(tx: Tx, action: str, session_id: str | None, by: str, detail: str = "") -> None:
    """Record in the audit log what was removed, when and by which command."""
    tx.run(
        "INSERT INTO audit(at, action, session_id, by, detail) VALUES(?, ?, ?, ?, ?)",
        (time.time(), action, session_id, checked_text(by, "by") or None, checked_text(detail, "detail") or None),
    )


def audit_log(tx: Tx, limit: int) -> list[AuditEntry]:
    """The newest lines of the audit log, the newest first."""
    rows: list[Any] = tx.dicts(
        "SELECT at, action, session_id, by, detail FROM audit ORDER BY id DESC LIMIT ?", (limit,)
    )
    return [sessions.tidy(row) for row in rows]


def deleted(tx: Tx) -> dict[str, bool]:
    """The sessions that were deleted for good and have not come back, each with whether it was shredded."""
    found: dict[str, bool] = {}
    for session_id, action, detail in tx.rows(
        "SELECT session_id, action, detail FROM audit WHERE action IN ('delete', 'restore') AND session_id IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = audit.session_id AND s.purged IS NULL) ORDER BY id"
    ):
        if action == "delete":
            found[session_id] = str(detail or "").startswith("shredded")
        else:
            found.pop(session_id, None)
    return found


# --------------------------------------------------------------------------------------------- trash


def trash(tx: Tx, session_id: str, by: str, at: float | None = None) -> bool:
    """Move a session to the trash; other sessions may use its title meanwhile."""
    done = tx.run(
        "UPDATE sessions SET trashed_at = ?, trashed_title = title, title = NULL, title_base = NULL, title_no = NULL,"
        " title_seen = NULL WHERE id = ? AND trashed_at IS NULL AND purged IS NULL",
        (time.time() if at is None else at, session_id),
    )
    if done:
        audit(tx, "trash", session_id, by)
    return bool(done)


def restore(tx: Tx, session_id: str, by: str = "") -> bool:
    """Take a session out of the trash, with its title or the next number of that title."""
    here = "SELECT trashed_title FROM sessions WHERE id = ? AND trashed_at IS NOT NULL AND purged IS NULL"
    row = tx.row(here, (session_id,))
    if row is None:
        return False
    tx.run("UPDATE sessions SET trashed_at = NULL, trashed_title = NULL WHERE id = ?", (session_id,))
    titles.set_or_number(tx, session_id, row[0])
    audit(tx, "restore", session_id, by)
    return True


def trashed(tx: Tx) -> list[TrashedSession]:
    """The sessions in the trash, the newest first."""
    rows: list[TrashedSession] = tx.dicts(
        f"SELECT {sessions.COLUMNS}, s.trashed_at, s.trashed_title FROM sessions s WHERE s.trashed_at IS NOT NULL"
        " AND s.purged IS NULL ORDER BY s.trashed_at DESC, s.id"
    )
    return [sessions.tidy(row) for row in rows]


# --------------------------------------------------------------------------------------------- deleting


def purge(engine: Engine, session_id: str, by: str, transcripts: TranscriptWriter) -> bool:
    """Delete a session for good, in small transactions; False when there is none."""
    with engine.write() as tx:
        row = tx.row("SELECT source, message_count FROM sessions WHERE id = ? AND purged IS NULL", (session_id,))
        if row is None:
            return False
        source, count = row
        children = mark_deleted(tx, session_id)
        transcripts.mark(tx, [session_id, *children])
        audit(tx, "delete", session_id, by, f"source {codec.restored(source)}, {count or 0} messages")
    transcripts.cut_off(children)
    finish_deletion(engine, session_id, transcripts)
    return True


def mark_deleted(tx: Tx, session_id: str, *, shredded: bool = False) -> list[str]:
    """The first step of a deletion: the session is not shown any more. Returns the children it had.

    Of a session that is `shredded`, the system prompt goes even where others are stored as its beginning and their own end.
    """
    prompt = tx.value("SELECT system_prompt_hash FROM sessions WHERE id = ?", (session_id,))
    tx.run(
        "UPDATE sessions SET purged = 1, title = NULL, title_base = NULL, title_no = NULL, title_seen = NULL,"
        " trashed_title = NULL, first_words = NULL, user_id = NULL, parent_session_id = NULL, system_prompt = NULL,"
        " system_prompt_hash = NULL, model_config = NULL, cwd = NULL WHERE id = ?",
        (session_id,),
    )
    children = lineage.cut_children(tx, session_id)
    _drop_prompt(tx, prompt, shredded=shredded)
    return children


def finish_deletion(engine: Engine, session_id: str, transcripts: TranscriptWriter) -> None:
    """The long part of a deletion; it can be resumed after a crash.

    Of a session that is live (or was created again meanwhile) only messages go that it kept for others, and none refers to.
    """
    hashes: set[str] = set()
    owners: list[str] = []
    while True:
        with engine.write() as tx:
            is_live = tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NULL", (session_id,)) is not None
            which = f"m.hidden = {KEPT} AND NOT {NEEDED}" if is_live else UNSETTLED
            hashes.update(message_reading.attachments_of(tx, session_id))
            if not messages.remove_own(engine, tx, session_id, which=which, cap=ROWS_AT_ONCE):
                if not is_live:
                    owners = _drop_rows(tx, session_id)
                    transcripts.deleted(session_id)  # before the commit: a crash leaves no file without its session
                transcripts.mark(tx, [session_id])
                gone = [h for h in hashes if not is_used(tx, h)]
                break
        time.sleep(0.0005)  # let waiting writers take the lock first
    transcripts.rewritten(session_id)
    transcripts.unused(gone)
    for other in owners:
        finish_deletion(engine, other, transcripts)


def is_used(tx: Tx, digest: str) -> bool:
    """Whether a message refers to an attachment."""
    return tx.row("SELECT 1 FROM attachments WHERE hash = ?", (digest,)) is not None


def _drop_rows(tx: Tx, session_id: str) -> list[str]:
    """Remove the related rows of a session, and its own unless messages stay for others: then it is a tombstone.

    Returns the sessions that kept messages for it.
    """
    owners = tx.column(
        "SELECT DISTINCT r.from_session FROM session_refs r JOIN messages m ON m.session_id = r.from_session AND m.id BETWEEN"
        f" r.first_id AND r.last_id AND m.hidden IN ({KEPT}, {REDACTED}) WHERE r.session_id = ? AND r.from_session <> ?",
        (session_id, session_id),
    )
    for table in ("session_refs", "session_rewinds", "session_tags", "session_members"):
        tx.run(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))
    sessions.forget_events(tx, session_id)
    leases.forget(tx, session_id)
    for key in (titles.titled_key(session_id), sessions.choice_key(session_id), lineage.AWAITED + session_id):
        drop_meta(tx, key)
    drop_empty_tombstone(tx, session_id)
    return owners


def drop_empty_tombstone(tx: Tx, session_id: str) -> None:
    """Delete the row of a deleted session that has no messages left."""
    left = "SELECT 1 FROM messages m WHERE m.session_id = sessions.id"
    tx.run(f"DELETE FROM sessions WHERE id = ? AND purged IS NOT NULL AND NOT EXISTS ({left})", (session_id,))


def _drop_prompt(tx: Tx, digest: str | None, *, shredded: bool = False) -> None:
    """Delete a system prompt that no session has any more, and the one it is based on.

    One on which others are based stays for them; if it is `shredded`, they are rewritten.
    """
    row = tx.row("SELECT base_hash, text FROM system_prompts WHERE hash = ?", (digest,))
    if row is None or tx.row("SELECT 1 FROM sessions WHERE system_prompt_hash = ?", (digest,)) is not None:
        return
    base, text = row
    based = "SELECT hash, base_chars, text FROM system_prompts WHERE base_hash = ?"
    if not shredded and tx.row(f"{based} LIMIT 1", (digest,)) is not None:
        return
    for other, shared, end in tx.rows(based, (digest,)):
        whole = codec.storable(codec.restored(text)[:shared] + codec.restored(end))
        tx.run("UPDATE system_prompts SET base_hash = NULL, base_chars = NULL, text = ? WHERE hash = ?", (whole, other))
    tx.run("DELETE FROM system_prompts WHERE hash = ?", (digest,))
    if base is not None:
        _drop_prompt(tx, base)


def finish_deletions(engine: Engine, transcripts: TranscriptWriter) -> int:
    """Resume deletions that a crash interrupted."""
    with engine.read() as tx:
        left = half_deleted(tx)
    for session_id in left:
        finish_deletion(engine, session_id, transcripts)
    return len(left)


def half_deleted(tx: Tx) -> list[str]:
    """Sessions whose deletion was interrupted, or that keep messages to which no session refers any more."""
    return tx.column(
        "SELECT s.id FROM sessions s WHERE s.purged IS NOT NULL AND (NOT EXISTS (SELECT 1 FROM messages m WHERE"
        f" m.session_id = s.id) OR EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id AND {UNSETTLED}))"
    )


# --------------------------------------------------------------------------------------------- pruning


def prunable(tx: Tx, older_than_days: float, source: str | None, whole: bool) -> list[str]:
    """Ended sessions whose last activity is longer ago than this; pinned and live ones never.

    With `whole`, conversations of which every part qualifies, each as its newest part.
    """
    # Another program's messages may be newer than the stored activity.
    where = (
        f" AND {_ACTIVE} < ? AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id AND m.timestamp >= ?)"
    )
    params: list[Any] = [time.time() - _seconds(older_than_days)] * 2
    if source is not None:
        where, params = f"{where} AND s.source = ?", [*params, source]
    found = tx.column(
        "SELECT s.id FROM sessions s WHERE s.ended_at IS NOT NULL AND s.pinned_at IS NULL AND s.trashed_at IS NULL"
        f" AND s.purged IS NULL{where} ORDER BY {_ACTIVE}",
        params,
    )
    ids = [one for one in found if not leases.is_live(tx, one)]
    if not whole:
        return ids
    all_old = set(ids)
    chains = (lineage.parts(tx, session_id) for session_id in ids)
    return list(dict.fromkeys(chain[-1] for chain in chains if all_old.issuperset(chain)))


def _seconds(days: float) -> float:
    return checked_period(days, "older_than_days", "days") * DAY


def ghosts(tx: Tx) -> list[str]:
    """Untitled, ended sessions without messages, older than a day."""
    return tx.column(
        "SELECT s.id FROM sessions s WHERE s.ended_at IS NOT NULL AND s.title IS NULL AND s.trashed_at IS NULL"
        " AND s.purged IS NULL"
        " AND s.pinned_at IS NULL AND s.started_at < ? AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id)"
        " AND NOT EXISTS (SELECT 1 FROM session_refs r WHERE r.session_id = s.id)",
        (time.time() - GHOST_AGE,),
    )


def close_orphaned_compressions(tx: Tx) -> list[str]:
    """End compression children older than a week that never made a model call; their messages stay."""
    found = tx.column(
        f"SELECT c.id FROM sessions c JOIN sessions p ON {lineage.CONTINUATION} WHERE c.ended_at IS NULL"
        " AND coalesce(c.api_call_count, 0) = 0 AND c.started_at < ?",
        (time.time() - ORPHAN_AGE,),
    )
    for session_id in found:
        sessions.end(tx, session_id, "orphaned_compression")
    return found


def trashed_before(tx: Tx, older_than_days: float) -> list[str]:
    """The sessions that have been in the trash longer than this."""
    cutoff = time.time() - _seconds(older_than_days)
    return [row["id"] for row in trashed(tx) if row["trashed_at"] <= cutoff]


def begin_auto_prune(tx: Tx, min_interval_hours: float) -> bool:
    """Whether the automatic clean-up is due; if so, start its next interval, for every process."""
    interval = checked_period(min_interval_hours, "min_interval_hours", "hours") * 3600
    try:
        due = not 0 <= time.time() - float(get_meta(tx, META_LAST_PRUNE)) < interval
    except (TypeError, ValueError):
        due = True  # an unreadable marker counts as never run
    if due:
        set_meta(tx, META_LAST_PRUNE, str(time.time()))
    return due

"""Repairs what check() finds, after making a copy of the file.

The database is the truth: index, counters and references are made again from its rows, and transcripts that differ are
written again (the old file is set aside). A damaged file is rebuilt (rebuild.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.store import codec, messages, sessions
from hermes.store.attachments import Attachments
from hermes.store.check import DAMAGED, DELETED, TABLES, check
from hermes.store.engines.base import Engine, Tx
from hermes.store.engines.sqlite.salvage import copy_name
from hermes.store.retention import finish_deletions
from hermes.store.transcript_writer import TranscriptWriter

if TYPE_CHECKING:
    from hermes.store.rows import Finding

_NOT_HERE = frozenset(("attachment", "half-shredded"))  # nothing that a repair could do
_PROMPT = f"SELECT {sessions.PROMPT} FROM sessions s WHERE s.id = ?"


def repair(
    engine: Engine,
    transcripts: TranscriptWriter,
    attachments: Attachments,
    path: Path,
    backup: Callable[[Path], object],
    *,
    rebuild_index: bool = False,
) -> list[str] | None:
    """Repair what check() finds; returns what was done, or None when rows can't be read: then a rebuild is needed."""
    found = check(engine, transcripts, attachments)
    by_kind: dict[str, list[str]] = {}
    for one in found:
        by_kind.setdefault(one["kind"], []).append(one["where"].removeprefix("session "))
    if not by_kind.keys().isdisjoint(DAMAGED):
        return None
    if not rebuild_index and by_kind.keys() <= _NOT_HERE:
        return []
    copy = copy_name(path)
    backup(copy)
    done = [f"copied the database to {copy.name}"]
    if "half-deleted" in by_kind:
        done.append(f"finished {finish_deletions(engine, transcripts)} deletions that had been interrupted")
    with engine.write() as tx:
        done += mend_orphans(tx)
        for session_id in by_kind.get("prompt", ()):  # what is left of the text counts from now on
            sessions.set_prompt(tx, session_id, codec.restored(tx.value(_PROMPT, (session_id,))))
        for session_id in by_kind.get("counters", ()):
            messages.recount(tx, session_id)
    done += [f"corrected {len(by_kind[kind])} {what}" for kind, what in _CORRECTED.items() if kind in by_kind]
    if rebuild_index or any(kind.startswith("fts-") and kind != "fts-waiting" for kind in by_kind):
        engine.rebuild_index()
        done.append("rebuilt the full-text index")
    elif "fts-waiting" in by_kind:
        done.append(f"indexed {engine.catch_up()} messages")
    return done + _rewrite_transcripts(transcripts, found)


_CORRECTED = {"prompt": "system prompts", "counters": "counters of sessions"}


def _rewrite_transcripts(transcripts: TranscriptWriter, found: list[Finding]) -> list[str]:
    done = []
    for where, detail in {
        one["where"]: one["detail"] for one in found if one["kind"] in ("transcript", "prompt")
    }.items():
        if detail == DELETED:
            (transcripts.files.folder / where).unlink(missing_ok=True)
            done.append(f"removed the transcript {where} of a deleted session")
        elif where.startswith("session "):
            path = transcripts.files.path(where.removeprefix("session "))
            aside = f"; the old one is {path.rename(copy_name(path)).name}" if path.exists() else ""
            transcripts.kept(where.removeprefix("session "))
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

"""Shredding: a conversation leaves every table, index, free page, log and file that belongs to the store.

Deleting takes the rows away; this also takes what refers to them in files beside the store, and has the engine rewrite
whatever holds deleted text. Each step can be repeated. What is under way is noted in `state_meta` by the transaction that
makes the conversation invisible, and the note goes last: shredding the same id again after a crash does the rest. The free
space of a server's files is the exception: `VACUUM FULL` by the tables' owner rewrites it, as the result says.

The history file of the terminal's prompt belongs to no conversation: it is named among the copies that may still hold its lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path

from hermes.errors import InvalidInput, SessionBusy, StoreError
from hermes.store import leases
from hermes.store.api.open import OpenStore
from hermes.store.engines.base import Tx, drop_meta, get_meta, meta_names, set_meta
from hermes.store.exchange import collect
from hermes.store.gateway import outbox
from hermes.store.records import codec, lineage
from hermes.store.records.rows import ShredResult
from hermes.store.transcripts.replay import file_name
from hermes.store.upkeep import retention

# What a store that several hosts share has beyond the reach of this one.
_ELSEWHERE = (
    "free space of the server's tables and indexes, until their owner runs VACUUM FULL",
    "the server's write-ahead log and backups (their administrator's to expire)",
    "transcripts, attachments and prompt histories on other hosts that used this store",
)


@dataclass(slots=True)
class Plan:
    """The parts of a conversation that is shredded, as far as it can't be looked up once its rows are gone."""

    parts: list[str] = field(default_factory=list)
    messages: int = 0
    attachments: list[str] = field(default_factory=list)
    shared_with: list[str] = field(default_factory=list)


def shred(db: OpenStore, session_id: str, by: str) -> ShredResult | None:
    """Shred the whole conversation a session is part of; None when no session has that id and none is half shredded."""
    engine = db._engine
    with engine.read() as tx:
        parts = _parts(tx, session_id)
        if not parts and not _saved_plan(tx, session_id).parts:
            return None
        _refuse(tx, parts)
    with engine.write() as tx:
        plan, children = _begin(tx, session_id, by)
        db._transcripts.mark(tx, children)
    db._transcripts.cut_off(children)
    retention.finish_deletions(engine, db._transcripts)
    unfinished = _remove_files(db, plan)
    try:
        unfinished += engine.scrub()
    except StoreError as error:
        unfinished.append(f"deleted text may still be in {engine.where}, which could not be rewritten: {error}")
    if not unfinished:
        with engine.write() as tx:
            drop_meta(tx, retention.SHREDDING + plan.parts[-1])
    copies = _copies(db.path, db._transcripts.files.folder, plan.parts)
    return {
        "parts": plan.parts,
        "messages": plan.messages,
        "shared_with": plan.shared_with,
        "copies": [*copies, *_ELSEWHERE] if engine.shared else copies,
        "unfinished": unfinished,
    }


# ------------------------------------------------------------------------------------------ what belongs to it


def _parts(tx: Tx, session_id: str) -> list[str]:
    there = tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NULL", (session_id,)) is not None
    return lineage.parts(tx, session_id) if there else []


def _saved_plan(tx: Tx, session_id: str) -> Plan:
    """The plan that an earlier try has left for this session; an empty one when it was finished, or there was none."""
    names = meta_names(tx, retention.SHREDDING)
    plans = (Plan(**codec.from_json(get_meta(tx, retention.SHREDDING + one))) for one in names)
    return next((plan for plan in plans if session_id in plan.parts), Plan())


def _refuse(tx: Tx, parts: Sequence[str]) -> None:
    """A conversation in use, or one of which another session shows messages, is left alone."""
    for part in parts:
        if (held := leases.held(tx, leases.session_lease(part))) is not None:
            raise SessionBusy(part, held[0], held[1])
    (owned, ids), (own, _) = tx.among("r.from_session", parts), tx.among("r.session_id", parts)
    other = tx.row(
        "SELECT r.session_id, s.trashed_at FROM session_refs r LEFT JOIN sessions s ON s.id = r.session_id"
        f" WHERE {owned} AND NOT ({own}) ORDER BY 1 LIMIT 1",
        [*ids, *ids],
    )
    if other is not None:
        where = " in the trash" if other[1] is not None else ""
        raise InvalidInput(
            f"session {parts[-1]} can't be shredded: session {other[0]}{where} shows messages of it; shred that one first"
        )


# ------------------------------------------------------------------------------------------ the database


def _begin(tx: Tx, session_id: str, by: str) -> tuple[Plan, list[str]]:
    """Make the conversation invisible and note what is to do; the children it had. Refused: nothing was changed."""
    parts, earlier = _parts(tx, session_id), _saved_plan(tx, session_id)
    _refuse(tx, parts)
    plan = _planned(tx, parts, earlier)
    children: list[str] = []
    outbox.shred(tx, plan.parts)
    collect.shredded(tx, parts)
    for part in parts:
        count = int(tx.value("SELECT count(*) FROM messages WHERE session_id = ?", (part,)))
        children += [child for child in retention.mark_deleted(tx, part, shredded=True) if child not in plan.parts]
        # A deletion, for every program that asks whether a transcript's session was deleted.
        retention.audit(tx, "delete", part, by, f"shredded, {count} messages")
    if earlier.parts:
        drop_meta(tx, retention.SHREDDING + earlier.parts[-1])
    set_meta(tx, retention.SHREDDING + plan.parts[-1], codec.to_json(asdict(plan)))
    return plan, children


def _planned(tx: Tx, parts: list[str], earlier: Plan) -> Plan:
    (shown, ids), (owned, _) = tx.among("r.session_id", parts), tx.among("r.from_session", parts)
    owners = tx.rows(
        "SELECT DISTINCT r.from_session, s.purged FROM session_refs r LEFT JOIN sessions s ON s.id = r.from_session"
        f" WHERE {shown} AND NOT ({owned})",
        [*ids, *ids],
    )
    tombstones = [owner for owner, purged in owners if purged is not None]
    sharing = "SELECT DISTINCT session_id FROM session_refs WHERE from_session = ?"
    own = "SELECT DISTINCT a.hash FROM attachments a JOIN messages m ON m.id = a.message_id WHERE m.session_id = ?"
    count = "SELECT count(*) FROM messages WHERE session_id = ?"
    shared = [owner for owner, purged in owners if purged is None] + _column(tx, sharing, tombstones)
    return Plan(
        parts=[*dict.fromkeys(earlier.parts + parts)],
        messages=earlier.messages + sum(map(int, _column(tx, count, parts))),
        attachments=[*dict.fromkeys(earlier.attachments + _column(tx, own, [*parts, *tombstones]))],
        shared_with=sorted({*earlier.shared_with, *shared} - set(parts)),
    )


# ------------------------------------------------------------------------------------------ files


def _remove_files(db: OpenStore, plan: Plan) -> list[str]:
    """Remove what lies beside the store; a line for each file that is still there."""
    transcripts, drafts, attachments = db._transcripts, db.drafts, db._attachments
    with db._engine.read() as tx:
        gone = [part for part in plan.parts if tx.row("SELECT 1 FROM sessions WHERE id = ?", (part,)) is None]
        hashes = [digest for digest in plan.attachments if not retention.is_used(tx, digest)]
    for part in gone:
        drafts.forget(part)
        transcripts.deleted(part)
    with suppress(OSError):
        attachments.forget(hashes)
        for path in (one for digest in hashes for one in attachments.path(digest).parent.glob(f".{digest}.*.part")):
            path.unlink(missing_ok=True)  # of a process that was killed while it wrote it
    left = [path(part) for part in gone for path in (transcripts.files.path, drafts.path)]
    lines = [f"{path} can't be removed; remove it" for path in (*left, *map(attachments.path, hashes)) if path.exists()]
    index = transcripts.files.folder / "sessions.json"  # it tells titles, and a gateway makes it again
    try:
        if index.exists() and any(json.dumps(part, ensure_ascii=False) in index.read_text() for part in gone):
            index.unlink()
    except (OSError, ValueError) as error:
        lines.append(f"{index} can't be removed ({error}); remove it")
    return lines


def _column(tx: Tx, sql: str, keys: Iterable[str]) -> list[str]:
    return [one for key in keys for one in tx.column(sql, (key,))]


# ------------------------------------------------------------------------------------------ copies


def _copies(database: Path, transcripts: Path, session_ids: Iterable[str]) -> list[str]:
    """The files that may still hold one of these sessions: copies that a repair put aside, and the prompt's history."""
    aside = {*database.parent.glob(f"{escape(database.name)}.before-repair-*")}
    for one in session_ids:
        aside.update(transcripts.glob(f"{escape(file_name(one))}.before-repair-*"))
    history = [path for path in (database.with_name("history"),) if path.exists()]
    return list(map(str, [*sorted(aside), *history]))

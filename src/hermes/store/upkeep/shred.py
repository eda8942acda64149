"""Shredding: a conversation leaves every table, index, free page, log and file that belongs to the store.

Deleting takes the rows away; this also takes what refers to them in files beside the store, and has the engine rewrite
whatever holds deleted text. Each step can be repeated. What is under way is noted in `state_meta` by the transaction that
makes the conversation invisible, and the note goes last: shredding the same id again after a crash does the rest.

The history file of the terminal's prompt is rewritten without the texts that are to be forgotten. prompt_toolkit writes an
entry as an empty line, a comment with the time, and the lines of the text, each after a `+`. Terminals add entries, and the
file is changed, in place and under a lock of it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

from hermes.errors import HermesError, InvalidInput, SessionBusy, StoreError
from hermes.store import leases
from hermes.store.api.open import OpenStore
from hermes.store.engines.base import Tx, drop_meta, get_meta, meta_names, set_meta
from hermes.store.exchange import collect
from hermes.store.gateway import outbox
from hermes.store.records import codec, lineage
from hermes.store.records.rows import ShredResult
from hermes.store.transcripts.replay import file_name
from hermes.store.upkeep import retention


def forget_texts(path: Path, texts: Collection[str]) -> None:
    """Remove the entries that are one of these texts, whatever spaces surround it; OSError when that is not possible."""
    wanted = {text.strip() for text in texts}
    if not path.exists() or _without(path, wanted) == path.read_bytes():
        return
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CLOEXEC), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.fchmod(file.fileno(), 0o600)
        file.write(_without(path, wanted))  # terminals may have added to it
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _without(path: Path, wanted: Collection[str]) -> bytes:
    """The file without the entries that are one of these texts."""
    lines = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    kept = (group for group, text in _entries(lines) if text is None or text.strip() not in wanted)
    return "\n".join(line for group in kept for line in group).encode("utf-8", "surrogateescape")


def load_history(path: Path) -> list[str]:
    """The texts in the file, the newest first."""
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    return [text for _, text in _entries(lines) if text is not None][::-1]


def append_history(path: Path, data: bytes) -> None:
    """Add to the file; OSError when that fails."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(data)


def _entries(lines: list[str]) -> Iterator[tuple[list[str], str | None]]:
    """The lines in groups: an entry with what precedes it, and its text; None after the last one."""
    group: list[str] = []
    for number, line in enumerate(lines):
        group.append(line)
        if line.startswith("+") and not "".join(lines[number + 1 : number + 2]).startswith("+"):
            yield group, "\n".join(one[1:] for one in group if one.startswith("+"))
            group = []
    if group:
        yield group, None


# What a store that several hosts share has beyond the reach of this one.
_ELSEWHERE = (
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


def shred(db: OpenStore, session_id: str, by: str, history: Path) -> ShredResult | None:
    """Shred the whole conversation a session is part of; None when no session has that id and none is half shredded."""
    engine = db._engine
    with engine.read() as tx:
        parts = _parts(tx, session_id)
        if not parts and not _saved_plan(tx, session_id).parts:
            return None
        _refuse(tx, parts)
        typed = set(_typed(tx, parts))
    try:  # while the messages are there to compare with
        forget_texts(history, typed)
    except OSError as error:
        why = error.strerror or error
        raise StoreError(f"{history} can't be rewritten ({why}); nothing was deleted") from error
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
    copies = _repair_copies(db.path, db._transcripts.files.folder, plan.parts)
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


def _typed(tx: Tx, parts: Sequence[str]) -> Iterator[str]:
    """The user's lines in the conversation, and the commands that gave it titles, as the prompt's history has them."""
    for part in parts:
        written = "SELECT content, content_rest, content_format FROM messages WHERE session_id = ? AND role = 'user'"
        for content, rest, form in tx.rows(written, (part,)):
            with suppress(HermesError):  # a damaged text is in no history
                yield from _texts(codec.content_value(codec.joined(content, rest), form))
        for title in tx.row("SELECT title, trashed_title FROM sessions WHERE id = ?", (part,)) or ():
            if title is not None:
                yield f"/title {title}"


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for one in content if isinstance(content, list) else ():
        if isinstance(one, dict) and isinstance(one.get("text"), str):
            yield one["text"]


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


def _repair_copies(database: Path, transcripts: Path, session_ids: Iterable[str]) -> list[str]:
    """The copies that a repair put aside and that may hold one of these sessions."""
    aside = {*database.parent.glob(f"{escape(database.name)}.before-repair-*")}
    for one in session_ids:
        aside.update(transcripts.glob(f"{escape(file_name(one))}.before-repair-*"))
    return list(map(str, sorted(aside)))

"""Restores from a transcript what the database lost: sessions, messages, texts and state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.store import (
    codec,
    message_attachments,
    message_values,
    messages,
    session_events,
    sessions,
    transcript_replay,
)
from hermes.store.engines.base import Engine, Tx
from hermes.store.transcript import Entry
from hermes.store.transcript_comparison import Comparison, is_same_message, readable_messages
from hermes.store.transcript_replay import ToldState

if TYPE_CHECKING:
    from hermes.store.rows import MessageRow

Restored = tuple[ToldState, dict[int, int]]  # what a transcript says beside the messages, and the ids of those


def restore_session(engine: Engine, path: Path) -> tuple[str, Restored, int]:
    """Restore a session that only its transcript has, or of which the database has only messages; its state is set later.

    The number is that of the restored messages.
    """
    session = transcript_replay.read_transcript(path)
    session_id = session.columns["id"]
    if session.events:
        session_events.prepare(engine)
    with engine.write() as tx:
        if not _found_under_another_id(tx, session) and not tx.row(
            "SELECT 1 FROM sessions WHERE id = ?", (session_id,)
        ):
            transcript_replay.insert_session(tx, session.columns)
        there, _ = readable_messages(tx, session_id)
        entries = [one for one in (*session.messages.values(), *session.loose) if one.get("id") not in there]
        back, places = insert_lost(engine, tx, session_id, [one for one in entries if not _is_there(one, there)])
        if session.events:
            session_events.bring_in(tx, session_id, session.events, places)
        transcript_replay.cut_loose_parents(tx)
        messages.recount(tx, session_id)
    return session_id, (session.state, places), back


def restore_state(engine: Engine, restored: dict[str, Restored]) -> None:
    """Set tags, carried ranges and rewinds of restored sessions, once every session they may refer to exists."""
    ids = {session_id: given for session_id, (_, given) in restored.items()}
    with engine.write() as tx:
        for session_id, (state, _) in restored.items():
            transcript_replay.set_state(tx, session_id, transcript_replay.state_here(tx, session_id, state, ids))
            messages.recount(tx, session_id)


def _is_there(entry: Entry, there: dict[int, MessageRow]) -> bool:
    return any(is_same_message(entry, one) for one in there.values())


def _found_under_another_id(tx: Tx, session: transcript_replay.ReplayedSession) -> bool:
    """Repair a session row whose own id was damaged: its messages and its transcript still have the right one."""
    columns = session.columns
    if columns.get("started_at") is None or not tx.row("SELECT 1 FROM messages WHERE session_id = ?", (columns["id"],)):
        return False
    rows = tx.rows(
        "SELECT id FROM sessions s WHERE s.started_at = ? AND s.source = ? AND s.message_count > 0 AND s.id <> ? AND NOT"
        " EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id)",
        (columns["started_at"], columns["source"], columns["id"]),
    )
    if len(rows) == 1:
        tx.run("UPDATE sessions SET id = ? WHERE id = ?", (columns["id"], rows[0][0]))
    return len(rows) == 1


def bring_home(tx: Tx, session_id: str, message_ids: Iterable[int]) -> set[str]:
    """Move messages stored under other sessions back to this one; returns the sessions that had them."""
    holders = set()
    for message_id in message_ids:
        holders.add(tx.value("SELECT session_id FROM messages WHERE id = ?", (message_id,)))
        tx.run("UPDATE messages SET session_id = ? WHERE id = ?", (session_id, message_id))
        tx.changed_by_us([message_id])
    return holders


def overwrite(engine: Engine, tx: Tx, one: Comparison, *, restore: bool, salvaging: bool) -> int:
    """Restore the text of damaged rows from their lines."""
    wanted: dict[int, Entry | None] = {**one.unreadable, **one.broken}
    if restore:
        wanted |= one.differing | {i: one.edited_lines[i] for i in one.edited if i in one.edited_lines}
    elif salvaging:  # the file was damaged: of two versions the one with a checksum is the right one
        wanted |= {i: entry for i, entry in one.differing.items() if entry.get("crc")}
    count = 0
    for message_id, entry in wanted.items():
        if entry is not None:
            messages.overwrite(tx, message_id, message_values.make_ready(entry, mask=None, lift=None))
            engine.fulltext.reindex(tx, [message_id])
            count += 1
    return count


def insert_lost(engine: Engine, tx: Tx, session_id: str, entries: list[Entry]) -> tuple[int, dict[int, int]]:
    """Restore messages, each under its own id where that is free, else under a new one at its position in time.

    Returns their number, and by the id in the transcript the id that each message (moved ones included) has now.
    """
    if not entries:
        return 0, {}
    session = transcript_replay.ReplayedSession(session_id)
    for entry in entries:
        message_id = entry.get("id")
        taken = not isinstance(message_id, int) or message_id in session.messages
        if taken or tx.row("SELECT 1 FROM messages WHERE id = ?", (message_id,)) is not None:
            session.loose.append(entry)
        else:
            session.messages[message_id] = entry  # type: ignore[index]
    given = transcript_replay.insert_messages(engine, tx, session)
    tx.changed_by_us(list(given))
    count = len(given)
    for number, entry in enumerate(session.loose):  # the transcript's id, taken here, stands for this one
        if isinstance(entry.get("id"), int) and entry["id"] not in given:
            given[entry["id"]] = given.pop(-1 - number)
    moved = _put_in_order(engine, tx, session_id) if session.loose else {}
    return count, {**moved, **{old: moved.get(here, here) for old, here in given.items()}}


def _put_in_order(engine: Engine, tx: Tx, session_id: str) -> dict[int, int]:
    """Move messages restored under new ids to their position in time, unless another session refers to some by id.

    Returns the new id of each message by its old one; {} when none moves.
    """
    if tx.row("SELECT 1 FROM session_refs WHERE from_session = ? OR session_id = ?", (session_id, session_id)):
        return {}
    rows = transcript_replay.own_messages(tx, session_id)
    ordered = sorted(rows, key=lambda message: message["timestamp"])
    if [m["id"] for m in rows] == [m["id"] for m in ordered]:
        return {}
    hidden = tx.rows("SELECT 1 FROM messages WHERE session_id = ? AND hidden IS NOT NULL", (session_id,))
    if hidden:
        return {}
    attached = message_attachments.attached(tx, session_id)
    messages.remove_own(engine, tx, session_id)
    moved: dict[int, int] = {}
    for message in ordered:
        entry = {**message, "attachments": attached.get(message["id"], [])}
        ready = message_values.make_ready(entry, mask=None, lift=None)
        moved[message["id"]] = messages.insert(tx, session_id, ready, None)
    session_events.follow(tx, session_id, moved)
    return moved


def set_told_state(tx: Tx, session_id: str, state: ToldState, places: dict[int, int]) -> None:
    """Set a session's state to that of its transcript, with the ids that its own messages have now."""
    here = dict(state)
    if "rewinds" in state:
        here["rewinds"] = [[batch, places.get(cut, cut)] for batch, cut in state["rewinds"]]
    if "hidden" in state:  # the transcript lists only the hidden ones: the others are shown again
        here["hidden"] = [[places.get(old, old), hidden] for old, hidden in state["hidden"]]
        tx.run("UPDATE messages SET hidden = NULL WHERE session_id = ? AND hidden > 0", (session_id,))
    transcript_replay.set_state(tx, session_id, here)


def set_columns(tx: Tx, session_id: str, columns: Mapping[str, Any]) -> None:
    """Set columns of a session from its transcript, except a title that another session has meanwhile."""
    for name, value in columns.items():
        if name == "system_prompt":
            sessions.set_prompt(tx, session_id, value)
            continue
        if value is None and name in ("source", "started_at"):
            continue
        if name == "title" and tx.row("SELECT 1 FROM sessions WHERE title = ? AND id <> ?", (value, session_id)):
            continue
        stored = codec.storable(value) if isinstance(value, str) else value
        tx.run(f"UPDATE sessions SET {name} = ? WHERE id = ?", (stored, session_id))

"""Updates a session that was imported from another program with what that program has now.

Its messages are known by the ids they had there (`platform_message_id`). New messages are appended; a message that was changed
there is changed here as an edit does it, with the earlier version stored; one that was undone there is hidden as a rewind
does it, and shown again when that program shows it again (a branch gone back to, a file that was read while it was being
written). What was hidden or redacted here stays so, and messages stored here stay in place. A title follows the one there
until it is changed here; end, model, tokens and cost follow until the conversation is continued here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes.store import codec, lineage, message_values, messages, titles, transcript_replay
from hermes.store.engines.base import REPLACED, Engine, Tx

_FOLLOWED = ("ended_at", "end_reason", "model", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
             "reasoning_tokens",
             "api_call_count", "actual_cost_usd", "cost_status", "cost_source")  # fmt: skip
_ENDS = ("imported", "compression")  # how an imported session ends that was not continued here
_COMPARED = ("tool_calls", "tool_name", "tool_call_id", "reasoning", "finish_reason")


@dataclass(slots=True)
class Update:
    """What an import changed in an existing session."""

    added: list[tuple[int, message_values.Ready]] = field(default_factory=list)
    changed: int = 0
    hidden: int = 0
    columns: list[str] = field(default_factory=list)  # of the session's row

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.hidden or self.columns)


@dataclass(slots=True)
class _StoredMessage:
    id: int
    hidden: int | None


def update(engine: Engine, tx: Tx, session_id: str, data: Mapping[str, Any]) -> Update:
    """Update a session's messages to those of an import."""
    made = Update()
    stored = _stored(tx, session_id)
    if not stored:
        return made  # it has no messages of another program, or they have no ids from there
    shown = [one for one in data.get("messages") or () if one.get("platform_message_id")]
    ours = _hidden_by_imports(tx, session_id)
    _show_again(tx, session_id, stored, [one["platform_message_id"] for one in shown], ours, made)
    numbers: dict[Any, int] = {}  # by the import's own numbers, the ids here
    for entry in shown:
        known = stored.get(entry["platform_message_id"])
        if known is None:
            ready = message_values.make_ready(entry, mask=None, lift=None)
            number = messages.insert(tx, session_id, ready, None)
            made.added.append((number, ready))
            numbers[entry.get("id")] = number
        else:
            numbers[entry.get("id")] = known.id
            if known.hidden is None and _differs(tx, known.id, entry):
                _replace(engine, tx, session_id, known.id, entry)
                made.changed += 1
    engine.fulltext.index_now(tx, [number for number, _ in made.added])
    ours |= _hide_taken_back(tx, session_id, stored, {one["platform_message_id"] for one in shown}, made)
    ours |= _add_branches(engine, tx, session_id, stored, data, numbers, made)
    if made.hidden:
        _note_hidden(tx, session_id, ours)
    if made:
        messages.recount(tx, session_id)
    _follow(tx, session_id, data, made)
    return made


def _follow(tx: Tx, session_id: str, data: Mapping[str, Any], made: Update) -> None:
    """Take over what the other program has changed about the session itself."""
    row = tx.row(f"SELECT {', '.join(_FOLLOWED)}, title, title_base, meta FROM sessions WHERE id = ?", (session_id,))
    assert row is not None
    *stored, title, base, meta = row
    was = dict(zip(_FOLLOWED, stored, strict=True))
    if was["end_reason"] in _ENDS:
        new = {name: data[name] for name in _FOLLOWED if data.get(name) is not None and data[name] != was[name]}
        if new:
            tx.run(
                f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in new)} WHERE id = ?",
                [*(codec.storable(v) if isinstance(v, str) else v for v in new.values()), session_id],
            )
        made.columns += new
    told = codec.from_json(meta) if meta else {}
    source = told.get("imported") if isinstance(told, dict) else None
    there = data.get("title")
    if not isinstance(source, dict) or there is None or there == source.get("title"):
        return
    if (title is None and source.get("title") is None) or (title is not None and source.get("title") in (title, base)):
        titles.take_in(tx)
        taken = tx.row("SELECT 1 FROM sessions WHERE title = ? AND id <> ?", (there, session_id)) is not None
        titles.set_title(tx, session_id, titles.next_title(tx, there) if taken else there)
        told["imported"] = {**source, "title": there}
        tx.run("UPDATE sessions SET meta = ? WHERE id = ?", (codec.to_json(told), session_id))
        made.columns += ["title", "title_base", "title_no", "meta"]


def _stored(tx: Tx, session_id: str) -> dict[str, _StoredMessage]:
    rows = tx.rows(
        "SELECT id, platform_message_id, hidden FROM messages WHERE session_id = ? AND platform_message_id IS NOT NULL"
        f" AND coalesce(hidden, 0) <> {REPLACED} ORDER BY id",
        (session_id,),
    )
    return {codec.restored(name): _StoredMessage(number, hidden) for number, name, hidden in rows}


def _differs(tx: Tx, message_id: int, entry: Mapping[str, Any]) -> bool:
    """Whether a message differs from when it was imported."""
    now = message_values.make_ready(entry, mask=None, lift=None)
    row = tx.row(
        f"SELECT content, content_rest, content_format, {', '.join(_COMPARED)} FROM messages WHERE id = ?",
        (message_id,),
    )
    assert row is not None
    content, rest, form, *others = row
    said = (codec.joined(content, rest), form) != (now.text, now.form)
    return said or others != [getattr(now.values, name) for name in _COMPARED]


def _replace(engine: Engine, tx: Tx, session_id: str, message_id: int, entry: Mapping[str, Any]) -> None:
    """Replace a message by another version; the earlier one moves to a separate row that is never shown."""
    (was,) = transcript_replay.with_attachments(tx, session_id, [transcript_replay.message(tx, message_id)])
    version = messages.insert(tx, session_id, message_values.make_ready(was, mask=None, lift=None), None)
    tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (REPLACED, version))
    engine.fulltext.index_now(tx, [version])
    messages.set_values(tx, message_id, message_values.make_ready(entry, mask=None, lift=None))
    engine.fulltext.reindex(tx, [message_id])


def _imported(tx: Tx, session_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A session's `meta`, and in it what imports have recorded."""
    meta = tx.value("SELECT meta FROM sessions WHERE id = ?", (session_id,))
    told = codec.from_json(meta) if meta else {}
    told = told if isinstance(told, dict) else {}
    source = told.get("imported")
    return told, source if isinstance(source, dict) else {}


def _hidden_by_imports(tx: Tx, session_id: str) -> set[int]:
    """The batches of the rewinds that imports have made; all others were made here."""
    batches = _imported(tx, session_id)[1].get("hidden")
    return {one for one in batches if isinstance(one, int)} if isinstance(batches, list) else set()


def _note_hidden(tx: Tx, session_id: str, batches: set[int]) -> None:
    told, source = _imported(tx, session_id)
    there = {int(row[0]) for row in tx.rows("SELECT batch FROM session_rewinds WHERE session_id = ?", (session_id,))}
    told["imported"] = {**source, "hidden": sorted(batches & there)}
    tx.run("UPDATE sessions SET meta = ? WHERE id = ?", (codec.to_json(told), session_id))


def _show_again(
    tx: Tx, session_id: str, stored: dict[str, _StoredMessage], shown: list[str], ours: set[int], made: Update
) -> None:
    """Show messages that an import had hidden and the other program shows again."""
    for name in shown:
        known = stored.get(name)
        if known is not None and known.hidden in ours:
            tx.run("UPDATE messages SET hidden = NULL WHERE id = ?", (known.id,))
            known.hidden = None
            made.hidden += 1
    if made.hidden:
        lineage.drop_empty_rewinds(tx, session_id)


def _hide_taken_back(
    tx: Tx, session_id: str, stored: dict[str, _StoredMessage], shown: set[str], made: Update
) -> set[int]:
    gone = [one.id for name, one in stored.items() if one.hidden is None and name not in shown]
    if not gone:
        return set()
    before = tx.value(
        "SELECT max(id) FROM messages WHERE session_id = ? AND hidden IS NULL AND id < ?", (session_id, min(gone))
    )
    batch = _next_batch(tx, session_id)
    tx.run("INSERT INTO session_rewinds(session_id, batch, cut_id) VALUES(?, ?, ?)", (session_id, batch, before or 0))
    for message_id in gone:
        tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (batch, message_id))
    made.hidden += len(gone)
    return {batch}


def _add_branches(
    engine: Engine, tx: Tx, session_id: str, stored: dict[str, _StoredMessage], data: Mapping[str, Any], numbers: dict[Any, int],
    made: Update,
) -> set[int]:  # fmt: skip
    """Branches that were begun and left there since the last import: hidden here as by a rewind, which can be undone."""
    cuts = dict(data.get("rewinds") or ())
    batches: dict[int, int] = {}
    for entry in data.get("rewound_messages") or ():
        name = entry.get("platform_message_id")
        if not name or name in stored:
            continue
        number = messages.insert(tx, session_id, message_values.make_ready(entry, mask=None, lift=None), None)
        there = entry.get("hidden", 0)
        if there not in batches:
            batches[there] = _next_batch(tx, session_id)
            cut = numbers.get(cuts.get(there), 0)
            tx.run(
                "INSERT INTO session_rewinds(session_id, batch, cut_id) VALUES(?, ?, ?)",
                (session_id, batches[there], cut),
            )
        tx.run("UPDATE messages SET hidden = ? WHERE id = ?", (batches[there], number))
        engine.fulltext.index_now(tx, [number])
        made.hidden += 1
    return set(batches.values())


def _next_batch(tx: Tx, session_id: str) -> int:
    highest = tx.value("SELECT max(batch) FROM session_rewinds WHERE session_id = ?", (session_id,))
    return int(highest or 0) + 1

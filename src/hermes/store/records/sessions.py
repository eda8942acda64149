"""Sessions: opening, ending, looking up; what they used, and what happened in them that is no message.

A session row holds what a list shows (counters, last activity, preview), so that listing never reads messages.
System prompts are stored once, by hash; one that begins like an earlier one refers to it for that beginning.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from hermes.errors import InvalidInput, SessionNotFound
from hermes.store.api.arguments import checked_number, checked_text
from hermes.store.engines.base import KEPT, REDACTED, Tx, drop_meta, get_meta, rows_among, set_meta
from hermes.store.engines.sqlite.schema import PROMPT_TEXT, SESSION_COLUMNS
from hermes.store.records import codec
from hermes.store.records.rows import SessionEvent, SessionRow
from hermes.store.records.visibility import User, session_clause

AnySession = TypeVar("AnySession", bound="SessionRow")

PROMPT = PROMPT_TEXT
_OWN = frozenset(("transcript", "system_prompt_hash", "title_base", "title_no", "title_seen", "trashed_at", "trashed_title",
                  "purged", "handoff_requested_at"))  # fmt: skip
# Columns that have another name in the API: an alias `preview` or `last_active` in people's own SQL must not meet a column.
_SHOWN_AS = {"first_words": "preview", "active_at": "last_active"}
_COLUMNS = {name: _SHOWN_AS.get(name, name) for name in SESSION_COLUMNS if name not in _OWN}
SHOWN = tuple(_COLUMNS.values())
# For lists: the prompts are added afterwards, by `put_prompts`.
LISTED = ", ".join(f"s.{name} AS {shown}" for name, shown in (*_COLUMNS.items(), ("system_prompt_hash",) * 2))
COLUMNS = ", ".join(
    f"{PROMPT if name == 'system_prompt' else f's.{name}'} AS {shown}" for name, shown in _COLUMNS.items()
)
KINDS = (None, "compression", "branch", "subagent", "reset")
_ODD = re.compile("[\0\ud800-\udfff\ufdd0]")  # what a database may store as more than one character
_SHARE_OVER = 1024  # a common beginning shorter than this is not worth a reference


def checked_id(session_id: Any) -> str:
    """An id as it may be stored: 1 to 512 characters, none of them a control character or a lone surrogate."""
    if not isinstance(session_id, str) or not 1 <= len(session_id) <= 512:
        raise InvalidInput("a session id is a text of 1 to 512 characters")
    if any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in session_id):
        raise InvalidInput(f"the session id {session_id!r} has control characters or lone surrogates")
    return session_id


def create(tx: Tx, session_id: str, source: str, columns: Mapping[str, Any]) -> bool:
    """Open a session; False when the id exists already (which is then left as it is)."""
    existing = tx.row("SELECT trashed_at, purged FROM sessions WHERE id = ?", (session_id,))
    if existing is not None:
        if existing[1] is None and existing[0] is not None:
            raise InvalidInput(f"session {session_id} is in the trash; restore it, or use another id")
        if existing[1] is None:
            return False
        free_id(tx, session_id)
    parent = columns.get("parent_session_id")
    if parent is not None and tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NULL", (parent,)) is None:
        raise SessionNotFound(parent)
    started_at = columns.get("started_at")
    made = tx.run(
        "INSERT INTO sessions(id, source, user_id, model, model_config, system_prompt_hash, parent_session_id, started_at,"
        " kind, cwd, transcript) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            session_id, source, columns.get("user_id"), columns.get("model"), codec.json_field(columns.get("model_config")),
            keep_prompt(tx, columns.get("system_prompt")), parent, time.time() if started_at is None else float(started_at),
            columns.get("kind"), columns.get("cwd"), 1 if columns.get("transcript") else None,
        ),
    )  # fmt: skip
    return bool(made)  # False: another process created it first


def free_id(tx: Tx, session_id: str) -> None:
    """Make room for a session whose id a deleted one had; the messages kept for other sessions stay under that id."""
    if tx.row("SELECT 1 FROM sessions WHERE id = ? AND purged IS NOT NULL", (session_id,)) is None:
        return
    left = f"SELECT 1 FROM messages WHERE session_id = ? AND coalesce(hidden, 0) NOT IN ({KEPT}, {REDACTED}) LIMIT 1"
    if tx.row(left, (session_id,)) is not None:
        raise InvalidInput(f"session {session_id} is being deleted; try again in a moment")
    tx.run("DELETE FROM sessions WHERE id = ? AND purged IS NOT NULL", (session_id,))


def keep_prompt(tx: Tx, text: str | None) -> str | None:
    """Store a system prompt once; returns its hash."""
    if text is None:
        return None
    stored = codec.storable(text)
    digest = hashlib.sha256(stored if isinstance(stored, bytes) else stored.encode()).hexdigest()
    if tx.row("SELECT 1 FROM system_prompts WHERE hash = ?", (digest,)) is None:
        base_hash, shared = _common_beginning(tx, text) if isinstance(stored, str) else (None, 0)
        sql = "INSERT INTO system_prompts(hash, base_hash, base_chars, text) VALUES(?, ?, ?, ?)"
        tx.run(sql, (digest, base_hash, shared or None, stored if base_hash is None else text[shared:]))
    return digest


def _common_beginning(tx: Tx, text: str) -> tuple[str | None, int]:
    base_hash = tx.value(
        "SELECT coalesce(p.base_hash, p.hash) FROM sessions s JOIN system_prompts p ON p.hash = s.system_prompt_hash"
        " ORDER BY s.started_at DESC LIMIT 1"
    )
    base = tx.value("SELECT text FROM system_prompts WHERE hash = ? AND base_hash IS NULL", (base_hash,))
    if not isinstance(base, str) or _ODD.search(base):
        return None, 0
    differs = (place for place, (one, other) in enumerate(zip(base, text)) if one != other)
    shared = next(differs, min(len(base), len(text)))
    return (base_hash, shared) if shared >= _SHARE_OVER else (None, 0)


def put_prompts(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """Add the system prompts to rows of `LISTED` columns; each different one is read once."""
    hashes = [row.pop("system_prompt_hash") for row in rows]
    # The expression reads `s`, so each prompt stands in for a session that has it and no text of its own.
    prompts = "(SELECT NULL AS system_prompt, hash AS system_prompt_hash FROM system_prompts) s WHERE {these}"
    sql = f"SELECT s.system_prompt_hash, {PROMPT} FROM {prompts}"
    texts: dict[str, Any] = dict(
        rows_among(tx, sql, sorted({digest for digest in hashes if digest is not None}), "s.system_prompt_hash")
    )
    for row, digest in zip(rows, hashes, strict=True):
        if row["system_prompt"] is None and digest is not None:
            row["system_prompt"] = texts.get(digest)


def get(tx: Tx, session_id: str, visible_to: User | None = None) -> SessionRow | None:
    """The session as a dict, or None."""
    where, params = session_clause(visible_to)
    sql = f"SELECT {COLUMNS} FROM sessions s WHERE s.id = ? AND {where}"
    found: list[SessionRow] = tx.dicts(sql, [session_id, *params])
    return tidy(found[0]) if found else None


def several(tx: Tx, session_ids: Sequence[str], visible_to: User | None = None) -> dict[str, SessionRow]:
    """The visible sessions among these ids, keyed by id."""
    where, params = session_clause(visible_to)
    these, ids = tx.among("s.id", session_ids)
    found: list[SessionRow] = tx.dicts(f"SELECT {COLUMNS} FROM sessions s WHERE {these} AND {where}", [*ids, *params])
    return {row["id"]: row for row in map(tidy, found)}


def is_shown(tx: Tx, session_id: str, visible_to: User | None) -> bool:
    """Whether the session exists and this caller may see it."""
    where, params = session_clause(visible_to)
    return tx.row(f"SELECT 1 FROM sessions s WHERE s.id = ? AND {where}", [session_id, *params]) is not None


def tidy(row: AnySession) -> AnySession:
    """A session row as callers see it."""
    columns: Any = row  # texts that are stored as bytes may lie in any of them
    for name, value in columns.items():
        if type(value) is bytes:
            columns[name] = codec.restored(value)
    return row


def require(tx: Tx, session_id: str) -> SessionRow:
    """The session as a dict; raises when there is none."""
    session = get(tx, session_id)
    if session is None:
        raise SessionNotFound(session_id)
    return session


def end(tx: Tx, session_id: str, reason: str | None) -> bool:
    """End a session, unless it was ended already."""
    sql = "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ? AND ended_at IS NULL AND purged IS NULL"
    return bool(tx.run(sql, (time.time(), reason, session_id)))


def reopen(tx: Tx, session_id: str) -> bool:
    """Clear a session's end time and end reason."""
    sql = "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = ? AND purged IS NULL"
    return bool(tx.run(sql, (session_id,)))


def set_prompt(tx: Tx, session_id: str, text: str | None) -> bool:
    """Replace a session's system prompt."""
    sql = "UPDATE sessions SET system_prompt = NULL, system_prompt_hash = ? WHERE id = ?"
    return bool(tx.run(sql, (keep_prompt(tx, text), session_id)))


def resolve_id(tx: Tx, id_or_prefix: str, visible_to: User | None) -> str | None:
    """The session with this id, else the only one whose id has this prefix."""
    matches = with_prefix(tx, id_or_prefix, visible_to, 2)
    return matches[0] if len(matches) == 1 or id_or_prefix in matches[:1] else None


def with_prefix(tx: Tx, prefix: str, visible_to: User | None, limit: int) -> list[str]:
    """Ids with this prefix: the exact id, then the newest session first."""
    if not prefix or codec.storable(prefix) is not prefix:
        return []
    where, params = session_clause(visible_to)
    return tx.column(
        f"SELECT s.id FROM sessions s WHERE s.id >= ? AND s.id < ? AND {where}"
        " ORDER BY s.id <> ?, s.started_at DESC, s.id DESC LIMIT ?",
        [prefix, prefix + "\U0010ffff", *params, prefix, limit],
    )


def count(tx: Tx, source: str | None, visible_to: User | None) -> int:
    """The number of sessions (of a source)."""
    where, params = session_clause(visible_to, source=source)
    return int(tx.value(f"SELECT count(*) FROM sessions s WHERE {where}", params))


def count_by_source(tx: Tx, visible_to: User | None) -> dict[str, int]:
    """How many sessions each source has, the largest first."""
    where, params = session_clause(visible_to)
    sql = f"SELECT s.source, count(*) FROM sessions s WHERE {where} GROUP BY s.source ORDER BY count(*) DESC, s.source"
    rows = tx.rows(sql, params)
    return {codec.restored(source): number for source, number in rows}


# ------------------------------------------------------------------------------------------------ marks


def clean_tag(tag: Any) -> str:
    """A tag as it is stored: one line, no white space at its ends, 1 to 100 characters."""
    clean = " ".join(tag.split()) if isinstance(tag, str) else ""
    if not 1 <= len(clean) <= 100 or codec.storable(clean) is not clean:
        raise InvalidInput(f"a tag is a text of 1 to 100 characters, not {tag!r}")
    return clean


def set_tags(tx: Tx, session_id: str, add: list[str], remove: list[str]) -> bool:
    """Add and remove tags; False when there is no such session."""
    if get(tx, session_id) is None:
        return False
    for tag in add:
        tx.run("INSERT INTO session_tags(session_id, tag) VALUES(?, ?) ON CONFLICT DO NOTHING", (session_id, tag))
    for tag in remove:
        tx.run("DELETE FROM session_tags WHERE session_id = ? AND tag = ?", (session_id, tag))
    return True


def tags_of_several(tx: Tx, session_ids: Sequence[str], visible_to: User | None) -> dict[str, list[str]]:
    """The tags of each of these sessions, sorted."""
    where, params = session_clause(visible_to)
    tags = "SELECT t.session_id, t.tag FROM session_tags t JOIN sessions s ON s.id = t.session_id"
    found: dict[str, list[str]] = {one: [] for one in session_ids}
    for session_id, tag in rows_among(
        tx, f"{tags} WHERE {{these}} AND {where} ORDER BY t.tag", session_ids, "s.id", params
    ):
        found[codec.restored(session_id)].append(tag)
    return found


def stamp(tx: Tx, session_id: str, column: str, on: bool) -> bool:
    """Set a column to the current time, or to NULL."""
    sql = f"UPDATE sessions SET {column} = ? WHERE id = ? AND trashed_at IS NULL AND purged IS NULL"
    return bool(tx.run(sql, (time.time() if on else None, session_id)))


def share(tx: Tx, session_id: str, source: str, user_id: str) -> bool:
    """Let a user see a session; False when there is no such session."""
    if get(tx, session_id) is None:
        return False
    sql = "INSERT INTO session_members(session_id, source, user_id) VALUES(?, ?, ?) ON CONFLICT DO NOTHING"
    tx.run(sql, (session_id, str(source), str(user_id)))
    return True


# ---------------------------------------------------------------------------------------------- the chosen model
#
# The model a person has chosen for a conversation (/model): kept in state_meta, so that it outlives the process.
#
# A choice has the name of a session or, before the first message, of the conversation's key in the gateway. It passes to
# branches and compressions, and is deleted with its session.

CONFIGURED = ""  # the choice to use the configured model again


def choice_key(conversation: str) -> str:
    """The key of state_meta with a conversation's model."""
    return f"model_choice:{conversation}"


def chosen_model(tx: Tx, conversation: str) -> str | None:
    """The chosen model, CONFIGURED, or None when nothing was chosen."""
    value = get_meta(tx, choice_key(conversation))
    return None if value is None else str(value)


def choose_model(tx: Tx, conversation: str, model: str | None) -> None:
    """Keep a choice; None forgets it."""
    if model is None:
        drop_meta(tx, choice_key(conversation))
    else:
        set_meta(tx, choice_key(conversation), model)


def inherit_model(tx: Tx, parent: str, child: str) -> None:
    """A session that continues another has the same model."""
    chosen = chosen_model(tx, parent)
    if chosen is not None:
        choose_model(tx, child, chosen)


def move_choice(tx: Tx, old: str, new: str) -> None:
    """Move the model chosen before the first message to the session that has begun."""
    inherit_model(tx, old, new)
    choose_model(tx, old, None)


# ---------------------------------------------------------------------------------------------- tokens and money

_COUNTERS = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "api_call_count",
)  # fmt: skip
_COSTS = ("estimated_cost_usd", "actual_cost_usd")
_FILLED = ("model", "billing_provider", "billing_base_url", "billing_mode")  # set only where empty
_NEWEST = ("cost_status", "cost_source", "pricing_version")  # the last value counts
_USAGE = (*_COUNTERS, *_COSTS, *_FILLED, *_NEWEST)
_USAGE_KINDS = {**dict.fromkeys(_COUNTERS, "INTEGER"), **dict.fromkeys(_COSTS, "REAL")}


def checked_usage(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """The usage of a message, as `add_usage` expects it.

    InvalidInput when it has a key that is no usage column of a session, or a value of another type.
    """
    unknown = [name for name in values or () if name not in _USAGE]
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is not a usage counter of a session; available: {', '.join(_USAGE)}")
    used = dict(values or ())
    for name, value in used.items():
        if value is not None:
            kind = _USAGE_KINDS.get(name)
            used[name] = checked_text(value, name) if kind is None else checked_number(value, name, kind)
    return used


def add_usage(tx: Tx, session_id: str, values: Mapping[str, Any], *, absolute: bool) -> list[str]:
    """Add to (or set) a session's counters; returns the columns that changed, [] when none did or there is no such session."""
    used = {name: value for name, value in values.items() if value is not None}
    sets: dict[str, str] = {}
    for name in filter(_USAGE_KINDS.__contains__, used):
        if absolute:
            sets[name] = "?"
        elif used[name] or name in _COSTS:  # a cost of 0 means that it is known
            sets[name] = f"coalesce({name}, 0) + ?"
    words = [name for name in (*_FILLED, *_NEWEST) if name in used]
    known = tx.row(f"SELECT {', '.join(words)} FROM sessions WHERE id = ?", (session_id,)) if words else None
    for name, before in zip(words, known or (), strict=False):
        if before is None or (name in _NEWEST and before != used[name]):
            sets[name] = f"coalesce({name}, ?)" if name in _FILLED else "?"
    if not sets:
        return []
    changes = ", ".join(f"{name} = {value}" for name, value in sets.items())
    sql = f"UPDATE sessions SET {changes} WHERE id = ? AND purged IS NULL"
    return [*sets] if tx.run(sql, [*(used[name] for name in sets), session_id]) else []


# ---------------------------------------------------------------------------------------------- events
#
# What happened in a session that is no message: that the model failed to answer, or what it recalled.
#
# An event lies between messages: it is never sent to a model, counted or searched. It is copied with the messages: to
# transcripts, exports, another store.

MODEL_ERROR = "model_error"
RECALLED = "recalled"  # its text: the ids of the messages that the model got beside the question
_MOST_CHARACTERS = 2_000  # of a text


def record_event(tx: Tx, session_id: str, kind: str, text: str) -> SessionEvent:
    """Record an event after the newest message of a session; returns the event."""
    after = tx.value(
        "SELECT max(id) FROM (SELECT max(id) AS id FROM messages WHERE session_id = ? AND hidden IS NULL UNION ALL"
        " SELECT max(last_id) FROM session_refs WHERE session_id = ? AND rewound IS NULL) AS shown",
        (session_id, session_id),
    )
    event: SessionEvent = {"at": time.time(), "after": int(after or 0), "kind": kind, "text": text[:_MOST_CHARACTERS]}
    _insert_events(tx, session_id, [event])
    return event


def events_of(tx: Tx, session_id: str) -> list[SessionEvent]:
    """The events of a session, oldest first."""
    sql = "SELECT at, after_id, kind, text FROM session_events WHERE session_id = ? ORDER BY ord"
    rows = tx.rows(sql, (session_id,))
    return [{"at": at, "after": after, "kind": codec.restored(kind), "text": codec.restored(text)}
            for at, after, kind, text in rows]  # fmt: skip


def add_missing_events(tx: Tx, session_id: str, entries: Iterable[Any], ids: Mapping[int, int]) -> None:
    """Add events of a transcript or an export that are missing here; `ids` has the new ids of messages."""
    known = {event["at"] for event in events_of(tx, session_id)}
    fresh = [event for event in map(_checked_event, entries) if event is not None and event["at"] not in known]
    _insert_events(tx, session_id, [{**event, "after": ids.get(event["after"], event["after"])} for event in fresh])


def forget_events(tx: Tx, session_id: str) -> None:
    """Remove the events of a session."""
    tx.run("DELETE FROM session_events WHERE session_id = ?", (session_id,))


def event_of_line(entry: Mapping[str, Any]) -> SessionEvent | None:
    """The event in a line of a transcript, if the line is one: a line about a change of the session has no text."""
    return _checked_event({**entry, "kind": entry.get("event")}) if entry.get("type") == "event" else None


def line_of_event(event: SessionEvent) -> dict[str, Any]:
    """An event as a line of a transcript."""
    return {"type": "event", "event": event["kind"], "at": event["at"], "after": event["after"], "text": event["text"]}


def interleaved(messages: Sequence[Any], events: Sequence[SessionEvent]) -> Iterator[tuple[bool, Any]]:
    """(False, message) and (True, event) in chronological order.

    An event follows the message it came after; where that message is not shown, it is placed by its time.
    """
    places = {message["id"]: number for number, message in enumerate(messages) if "id" in message}
    placed = [((number, 0), (False, message)) for number, message in enumerate(messages)]
    for event in events:
        place = places.get(event["after"])
        if place is None:
            later = (n for n, message in enumerate(messages) if (message.get("timestamp") or 0) > event["at"])
            place = next(later, len(messages)) - 1
        placed.append(((place, 1), (True, event)))
    placed.sort(key=itemgetter(0))
    return (one for _, one in placed)


def described_event(event: SessionEvent) -> str:
    """An event in one line for people."""
    text = " ".join(str(event["text"]).split())
    if event["kind"] == RECALLED:
        return f"recalled from earlier conversations: {', '.join(f'#{one}' for one in text.split())}"
    return f"the model did not answer: {text}" if event["kind"] == MODEL_ERROR else f"{event['kind']}: {text}"


def _insert_events(tx: Tx, session_id: str, events: Sequence[SessionEvent]) -> None:
    first = 1 + int(tx.value("SELECT coalesce(max(ord), 0) FROM session_events WHERE session_id = ?", (session_id,)))
    sql = "INSERT INTO session_events(session_id, ord, at, after_id, kind, text) VALUES(?, ?, ?, ?, ?, ?)"
    tx.run_many(sql, [(session_id, number, *event.values()) for number, event in enumerate(events, first)])


def _checked_event(event: Any) -> SessionEvent | None:
    """An event from a file, if it is valid."""
    if not isinstance(event, Mapping):
        return None
    at, after, kind, text = (event.get(name) for name in ("at", "after", "kind", "text"))
    when = codec.number(at, "REAL")
    if when is None or not isinstance(after, int) or not isinstance(kind, str) or not isinstance(text, str):
        return None
    return {"at": when, "after": after, "kind": kind, "text": text[:_MOST_CHARACTERS]}

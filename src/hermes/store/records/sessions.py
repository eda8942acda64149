"""Sessions: opening, ending, looking up.

A session row holds what a list shows (counters, last activity, preview), so that listing never reads messages.
System prompts are stored once, by hash; one that begins like an earlier one refers to it for that beginning.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from hermes.errors import InvalidInput, SessionNotFound
from hermes.store.engines.base import KEPT, REDACTED, Tx, drop_meta, get_meta, rows_among, set_meta
from hermes.store.engines.sqlite.schema import PROMPT_TEXT, SESSION_COLUMNS
from hermes.store.records import codec
from hermes.store.records.rows import SessionRow
from hermes.store.records.visibility import User, in_folder, session_clause

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


# ---------------------------------------------------------------------------------------------- folders


def move_folder(tx: Tx, old: str, new: str) -> list[str]:
    """Set the folders of sessions in `old` or below it to the same places in `new`; returns those sessions."""
    old, new = old.rstrip("/"), new.rstrip("/")
    rows = held_in(tx, old)
    for session_id, cwd in rows:
        tx.run("UPDATE sessions SET cwd = ? WHERE id = ?", (new + cwd[len(old) :] or "/", session_id))
    return [session_id for session_id, _ in rows]


def held_in(tx: Tx, folder: str) -> list[tuple[str, str]]:
    """(id, folder) of the sessions that were held in a folder or below it."""
    inside, values = in_folder("s", folder)
    rows = tx.rows(f"SELECT s.id, s.cwd FROM sessions s WHERE s.purged IS NULL AND {inside}", values)
    return [(codec.restored(session_id), codec.restored(cwd)) for session_id, cwd in rows]


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

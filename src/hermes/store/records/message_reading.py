"""Reading messages back: as rows, as the dicts of get_messages, or as a conversation to replay.

A session shows its own rows and, by reference, ranges of other sessions' rows (lineage.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from hermes.store.engines.base import CARRIABLE, KEPT, REDACTED, Row, Tx, rows_among
from hermes.store.engines.sqlite.schema import MESSAGE_COLUMNS
from hermes.store.records import codec
from hermes.store.records.attachments import PREFIX, listed
from hermes.store.records.rows import AttachmentEntry, ChatMessage, MessageRow
from hermes.store.records.visibility import FOUND, User, session_clause

_ID = itemgetter(0)
LAST = 1 << 62  # above every id: the place of carried messages whose place is not known
# Another session shows the row.
NEEDED = (
    "EXISTS (SELECT 1 FROM session_refs r WHERE r.from_session = m.session_id AND r.session_id <> m.session_id AND m.id"
    " BETWEEN r.first_id AND r.last_id)"
)
# Rows that a deletion still has to process: all but those that stay only for other sessions (of a redacted one: its place).
UNSETTLED = f"NOT (coalesce(m.hidden, 0) IN ({KEPT}, {REDACTED}) AND {NEEDED})"
M = TypeVar("M", bound=Mapping[str, Any])
_OWN = ("writer", "hidden", "content_format", "content_rest")
SHOWN = tuple(name for name in MESSAGE_COLUMNS if name not in _OWN)
ROW = ", ".join(f"m.{name}" for name in (*SHOWN, "content_format", "content_rest"))
_REPLAYED = ("reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items", "codex_message_items")


def shown_rows(tx: Tx, session_id: str, columns: str = ROW, *, redacted: bool = False) -> list[Row]:
    """The rows a session shows, in order: its own, with the carried ones in their places. Column 0 must be m.id.

    With `redacted`, also the redacted ones, in their places.
    """
    own = tx.rows(f"SELECT {columns} FROM messages m WHERE m.session_id = ? AND m.hidden IS NULL", (session_id,))
    if redacted:
        sql = f"SELECT {columns} FROM messages m WHERE m.session_id = ? AND m.hidden = {REDACTED}"
        own += tx.rows(sql, (session_id,))
    own.sort(key=_ID)  # they come by time, so nearly in order; the database would copy every text to sort them
    refs = tx.rows(
        "SELECT from_session, first_id, last_id, after_id FROM session_refs WHERE session_id = ? AND rewound IS NULL"
        " ORDER BY ord",
        (session_id,),
    )
    if not refs:
        return own
    placed = [((row[0], 0), row) for row in own]
    which = "TRUE" if redacted else CARRIABLE
    sql = f"SELECT {columns} FROM messages m WHERE m.session_id = ? AND m.id BETWEEN ? AND ? AND {which} ORDER BY m.id"
    for *carried, after in refs:
        place = (after if after >= 0 else LAST, 1)  # the message before them may be redacted: they stay in their place
        placed += [(place, row) for row in tx.rows(sql, carried)]
    placed.sort(key=itemgetter(0))
    return [row for _, row in placed]


def carried_counts(tx: Tx, session_ids: Sequence[str]) -> dict[str, int]:
    """How many messages of other sessions each of these shows, where it shows any."""
    sql = (
        "SELECT r.session_id, count(*) FROM session_refs r JOIN messages m ON m.session_id = r.from_session AND m.id BETWEEN"
        f" r.first_id AND r.last_id AND {CARRIABLE} WHERE r.rewound IS NULL AND {{these}} GROUP BY r.session_id"
    )
    return {codec.restored(row[0]): int(row[1]) for row in rows_among(tx, sql, session_ids, "r.session_id")}


def rows_of(tx: Tx, message_id: int) -> list[Row]:
    """The row of one message as `shown_rows` gives it; [] when there is none."""
    return tx.rows(f"SELECT {ROW} FROM messages m WHERE m.id = ?", (message_id,))


def decode(row: Row) -> MessageRow:
    """A row of `shown_rows` as the dict that get_messages returns."""
    *values, form, rest = row
    message: Any = dict(zip(SHOWN, map(codec.restored, values), strict=True))
    message["content"] = codec.content_value(codec.joined(message["content"], rest), form)
    for name in codec.JSON_FIELDS:
        if message[name] is not None:
            message[name] = codec.from_json(message[name])
    return message  # type: ignore[no-any-return]


# Put before a prompt by the first program.
_LEAKED = re.compile(r"\A<memory-context>.*?</memory-context>\s*", re.DOTALL)
_TURN = ("tool_calls", "tool_call_id", "tool_name", "finish_reason", *_REPLAYED)
_TURN_COLUMNS = ("id", "role", "content", *_TURN, "content_format", "content_rest")

_TURN_ID_AND_CONTENT = itemgetter(_TURN_COLUMNS.index("id"), _TURN_COLUMNS.index("content"))
TURN_ROW = ", ".join(f"m.{name}" for name in _TURN_COLUMNS)


def _without_leak(content: Any) -> Any:
    """A prompt, or its first part, without what the first program's memory had put before it."""
    if type(content) is str:
        return _LEAKED.sub("", content) if "<memory-context>" in content[:40] else content
    if isinstance(content, list) and content and isinstance(content[0], dict) and type(content[0].get("text")) is str:
        return [{**content[0], "text": _without_leak(content[0]["text"])}, *content[1:]]
    return content


def as_turn(row: Row) -> ChatMessage:
    """A row of TURN_ROW as an OpenAI chat message, ready to replay."""
    _, role, content, *fields, form, rest = row
    role, content = codec.restored(role), codec.content_value(codec.joined(content, rest), form)
    turn: Any = {"role": role, "content": _without_leak(content) if role == "user" else content}
    for name, value in zip(_TURN, fields, strict=True):
        if value is None or (role != "assistant" and name in _REPLAYED):
            continue
        value = codec.from_json(value) if name in codec.JSON_FIELDS else codec.restored(value)
        if value or name == "reasoning_content":  # some endpoints insist on that field, even empty
            turn[name] = value
    return turn  # type: ignore[no-any-return]


def without_repeats(turns: Iterable[M]) -> list[M]:
    """Drop user messages that repeat one since the last reply: a compression carries them over."""
    out: list[M] = []
    waiting: set[str] = set()
    for turn in turns:
        content = turn["content"]
        if turn["role"] == "user" and isinstance(content, str) and content:
            if content in waiting:
                continue
            waiting.add(content)
        elif turn["role"] == "assistant" and (content or turn.get("tool_calls")):
            waiting.clear()
        out.append(turn)
    return out


def count(tx: Tx, session_id: str | None, visible_to: User | None) -> int:
    """How many messages are shown, each under the session that owns it."""
    where, params = session_clause(visible_to)
    if session_id is not None:
        where, params = f"{where} AND m.session_id = ?", [*params, session_id]
    return int(
        tx.value(
            "SELECT count(*) FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.hidden IS NULL"
            f" AND {where}",
            params,
        )
    )


def session_of(tx: Tx, message_id: int, visible_to: User | None) -> str | None:
    """The session that shows a message to this caller: its own, else the first that carries it."""
    found = shown_in(tx, message_id, "s.id", session_clause(visible_to))
    return None if found is None else str(found[0])


def shown_in(tx: Tx, message_id: int, columns: str, narrowed: tuple[str, Sequence[Any]]) -> Row | None:
    """Columns of the session `s` that shows a message, of those that a condition allows: its own, else the first that
    carries it."""
    where, params = narrowed
    own = f"SELECT {columns} FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.id = ? AND {FOUND} AND {where}"
    carried = (
        f"SELECT {columns} FROM messages m JOIN session_refs r ON r.from_session = m.session_id AND m.id BETWEEN r.first_id AND"
        f" r.last_id JOIN sessions s ON s.id = r.session_id WHERE m.id = ? AND r.rewound IS NULL AND {CARRIABLE} AND {where}"
        " ORDER BY s.started_at LIMIT 1"
    )
    return tx.row(own, [message_id, *params]) or tx.row(carried, [message_id, *params])


def following(tx: Tx, message_id: int, limit: int, visible_to: User | None) -> list[Row]:
    """A message and the next ones of its session, at most `limit`; [] if the caller may not see it.

    One that the caller sees only in a session that carries it comes exclusive: what follows it elsewhere may be another user's.
    """
    shown_in = session_of(tx, message_id, visible_to)
    if shown_in is None:
        return []
    sql = (
        f"SELECT {ROW} FROM messages m WHERE m.session_id = ? AND m.id >= ? AND m.hidden IS NULL ORDER BY m.id LIMIT ?"
    )
    rows = tx.rows(sql, (shown_in, message_id, limit))
    own = tx.value("SELECT session_id FROM messages WHERE id = ?", (message_id,)) == shown_in
    return rows if own else rows_of(tx, message_id)


# ---------------------------------------------------------------------------------------------- attachments of messages


def refer(tx: Tx, message_id: int, lifted: Iterable[tuple[str, str, int]]) -> None:
    """Record which attachments a message refers to."""
    for digest, mime, size in lifted:
        sql = "INSERT INTO attachments(hash, message_id, mime, bytes) VALUES(?, ?, ?, ?) ON CONFLICT DO NOTHING"
        tx.run(sql, (digest, message_id, mime, size))


def payload_kinds(tx: Tx, rows: Sequence[Row]) -> dict[int, dict[str, str]]:
    """By message (rows of TURN_ROW that refer to attachments), the MIME type given for each attachment."""
    texts = map(_TURN_ID_AND_CONTENT, rows)
    ids = [message_id for message_id, content in texts if isinstance(content, str) and PREFIX in content]
    kinds: dict[int, dict[str, str]] = {message_id: {} for message_id in ids}
    sql = "SELECT message_id, hash, mime FROM attachments WHERE {these}"
    for message_id, digest, mime in rows_among(tx, sql, ids, "message_id"):
        kinds[message_id][digest] = mime or ""
    return kinds


def kinds_of(tx: Tx, digests: Sequence[str]) -> dict[str, str]:
    """By hash, the MIME type that any message gives for an attachment."""
    found = {digest: tx.value("SELECT max(mime) FROM attachments WHERE hash = ?", (digest,)) for digest in digests}
    return {digest: mime or "" for digest, mime in found.items()}


def attached(tx: Tx, session_id: str) -> dict[int, list[AttachmentEntry]]:
    """By message, the attachments of what a session owns or may show, with type and size as given by the messages."""
    rows = tx.rows(
        "SELECT a.message_id, a.hash, a.mime, a.bytes FROM attachments a JOIN messages m ON m.id = a.message_id"
        " WHERE m.session_id = ? OR m.session_id IN (SELECT from_session FROM session_refs WHERE session_id = ?)"
        " ORDER BY a.message_id, a.hash",
        (session_id, session_id),
    )
    found: dict[int, list[AttachmentEntry]] = {}
    for message_id, digest, mime, size in rows:
        found.setdefault(message_id, []).extend(listed(((digest, mime or "", size or 0),)))
    return found


def mentions(content: Any) -> bool:
    """Whether content has something in it that reads like a reference to an attachment."""
    if isinstance(content, str):
        return PREFIX in content
    return content is not None and PREFIX in codec.to_json(content)


def attachments_of(tx: Tx, session_id: str) -> list[str]:
    """The hashes of the attachments a session's own messages refer to."""
    sql = "SELECT DISTINCT a.hash FROM attachments a JOIN messages m ON m.id = a.message_id WHERE m.session_id = ?"
    return tx.column(sql, (session_id,))


def attachments_shown(tx: Tx, session_id: str) -> list[str]:
    """The hashes of the attachments a session may show, with those of sessions it carries messages of."""
    return list({entry["hash"] for entries in attached(tx, session_id).values() for entry in entries})

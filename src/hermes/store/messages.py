"""Messages: storing them, and reading them back as rows or as a conversation.

A message is prepared (masked, encoded, compressed) before the write lock is taken; the transaction itself is two
cached statements. A session shows its own rows and, by reference, ranges of other sessions' rows (lineage.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes.errors import InvalidInput, SessionNotFound
from hermes.store import codec
from hermes.store.attachments import PREFIX, as_told, listed, references
from hermes.store.engines.base import COMPACTED, KEPT, REDACTED, Engine, Row, Tx
from hermes.store.engines.sqlite.schema import CARRIABLE
from hermes.store.index_text import plain_parts
from hermes.store.visibility import User, session_clause

if TYPE_CHECKING:
    from hermes.store.rows import AttachmentEntry, ChatMessage, MessageRow

PREVIEW = 60
_ID = itemgetter(0)
FOUND = f"(m.hidden IS NULL OR m.hidden = {COMPACTED})"  # messages that a search may find
# Rows that a deletion still has to process: not those that stay only for other sessions (of a redacted one: its place).
UNSETTLED = (
    f"(m.hidden IS NULL OR m.hidden NOT IN ({KEPT}, {REDACTED}) OR (m.hidden = {REDACTED} AND NOT EXISTS (SELECT 1 FROM"
    " session_refs r WHERE r.from_session = m.session_id AND r.session_id <> m.session_id AND m.id BETWEEN r.first_id AND"
    " r.last_id)))"
)


class StoredColumns(NamedTuple):
    """A message's row without its id and session id, each value as it is stored: see codec.storable."""

    role: str | bytes
    content: str | bytes | None
    tool_call_id: str | bytes | None
    tool_calls: str | bytes | None
    tool_name: str | bytes | None
    timestamp: float
    token_count: Any
    finish_reason: str | bytes | None
    reasoning: str | bytes | None
    reasoning_content: str | bytes | None
    reasoning_details: str | bytes | None
    codex_reasoning_items: str | bytes | None
    codex_message_items: str | bytes | None
    writer: int
    content_format: str | None
    model: str | bytes | None
    input_tokens: Any
    output_tokens: Any
    cache_read_tokens: Any
    cache_write_tokens: Any
    cost_usd: Any
    content_rest: bytes | None
    platform_message_id: str | bytes | None
    meta: str | bytes | None


STORED = ("session_id", *StoredColumns._fields)
_INSERT = f"INSERT INTO messages({', '.join(STORED)}) VALUES({', '.join('?' * len(STORED))})"
_INSERT_WITH_ID = f"INSERT INTO messages(id, {', '.join(STORED)}) VALUES({', '.join('?' * (len(STORED) + 1))})"
_COUNT = (
    "UPDATE sessions SET message_count = coalesce(message_count, 0) + 1,"
    " tool_call_count = coalesce(tool_call_count, 0) + ?,"
    " last_active = CASE WHEN last_active > ? THEN last_active ELSE ? END, preview = coalesce(preview, ?)"
    " WHERE id = ? AND trashed_at IS NULL AND purged IS NULL"
)
SHOWN = (
    "id", "session_id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "timestamp", "token_count",
    "finish_reason", "reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items", "codex_message_items",
    "model", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd",
    "platform_message_id", "meta",
)  # fmt: skip
_ROW = ", ".join(f"m.{name}" for name in (*SHOWN, "content_format", "content_rest"))
_ALL = 1 << 62
_NUMBERS = (
    *(
        (name, "INTEGER")
        for name in ("token_count", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    ),
    ("cost_usd", "REAL"),
)
_REPLAYED = ("reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items", "codex_message_items")


@dataclass(slots=True)
class Ready:
    """A message in the shape of its row (all but the session id), made before any lock is taken."""

    values: StoredColumns
    calls: int
    timestamp: float
    preview: str | None
    size: int
    text: str | None = None  # the whole content, as its transcript line has it
    is_json: bool = False
    clean_json: bool = True  # the JSON fields were encoded here, so their text is known to be JSON
    lifted: tuple[tuple[str, str, int], ...] = ()  # attachments: hash, mime, bytes
    line: bytes | None = None  # its transcript line, once it has an id

    @property
    def form(self) -> str | None:
        """The content_format."""
        return self.values.content_format


def preview_of(text: str | None) -> str:
    """The first words of a text on one line: 60 characters, then "..."."""
    if not text:
        return ""
    line = " ".join(text[:400].split())
    return line if len(line) <= PREVIEW else line[:PREVIEW] + "..."


def make_ready(
    message: Mapping[str, Any],
    *,
    mask: Callable[[str], str] | None,
    lift: Callable[[Any], tuple[Any, tuple[tuple[str, str, int], ...]]] | None,
) -> Ready:
    """Check, mask and encode one message given as a mapping of append_message's arguments."""
    if not isinstance(message, Mapping):
        raise InvalidInput(f"a message is a dict with a role, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidInput(f"a message needs a role (user, assistant, tool, system …), not {role!r}")
    content: Any = message.get("content")
    lifted: tuple[tuple[str, str, int], ...] = ()
    if content is not None and not isinstance(content, (str, list, dict)):
        raise InvalidInput(f"content is text or a list of parts, not {type(content).__name__}")
    if lift is not None and content:
        content, lifted = lift(content)
    form, rest = None, None
    shown: Any = content
    if isinstance(content, str):
        form = codec.literal_format(content)
    elif content is not None:
        shown = plain_parts(content)
        content, form = codec.to_json(content), "json"
    if lift is None:  # from a file, whose numbers are unchecked
        message = {**message, **{name: codec.number(message.get(name), kind) for name, kind in _NUMBERS}}
    get, encode = message.get, codec.storable
    calls, details, items = get("tool_calls"), get("reasoning_details"), get("codex_reasoning_items")
    outputs, meta = get("codex_message_items"), get("meta")
    reasoning, reasoning_content = (
        _text(get("reasoning"), "reasoning"),
        _text(get("reasoning_content"), "reasoning_content"),
    )
    if mask is not None:
        content = mask(content) if content else content
        shown = mask(shown) if shown and form == "json" else (content if form != "json" else shown)
        reasoning = mask(reasoning) if reasoning else reasoning
        reasoning_content = mask(reasoning_content) if reasoning_content else reasoning_content
    size, whole = len(content) if content else 0, content
    if lift is None:  # from a file: it lists its attachments, or is so old that every reference counts
        told = get("attachments")
        lifted = as_told(told) if isinstance(told, list) else references(content)
    if role == "tool" and content:
        content, rest = codec.split_output(content)
    stamp = get("timestamp")
    timestamp = time.time() if stamp is None else _number(stamp, "timestamp")
    values = (
        StoredColumns(  # by position, in the order of its fields: with keywords, this function takes half as long again
            encode(role),
            None if content is None else encode(content),
            None if (call_id := get("tool_call_id")) is None else _stored_text(call_id, "tool_call_id"),
            None if calls is None else _stored_json(calls, mask),
            None if (tool_name := get("tool_name")) is None else _stored_text(tool_name, "tool_name"),
            timestamp,
            get("token_count"),
            None if (finish := get("finish_reason")) is None else _stored_text(finish, "finish_reason"),
            None if reasoning is None else encode(reasoning),
            None if reasoning_content is None else encode(reasoning_content),
            None if details is None else _stored_json(details, mask),
            None if items is None else _stored_json(items, mask),
            None if outputs is None else _stored_json(outputs, mask),
            1,
            form,
            None if (model := get("model")) is None else _stored_text(model, "model"),
            get("input_tokens"),
            get("output_tokens"),
            get("cache_read_tokens"),
            get("cache_write_tokens"),
            get("cost_usd"),
            rest,
            None if (told_id := get("platform_message_id")) is None else _stored_text(told_id, "platform_message_id"),
            None if meta is None else _stored_json(meta, mask),
        )
    )
    made_here = not (
        isinstance(calls, str) or isinstance(details, str) or isinstance(items, str) or isinstance(outputs, str)
        or isinstance(meta, str)
    )  # fmt: skip
    preview = preview_of(shown) if role == "user" and shown else None
    return Ready(values, count_calls(calls), timestamp, preview or None, size, whole, form == "json", made_here, lifted)


def _text(value: Any, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} is text, not {type(value).__name__}")
    return value


def _stored_text(value: Any, name: str) -> str | bytes | None:
    return None if value is None else codec.storable(_text(value, name) or "")


def _stored_json(value: Any, mask: Callable[[str], str] | None) -> str | bytes:
    text = codec.json_field(value) or ""
    return codec.storable(mask(text) if mask is not None and text else text)


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} is a number of seconds since 1970, not {value!r}") from None


def count_calls(calls: Any) -> int:
    """How many tool calls a message makes; a result of a tool makes none."""
    if isinstance(calls, str):
        calls = codec.from_json(calls)
    return len(calls) if isinstance(calls, list) else 1 if isinstance(calls, dict) else 0


def append(tx: Tx, session_id: str, ready: Ready) -> int:
    """Store one message and count it on its session."""
    stamp, values = ready.timestamp, ready.values
    preview = None if ready.preview is None else codec.storable(ready.preview)
    message_id = tx.store_message(
        (_COUNT, (ready.calls, stamp, stamp, preview, session_id)),
        (_INSERT, (session_id, *values)),
        stamp,
        (ready.text, values.content_format, values.tool_name, values.tool_calls),
    )
    if message_id is None:
        raise SessionNotFound(session_id)
    refer(tx, message_id, ready.lifted)
    return message_id


def insert(tx: Tx, session_id: str, ready: Ready, message_id: int | None) -> int:
    """Store a message (under a given id) without updating counters: imports and rebuilds recount afterwards."""
    if message_id is None:
        message_id = tx.insert(_INSERT, (session_id, *ready.values))
    else:
        tx.run(_INSERT_WITH_ID, (message_id, session_id, *ready.values))
    values = ready.values
    tx.message_stored(
        message_id, ready.timestamp, ready.text, values.content_format, values.tool_name, values.tool_calls
    )
    refer(tx, message_id, ready.lifted)
    return message_id


def refer(tx: Tx, message_id: int, lifted: Iterable[tuple[str, str, int]]) -> None:
    """Record which attachments a message refers to."""
    for digest, mime, size in lifted:
        tx.run(
            "INSERT INTO attachments(hash, message_id, mime, bytes) VALUES(?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (digest, message_id, mime, size),
        )


def overwrite(tx: Tx, message_id: int, ready: Ready) -> None:
    """Put a message's own text back into a damaged row."""
    names = StoredColumns._fields
    tx.run(
        f"UPDATE messages SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?", (*ready.values, message_id)
    )
    tx.changed_by_us([message_id])


def set_content(tx: Tx, message_id: int, ready: Ready) -> None:
    """Replace the content of a row; the other columns stay."""
    tx.run(
        "UPDATE messages SET content = ?, content_format = ?, content_rest = ? WHERE id = ?",
        (ready.values.content, ready.values.content_format, ready.values.content_rest, message_id),
    )
    tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
    refer(tx, message_id, ready.lifted)
    tx.changed_by_us([message_id])


def set_values(tx: Tx, message_id: int, ready: Ready) -> None:
    """Replace a message's row with another version; its id, session and storage time stay."""
    columns = {name: value for name, value in ready.values._asdict().items() if name != "writer"}
    names = ", ".join(f"{name} = ?" for name in columns)
    tx.run(f"UPDATE messages SET {names} WHERE id = ?", (*columns.values(), message_id))
    tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
    refer(tx, message_id, ready.lifted)
    tx.changed_by_us([message_id])


def recount(tx: Tx, session_id: str) -> None:
    """Set a session's counters, last activity and preview from its own rows."""
    tx.hold(session_id)
    count = calls = 0
    last = None
    for tool_calls, stamp in tx.rows(
        "SELECT tool_calls, timestamp FROM messages WHERE session_id = ? AND hidden IS NULL ORDER BY id", (session_id,)
    ):
        count += 1
        calls += count_calls(codec.restored(tool_calls)) if tool_calls is not None else 0
        last = stamp if last is None else max(last, stamp)
    preview = _first_words(tx, session_id)
    tx.run(
        "UPDATE sessions SET message_count = ?, tool_call_count = ?, last_active = ?, preview = ? WHERE id = ?",
        (count, calls, last, None if preview is None else codec.storable(preview), session_id),
    )


def _first_words(tx: Tx, session_id: str) -> str | None:
    """The preview: the first user message a session shows, carried ones included."""
    for _, role, content, rest, form in shown_rows(
        tx, session_id, "m.id, m.role, m.content, m.content_rest, m.content_format"
    ):
        if role == "user" and content:
            value = codec.content_value(codec.joined(content, rest), form)
            preview = preview_of(value if isinstance(value, str) else plain_parts(value))
            if preview:
                return preview
    return None


# ---------------------------------------------------------------------------------------------- reading


def shown_rows(tx: Tx, session_id: str, columns: str = _ROW, *, redacted: bool = False) -> list[Row]:
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
    carried: dict[int, list[Row]] = {}
    which = "TRUE" if redacted else CARRIABLE
    for from_session, first, last, after in refs:
        carried.setdefault(after, []).extend(
            tx.rows(
                f"SELECT {columns} FROM messages m WHERE m.session_id = ? AND m.id BETWEEN ? AND ? AND {which} ORDER BY m.id",
                (from_session, first, last),
            )
        )
    out = carried.pop(0, [])
    gaps = _redacted(tx, session_id, carried.keys() - {row[0] for row in own}) if carried else set()
    for row in sorted([*own, *((one,) for one in gaps)], key=_ID) if gaps else own:
        if row[0] not in gaps:
            out.append(row)
        out += carried.pop(row[0], [])  # messages carried after a redacted message stay in their place
    for rows in carried.values():  # their anchor was rewound: they come after the rest
        out += rows
    return out


def carried_counts(tx: Tx, session_ids: Sequence[str]) -> dict[str, int]:
    """How many messages of other sessions each of these shows, where it shows any."""
    found: dict[str, int] = {}
    for first in range(0, len(session_ids), 500):
        some = session_ids[first : first + 500]
        rows = tx.rows(
            "SELECT r.session_id, count(*) FROM session_refs r JOIN messages m ON m.session_id = r.from_session AND m.id"
            f" BETWEEN r.first_id AND r.last_id AND {CARRIABLE} WHERE r.rewound IS NULL AND r.session_id IN"
            f" ({', '.join('?' * len(some))}) GROUP BY r.session_id",
            some,
        )
        found |= {codec.restored(session_id): int(count) for session_id, count in rows}
    return found


def _redacted(tx: Tx, session_id: str, ids: Iterable[int]) -> set[int]:
    """Which of a session's own messages with these ids are redacted."""
    sql = f"SELECT id FROM messages WHERE id = ? AND session_id = ? AND hidden = {REDACTED}"
    return {row[0] for one in ids for row in tx.rows(sql, (one, session_id))}


def rows_of(tx: Tx, message_id: int) -> list[Row]:
    """The row of one message as `shown_rows` gives it; [] when there is none."""
    return tx.rows(f"SELECT {_ROW} FROM messages m WHERE m.id = ?", (message_id,))


def decode(row: Row) -> MessageRow:
    """A row of `shown_rows` as the dict that get_messages returns. (Written out: it is done for every message.)"""
    (
        message_id, session_id, role, content, tool_call_id, tool_calls, tool_name, timestamp, token_count, finish_reason,
        reasoning, reasoning_content, reasoning_details, codex_reasoning_items, codex_message_items, model, input_tokens,
        output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, platform_message_id, meta, form, rest,
    ) = row  # fmt: skip
    restored, from_json = codec.restored, codec.from_json
    if rest is not None or type(content) is bytes:
        content = codec.joined(content, rest)
    return {
        "id": message_id,
        "session_id": session_id,
        "role": restored(role),
        "content": codec.content_value(content, form),
        "tool_call_id": restored(tool_call_id),
        "tool_calls": None if tool_calls is None else from_json(tool_calls),
        "tool_name": restored(tool_name),
        "timestamp": timestamp,
        "token_count": token_count,
        "finish_reason": restored(finish_reason),
        "reasoning": restored(reasoning),
        "reasoning_content": restored(reasoning_content),
        "reasoning_details": None if reasoning_details is None else from_json(reasoning_details),
        "codex_reasoning_items": None if codex_reasoning_items is None else from_json(codex_reasoning_items),
        "codex_message_items": None if codex_message_items is None else from_json(codex_message_items),
        "model": restored(model),
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cache_read_tokens": cache_read_tokens,
        "cache_write_tokens": cache_write_tokens,
        "cost_usd": cost_usd,
        "platform_message_id": restored(platform_message_id),
        "meta": None if meta is None else from_json(meta),
    }


_TURN = ("tool_calls", "tool_call_id", "tool_name", "finish_reason", *_REPLAYED)
_TURN_COLUMNS = ("id", "role", "content", *_TURN, "content_format", "content_rest")
_ID_AND_CONTENT = itemgetter(_TURN_COLUMNS.index("id"), _TURN_COLUMNS.index("content"))
TURN_ROW = ", ".join(f"m.{name}" for name in _TURN_COLUMNS)


def as_turn(row: Row) -> ChatMessage:
    """A row of TURN_ROW as an OpenAI chat message, ready to replay. (Unrolled: it runs for every message.)"""
    _, role, content, calls, call_id, tool_name, finish, reasoning, thought, details, items, outputs, form, rest = row
    if rest is not None or type(content) is bytes:
        content = codec.joined(content, rest)
    if form is not None or (content and content[0] == "\0"):
        content = codec.content_value(content, form)
    turn: ChatMessage = {"role": codec.restored(role) if type(role) is bytes else role, "content": content}
    if calls is not None and (given := codec.from_json(calls)):
        turn["tool_calls"] = given
    if call_id:
        turn["tool_call_id"] = codec.restored(call_id)
    if tool_name:
        turn["tool_name"] = codec.restored(tool_name)
    if finish:
        turn["finish_reason"] = codec.restored(finish)
    if role != "assistant":
        return turn
    if reasoning:
        turn["reasoning"] = codec.restored(reasoning)
    if thought is not None:  # some endpoints insist on that field, even empty
        turn["reasoning_content"] = codec.restored(thought)
    if details is not None and (given := codec.from_json(details)):
        turn["reasoning_details"] = given
    if items is not None and (given := codec.from_json(items)):
        turn["codex_reasoning_items"] = given
    if outputs is not None and (given := codec.from_json(outputs)):
        turn["codex_message_items"] = given
    return turn


def asked_once(turns: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Drop user messages that repeat one since the last reply: a compression carries them over."""
    out: list[ChatMessage] = []
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


def payload_kinds(tx: Tx, rows: Sequence[Row]) -> dict[int, dict[str, str]]:
    """By message (rows of TURN_ROW that refer to attachments), the MIME type given for each attachment."""
    texts = map(_ID_AND_CONTENT, rows)
    ids = [message_id for message_id, content in texts if isinstance(content, str) and PREFIX in content]
    kinds: dict[int, dict[str, str]] = {message_id: {} for message_id in ids}
    for start in range(0, len(ids), 500):
        some = ids[start : start + 500]
        for message_id, digest, mime in tx.rows(
            f"SELECT message_id, hash, mime FROM attachments WHERE message_id IN ({', '.join('?' * len(some))})", some
        ):
            kinds[message_id][digest] = mime or ""
    return kinds


def kinds_of(tx: Tx, digests: Sequence[str]) -> dict[str, str]:
    """By hash, the MIME type that any message gives for an attachment."""
    found = {digest: tx.value("SELECT max(mime) FROM attachments WHERE hash = ?", (digest,)) for digest in digests}
    return {digest: mime or "" for digest, mime in found.items()}


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
    where, params = session_clause(visible_to)
    own = tx.value(
        f"SELECT s.id FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.id = ? AND {FOUND} AND {where}",
        [message_id, *params],
    )
    if own is not None:
        return str(own)
    other = tx.value(
        "SELECT s.id FROM messages m JOIN session_refs r ON r.from_session = m.session_id AND m.id BETWEEN r.first_id AND"
        f" r.last_id JOIN sessions s ON s.id = r.session_id WHERE m.id = ? AND r.rewound IS NULL AND {CARRIABLE} AND {where}"
        " ORDER BY s.started_at LIMIT 1",
        [message_id, *params],
    )
    return None if other is None else str(other)


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


def set_attachment_kinds(tx: Tx, session_id: str, kinds: Mapping[str, Sequence[Any]]) -> None:
    """Restore the types and sizes in an export's `attachment_kinds`."""
    for digest, (mime, size) in kinds.items():
        tx.run(
            "UPDATE attachments SET mime = ?, bytes = ? WHERE hash = ?"
            " AND message_id IN (SELECT id FROM messages WHERE session_id = ?)",
            (str(mime), int(size), digest, session_id),
        )


def attachments_of(tx: Tx, session_id: str) -> list[str]:
    """The hashes of the attachments a session's own messages refer to."""
    rows = tx.rows(
        "SELECT DISTINCT a.hash FROM attachments a JOIN messages m ON m.id = a.message_id WHERE m.session_id = ?",
        (session_id,),
    )
    return [row[0] for row in rows]


def attachments_shown(tx: Tx, session_id: str) -> list[str]:
    """The hashes of the attachments a session may show, with those of sessions it carries messages of."""
    rows = tx.rows(
        "SELECT DISTINCT a.hash FROM attachments a JOIN messages m ON m.id = a.message_id WHERE m.session_id = ?"
        " OR m.session_id IN (SELECT from_session FROM session_refs WHERE session_id = ?)",
        (session_id, session_id),
    )
    return [row[0] for row in rows]


# ---------------------------------------------------------------------------------------------- removing


def remove_own(engine: Engine, tx: Tx, session_id: str, ids: Iterable[int] | None = None, *, cap: int = _ALL) -> int:
    """Remove a session's own rows (all, or those given, at most `cap`); returns how many were processed.

    Rows that other sessions refer to stay for them, with hidden = -1 unless they are redacted.
    """
    if ids is None:
        sql = f"SELECT m.id FROM messages m WHERE m.session_id = ? AND {UNSETTLED} ORDER BY m.id LIMIT ?"
        ids = [row[0] for row in tx.rows(sql, (session_id, cap))]
    ids = list(ids)
    ranges = tx.rows(
        "SELECT first_id, last_id FROM session_refs WHERE from_session = ? AND session_id <> ?",
        (session_id, session_id),
    )
    kept = [i for i in ids if any(first <= i <= last for first, last in ranges)]
    for message_id in kept:
        tx.run(
            f"UPDATE messages SET hidden = {KEPT} WHERE id = ? AND (hidden IS NULL OR hidden <> {REDACTED})",
            (message_id,),
        )
    gone = [i for i in ids if i not in set(kept)] if kept else ids
    engine.fulltext.drop(tx, gone)
    for message_id in gone:
        tx.run("DELETE FROM messages WHERE id = ?", (message_id,))
        tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
    tx.changed_by_us(gone)
    return len(ids)

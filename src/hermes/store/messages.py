"""Messages: storing them, and reading them back as rows or as a conversation.

A message is prepared (masked, encoded, compressed) before the write lock is taken; the transaction itself is two
cached statements. A session shows its own rows and, by reference, ranges of other sessions' rows (lineage.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from hermes.errors import InvalidInput, SessionNotFound
from hermes.store import codec
from hermes.store.attachments import PREFIX, as_told, listed, references
from hermes.store.engines.base import COMPACTED, KEPT, REDACTED, Engine, Row, Tx
from hermes.store.engines.sqlite.schema import CARRIABLE
from hermes.store.index_text import plain_parts
from hermes.store.visibility import User, session_clause

PREVIEW = 60
_ID = itemgetter(0)
FOUND = f"(m.hidden IS NULL OR m.hidden = {COMPACTED})"  # messages that a search may find
# Rows that a deletion still has to process: not those that stay only for other sessions (of a redacted one: its place).
UNSETTLED = (
    f"(m.hidden IS NULL OR m.hidden NOT IN ({KEPT}, {REDACTED}) OR (m.hidden = {REDACTED} AND NOT EXISTS (SELECT 1 FROM"
    " session_refs r WHERE r.from_session = m.session_id AND r.session_id <> m.session_id AND m.id BETWEEN r.first_id AND"
    " r.last_id)))"
)

STORED = (
    "session_id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "timestamp", "token_count", "finish_reason",
    "reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items", "codex_message_items", "writer",
    "content_format", "model", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd",
    "content_rest", "platform_message_id", "meta",
)  # fmt: skip
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
_TEXT_FIELDS = (
    "tool_call_id", "tool_name", "finish_reason", "reasoning", "reasoning_content", "model", "platform_message_id",
)  # fmt: skip
_JSON_POSITIONS = tuple((SHOWN.index(name), name) for name in codec.JSON_FIELDS)
_ALL = 1 << 62
_NUMBERS = (
    *(
        (name, "INTEGER")
        for name in ("token_count", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    ),
    ("cost_usd", "REAL"),
)
_PLACES = {name: place for place, name in enumerate(STORED[1:])}  # in Ready.values
_ROLE, _CONTENT, _TIMESTAMP, _WRITER, _FORM, _REST, _NAME, _CALLS = (
    _PLACES[name]
    for name in (
        "role", "content", "timestamp", "writer", "content_format", "content_rest", "tool_name", "tool_calls",
    )
)  # fmt: skip
_JSON_PLACES = tuple((_PLACES[name], name) for name in codec.JSON_FIELDS)
_TEXT_PLACES = tuple((_PLACES[name], name) for name in _TEXT_FIELDS)
_NUMBER_PLACES = tuple((_PLACES[name], name) for name, _ in _NUMBERS)
_MASKED = frozenset(("reasoning", "reasoning_content"))
_REPLAYED = ("reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items", "codex_message_items")


@dataclass(slots=True)
class Ready:
    """A message in the shape of its row (all but the session id), made before any lock is taken."""

    values: list[Any]
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
        return self.values[_FORM]  # type: ignore[no-any-return]


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
    calls = message.get("tool_calls")
    get, made_here = message.get, True
    if lift is None:  # from a file, whose numbers are unchecked
        message = {**message, **{name: codec.number(message.get(name), kind) for name, kind in _NUMBERS}}
        get = message.get
    encode = codec.storable
    values: list[Any] = [None] * len(_PLACES)
    for place, name in _JSON_PLACES:
        if (value := get(name)) is not None:
            made_here = made_here and not isinstance(value, str)
            text = codec.json_field(value) or ""
            if mask is not None and text:
                text = mask(text)
            values[place] = text if text.isascii() else encode(text)
    for place, name in _TEXT_PLACES:
        if (value := get(name)) is not None:
            if not isinstance(value, str):
                raise InvalidInput(f"{name} is text, not {type(value).__name__}")
            if mask is not None and value and name in _MASKED:
                value = mask(value)
            values[place] = value if value.isascii() else encode(value)
    if mask is not None:
        content = mask(content) if content else content
        shown = mask(shown) if shown and form == "json" else (content if form != "json" else shown)
    size, whole = len(content) if content else 0, content
    if lift is None:  # from a file: it lists its attachments, or is so old that every reference counts
        listed_in_file = message.get("attachments")
        lifted = as_told(listed_in_file) if isinstance(listed_in_file, list) else references(content)
    if role == "tool" and content:
        content, rest = codec.split_output(content)
    stamp = message.get("timestamp")
    timestamp = time.time() if stamp is None else _number(stamp, "timestamp")
    values[_ROLE] = encode(role)
    values[_CONTENT] = content if content is None else encode(content)
    values[_TIMESTAMP], values[_WRITER], values[_FORM], values[_REST] = timestamp, 1, form, rest
    for place, name in _NUMBER_PLACES:
        values[place] = get(name)
    preview = preview_of(shown) if role == "user" and shown else None
    return Ready(values, count_calls(calls), timestamp, preview or None, size, whole, form == "json", made_here, lifted)


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
    stamp = ready.timestamp
    preview = None if ready.preview is None else codec.storable(ready.preview)
    message_id = tx.store_message(
        (_COUNT, (ready.calls, stamp, stamp, preview, session_id)),
        (_INSERT, (session_id, *ready.values)),
        stamp,
        (ready.text, ready.values[_FORM], ready.values[_NAME], ready.values[_CALLS]),
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
    form, name, calls = ready.values[_FORM], ready.values[_NAME], ready.values[_CALLS]
    tx.message_stored(message_id, ready.timestamp, ready.text, form, name, calls)
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
    names = STORED[1:]
    tx.run(
        f"UPDATE messages SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?", (*ready.values, message_id)
    )
    tx.changed_by_us([message_id])


def set_content(tx: Tx, message_id: int, ready: Ready) -> None:
    """Replace the content of a row; the other columns stay."""
    names = ("content", "content_format", "content_rest")
    values = [ready.values[STORED.index(name) - 1] for name in names]
    tx.run(f"UPDATE messages SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?", (*values, message_id))
    tx.run("DELETE FROM attachments WHERE message_id = ?", (message_id,))
    refer(tx, message_id, ready.lifted)
    tx.changed_by_us([message_id])


def set_values(tx: Tx, message_id: int, ready: Ready) -> None:
    """Replace a message's row with another version; its id, session and storage time stay."""
    names = [name for name in STORED[1:] if name != "writer"]
    values = [ready.values[STORED.index(name) - 1] for name in names]
    tx.run(f"UPDATE messages SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?", (*values, message_id))
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


def _redacted(tx: Tx, session_id: str, ids: Iterable[int]) -> set[int]:
    """Which of a session's own messages with these ids are redacted."""
    sql = f"SELECT id FROM messages WHERE id = ? AND session_id = ? AND hidden = {REDACTED}"
    return {row[0] for one in ids for row in tx.rows(sql, (one, session_id))}


def rows_of(tx: Tx, message_id: int) -> list[Row]:
    """The row of one message as `shown_rows` gives it; [] when there is none."""
    return tx.rows(f"SELECT {_ROW} FROM messages m WHERE m.id = ?", (message_id,))


def decode(row: Row) -> dict[str, Any]:
    """A row of `shown_rows` as the dict that get_messages returns."""
    message = dict(zip(SHOWN, row, strict=False))
    form, rest = row[-2], row[-1]
    content = row[3]
    if rest is not None or type(content) is bytes:
        content = codec.joined(content, rest)
    message["content"] = codec.content_value(content, form)
    for position, name in _JSON_POSITIONS:
        if row[position] is not None:
            message[name] = codec.from_json(row[position])
    for name in ("role", *_TEXT_FIELDS):
        if type(message[name]) is bytes:
            message[name] = codec.restored(message[name])
    return message


_TURN = ("tool_calls", "tool_call_id", "tool_name", "finish_reason", *_REPLAYED)
TURN_ROW = ", ".join(f"m.{name}" for name in ("id", "role", "content", *_TURN, "content_format", "content_rest"))


def as_turn(row: Row) -> dict[str, Any]:
    """A row of TURN_ROW as an OpenAI chat message, ready to replay. (Unrolled: it runs for every message.)"""
    _, role, content, calls, call_id, tool_name, finish, reasoning, thought, details, items, outputs, form, rest = row
    if rest is not None or type(content) is bytes:
        content = codec.joined(content, rest)
    if form is not None or (content and content[0] == "\0"):
        content = codec.content_value(content, form)
    turn: dict[str, Any] = {"role": codec.restored(role) if type(role) is bytes else role, "content": content}
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


def asked_once(turns: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop user messages that repeat one since the last reply: a compression carries them over."""
    out: list[dict[str, Any]] = []
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
    ids = [row[0] for row in rows if isinstance(row[2], str) and PREFIX in row[2]]
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


def attached(tx: Tx, session_id: str) -> dict[int, list[dict[str, Any]]]:
    """By message, the attachments of what a session owns or may show, with type and size as given by the messages."""
    rows = tx.rows(
        "SELECT a.message_id, a.hash, a.mime, a.bytes FROM attachments a JOIN messages m ON m.id = a.message_id"
        " WHERE m.session_id = ? OR m.session_id IN (SELECT from_session FROM session_refs WHERE session_id = ?)"
        " ORDER BY a.message_id, a.hash",
        (session_id, session_id),
    )
    found: dict[int, list[dict[str, Any]]] = {}
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

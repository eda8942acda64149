"""Reading messages back: as rows, as the dicts of get_messages, or as a conversation to replay.

A session shows its own rows and, by reference, ranges of other sessions' rows (lineage.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from hermes.store import codec
from hermes.store.engines.base import COMPACTED, KEPT, REDACTED, Row, Tx
from hermes.store.engines.sqlite.schema import CARRIABLE
from hermes.store.visibility import User, session_clause

if TYPE_CHECKING:
    from hermes.store.rows import ChatMessage, MessageRow


_ID = itemgetter(0)
FOUND = f"(m.hidden IS NULL OR m.hidden = {COMPACTED})"  # messages that a search may find
# Rows that a deletion still has to process: not those that stay only for other sessions (of a redacted one: its place).
UNSETTLED = (
    f"(m.hidden IS NULL OR m.hidden NOT IN ({KEPT}, {REDACTED}) OR (m.hidden = {REDACTED} AND NOT EXISTS (SELECT 1 FROM"
    " session_refs r WHERE r.from_session = m.session_id AND r.session_id <> m.session_id AND m.id BETWEEN r.first_id AND"
    " r.last_id)))"
)
SHOWN = (
    "id", "session_id", "role", "content", "tool_call_id", "tool_calls", "tool_name", "timestamp", "token_count",
    "finish_reason", "reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items", "codex_message_items",
    "model", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd",
    "platform_message_id", "meta",
)  # fmt: skip
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
    return tx.rows(f"SELECT {ROW} FROM messages m WHERE m.id = ?", (message_id,))


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


_LEAKED = re.compile(
    r"\A<memory-context>.*?</memory-context>\s*", re.DOTALL
)  # put before a prompt by the first program
_TURN = ("tool_calls", "tool_call_id", "tool_name", "finish_reason", *_REPLAYED)
_TURN_COLUMNS = ("id", "role", "content", *_TURN, "content_format", "content_rest")


turn_id_and_content = itemgetter(_TURN_COLUMNS.index("id"), _TURN_COLUMNS.index("content"))
TURN_ROW = ", ".join(f"m.{name}" for name in _TURN_COLUMNS)


def _without_leak(content: Any) -> Any:
    """A prompt, or its first part, without what the first program's memory had put before it."""
    if type(content) is str:
        return _LEAKED.sub("", content) if "<memory-context>" in content[:40] else content
    if isinstance(content, list) and content and isinstance(content[0], dict) and type(content[0].get("text")) is str:
        return [{**content[0], "text": _without_leak(content[0]["text"])}, *content[1:]]
    return content


def as_turn(row: Row) -> ChatMessage:
    """A row of TURN_ROW as an OpenAI chat message, ready to replay. (Unrolled: it runs for every message.)"""
    _, role, content, calls, call_id, tool_name, finish, reasoning, thought, details, items, outputs, form, rest = row
    if rest is not None or type(content) is bytes:
        content = codec.joined(content, rest)
    if form is not None or (content and content[0] == "\0"):
        content = codec.content_value(content, form)
    if role == "user":
        content = _without_leak(content)
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

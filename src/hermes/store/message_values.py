"""The values of a message's row: checked, masked, encoded and compressed before any lock is taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hermes.errors import InvalidInput
from hermes.store import arguments, codec
from hermes.store.attachments import as_told, references
from hermes.store.index_text import plain_parts

PREVIEW = 60


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


_NUMBERS = (
    *(
        (name, "INTEGER")
        for name in ("token_count", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    ),
    ("cost_usd", "REAL"),
)
_TYPES: dict[str, Any] = {"INTEGER": int, "REAL": float}
_MOST = 2**63  # see codec.number


@dataclass(slots=True)
class Ready:
    """A message in the shape of its row (all but the session id), made before any lock is taken."""

    values: StoredColumns
    calls: int
    timestamp: float
    preview: str | None
    size: int
    text: str | None = None  # the whole content, as its transcript line has it
    lifted: tuple[tuple[str, str, int], ...] = ()  # attachments: hash, mime, bytes

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
    else:
        message = _with_numbers(message)
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
    if lift is None:  # from a file, which lists its attachments; else every reference counts
        told = get("attachments")
        lifted = as_told(told) if isinstance(told, list) else references(content)
    if role == "tool" and content:
        content, rest = codec.split_output(content)
    stamp = get("timestamp")
    timestamp = time.time() if stamp is None else arguments.checked_time(stamp, "timestamp")
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
    preview = preview_of(shown) if role == "user" and shown else None
    return Ready(values, count_calls(calls), timestamp, preview or None, size, whole, lifted)


def _with_numbers(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its numbers as their columns hold them; nearly always it is unchanged."""
    get = message.get
    for name, kind in _NUMBERS:
        value: Any = get(name)
        is_right: bool = value is None or (type(value) is _TYPES[kind] and -_MOST < value < _MOST)
        if not is_right:
            message = {**message, name: arguments.checked_number(value, name, kind)}
    return message


def _text(value: Any, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(f"{name} is text, not {type(value).__name__}")
    return value


def _stored_text(value: Any, name: str) -> str | bytes | None:
    return None if value is None else codec.storable(_text(value, name) or "")


def _stored_json(value: Any, mask: Callable[[str], str] | None) -> str | bytes:
    text = codec.json_field(value) or ""
    return codec.storable(mask(text) if mask is not None and text else text)


def count_calls(calls: Any) -> int:
    """How many tool calls a message makes; a result of a tool makes none."""
    if isinstance(calls, str):
        calls = codec.from_json(calls)
    return len(calls) if isinstance(calls, (list, tuple)) else 1 if isinstance(calls, dict) else 0

"""The values of a message's row: checked, masked, encoded and compressed before any lock is taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.errors import InvalidInput
from hermes.store.api import arguments
from hermes.store.engines.sqlite.schema import MESSAGE_COLUMNS
from hermes.store.records import codec
from hermes.store.records.attachments import Lifted, parse_listed, references
from hermes.store.records.file_changes import Noted, is_failure, noted
from hermes.store.records.titles import MAX_TITLE
from hermes.store.text.index_text import plain_parts

PREVIEW = 60
Mask = Callable[[str], str]
Lift = Callable[[Any], tuple[Any, Lifted]]  # see Attachments.lift


# The columns of a message's row, without its id, its session and how it is hidden.
STORED = tuple(name for name in MESSAGE_COLUMNS if name not in ("id", "session_id", "hidden"))
_TEXTS = (
    "tool_call_id", "tool_name", "finish_reason", "model", "platform_message_id", "reasoning", "reasoning_content",
)  # fmt: skip
_NUMBERS = {
    "token_count": "INTEGER", "input_tokens": "INTEGER", "output_tokens": "INTEGER", "cache_read_tokens": "INTEGER",
    "cache_write_tokens": "INTEGER", "cost_usd": "REAL",
}  # fmt: skip


@dataclass(slots=True)
class EncodedMessage:
    """A message in the shape of its row (all but the session id), made before any lock is taken."""

    values: dict[str, Any]  # by the names of STORED, in their order, as they are stored: see codec.storable
    calls: int
    timestamp: float
    preview: str | None
    size: int
    text: str | None = None  # the whole content, as its transcript line has it
    lifted: Lifted = ()  # attachments: hash, mime, bytes
    changes: Sequence[Noted] = ()  # the files that its tool calls change
    failed_call: str | None = None  # the tool call that changed nothing, if it is the result of one

    @property
    def form(self) -> str | None:
        """The content_format."""
        return self.values["content_format"]  # type: ignore[no-any-return]


def preview_of(text: str | None) -> str:
    """The first words of a text on one line: 60 characters, then "..."."""
    if not text:
        return ""
    line = " ".join(text[:400].split())
    return line if len(line) <= PREVIEW else line[:PREVIEW] + "..."


def encode_message(message: Mapping[str, Any], *, mask: Mask | None, lift: Lift | None) -> EncodedMessage:
    """Check, mask and encode one message given as a mapping of append_message's arguments."""
    if not isinstance(message, Mapping):
        raise InvalidInput(f"a message is a dict with a role, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidInput(f"a message needs a role (user, assistant, tool, system …), not {role!r}")
    content: Any = message.get("content")
    lifted: Lifted = ()
    if content is not None and not isinstance(content, (str, list, dict)):
        raise InvalidInput(f"content is text or a list of parts, not {type(content).__name__}")
    if lift is not None and content:
        content, lifted = lift(content)
        message = {**message, "content": content}
    if mask is not None:
        message = masked_message(message, mask)
    get, encode = message.get, codec.storable
    content, form, rest = get("content"), None, None
    shown: Any = content
    if isinstance(content, str):
        form = "text" if content.startswith(codec.FOREIGN_PARTS) else None
    elif content is not None:
        shown = plain_parts(content)
        content, form = codec.to_json(content), "json"
    size, whole = len(content) if content else 0, content
    if lift is None:  # from a file, which lists its attachments; else every reference counts
        entries = get("attachments")
        lifted = parse_listed(entries) if isinstance(entries, list) else references(content)
    if role == "tool" and content:
        content, rest = codec.split_output(content)
    stamp = get("timestamp")
    timestamp = time.time() if stamp is None else arguments.checked_time(stamp, "timestamp")
    values: dict[str, Any] = dict.fromkeys(STORED)
    values["role"], values["content"] = encode(role), None if content is None else encode(content)
    values["timestamp"], values["writer"] = timestamp, 1
    values["content_format"], values["content_rest"] = form, rest
    for name in _TEXTS:
        if (value := get(name)) is not None:
            if not isinstance(value, str):
                raise InvalidInput(f"{name} is text, not {type(value).__name__}")
            values[name] = encode(value)
    for name, kind in _NUMBERS.items():
        if (value := get(name)) is not None:  # the numbers of a file are unchecked
            values[name] = codec.number(value, kind) if lift is None else arguments.checked_number(value, name, kind)
    for name in codec.JSON_FIELDS:
        if (value := get(name)) is not None:
            values[name] = encode(codec.json_field(value) or "")
    preview = preview_of(shown) if role == "user" and shown else None
    made = get("tool_calls")
    changes = noted(made) if made and role == "assistant" else ()
    failed = get("tool_call_id") if role == "tool" and is_failure(shown, get("meta")) else None
    return EncodedMessage(values, count_calls(made), timestamp, preview or None, size, whole, lifted, changes, failed)


def count_calls(calls: Any) -> int:
    """How many tool calls a message makes; a result of a tool makes none."""
    if isinstance(calls, str):
        calls = codec.from_json(calls)
    return len(calls) if isinstance(calls, (list, tuple)) else 1 if isinstance(calls, dict) else 0


# ---------------------------------------------------------------------------------------------- masking
#
# Masks the secrets in a message or session: a new one, or one of an import or of another store in a synchronisation.
#
# They are masked before anything looks at them, so that what is compared with the rows here reads as the rows do, and the
# second import of a file finds no difference.

_OF_MESSAGES = (
    "content", "tool_calls", "reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items",
    "codex_message_items", "meta",
)  # fmt: skip
_TITLES = ("title", "title_base", "trashed_title")
_OF_SESSIONS = (
    *_TITLES, "system_prompt", "model_config", "meta", "preview", "handoff_error", "end_reason", "billing_base_url",
)  # fmt: skip


def masked_message(message: Mapping[str, Any], mask: Mask) -> Mapping[str, Any]:
    """A message with the secrets in its texts masked; the same object when there are none."""
    changed = {}
    for name in _OF_MESSAGES:
        value = message.get(name)
        if value and (masked := _masked_value(value, mask)) is not value:
            changed[name] = masked
    return {**message, **changed} if changed else message


def masked_session(session: Mapping[str, Any], mask: Mask) -> dict[str, Any]:
    """An exported session with the secrets in its columns, tags, events and messages masked."""
    out = {name: masked_column(name, value, mask) for name, value in session.items()}
    for name in ("messages", "rewound_messages"):
        if isinstance(out.get(name), list):
            out[name] = [masked_message(one, mask) if isinstance(one, dict) else one for one in out[name]]
    if isinstance(out.get("tags"), list):
        out["tags"] = [mask(tag) if isinstance(tag, str) else tag for tag in out["tags"]]
    if isinstance(out.get("events"), list):
        out["events"] = [masked_event(one, mask) for one in out["events"]]
    return out


def masked_column(name: str, value: Any, mask: Mask) -> Any:
    """The value of a session's column with its secrets masked; columns without text stay as they are."""
    if not value or name not in _OF_SESSIONS:
        return value
    masked = _masked_value(value, mask)
    return masked[:MAX_TITLE] if masked is not value and name in _TITLES else masked


def masked_event(event: Any, mask: Mask) -> Any:
    """A session's event with the secrets in its text masked."""
    has_text = isinstance(event, dict) and isinstance(event.get("text"), str)
    return {**event, "text": mask(event["text"])} if has_text else event


def _masked_value(value: Any, mask: Mask) -> Any:
    """A text, or what JSON text holds, masked; the same object when there is no secret in it."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, (int, float)):
        return value
    text = codec.to_json(value)
    masked = mask(text)
    return value if masked is text else codec.from_json(masked)

"""Masks the secrets in a message or session: a new one, or one of an import or of another store in a synchronisation.

They are masked before anything looks at them, so that what is compared with the rows here reads as the rows do, and the
second import of a file finds no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hermes.store import codec
from hermes.store.title_rules import MAX_TITLE

Mask = Callable[[str], str]
_OF_MESSAGES = (
    "content", "tool_calls", "reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items",
    "codex_message_items", "meta",
)  # fmt: skip
_TITLES = ("title", "title_base", "trashed_title")
_OF_SESSIONS = (
    *_TITLES, "system_prompt", "model_config", "meta", "preview", "handoff_error", "end_reason", "billing_base_url",
)  # fmt: skip


def message(told: Mapping[str, Any], mask: Mask) -> Mapping[str, Any]:
    """A message with the secrets in its texts masked; the same object when there are none."""
    changed = {}
    for name in _OF_MESSAGES:
        value = told.get(name)
        if value and (masked := _value(value, mask)) is not value:
            changed[name] = masked
    return {**told, **changed} if changed else told


def session(told: Mapping[str, Any], mask: Mask) -> dict[str, Any]:
    """An exported session with the secrets in its columns, tags, events and messages masked."""
    out = {name: column(name, value, mask) for name, value in told.items()}
    for name in ("messages", "rewound_messages"):
        if isinstance(out.get(name), list):
            out[name] = [message(one, mask) if isinstance(one, dict) else one for one in out[name]]
    if isinstance(out.get("tags"), list):
        out["tags"] = [mask(tag) if isinstance(tag, str) else tag for tag in out["tags"]]
    if isinstance(out.get("events"), list):
        out["events"] = [event(one, mask) for one in out["events"]]
    return out


def column(name: str, value: Any, mask: Mask) -> Any:
    """The value of a session's column with its secrets masked; columns without text stay as they are."""
    if not value or name not in _OF_SESSIONS:
        return value
    masked = _value(value, mask)
    return masked[:MAX_TITLE] if masked is not value and name in _TITLES else masked


def event(told: Any, mask: Mask) -> Any:
    """A session's event with the secrets in its text masked."""
    has_text = isinstance(told, dict) and isinstance(told.get("text"), str)
    return {**told, "text": mask(told["text"])} if has_text else told


def _value(value: Any, mask: Mask) -> Any:
    """A text, or what JSON text holds, masked; the same object when there is no secret in it."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, (int, float)):
        return value
    text = codec.to_json(value)
    masked = mask(text)
    return value if masked is text else codec.from_json(masked)

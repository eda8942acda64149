"""The dicts that SessionDB gives, as types for a type checker.

At run time they are plain dicts; a store of a later version may add keys.
"""

# Annotations are evaluated here: only so `__required_keys__` knows what NotRequired means.
from typing import Any, NotRequired, TypedDict

__all__ = [
    "AuditEntry",
    "ChatMessage",
    "Finding",
    "HandoffState",
    "MaintenanceResult",
    "MessageRow",
    "SearchContext",
    "SearchHit",
    "SessionEvent",
    "SessionRow",
]


class SessionRow(TypedDict):
    """A session: `get_session`, `list_sessions_rich`, `search_sessions`."""

    id: str
    source: str
    user_id: str | None
    model: str | None
    model_config: str | None
    system_prompt: str | None
    parent_session_id: str | None
    started_at: float
    ended_at: float | None
    end_reason: str | None
    message_count: int
    tool_call_count: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    billing_provider: str | None
    billing_base_url: str | None
    billing_mode: str | None
    estimated_cost_usd: float | None
    actual_cost_usd: float | None
    cost_status: str | None
    cost_source: str | None
    pricing_version: str | None
    title: str | None
    api_call_count: int
    handoff_state: str | None
    handoff_platform: str | None
    handoff_error: str | None
    kind: str | None
    cwd: str | None
    last_active: float | None
    preview: str | None
    pinned_at: float | None
    archived_at: float | None
    meta: str | None
    _lineage_root_id: NotRequired[str]


class MessageRow(TypedDict):
    """A message with all its columns: `get_messages`."""

    id: int
    session_id: str
    role: str
    content: str | list[Any] | dict[str, Any] | None
    tool_call_id: str | None
    tool_calls: list[dict[str, Any]] | None
    tool_name: str | None
    timestamp: float
    token_count: int | None
    finish_reason: str | None
    reasoning: str | None
    reasoning_content: str | None
    reasoning_details: Any
    codex_reasoning_items: Any
    codex_message_items: Any
    model: str | None
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None
    cost_usd: float | None
    platform_message_id: str | None
    meta: dict[str, Any] | None


class ChatMessage(TypedDict):
    """A message as chat endpoints accept it: `get_messages_as_conversation`."""

    role: str
    content: str | list[Any] | dict[str, Any] | None
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    tool_name: NotRequired[str]
    finish_reason: NotRequired[str]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    reasoning_details: NotRequired[Any]
    codex_reasoning_items: NotRequired[Any]
    codex_message_items: NotRequired[Any]


class SearchContext(TypedDict):
    """The message before or after a hit."""

    id: int
    role: str
    content: str


class SearchHit(TypedDict):
    """A message that was found: `search_messages`."""

    id: int
    session_id: str
    role: str
    timestamp: float
    snippet: str
    context: list[SearchContext]
    source: str
    model: str | None
    session_started: float
    title: str | None
    tool_name: str | None
    score: float
    reason: str
    relaxed: bool


class HandoffState(TypedDict):
    """The state of a handoff; all three None when none was ever requested: `get_handoff_state`."""

    state: str | None
    platform: str | None
    error: str | None


class MaintenanceResult(TypedDict):
    """What `maybe_auto_prune_and_vacuum` did."""

    skipped: bool
    pruned: int
    vacuumed: bool
    error: NotRequired[str]


class SessionEvent(TypedDict):
    """A session event that is no message: `get_session_events`."""

    at: float
    after: int
    kind: str
    text: str


class AuditEntry(TypedDict):
    """What was trashed, restored or deleted: `audit_log`."""

    at: float
    action: str
    session_id: str | None
    by: str | None
    detail: str | None


class Finding(TypedDict):
    """A problem of a store: `check`."""

    kind: str
    where: str
    detail: str

"""The dicts that SessionDB gives, as types for a type checker.

At run time they are plain dicts; a store of a later version may add keys.
"""

# Annotations are evaluated here: only so `__required_keys__` knows what NotRequired means.
from typing import Any, Literal, NotRequired, TypedDict


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


class TrashedSession(SessionRow):
    """A session in the trash: `list_trash`."""

    trashed_at: float
    trashed_title: str | None


class PendingHandoff(SessionRow):
    """A session that waits to be claimed by the gateway of another platform: `list_pending_handoffs`."""

    handoff_requested_at: float | None


class MessagePlace(TypedDict):
    """The keys of every message."""

    id: int
    session_id: str
    role: str
    timestamp: float


class MessageRow(MessagePlace):
    """A message with all its columns: `get_messages`."""

    content: str | list[Any] | dict[str, Any] | None
    tool_call_id: str | None
    tool_calls: list[dict[str, Any]] | None
    tool_name: str | None
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


class AttachmentEntry(TypedDict):
    """A file that a message refers to."""

    hash: str
    mime: str
    bytes: int


class HiddenMessage(MessageRow):
    """A message that its session no longer shows."""

    hidden: int


class RedactedMessage(MessagePlace):
    """The place of a redacted message, in an export for a user who is not the owner of the store."""

    hidden: int
    content: None


class SearchContext(TypedDict):
    """The message before or after a hit."""

    id: int
    role: str
    content: str


class FileChangeRow(TypedDict):
    """A file that a tool call changed: `file_changes`."""

    message_id: int
    session_id: str
    source: str
    title: str | None
    cwd: str | None
    path: str
    kind: str
    time: float
    lines: bytes


class ChangeReason(TypedDict):
    """The user's request that led to a message, and what the agent said beside it: `change_reasons`."""

    request: str
    words: str


Confidence = Literal["sure", "likely", "weak"]


class SearchHit(MessagePlace):
    """A message that was found: `search_messages`."""

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
    why: str
    confidence: Confidence
    """"sure" for a match; of a question's partial matches "likely", or "weak" where something speaks against them."""
    own_model: bool
    """Whether the program's own assistant wrote it: the embedded model, or the one that only quotes."""


class MeaningStatus(TypedDict):
    """The vectors that one model made: `meaning_status`."""

    model: str
    installed: bool
    """Whether the model can be used here."""
    on: bool
    """Whether search by meaning was switched on for this store."""
    vectors: int
    pending: int
    """Messages that this model has not looked at yet; search finds them by their words."""


class HandoffState(TypedDict):
    """The state of a handoff; all three None when none was ever requested: `get_handoff_state`."""

    state: str | None
    platform: str | None
    error: str | None


class MaintenanceResult(TypedDict):
    """The result of `maybe_auto_prune_and_vacuum`."""

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
    """A session that was trashed, restored, deleted, shredded, or changed through a page: `audit_log`."""

    at: float
    action: str
    session_id: str | None
    by: str | None
    detail: str | None


class ShredResult(TypedDict):
    """The result of `shred_session`.

    `parts` are the sessions it was made of, `messages` how many they owned. `shared_with` names sessions that still show
    messages the conversation showed without owning them; `copies` are files and places that may still hold it; `unfinished`
    has a line for each thing that could not be done: shred again after doing what it says.
    """

    parts: list[str]
    messages: int
    shared_with: list[str]
    copies: list[str]
    unfinished: list[str]


class Finding(TypedDict):
    """A problem of a store: `check`."""

    kind: str
    where: str
    detail: str


class ExportedSession(SessionRow):
    """A session with its messages: `export_session`, `export_all`, `iter_export`. What is empty is left out."""

    messages: list[MessageRow]
    tags: NotRequired[list[str]]
    members: NotRequired[list[list[str]]]
    """Source and user id of each user the session is shared with."""
    refs: NotRequired[list[list[Any]]]
    """The ranges of other sessions' messages it shows: ord, from_session, first_id, last_id, after_id, rewound, born."""
    rewinds: NotRequired[list[list[int]]]
    """The number of each rewind, and the id of the message it went back to."""
    events: NotRequired[list[SessionEvent]]
    rewound_messages: NotRequired[list[HiddenMessage | RedactedMessage]]
    attached: NotRequired[dict[str, list[AttachmentEntry]]]
    """The attachments of each message, by its id."""


class Facets(TypedDict):
    """Names to filter sessions by, each with how often it occurs, the most frequent first: `facets`."""

    sources: dict[str, int]
    models: dict[str, int]
    folders: dict[str, int]
    tags: dict[str, int]
    tools: dict[str, int]


class Relative(TypedDict):
    """A session among its branches and compressions: `get_family`."""

    id: str
    parent: str | None
    kind: str | None
    end_reason: str | None
    title: str | None
    preview: str
    messages: int
    started_at: float


class InsightsTokens(TypedDict):
    """Tokens by their kind."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int


class InsightsCost(TypedDict):
    """The cost of the sessions; None where no price is known."""

    estimated_usd: float | None
    actual_usd: float | None
    usd: float | None
    priced_sessions: int
    unknown_sessions: int


class InsightsUse(TypedDict):
    """Tokens and their cost; None where no price is known."""

    tokens: InsightsTokens
    cost_usd: float | None


class InsightsModel(InsightsUse):
    """The share of one model."""

    model: str | None
    sessions: int
    replies: int


class InsightsRuns(TypedDict):
    """Sessions as lists show them: conversations, each once, and automated runs."""

    conversations: int
    automated_runs: int


class InsightsSource(InsightsUse, InsightsRuns):
    """The share of one source (cli, telegram, …)."""

    source: str
    sessions: int
    messages: int
    tool_calls: int


class InsightsTool(TypedDict):
    """How often one tool was called, and in how many sessions."""

    tool: str
    calls: int
    sessions: int


class InsightsStreaks(TypedDict):
    """Days in a row with messages."""

    current: int
    longest: int
    days_active: int


class InsightsSession(InsightsUse):
    """A session among the longest or the costliest."""

    id: str
    title: str | None
    preview: str
    source: str
    last_active: float
    messages: int
    seconds: float


class InsightsDay(TypedDict):
    """One day: its messages, and its share of the tokens and the cost."""

    messages: int
    tokens: int
    cost_usd: float | None


class InsightsActivity(TypedDict):
    """Messages by hour of the day, by weekday (Monday first), by both, and by day; usage by day."""

    by_hour: list[int]
    by_weekday: list[int]
    by_weekday_hour: list[list[int]]
    by_day: dict[str, int]
    usage_by_day: dict[str, InsightsDay]
    streaks: InsightsStreaks


class Insights(InsightsActivity, InsightsRuns):
    """The usage in a period: `insights`."""

    days: float
    since: float
    until: float
    local: list[str]
    timezone: str
    source: str | None
    sessions: int
    messages: int
    tool_calls: int
    tokens: InsightsTokens
    cost: InsightsCost
    by_model: list[InsightsModel]
    by_source: list[InsightsSource]
    by_tool: list[InsightsTool]
    longest: list[InsightsSession]
    costliest: list[InsightsSession]

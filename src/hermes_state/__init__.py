"""The documented import of the record: `from hermes_state import SessionDB`.

Beside it: the errors its calls raise, and the dicts they give, as types.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.errors import (
    Fenced,
    HermesError,
    InvalidInput,
    NotADatabase,
    SessionBusy,
    SessionNotFound,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreGone,
    StoreLocked,
    StoreReadOnly,
    StoreUnreachable,
    TitleClash,
    TitleTooLong,
)
from hermes.store.api.session_db import SessionDB
from hermes.store.records.rows import (
    AttachmentEntry,
    AuditEntry,
    ChangeReason,
    ChatMessage,
    ExportedSession,
    Facets,
    FileChangeRow,
    Finding,
    HandoffState,
    HiddenMessage,
    Insights,
    InsightsActivity,
    InsightsCost,
    InsightsDay,
    InsightsModel,
    InsightsSession,
    InsightsSource,
    InsightsStreaks,
    InsightsTokens,
    InsightsTool,
    MaintenanceResult,
    MeaningStatus,
    MessageRow,
    PendingHandoff,
    RedactedMessage,
    Relative,
    SearchContext,
    SearchHit,
    SessionEvent,
    SessionRow,
    ShredResult,
    TrashedSession,
)

SCHEMA_VERSION = 11  # what a file's `schema_version` says, see docs/format.md

if TYPE_CHECKING:
    DEFAULT_DB_PATH: Path


def __getattr__(name: str) -> Any:
    if name == "DEFAULT_DB_PATH":  # looked up each time: HERMES_HOME may be set after the import
        from hermes.home import default_database

        return default_database()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DEFAULT_DB_PATH",
    "SCHEMA_VERSION",
    "AttachmentEntry",
    "AuditEntry",
    "ChangeReason",
    "ChatMessage",
    "ExportedSession",
    "Facets",
    "Fenced",
    "FileChangeRow",
    "Finding",
    "HandoffState",
    "HermesError",
    "HiddenMessage",
    "Insights",
    "InsightsActivity",
    "InsightsCost",
    "InsightsDay",
    "InsightsModel",
    "InsightsSession",
    "InsightsSource",
    "InsightsStreaks",
    "InsightsTokens",
    "InsightsTool",
    "InvalidInput",
    "MaintenanceResult",
    "MeaningStatus",
    "MessageRow",
    "NotADatabase",
    "PendingHandoff",
    "RedactedMessage",
    "Relative",
    "SearchContext",
    "SearchHit",
    "SessionBusy",
    "SessionDB",
    "SessionEvent",
    "SessionNotFound",
    "SessionRow",
    "ShredResult",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreGone",
    "StoreLocked",
    "StoreReadOnly",
    "StoreUnreachable",
    "TitleClash",
    "TitleTooLong",
    "TrashedSession",
]

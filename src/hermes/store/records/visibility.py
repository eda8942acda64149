"""The visibility of sessions to users, as SQL.

A user is (source, user_id). The owner (None) sees everything; any other user sees their own sessions and those shared
with them. Sessions in the trash, or stored only for sessions that refer to them, are invisible to all.
"""

from __future__ import annotations

from typing import Any

from hermes.errors import InvalidInput

User = tuple[str, str]
# Sessions that no person held: of jobs and batches, of sub-agents, and single questions that were not continued.
AUTOMATED = "({s}.source IN ('cron', 'batch') OR coalesce({s}.kind, '') = 'subagent' OR coalesce({s}.end_reason, '') = 'oneshot')"
SHOWN = "{s}.trashed_at IS NULL AND {s}.purged IS NULL"


def session_clause(visible_to: User | None, alias: str = "s", source: str | None = None) -> tuple[str, list[Any]]:
    """A condition on the sessions row `alias` and its parameters; with a source, only its sessions."""
    shown = SHOWN.format(s=alias)
    if source is not None:
        where, params = session_clause(visible_to, alias)
        return f"{where} AND {alias}.source = ?", [*params, source]
    if visible_to is None:
        return shown, []
    try:
        source, user_id = (str(part) for part in visible_to)
    except (TypeError, ValueError):
        raise InvalidInput("visible_to is a pair (source, user_id), or None for the owner") from None
    return (
        f"{shown} AND (({alias}.source = ? AND {alias}.user_id = ?) OR EXISTS (SELECT 1 FROM session_members v"
        f" WHERE v.session_id = {alias}.id AND v.source = ? AND v.user_id = ?))",
        [source, user_id, source, user_id],
    )


def in_folder(alias: str, folder: str) -> tuple[str, list[Any]]:
    """A condition on the sessions row `alias`: it works in this folder or below it."""
    folder = folder.rstrip("/")
    below = f"{folder}/"
    condition = f"({alias}.cwd = ? OR substr({alias}.cwd, 1, length(CAST(? AS TEXT))) = ?)"
    return condition, [folder or "/", below, below]

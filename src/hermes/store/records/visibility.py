"""The visibility of sessions to users, and the messages that a search may find, as SQL.

A user is (source, user_id). The owner (None) sees everything; any other user sees their own sessions and those shared
with them. Sessions in the trash, or stored only for sessions that refer to them, are invisible to all. The scope of a search
is what its user may see, narrowed by filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hermes.errors import InvalidInput
from hermes.store.api.arguments import checked_period
from hermes.store.engines.base import CARRIABLE, COMPACTED, Scope, Tx

User = tuple[str, str]
# Sessions that no person held: of jobs and batches, of sub-agents, and single questions that were not continued.
AUTOMATED = "({s}.source IN ('cron', 'batch') OR coalesce({s}.kind, '') = 'subagent' OR coalesce({s}.end_reason, '') = 'oneshot')"
SHOWN = "{s}.trashed_at IS NULL AND {s}.purged IS NULL"
FOUND = f"(m.hidden IS NULL OR m.hidden = {COMPACTED})"  # messages that a search may find


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


# ---------------------------------------------------------------------------------------------- searches


class Filters(msgspec.Struct, frozen=True):
    """The filters by which a caller may narrow a search."""

    source_filter: Sequence[str] | None = None
    exclude_sources: Sequence[str] | None = None
    role_filter: Sequence[str] | None = None
    session_ids: Sequence[str] | None = None
    user_id: str | None = None
    since: float | None = None
    until: float | None = None
    model: str | None = None
    title: str | None = None
    tag: str | None = None
    tool: str | None = None
    cwd: str | None = None
    exclude_sessions: Sequence[str] | None = None
    automated: bool = True


NO_FILTERS = Filters()


def scope_of(tx: Tx, filters: Filters, visible_to: User | None) -> Scope:
    """The messages this search may return; where nothing is hidden from an owner, no session row has to be read."""
    if visible_to is None and filters == NO_FILTERS and _nothing_is_hidden(tx):
        return Scope(FOUND)
    return _narrowed(filters, visible_to)


def _nothing_is_hidden(tx: Tx) -> bool:
    """Whether every session is shown and none carries messages of another."""
    return not tx.value(
        "SELECT EXISTS (SELECT 1 FROM sessions WHERE trashed_at IS NOT NULL) OR EXISTS (SELECT 1 FROM sessions WHERE"
        " purged IS NOT NULL) OR EXISTS (SELECT 1 FROM session_refs)"
    )


def _as_list(value: Any, name: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    try:
        return [str(item) for item in value]
    except TypeError:
        raise InvalidInput(f"{name} is a list of names") from None


def session_filter(filters: Filters, visible_to: User | None, alias: str) -> tuple[str, list[Any]]:
    """A condition on the sessions row `alias` (and its message `m`), with its parameters."""
    where, params = session_clause(visible_to, alias)
    if not filters.automated:
        where += f" AND NOT {AUTOMATED.format(s=alias)}"
    for name, column, negate in (
        ("source_filter", "source", ""), ("exclude_sources", "source", "NOT "), ("session_ids", "id", ""),
        ("exclude_sessions", "id", "NOT "),
    ):  # fmt: skip
        value = getattr(filters, name)
        if value is not None and (value or not negate):
            names = _as_list(value, name)
            where += f" AND {alias}.{column} {negate}IN ({', '.join('?' * len(names)) or 'NULL'})"
            params += names
    for value, condition in (
        (filters.user_id, f"{alias}.user_id = ?"),
        (filters.model, f"m.model = ? OR {alias}.model = ?"),
        (filters.title, f"instr(lower({alias}.title), lower(?)) > 0"),
        (filters.tag, f"EXISTS (SELECT 1 FROM session_tags t WHERE t.session_id = {alias}.id AND t.tag = ?)"),
    ):
        if value is not None:
            where, params = f"{where} AND ({condition})", params + [str(value)] * condition.count("?")
    if filters.cwd is not None:
        inside, folder = in_folder(alias, filters.cwd)
        where, params = f"{where} AND {inside}", [*params, *folder]
    return where, params


def _narrowed(filters: Filters, visible_to: User | None) -> Scope:
    """Messages that are shown by their own session, or carried by one that may be seen."""
    own, own_params = session_filter(filters, visible_to, "s")
    other, other_params = session_filter(filters, visible_to, "o")
    where = (
        f"(({FOUND} AND {own}) OR EXISTS (SELECT 1 FROM session_refs r JOIN sessions o ON o.id = r.session_id"
        f" WHERE r.from_session = m.session_id AND m.id BETWEEN r.first_id AND r.last_id AND r.rewound IS NULL"
        f" AND {CARRIABLE} AND {other}))"
    )
    params = own_params + other_params
    if filters.role_filter is not None:
        roles = _as_list(filters.role_filter, "role_filter")
        where, params = f"{where} AND m.role IN ({', '.join('?' * len(roles)) or 'NULL'})", params + roles
    for name, value, sign in (("since", filters.since, ">="), ("until", filters.until, "<=")):
        if value is not None:
            where, params = f"{where} AND m.timestamp {sign} ?", [*params, checked_period(value, name)]
    if filters.tool is not None:
        where += " AND (m.tool_name = ? OR instr(replace(m.tool_calls, ': ', ':'), ?) > 0)"
        params = [*params, filters.tool, f'"name":"{filters.tool}"']
    shown, shown_params = session_filter(msgspec.structs.replace(filters, model=None), visible_to, "s")
    by_message = any(getattr(filters, name) is not None for name in ("role_filter", "since", "until", "tool", "model"))
    return Scope(where, tuple(params), True, shown, tuple(shown_params), by_message)

"""Lists of sessions: each conversation once, newest first.

The order comes from an index on the session row, so a list costs the same in a store of a hundred sessions and of
a hundred thousand. A chain of compressions is one line: its newest member, in its place in the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hermes.errors import InvalidInput
from hermes.store import lineage, sessions
from hermes.store.arguments import checked_bound
from hermes.store.engines.base import Tx
from hermes.store.message_values import preview_of
from hermes.store.visibility import User, in_folder, session_clause

if TYPE_CHECKING:
    from hermes.store.rows import SessionRow

_ACTIVE = "coalesce(s.active_at, s.started_at)"
# A child is a line of its own when it is a branch, when it began after its parent was reset, or when it only
# continues its parent (that line is then the chain's).
_OF_ITS_OWN = "(s.kind IN ('branch', 'reset') OR (s.kind IS NULL AND p.end_reason = 'branched'))"
_CONTINUES = lineage.CONTINUATION.replace("c.", "s.")
_CONTINUED = f"EXISTS (SELECT 1 FROM sessions c WHERE {lineage.CONTINUATION.replace('p.', 's.')})"


def rich(
    tx: Tx,
    *,
    source: str | None,
    exclude_sources: Sequence[str] | None,
    limit: int | None,
    offset: int,
    include_children: bool,
    project_tips: bool,
    by_activity: bool,
    visible_to: User | None,
    extra: tuple[str, list[Any]] = ("", []),
) -> list[SessionRow]:
    """See SessionDB.list_sessions_rich."""
    limit, offset = checked_page(limit, offset)
    where, params = session_clause(visible_to)
    if source is not None:
        where, params = f"{where} AND s.source = ?", [*params, source]
    if exclude_sources:
        where = f"{where} AND s.source NOT IN ({', '.join('?' * len(exclude_sources))})"
        params = [*params, *exclude_sources]
    if extra[0]:
        where, params = f"{where} AND {extra[0]}", [*params, *extra[1]]
    order = f"{_ACTIVE} DESC, s.id DESC" if by_activity else "s.started_at DESC, s.id DESC"
    as_tips = project_tips and by_activity and not include_children
    if not include_children:
        hidden = f"s.parent_session_id IS NULL OR p.id IS NULL OR {_OF_ITS_OWN}"
        if as_tips:  # the line is the newest member itself, so older members are dropped and continuations stay
            hidden = f"({hidden} OR ({_CONTINUES})) AND NOT {_CONTINUED}"
        where = f"{where} AND ({hidden})"
    rows = tx.dicts(
        f"SELECT {sessions.LISTED} FROM sessions s LEFT JOIN sessions p ON p.id = s.parent_session_id AND p.purged IS NULL"
        f" WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
        [*params, limit, offset],
    )
    sessions.put_prompts(tx, rows)
    if not include_children and project_tips:
        rows = [_as_line(tx, row, visible_to, as_tips) for row in rows]
    return [_finish(row) for row in rows]


def narrowed(
    model: str | None, cwd: str | None, since: float | None, until: float | None
) -> Iterator[tuple[str, list[Any]]]:
    """Conditions on the sessions row `s`, each with its parameters."""
    if model is not None:
        yield "s.model = ?", [model]
    if cwd is not None:
        yield in_folder("s", cwd)
    for name, sign, value in (("since", ">=", since), ("until", "<=", until)):
        if value is not None:
            yield f"{_ACTIVE} {sign} ?", [checked_bound(value, name)]


ALL = 1 << 40


def checked_page(limit: int | None, offset: int) -> tuple[int, int]:
    """A page for the database; None is without a limit, negative numbers are refused."""
    limit = ALL if limit is None else limit
    if not isinstance(limit, int) or not isinstance(offset, int) or limit < 0 or offset < 0:
        raise InvalidInput(f"limit and offset are whole numbers from 0 on, not {limit!r} and {offset!r}")
    return min(limit, ALL), min(offset, ALL)


def _as_line(tx: Tx, row: SessionRow, visible_to: User | None, as_tips: bool) -> SessionRow:
    """The chain this row stands for: its newest member, with the id of its first."""
    if as_tips:
        if row["parent_session_id"] is not None:
            root = lineage.chain_root(tx, row["id"])
            if root != row["id"]:
                row["_lineage_root_id"] = root
        return row
    if row["end_reason"] != "compression":
        return row
    tip = lineage.compression_tip(tx, row["id"])
    if tip == row["id"]:
        return row
    shown = sessions.get(tx, tip, visible_to)
    if shown is None:
        return row
    shown["_lineage_root_id"] = row["id"]
    return shown


def _finish(row: SessionRow) -> SessionRow:
    row = sessions.tidy(row)
    row["preview"] = preview_of(row["preview"])
    if row["last_active"] is None:
        row["last_active"] = row["started_at"]
    return row


def recent(tx: Tx, source: str | None, limit: int | None, offset: int, visible_to: User | None) -> list[SessionRow]:
    """Recent sessions, the one with the newest message first, every one of them."""
    return rich(
        tx, source=source, exclude_sources=None, limit=limit, offset=offset, include_children=True, project_tips=False,
        by_activity=True, visible_to=visible_to,
    )  # fmt: skip

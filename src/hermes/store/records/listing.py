"""Lists of sessions: each conversation once, newest first.

The order comes from an index on the session row, so a list costs the same in a store of a hundred sessions and of
a hundred thousand. A chain of compressions is one line: its newest member, in its place in the order. For displays there are
also the names to filter lists by, a session's relatives, and which watched sessions changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hermes.errors import InvalidInput
from hermes.store.api.arguments import checked_period
from hermes.store.engines.base import Tx, rows_among
from hermes.store.records import codec, lineage, sessions
from hermes.store.records.message_values import preview_of
from hermes.store.records.rows import Facets, Relative, SessionRow
from hermes.store.records.visibility import AUTOMATED, Filters, User, session_clause, session_filter

Condition = tuple[str, list[Any]]
_MOST = 50  # names of each kind
_RECENT = 20_000  # messages, the newest, among which the names of tools are looked for: reading all takes too long
_RELATIVES = 500
_MOST_TITLED = 10_000  # titles that fit; a statement takes 32,766 values
_ACTIVE = "coalesce(s.active_at, s.started_at)"
# A child is a line of its own when it is a branch, when it began after its parent was reset, or when it only
# continues its parent (that line is then the chain's).
OF_ITS_OWN = "(s.kind IN ('branch', 'reset') OR (s.kind IS NULL AND p.end_reason = 'branched'))"
CONTINUES = lineage.CONTINUATION.replace("c.", "s.")
_CONTINUED = f"EXISTS (SELECT 1 FROM sessions c WHERE {lineage.CONTINUATION.replace('p.', 's.')})"


def rich(
    tx: Tx, filters: Filters, narrowed: Iterable[Condition], visible_to: User | None, page: tuple[int, int], *, children: bool,
    tips: bool, by_activity: bool, automated: bool | None, title: Callable[[str], bool] | None,
) -> list[SessionRow]:  # fmt: skip
    """See SessionDB.list_sessions_rich."""
    if title is not None:
        narrowed = [*narrowed, _titled(tx, title)]
    order = f"{_ACTIVE} DESC, s.id DESC" if by_activity else "s.started_at DESC, s.id DESC"
    as_tips = tips and by_activity and not children
    shown = session_filter(filters, visible_to, "s")
    lines, params = _lines([shown, *narrowed], children=children, as_tips=as_tips, subagents=automated is True)
    rows = tx.dicts(f"SELECT {sessions.LISTED} {lines} ORDER BY {order} LIMIT ? OFFSET ?", [*params, *page])
    sessions.put_prompts(tx, rows)
    if not children and tips:
        rows = [_as_line(tx, row, visible_to, as_tips) for row in rows]
    return [_finish(row) for row in rows]


def count_automated(tx: Tx, cwd: str | None, visible_to: User | None) -> int:
    """See SessionDB.automated_count."""
    shown = session_filter(Filters(cwd=cwd), visible_to, "s")
    narrowed = [shown, *conditions(archived=False), (AUTOMATED.format(s="s"), [])]
    lines, params = _lines(narrowed, children=False, as_tips=True, subagents=True)
    return int(tx.value(f"SELECT count(*) {lines}", params))


def _lines(narrowed: Iterable[Condition], *, children: bool, as_tips: bool, subagents: bool) -> Condition:
    """The sessions that are lines of a list, from FROM on."""
    where, params = "TRUE", list[Any]()
    for condition, values in narrowed:
        where, params = f"{where} AND {condition}", [*params, *values]
    if not children:
        own = f"s.parent_session_id IS NULL OR p.id IS NULL OR {OF_ITS_OWN}" + " OR s.kind = 'subagent'" * subagents
        if as_tips:  # the line is the newest member itself, so older members are dropped and continuations stay
            own = f"({own} OR ({CONTINUES})) AND NOT {_CONTINUED}"
        where = f"{where} AND ({own})"
    joined = "FROM sessions s LEFT JOIN sessions p ON p.id = s.parent_session_id AND p.purged IS NULL"
    return f"{joined} WHERE {where}", params


def conditions(
    archived: bool,
    pinned: bool = False,
    model: str | None = None,
    since: float | None = None,
    until: float | None = None,
) -> Iterator[Condition]:
    """Conditions on the sessions row `s`, each with its parameters."""
    if not archived:
        yield "s.archived_at IS NULL", []
    if pinned:
        yield "s.pinned_at IS NOT NULL", []
    if model is not None:
        yield "s.model = ?", [model]
    for name, sign, value in (("since", ">=", since), ("until", "<=", until)):
        if value is not None:
            yield f"{_ACTIVE} {sign} ?", [checked_period(value, name)]


def _titled(tx: Tx, fits: Callable[[str], bool]) -> Condition:
    """The title fits: decided here, as SQL ignores the case of ASCII alone. Of very many, the newest."""
    rows = tx.rows(f"SELECT s.id, s.title FROM sessions s WHERE s.title IS NOT NULL ORDER BY {_ACTIVE} DESC")
    return tx.among("s.id", [row[0] for row in rows if fits(str(row[1]))][:_MOST_TITLED])


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


# ---------------------------------------------------------------------------------------------- for displays


def facets(tx: Tx, visible_to: User | None) -> Facets:
    """See SessionDB.facets."""
    where, params = session_clause(visible_to)
    newest = int(tx.value("SELECT max(id) FROM messages") or 0)

    def counted(name: str, rest: str, values: Sequence[Any] = ()) -> dict[str, int]:
        rows = tx.rows(
            f"SELECT {name}, count(*) AS n FROM {rest} AND {where} AND {name} IS NOT NULL AND {name} <> ''"
            f" GROUP BY {name} ORDER BY n DESC, {name} LIMIT {_MOST}",
            [*values, *params],
        )
        return {str(codec.restored(value)): int(count) for value, count in rows}

    return {
        "sources": counted("s.source", "sessions s WHERE 1 = 1"),
        "models": counted("s.model", "sessions s WHERE 1 = 1"),
        "folders": counted("s.cwd", "sessions s WHERE 1 = 1"),
        "tags": counted("t.tag", "session_tags t JOIN sessions s ON s.id = t.session_id WHERE 1 = 1"),
        "tools": counted(
            "m.tool_name", "messages m JOIN sessions s ON s.id = m.session_id WHERE m.id > ?", [newest - _RECENT]
        ),
    }


def family(tx: Tx, session_id: str, visible_to: User | None) -> list[Relative]:
    """See SessionDB.get_family."""
    where, params = session_clause(visible_to)
    columns = "s.id, s.parent_session_id, s.kind, s.end_reason, s.title, s.first_words, s.message_count, s.started_at"
    shown = f"SELECT 1 FROM sessions s WHERE s.id = ? AND {where}"
    chain = lineage.ancestors(tx, session_id)
    level = [one for one in chain if tx.row(shown, [one, *params]) is not None][:1]  # the oldest that may be seen
    found: dict[str, Relative] = {}
    by_id = "s.id"
    while level and len(found) < _RELATIVES:
        among, values = tx.among(by_id, level)
        sql = f"SELECT {columns} FROM sessions s WHERE {among} AND {where} ORDER BY s.started_at, s.id"
        level = []
        for row in tx.rows(sql, [*values, *params]):
            one, parent, kind, end_reason, title, preview, count, started = (codec.restored(value) for value in row)
            if one in found:
                continue
            found[one] = {
                "id": one, "parent": parent if parent in found else None, "kind": kind, "end_reason": end_reason,
                "title": title, "preview": preview or "", "messages": int(count or 0), "started_at": started,
            }  # fmt: skip
            level.append(one)
        by_id = "s.parent_session_id"
    return list(found.values())


def states(tx: Tx, session_ids: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """See SessionDB.session_states."""
    tags = "(SELECT count(*) FROM session_tags t WHERE t.session_id = sessions.id)"
    shown = "message_count, active_at, ended_at, trashed_at, archived_at, pinned_at, title, model"
    sql = f"SELECT id, {shown}, {tags} FROM sessions WHERE {{these}}"
    return {str(codec.restored(row[0])): tuple(row[1:]) for row in rows_among(tx, sql, list(session_ids))}

"""Values for displays: names to filter by, a session's relatives, which watched sessions changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes.store import codec, lineage
from hermes.store.engines.base import Tx
from hermes.store.visibility import User, session_clause

if TYPE_CHECKING:
    from hermes.store.rows import Facets, Relative

_MOST = 50  # names of each kind
_RECENT = 20_000  # messages, the newest, among which the names of tools are looked for: reading all takes too long
_RELATIVES = 500


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
    among, values = tx.among("s.id", list(session_ids))
    columns = "s.id, s.message_count, s.active_at, s.ended_at, s.trashed_at"
    rows = tx.rows(f"SELECT {columns} FROM sessions s WHERE {among}", values)
    return {str(codec.restored(row[0])): tuple(row[1:]) for row in rows}

"""How a session stands in this store: its fingerprint, which shows whether anything changed, and its values.

Values name messages as documents do, not by the ids they have here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hermes.store import codec, message_reading, session_events, transcript_replay
from hermes.store.engines.base import COMPACTED, KEPT, REPLACED, Tx
from hermes.store.lineage import StoredRow
from hermes.store.sync import document as documents
from hermes.store.sync import tables
from hermes.store.sync.document import LIVE, TRASHED, digest
from hermes.store.transcript_replay import SessionState

FIELDS = (
    "source", "user_id", "model", "model_config", "parent_session_id", "started_at", "ended_at", "end_reason",
    "billing_provider", "billing_base_url", "billing_mode", "cost_status", "cost_source", "pricing_version", "kind", "cwd",
    "pinned_at", "archived_at", "meta",
)  # fmt: skip
USAGE = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "estimated_cost_usd",
    "actual_cost_usd", "api_call_count",
)  # fmt: skip
_ROW = (*FIELDS, *USAGE, "title", "trashed_at", "trashed_title", "system_prompt_hash")
# Messages of a session in the trash, and those that are there only for others, travel with those who show them.
_OWNER_TRASHED = "(SELECT o.trashed_at FROM sessions o WHERE o.id = from_session)"
_KEPT_IN_RANGE = (
    "(SELECT count(*) FROM messages k WHERE k.session_id = from_session AND k.id BETWEEN first_id AND last_id"
    f" AND k.hidden = {KEPT})"
)
_RELATED = {
    "session_tags": "tag",
    "session_members": "source, user_id",
    "session_refs": f"ord, from_session, first_id, last_id, after_id, rewound, born, {_OWNER_TRASHED}, {_KEPT_IN_RANGE}",
    "session_rewinds": "batch, cut_id",
}
# Prefix of a deleted session's id: the messages that are there only for others.
KEPT_OF = "~kept~"


def fingerprints(tx: Tx, session_ids: Sequence[str] | None = None) -> dict[str, str]:
    """By session (all, or these), a short name of how it looks. An edit leaves a row, so no text is read."""
    found: dict[str, list[Any]] = {}

    def rows(query: str, column: str = "session_id") -> Iterator[tuple[str, list[Any]]]:
        these, given = ("TRUE", []) if session_ids is None else tx.among(column, session_ids)
        return ((key, list(map(_plain, row))) for key, *row in tx.rows(query.format(these), given))

    for session_id, row in rows(f"SELECT id, {', '.join(_ROW)} FROM sessions WHERE purged IS NULL AND {{}}", "id"):
        found[session_id] = [row]
    counted = "count(*), max(id), sum(coalesce(hidden, 0) * (id % 1000003)), sum(length(content))"
    queries = [f"SELECT session_id, {counted} FROM messages WHERE {{}} GROUP BY session_id"]
    for table, names in _RELATED.items():
        queries.append(f"SELECT session_id, {names} FROM {table} WHERE {{}} ORDER BY session_id, {names}")
    if session_events.are_kept(tx):
        queries.append("SELECT session_id, count(*), max(at) FROM session_events WHERE {} GROUP BY session_id")
    for number, query in enumerate(queries):
        for session_id, row in rows(query):
            if session_id in found:
                found[session_id].append([number, *row])
    kept = (
        "SELECT y.tree, count(*), sum(m.hidden * (m.id % 1000003)), sum(length(m.content)) FROM sync_messages y JOIN messages m"
        " ON m.id = y.message_id JOIN sessions s ON s.id = m.session_id WHERE s.purged IS NOT NULL AND {} GROUP BY y.tree"
    )
    for tree, row in rows(kept, "y.tree"):
        found[KEPT_OF + tree] = [row]
    return {session_id: digest(looks) for session_id, looks in found.items()}


def _plain(value: Any) -> Any:
    value = codec.restored(value)
    return value if value is None or isinstance(value, (str, int, float)) else int(value)


def combined(prints: dict[str, str], session_ids: Iterable[str]) -> str:
    """The fingerprint of a session with its forks."""
    names = [name for one in session_ids for name in (one, KEPT_OF + one)]
    return digest(sorted((one, prints[one]) for one in names if one in prints))


def snapshot(tx: Tx, session_id: str) -> dict[str, Any]:
    """The values of a session here: all but its messages."""
    values, state = transcript_replay.session_columns(tx, session_id), transcript_replay.session_state(tx, session_id)
    fields = {name: values[name] for name in (*FIELDS, "system_prompt")}
    fields["title"] = values["title"] if values["trashed_at"] is None else values["trashed_title"]
    told = session_events.of_session(tx, session_id)
    named = tables.origins(tx, [event["after"] for event in told])
    return {
        "fields": fields,
        "usage": {name: values[name] for name in USAGE if values[name]},
        "tags": state["tags"],
        "members": sorted(map(documents.canonical, state["members"])),
        "view": view_of(tx, state),
        "events": [{**event, "after": named.get(event["after"], "")} for event in told],
        "life": [LIVE, 0.0] if values["trashed_at"] is None else [TRASHED, values["trashed_at"]],
    }


def view_of(tx: Tx, state: SessionState) -> dict[str, Any]:
    """The messages that a session hides, and those of others that it shows, by their names."""
    hidden = [(one, batch) for one, batch in state["hidden"] if batch > 0 or batch == COMPACTED]
    sql = f"SELECT id FROM messages WHERE session_id = ? AND id BETWEEN ? AND ? AND coalesce(hidden, 0) <> {REPLACED}"
    ranges = [[row[0] for row in tx.rows(f"{sql} ORDER BY id", ref[1:4])] for ref in state["refs"]]
    ids = [one for one, _ in hidden] + [cut for _, cut in state["rewinds"]] + [ref[4] for ref in state["refs"]]
    named = tables.origins(tx, [*ids, *(one for some in ranges for one in some)])
    refs = [
        [named.get(after, "" if after == 0 else "?"), [named[one] for one in some if one in named], rewound, born]
        for (*_, after, rewound, born), some in zip(state["refs"], ranges, strict=True)
    ]
    return {
        "hidden": {named[one]: batch for one, batch in hidden if one in named},
        "rewinds": [[batch, named.get(cut, "")] for batch, cut in state["rewinds"]],
        "refs": joined(refs),
    }


def joined(refs: Sequence[list[Any]]) -> list[list[Any]]:
    """Ranges that follow each other in the same place as one: how they are cut depends on the ids here."""
    out: list[list[Any]] = []
    for after, names, rewound, born in refs:
        if out and [out[-1][0], *out[-1][2:]] == [after, rewound, born]:
            out[-1][1].extend(names)
        else:
            out.append([after, list(names), rewound, born])
    return out


def stored_body(tx: Tx, row: StoredRow, attached: dict[str, Any]) -> dict[str, Any]:
    """The body of a stored message; `attached` has the attachments of the owners that were read so far."""
    if row.owner not in attached:
        attached[row.owner] = message_reading.attached(tx, row.owner)
    return body_of(message_reading.rows_of(tx, row.id)[0], attached[row.owner])


def body_of(row: tuple[Any, ...], attached: Any) -> dict[str, Any]:
    """A message without what differs between stores: its id, and its session's."""
    entry = transcript_replay.message_entry(message_reading.decode(row), attached.get(row[0], ()))
    return {name: value for name, value in entry.items() if name not in ("type", "id")}

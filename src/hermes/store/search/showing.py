"""Makes hits to show: the message's place and session, a snippet around the match, and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes.store.engines.base import COMPACTED, OWN_MODELS, Row, Tx, rows_among
from hermes.store.records import codec, message_reading
from hermes.store.records.visibility import User
from hermes.store.search.hits import Ranked, texts_of
from hermes.store.search.scope import Filters, session_filter
from hermes.store.text.index_text import plain_calls, plain_parts
from hermes.store.text.snippet import Needle, snippet

if TYPE_CHECKING:
    from hermes.store.records.rows import SearchContext, SearchHit

CONTEXT = 200  # characters of a neighbour
_NEAR = 4  # ids: a message without a neighbour there is at an end of its session, or others talked at the same time
# The session under which a hit is shown: id, source, model, when it began, title.
_SESSION = "{0}.id, {0}.source, {0}.model, {0}.started_at, {0}.title"


def _neighbour(sign: str, order: str) -> str:
    """The id of the message before (`<`) or after a message, in the order of ids: of the few stored right beside it, else of
    its session's by their times, which the index has in order."""
    other = f"SELECT b.id FROM messages b WHERE b.id {sign} m.id AND {message_reading.FOUND.replace('m.', 'b.')}"
    return (
        f"coalesce(({other} AND b.id BETWEEN m.id - {_NEAR} AND m.id + {_NEAR} AND b.session_id || '' = m.session_id"
        f" ORDER BY b.id {order} LIMIT 1), ({other} AND b.session_id = m.session_id AND (b.timestamp, b.id) {sign}"
        f" (m.timestamp, m.id) ORDER BY b.timestamp {order}, b.id {order} LIMIT 1))"
    )


# The fourth column: whether another session shows messages of this one's, or this one another's.
_MESSAGES = (
    "SELECT m.id, m.timestamp, m.hidden, EXISTS (SELECT 1 FROM session_refs r WHERE r.from_session = m.session_id)"
    " OR EXISTS (SELECT 1 FROM session_refs r WHERE r.session_id = m.session_id),"
    f" {_neighbour('<', 'DESC')}, {_neighbour('>', 'ASC')}, m.role, m.tool_name, m.tool_call_id, m.model,"
    f" m.content, m.content_rest, m.content_format, m.tool_calls, {_SESSION.format('s')}"
    " FROM messages m JOIN sessions s ON s.id = m.session_id WHERE {these}"
)
# Of long tool output the beginning is plain text on the row: no need to unpack it.
_NEIGHBOURS = (
    "SELECT id, role, content, content_format, tool_calls, CASE WHEN content_format = 'json' THEN content_rest END"
    " FROM messages WHERE {these}"
)


def shown(
    tx: Tx, ranking: Sequence[Ranked], needles: Sequence[Needle], filters: Filters, visible_to: User | None
) -> list[SearchHit]:
    """The hits as SessionDB.search_messages documents them, in this order."""
    hits: dict[int, SearchHit] = {}
    beside: dict[int, Sequence[int | None]] = {}
    places = {one.id: one for one in ranking}
    for row in rows_among(tx, _MESSAGES, [*places], "m.id"):
        message_id, at, hidden, is_linked = row[:4]
        role, tool, call_id, model = map(codec.restored, row[6:10])
        content, rest, form, calls = row[10:14]
        beside[message_id], session = row[4:6], row[14:]
        if is_linked:
            session = _shown_in(tx, message_id, hidden, session, filters, visible_to)
            own = beside[message_id] if session[0] == row[14] else (None, None)
            beside[message_id] = _beside(tx, message_id, session[0]) or own
        one = places[message_id]
        texts = [*texts_of(codec.joined(content, rest), form, calls), tool, call_id]
        hits[message_id] = {
            "id": message_id, "session_id": session[0], "role": role, "timestamp": at, "snippet": _snippet(texts, needles),
            "context": [], "source": codec.restored(session[1]), "model": model or codec.restored(session[2]),
            "session_started": session[3], "title": codec.restored(session[4]), "tool_name": tool, "score": one.score,
            "reason": one.reason, "relaxed": one.reason == "relaxed", "why": one.why, "confidence": one.confidence,
            "own_model": role == "assistant" and model in OWN_MODELS,
        }  # fmt: skip
    around = sorted({number for pair in beside.values() for number in pair if number is not None})
    neighbours = {row[0]: _context(*row) for row in rows_among(tx, _NEIGHBOURS, around)}
    for message_id, hit in hits.items():
        hit["context"] = [neighbours[i].copy() for i in beside[message_id] if i in neighbours]
    return [hits[one] for one in places if one in hits]


def _shown_in(tx: Tx, message_id: int, hidden: int | None, own: Row, filters: Filters, visible_to: User | None) -> Row:
    """The session under which the caller sees a message: its own, else one that carries it."""
    where, params = session_filter(filters, visible_to, "o")
    columns, params = _SESSION.format("o"), [message_id, own[0], *params]
    seen = None
    if hidden in (None, COMPACTED):
        seen = tx.row(f"SELECT {columns} FROM sessions o, messages m WHERE m.id = ? AND o.id = ? AND {where}", params)
    carried = (
        f"SELECT {columns} FROM messages m, session_refs r JOIN sessions o ON o.id = r.session_id WHERE m.id = ?"
        f" AND r.from_session = ? AND m.id BETWEEN r.first_id AND r.last_id AND r.rewound IS NULL AND {where}"
        " ORDER BY o.started_at"
    )
    return seen or tx.row(carried, params) or own


def _beside(tx: Tx, message_id: int, session_id: str) -> Sequence[int | None] | None:
    """The messages before and after it in the session under which it is shown, which may carry some of another one; None if
    that session does not show it any more."""
    ids = [None, *(int(row[0]) for row in message_reading.shown_rows(tx, session_id, "m.id")), None]
    at = ids.index(message_id) if message_id in ids else 0
    return (ids[at - 1], ids[at + 1]) if at else None


def _snippet(texts: Sequence[str | None], needles: Sequence[Needle]) -> str:
    """The snippet of the text with the most matches."""
    best, best_count = "", -1
    for text in filter(None, texts):
        line, count = snippet(text, needles)
        if count > best_count:
            best, best_count = line, count
        if count == len(needles):
            break
    return best


def _context(message_id: int, role: Any, content: Any, form: Any, calls: Any, rest: Any) -> SearchContext:
    """A neighbour's beginning."""
    head = codec.content_value(codec.joined(content, rest), form)
    if head is not None and not isinstance(head, str):
        head = plain_parts(head)
    if not head and calls is not None:
        head = plain_calls(codec.from_json(calls))
    return {"id": message_id, "role": codec.restored(role), "content": (head or "")[:CONTEXT]}

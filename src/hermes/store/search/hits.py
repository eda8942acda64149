"""What a hit shows: the message's place and session, a snippet around the match, and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.store import codec, message_reading
from hermes.store.engines.base import COMPACTED, Tx
from hermes.store.index_text import plain_calls, plain_parts
from hermes.store.search.message_texts import rows_of, texts_of
from hermes.store.search.ranking import Ranked
from hermes.store.search.scope import Filters, session_filter
from hermes.store.snippet import Needle, snippet
from hermes.store.visibility import User

if TYPE_CHECKING:
    from hermes.store.rows import SearchContext, SearchHit

CONTEXT = 200  # characters of a neighbour
_NEAR = 200  # ids


class _Message(msgspec.Struct, frozen=True):
    """A message that was found, in the order of `_MESSAGES`."""

    id: int
    session_id: str
    role: Any  # Any: texts as they are stored, see codec.restored
    timestamp: float
    content: Any
    rest: bytes | None
    form: str | None
    tool_name: Any
    tool_calls: Any
    tool_call_id: Any
    model: Any
    hidden: int | None
    source: Any
    session_model: Any
    session_started: float
    title: Any
    is_linked: bool
    """Whether another session shows messages of this one's, or this one another's."""
    before: int | None
    after: int | None


class _Neighbour(msgspec.Struct, frozen=True):
    """The message before or after it, in the order of `_NEIGHBOURS`."""

    id: int
    role: Any
    content: Any
    form: str | None
    tool_calls: Any
    rest: bytes | None


class _HitSession(msgspec.Struct, frozen=True):
    """The session under which a hit is shown."""

    id: str
    source: Any
    model: Any
    started_at: float
    title: Any


def _neighbour(sign: str, order: str) -> str:
    """The id of the message before (`<`) or after a message, in the order of ids: of those stored around it, which are few,
    else of its session's by their times."""
    other = f"SELECT b.id FROM messages b WHERE b.id {sign} m.id AND {message_reading.FOUND.replace('m.', 'b.')}"
    return (
        f"coalesce(({other} AND b.id BETWEEN m.id - {_NEAR} AND m.id + {_NEAR} AND b.session_id || '' = m.session_id"
        f" ORDER BY b.id {order} LIMIT 1), ({other} AND b.session_id = m.session_id AND (b.timestamp, b.id) {sign}"
        f" (m.timestamp, m.id) ORDER BY b.timestamp {order}, b.id {order} LIMIT 1))"
    )


_MESSAGES = (
    "SELECT m.id, m.session_id, m.role, m.timestamp, m.content, m.content_rest, m.content_format, m.tool_name, m.tool_calls,"
    " m.tool_call_id, m.model, m.hidden, s.source, s.model, s.started_at, s.title,"
    " EXISTS (SELECT 1 FROM session_refs r WHERE r.from_session = m.session_id)"
    " OR EXISTS (SELECT 1 FROM session_refs r WHERE r.session_id = m.session_id),"
    f" {_neighbour('<', 'DESC')}, {_neighbour('>', 'ASC')}"
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
    if not ranking:
        return []
    read = [_Message(*row) for row in rows_of(tx, _MESSAGES, [one.id for one in ranking], "m.id")]
    found = {message.id: (message, _shown_in(tx, message, filters, visible_to)) for message in read}
    beside = {one: _beside(tx, *both) for one, both in found.items()}
    around = {number for pair in beside.values() for number in pair if number is not None}
    contexts = [_context(_Neighbour(*row)) for row in rows_of(tx, _NEIGHBOURS, sorted(around))]
    neighbours = {context["id"]: context for context in contexts}
    out: list[SearchHit] = []
    for one in ranking:
        if one.id not in found:
            continue
        message, session = found[one.id]
        context = [neighbours[i] for i in beside[one.id] if i is not None and i in neighbours]
        out.append(
            {
                "id": message.id, "session_id": session.id, "role": codec.restored(message.role),
                "timestamp": message.timestamp, "snippet": _snippet(message, needles),
                "context": [neighbour.copy() for neighbour in context],
                "source": codec.restored(session.source), "model": codec.restored(message.model or session.model),
                "session_started": session.started_at, "title": codec.restored(session.title),
                "tool_name": codec.restored(message.tool_name), "score": one.score, "reason": one.reason,
                "relaxed": one.reason == "relaxed", "why": one.why,
            }
        )  # fmt: skip
    return out


def _shown_in(tx: Tx, message: _Message, filters: Filters, visible_to: User | None) -> _HitSession:
    """The session under which the caller sees a message: its own, else one that carries it."""
    own = _HitSession(message.session_id, message.source, message.session_model, message.session_started, message.title)
    if not message.is_linked:
        return own
    where, params = session_filter(filters, visible_to, "o")
    columns = "o.id, o.source, o.model, o.started_at, o.title"
    params = [message.id, message.session_id, *params]
    if message.hidden in (None, COMPACTED):
        seen = tx.row(f"SELECT {columns} FROM sessions o, messages m WHERE m.id = ? AND o.id = ? AND {where}", params)
        if seen is not None:
            return _HitSession(*seen)
    other = tx.row(
        f"SELECT {columns} FROM messages m, session_refs r JOIN sessions o ON o.id = r.session_id WHERE m.id = ?"
        f" AND r.from_session = ? AND m.id BETWEEN r.first_id AND r.last_id AND r.rewound IS NULL AND {where}"
        " ORDER BY o.started_at",
        params,
    )
    return own if other is None else _HitSession(*other)


def _beside(tx: Tx, message: _Message, session: _HitSession) -> tuple[int | None, int | None]:
    """The messages before and after it in the session under which it is shown, which may carry some of another one."""
    if not message.is_linked:
        return message.before, message.after
    ids = [None, *(int(row[0]) for row in message_reading.shown_rows(tx, session.id, "m.id")), None]
    if message.id in ids:
        at = ids.index(message.id)
        return ids[at - 1], ids[at + 1]
    return (message.before, message.after) if session.id == message.session_id else (None, None)


def _snippet(message: _Message, needles: Sequence[Needle]) -> str:
    """The snippet of the text of the message with the most matches."""
    best, best_count = "", -1
    texts = texts_of(message.content, message.rest, message.form, message.tool_calls)
    for text in (*texts, codec.restored(message.tool_name), codec.restored(message.tool_call_id)):
        if text:
            line, count = snippet(text, needles)
            if count > best_count:
                best, best_count = line, count
            if count == len(needles):
                break
    return best


def _context(neighbour: _Neighbour) -> SearchContext:
    """A neighbour's beginning."""
    head = codec.content_value(codec.joined(neighbour.content, neighbour.rest), neighbour.form)
    if head is not None and not isinstance(head, str):
        head = plain_parts(head)
    if not head and neighbour.tool_calls is not None:
        head = plain_calls(codec.from_json(neighbour.tool_calls))
    return {"id": neighbour.id, "role": codec.restored(neighbour.role), "content": (head or "")[:CONTEXT]}

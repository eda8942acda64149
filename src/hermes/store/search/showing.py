"""The hits of a search as callers see them: each with its place and session, a snippet around the match, and its neighbours.

A snippet is a line around the place of a text with the most matches, with `>>>` and `<<<` around each searched word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.store.engines.base import OWN_MODELS, Tx, rows_among
from hermes.store.records import codec, message_reading
from hermes.store.records.visibility import FOUND, Filters, User, session_filter
from hermes.store.search.hits import Ranked
from hermes.store.search.matching import texts_of
from hermes.store.text.index_text import ASCII_WORD, UNSPACED, aligned, fold, plain_calls, plain_parts
from hermes.store.text.index_text import pieces as pieces_of

if TYPE_CHECKING:
    from hermes.store.records.rows import SearchContext, SearchHit

CONTEXT = 200  # characters of a neighbour
_NEAR = 4  # ids: a message without a neighbour there is at an end of its session, or others talked at the same time
# The session under which a hit is shown: id, source, model, when it began, title.
_SESSION = "s.id, s.source, s.model, s.started_at, s.title"


def _neighbour(sign: str, order: str) -> str:
    """The id of the message before (`<`) or after a message, in the order of ids: of the few stored right beside it, else of
    its session's by their times, which the index has in order."""
    other = f"SELECT b.id FROM messages b WHERE b.id {sign} m.id AND {FOUND.replace('m.', 'b.')}"
    return (
        f"coalesce(({other} AND b.id BETWEEN m.id - {_NEAR} AND m.id + {_NEAR} AND b.session_id || '' = m.session_id"
        f" ORDER BY b.id {order} LIMIT 1), ({other} AND b.session_id = m.session_id AND (b.timestamp, b.id) {sign}"
        f" (m.timestamp, m.id) ORDER BY b.timestamp {order}, b.id {order} LIMIT 1))"
    )


# The third column: whether another session shows messages of this one's, or this one another's.
_MESSAGES = (
    "SELECT m.id, m.timestamp, EXISTS (SELECT 1 FROM session_refs r WHERE r.from_session = m.session_id)"
    " OR EXISTS (SELECT 1 FROM session_refs r WHERE r.session_id = m.session_id),"
    f" {_neighbour('<', 'DESC')}, {_neighbour('>', 'ASC')}, m.role, m.tool_name, m.tool_call_id, m.model,"
    f" m.content, m.content_rest, m.content_format, m.tool_calls, {_SESSION}"
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
        message_id, at, is_linked = row[:3]
        role, tool, call_id, model = map(codec.restored, row[5:9])
        content, rest, form, calls = row[9:13]
        beside[message_id], session = row[3:5], row[13:]
        if is_linked:
            session = (
                message_reading.shown_in(tx, message_id, _SESSION, session_filter(filters, visible_to, "s")) or session
            )
            own = beside[message_id] if session[0] == row[13] else (None, None)
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


# ---------------------------------------------------------------------------------------------- snippets

BEFORE, LENGTH = 60, 240
MOST_PLACES = 40  # of one word in one text
_SPACE = re.compile(r"\s+")
_TRAILING = ("\ufe0f", "\u20e3")  # continuations of an emoji: the rest of a keycap
_GAP = 1000  # characters between two words of a phrase, at most


class Needle(msgspec.Struct, frozen=True):
    """One thing to mark: folded pieces in a row; `loose` ends may be inside a word."""

    pieces: tuple[str, ...]
    loose_start: bool = False
    loose_end: bool = False


def needle(text: str, *, prefix: bool = False, inside: bool = False) -> Needle | None:
    """The needle for a query leaf; None when it has no words."""
    folded = fold(text)
    if inside:
        bare = folded.strip()
        return Needle((bare,), True, True) if bare else None
    if folded.isascii():
        pieces = ASCII_WORD.findall(folded)
    else:
        pieces = [part for piece in pieces_of(folded) for part in re.split("_+", piece) if part]
    return Needle(tuple(pieces), False, prefix) if pieces else None


def _find(what: Needle, folded: str, most: int) -> list[tuple[int, int]]:
    """The positions of a needle in folded text."""
    at = folded.find(what.pieces[0])
    if at < 0:
        return []
    spans = (one.span() for one in _pattern(what).finditer(folded, at))
    if not folded.isascii():  # of the borders the pattern knows those of ASCII
        spans = (one for one in spans if _is_apart(what, folded, *one))
    return list(islice(spans, most))


def _is_apart(what: Needle, folded: str, start: int, end: int) -> bool:
    return (_is_open_start(what) or start == 0 or _is_border(folded[start - 1])) and (
        _is_open_end(what) or end == len(folded) or _is_border(folded[end])
    )


def _is_open_start(what: Needle) -> bool:
    return what.loose_start or UNSPACED.match(what.pieces[0]) is not None


def _is_open_end(what: Needle) -> bool:
    return what.loose_end or UNSPACED.match(what.pieces[-1]) is not None


def _is_border(character: str) -> bool:
    """Whether a word ends before this character: scripts without spaces are a border for all others."""
    return not character.isalnum() or UNSPACED.match(character) is not None


@lru_cache(maxsize=256)
def _pattern(what: Needle) -> re.Pattern[str]:
    """A needle as a pattern. It begins with the first piece itself, which is fast to search: the border before it is checked
    after it. No gap can hold the piece that ends it: there is one way to match a text, or none."""
    before = what.pieces[0]
    pattern = re.escape(before)
    if not _is_open_start(what):
        pattern += f"(?<![a-z0-9](?s:.{{{len(before)}}}))"
    for piece in what.pieces[1:]:
        glued = UNSPACED.match(before) or UNSPACED.match(piece) or not (before.isalnum() and piece.isalnum())
        gap = r"[\W_]" if piece[0].isalnum() else rf"(?:(?!{re.escape(piece)})[\W_])"
        pattern += gap + f"{{{0 if glued else 1},{_GAP}}}" + re.escape(piece)
        before = piece
    return re.compile(pattern if _is_open_end(what) else f"{pattern}(?![a-z0-9])")


def snippet(text: str, needles: Iterable[Needle]) -> tuple[str, int]:
    """A line around the best place, marked, and how many different needles it holds (0: the text holds none)."""
    wanted = list(needles)
    shown, folded = aligned(text)
    found = [
        (start, end, number) for number, what in enumerate(wanted) for start, end in _find(what, folded, MOST_PLACES)
    ]
    if not found:
        return _SPACE.sub(" ", shown[:LENGTH]).strip() + ("..." if len(shown) > LENGTH else ""), 0
    found.sort()
    best, best_count, distinct = found[0][0], 0, len({number for _, _, number in found})
    for index, (start, _, _) in enumerate(found[:200]):
        inside = {number for begin, _, number in found[index : index + 60] if begin < start + LENGTH - BEFORE}
        if len(inside) > best_count:
            best, best_count = start, len(inside)
        if best_count == distinct:
            break
    return _marked(shown, found, best), distinct


def _marked(shown: str, found: list[tuple[int, int, int]], best: int) -> str:
    start = max(0, best - BEFORE)
    if start:
        space = shown.find(" ", start, best)
        start = space + 1 if space >= 0 else start
    stop = min(len(shown), start + LENGTH)
    out, at = [], start
    for begin, end, _ in found:
        if begin < at or begin >= stop:
            continue
        end = min(end, begin + 120)
        while shown[end : end + 1] in _TRAILING:
            end += 1
        out += [shown[at:begin], ">>>", shown[begin:end], "<<<"]
        at = end
    out.append(shown[at : max(at, stop)])
    line = _SPACE.sub(" ", "".join(out)).strip()
    return ("..." if start else "") + line + ("..." if stop < len(shown) else "")

"""The hits of a search: candidates in, the best of them out.

Every stage of a search adds to the hits until there are enough. Messages are ranked together with their sessions: a
session's score is its best message in full, each further one at half the weight of the one before. The order depends on the
query and the store alone: each stage finds its hits in one order, and a page is a part of it whatever its size. So a stage
may stop once it has as many hits as are needed, but nothing else may depend on that number. What the program's own
assistants said comes after everything else that is ranked with it: it may be invented, or quoted from there. Automated
sessions come after the conversations that are ranked with them, unless a source is asked for. A hit is shown with its place
and session, a snippet around the match, and its neighbours.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.store.engines.base import COMPACTED, OWN, OWN_MODELS, Candidate, Engine, Row, Scope, Tx, rows_among
from hermes.store.records import codec, message_reading
from hermes.store.records.visibility import AUTOMATED, User
from hermes.store.search.query_trees import Check
from hermes.store.search.scope import Filters, session_filter
from hermes.store.text.index_text import call_ids, fold, lacks_one, plain, plain_calls, plain_parts
from hermes.store.text.query import Leaf, Node
from hermes.store.text.snippet import Needle, snippet

if TYPE_CHECKING:
    from hermes.store.records.rows import Confidence, SearchContext, SearchHit

RANKED = 400  # how many of the newest matches are ranked together; after them four times as many, and so on
MORE = 4
READ = 100  # messages whose texts are read together
ROLE_WEIGHT = {"user": 1.25, "assistant": 1.1, "tool": 0.6, "system": 0.5, OWN: 0.01}
COUNTED = 12  # messages of a session that count towards its score
_ALL = 1 << 40


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """A message in its place: how much it counts, and why it is among the hits."""

    id: int
    session_id: str
    score: float
    reason: str
    why: str = "words"
    """How the message was found: by words, meaning, both, or the time that was named."""
    confidence: Confidence = "sure"


def relevance(size: int, role: str) -> float:
    """How much a matching message counts, on every engine: a short one says more about its words than a long one, and what a
    person said more than the output of a tool."""
    return ROLE_WEIGHT.get(role, 1.0) / (1.4 + 0.002 * size)


class Hits:
    """The hits in order (`found`), and what is marked in their snippets (`needles`)."""

    def __init__(self, engine: Engine, tx: Tx, scope: Scope, need: int, by: str, people_first: bool) -> None:
        self.engine, self.tx, self.scope, self.need, self.by = engine, tx, scope, need, by
        self._people_first = people_first
        self.text = engine.fulltext
        self.found: list[Ranked] = []
        self.seen: set[int] = set()
        self.needles: list[Needle] = []
        self._answers: dict[Leaf, tuple[int, list[Candidate]]] = {}

    @property
    def missing(self) -> int:
        """How many hits are still needed."""
        return self.need - len(self.found)

    def are_scarce(self) -> bool:
        """Whether there are so few hits that partial matches should be added."""
        return len(self.found) < self.need and len({hit.session_id for hit in self.found}) < 3

    def candidates(self, tree: Node, cap: int) -> list[Candidate]:
        """The newest messages that match a tree. A leaf that was already searched is not searched again."""
        if not isinstance(tree, Leaf):
            return self.text.candidates(self.tx, tree, self.scope, cap)
        last_cap, found = self._answers.get(tree, (0, []))
        if cap > last_cap and len(found) == last_cap:
            found = self.text.candidates(self.tx, tree, self.scope, cap)
            self._answers[tree] = (cap, found)
        return found[:cap]

    def blocks(self, tree: Node) -> Iterator[list[Candidate]]:
        """The messages that match a tree, newest first, in the pieces that are ranked together, until there are enough hits."""
        found: list[Candidate] = []
        start, end, cap = 0, RANKED, 0
        while self.missing > 0:
            if end > cap:
                cap = end
                while cap < self.need and cap < _ALL:  # a late page asks once
                    cap *= MORE
                found = self.candidates(tree, cap)
            if block := found[start:end]:
                yield block
            if len(found) < end:
                return
            start, end = end, end * MORE

    def add_matches(self, tree: Node, reason: str, check: Check | None = None, most_texts: int = _ALL) -> None:
        """Append the messages that match a tree and whose texts pass. Of more than `most_texts`, reading ends with a block of
        which none passes."""
        read = 0
        for block in self.blocks(tree):
            before = len(self.found)
            self.add(block, reason, check)
            read += len(block)
            if check is not None and read >= most_texts and len(self.found) == before:
                return

    def add_newest(self, passed: Callable[[Sequence[int]], set[int]], reason: str, most_texts: int = _ALL) -> None:
        """Append messages whose texts pass, newest first, without the index. It is bounded as in `add_matches`."""
        before, read = 1 << 62, 0
        while self.missing > 0:
            rows = self.tx.rows(
                "SELECT m.id, m.session_id FROM messages m JOIN sessions s ON s.id = m.session_id"
                f" WHERE m.id < ? AND {self.scope.where} ORDER BY m.id DESC LIMIT {RANKED}",
                (before, *self.scope.params),
            )
            these = passed([row[0] for row in rows])
            self.add_ranked(
                self.people_first([Ranked(one, session_id, 0.0, reason) for one, session_id in rows if one in these])
            )
            read += len(rows)
            if len(rows) < RANKED or (read >= most_texts and not these):
                return
            before = rows[-1][0]

    def add(self, found: Sequence[Candidate], reason: str, check: Check | None = None) -> None:
        """Append the best of these whose texts pass: no more texts are read than there are hits to fill."""
        fresh = [one for one in found if one[0] not in self.seen]
        if check is None:
            self.add_ranked(self._ranked(fresh, reason, self.missing))
            return
        order = self._ranked(fresh, reason, len(fresh))
        while order and self.missing > 0:
            some, order = order[:READ], order[READ:]
            passed = passing(self.tx, check, [hit.id for hit in some])
            self.add_ranked([hit for hit in some if hit.id in passed])

    def add_ranked(self, hits: Sequence[Ranked]) -> None:
        """Append hits that are already in order."""
        fresh = [hit for hit in hits if hit.id not in self.seen][: self.missing]
        self.seen.update(hit.id for hit in fresh)
        self.found += fresh

    def people_first(self, hits: list[Ranked]) -> list[Ranked]:
        """Hits that are ranked together, those of automated sessions after the others."""
        automated = self._automated({hit.session_id for hit in hits})
        return sorted(hits, key=lambda hit: hit.session_id in automated) if automated else hits

    def _automated(self, session_ids: Collection[str]) -> set[str]:
        """The automated sessions among these, which rank after conversations."""
        sql = f"SELECT s.id FROM sessions s WHERE {{these}} AND {AUTOMATED.format(s='s')}"
        return {row[0] for row in rows_among(self.tx, sql, [*session_ids], "s.id")} if self._people_first else set()

    def _ranked(self, found: Sequence[Candidate], reason: str, most: int) -> list[Ranked]:
        """The best messages in order: each counts as much as its session, less the more of that session came before it. Of
        equal ones the newest is first."""
        often = Counter((size, role) for _, size, _, role in found)
        equal = [message_id for message_id, size, _, role in found if often[size, role] > 1]
        times: dict[int, float] = dict(rows_among(self.tx, "SELECT id, timestamp FROM messages WHERE {these}", equal))
        by_session: dict[str, list[tuple[bool, float, float, int]]] = defaultdict(list)
        for message_id, size, session_id, speaker in found:
            score = relevance(size, speaker)
            by_session[session_id].append((speaker != OWN, score, times.get(message_id, 0.0), message_id))
        order: list[tuple[bool, float, float, int, str]] = []
        for session_id, matches in by_session.items():
            matches.sort(reverse=True)
            value = sum(score * 0.5**place for place, (_, score, _, _) in enumerate(matches[:COUNTED]))
            for is_others, score, when, message_id in matches[:most]:
                order.append((is_others, value if is_others else min(value, score), when, message_id, session_id))
                value *= 0.5
        order.sort(reverse=True)
        if automated := self._automated(by_session):
            order.sort(key=lambda one: (one[0], one[-1] not in automated), reverse=True)
        return [Ranked(one, session_id, round(value, 6), reason) for _, value, _, one, session_id in order[:most]]


# ---------------------------------------------------------------------------------------------- texts

_TEXTS = "SELECT id, content, content_rest, content_format, tool_calls FROM messages WHERE {these}"


def texts_of(whole: str | None, form: Any, calls: Any) -> list[str]:
    """The readable text of a message: its content, its tool calls and the ids of these, without JSON's syntax."""
    texts = []
    if whole:
        value = codec.content_value(whole, form)
        texts.append(plain(value) if isinstance(value, str) else plain_parts(value))
    if calls is not None:
        value = codec.from_json(calls)
        texts += [plain_calls(value), *call_ids(value)]
    return texts


def passing(tx: Tx, check: Check, ids: Sequence[int]) -> set[int]:
    """The messages whose folded text passes. One whose source lacks a part that is required is not parsed: most of them are
    skipped so."""
    passed = set()
    for message_id, content, rest, form, calls in rows_among(tx, _TEXTS, ids):
        whole = codec.joined(content, rest)
        if check.required and lacks_one(_source(whole, calls), check.required):
            continue
        if (form is None and check.is_certain(whole or "")) or check(fold("\n".join(texts_of(whole, form, calls)))):
            passed.add(message_id)
    return passed


def with_source(tx: Tx, ids: Sequence[int], part: str) -> set[int]:
    """The messages whose stored text contains this part, ignoring case: an escape of JSON as two characters."""
    wanted = part.lower()
    return {
        message_id
        for message_id, content, rest, _, calls in rows_among(tx, _TEXTS, ids)
        if wanted in _source(codec.joined(content, rest), calls).lower()
    }


def _source(whole: str | None, calls: Any) -> str:
    return whole or "" if calls is None else f"{whole or ''}\n{codec.restored(calls)}"


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

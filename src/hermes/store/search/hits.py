"""The hits of a search: candidates in, the best of them out.

Every stage of a search adds to the hits until there are enough. Messages are ranked together with their sessions: a
session's score is its best message in full, each further one at half the weight of the one before. The order depends on the
query and the store alone: each stage finds its hits in one order, and a page is a part of it whatever its size. So a stage
may stop once it has as many hits as are needed, but nothing else may depend on that number. What the program's own
assistants said comes after everything else that is ranked with it: it may be invented, or quoted from there. Automated
sessions come after the conversations that are ranked with them, unless a source is asked for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from hermes.store.engines.base import OWN, Candidate, Engine, Scope, Tx, rows_among
from hermes.store.records.visibility import AUTOMATED
from hermes.store.search.matching import Check, passing
from hermes.store.text.query import Node

if TYPE_CHECKING:
    from hermes.store.records.rows import Confidence
    from hermes.store.search.showing import Needle

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
    """How the message was found: by words, meaning or both."""
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

    @property
    def missing(self) -> int:
        """How many hits are still needed."""
        return self.need - len(self.found)

    def are_scarce(self) -> bool:
        """Whether there are so few hits that partial matches should be added."""
        return len(self.found) < self.need and len({hit.session_id for hit in self.found}) < 3

    def candidates(self, tree: Node, cap: int) -> list[Candidate]:
        """The newest messages that match a tree."""
        return self.text.candidates(self.tx, tree, self.scope, cap)

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

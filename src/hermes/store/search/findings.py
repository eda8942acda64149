"""What a search has found so far, and how its stages find more.

The order of the hits depends on the query and the store alone: each stage finds its hits in one order, and a page is a part of it
whatever its size. So a stage may stop once it has as many hits as are needed, but nothing else may depend on that number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hermes.store.engines.base import Candidate, Engine, Scope, Tx
from hermes.store.meaning import vectors
from hermes.store.query import Leaf, Node
from hermes.store.search.message_texts import passing, rows_of
from hermes.store.search.ranking import Ranked, ranked
from hermes.store.snippet import Needle

if TYPE_CHECKING:
    from hermes.store.search.reranking import Reranking

RANKED = 400  # how many of the newest matches are ranked together; after them four times as many, and so on
MORE = 4
_ALL = 1 << 40


class Findings:
    """The hits in order, and what is marked in their snippets. Every stage of a search adds to them until `need` are there."""

    def __init__(self, engine: Engine, tx: Tx, scope: Scope, need: int, by: str = "both") -> None:
        self.text, self.tx, self.scope, self.need = engine.fulltext, tx, scope, need
        self._engine, self.by = engine, by
        self.hits: list[Ranked] = []
        self.seen: set[int] = set()
        self.needles: list[Needle] = []
        self._answers: dict[Leaf, tuple[int, list[Candidate]]] = {}

    @property
    def missing(self) -> int:
        """How many hits are still needed."""
        return self.need - len(self.hits)

    def is_scarce(self) -> bool:
        """Whether there are so few hits that partial matches should be added."""
        return len(self.hits) < self.need and len({hit.session_id for hit in self.hits}) < 3

    def reranking(self, question: str, spoken: Callable[[], str | None]) -> Reranking | None:
        """A question as the installed models understand it; None where this store has no vectors. `spoken` gives it as the
        person would say it whom it is about."""
        if self.by == "words" or not vectors.are_kept(self.tx):
            return None
        try:
            from hermes.store.search.reranking import Reranking  # loads numpy and a model

            return Reranking.at(self._engine, self.tx, self.scope, question, spoken)
        except ImportError:  # numpy is installed but broken: words alone decide
            return None

    def candidates(self, tree: Node, cap: int) -> list[Candidate]:
        """The newest messages that match a tree. A leaf that was already searched is not searched again."""
        if not isinstance(tree, Leaf):
            return self.text.candidates(self.tx, tree, self.scope, cap)
        asked, found = self._answers.get(tree, (0, []))
        if cap > asked and len(found) == asked:
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

    def add(self, found: Iterable[Candidate], reason: str, bonus: dict[str, float] | None = None) -> None:
        """Append the best of these to the hits so far."""
        fresh = [candidate for candidate in found if candidate[0] not in self.seen]
        if fresh:
            self.seen.update(candidate[0] for candidate in fresh)
            self.hits += ranked(fresh, reason, self.missing, bonus, self._times)

    def add_passing(
        self, holds: Callable[[str], bool], required: Sequence[str], found: Sequence[Candidate], reason: str
    ) -> None:
        """The same for those whose text passes: the best are read until there are enough."""
        order = ranked(found, reason, len(found), times=self._times)
        while order and len(self.hits) < self.need:
            some, order = order[: self.need], order[self.need :]
            passed = passing(self.tx, [hit.id for hit in some], holds, required)
            self.seen |= passed
            self.hits += [hit for hit in some if hit.id in passed][: self.missing]

    def _times(self, ids: list[int]) -> dict[int, float]:
        return {
            int(one): float(at) for one, at in rows_of(self.tx, "SELECT id, timestamp FROM messages WHERE {these}", ids)
        }

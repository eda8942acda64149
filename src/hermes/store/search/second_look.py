"""The second look at the sessions a question's words found: how near their messages are to what it means.

A session counts by its nearest message, its nearest three messages in a row and all of it together, each as so many
deviations from the middle of what was looked at; a message by its own nearness. Sessions whose pages (a few messages in a
row) are nearest join those that the words found: a question in other words, or in another language, shares none with its
answer. The weights were found on public dialogues.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.errors import StoreError
from hermes.store.engines.base import Engine, Scope, Tx
from hermes.store.meaning import encoders, vectors
from hermes.store.search.message_texts import rows_of

if TYPE_CHECKING:
    import numpy as np

LOOKED_AT = 40  # sessions by words, and as many by meaning
WEIGHT = 6.0  # of a deviation
BEST, TOGETHER, WHOLE = 0.5, 0.5, 0.25
LEAST_SPREAD = 0.02  # of cosines
PAGE = 8  # messages
AT_ONCE = 5_000  # vectors
FRESH = 600.0  # seconds until pages are read again from the beginning
_VECTORS = (
    "SELECT message_id, size, vector FROM message_vectors WHERE model = '{model}' AND length(vector) = {numbers}"
    " AND message_id IN ({marks})"
)


class Nearness(msgspec.Struct):
    """What the second look found."""

    sessions: dict[str, float]
    """How much each session counts in addition."""
    messages: dict[int, float]
    """How near each message is, in deviations."""
    related: float = 0.0
    """Not below 0: the nearest message is nearer than chance brings one."""


class _Pages:
    """The vectors of all pages of a store that one model made, as long as its process runs. Only candidates come from here:
    what is shown, and its order, is read from the store."""

    def __init__(self) -> None:
        self.last = 0
        self._lock = threading.Lock()  # the searches of a server run in several threads
        self.since = time.monotonic()
        self._places: dict[str, tuple[int, int]] = {}  # session → its newest page, and how many messages it has
        self._sessions: list[str] = []  # of each page
        self._first: list[int] = []  # the first message of each page
        self._sums: Any = None
        self._unit: Any = None

    def read(self, tx: Tx, encoder: encoders.Encoder) -> None:
        """Add what is new."""
        with self._lock:
            while self._read(tx, encoder) == AT_ONCE:
                pass

    def _read(self, tx: Tx, encoder: encoders.Encoder) -> int:
        import numpy as np

        rows = tx.rows(
            "SELECT m.session_id, v.message_id, v.size, v.vector FROM message_vectors v JOIN messages m ON m.id = v.message_id"
            " WHERE v.message_id > ? AND v.model = ? AND length(v.vector) = ? ORDER BY v.message_id LIMIT ?",
            (self.last, encoder.name, encoder.numbers, AT_ONCE),
        )
        if not rows:
            return 0
        found = vectors.as_floats(row[3] for row in rows)
        pages = np.empty(len(rows), dtype=np.int64)
        for number, (session_id, message_id, _, _) in enumerate(rows):
            page, held = self._places.get(session_id, (-1, PAGE))
            if held == PAGE:
                page, held = len(self._sessions), 0
                self._sessions.append(session_id)
                self._first.append(message_id)
            self._places[session_id] = page, held + 1
            pages[number] = page
        before = 0 if self._sums is None else len(self._sums)
        sums = np.zeros((len(self._sessions), found.shape[1]), dtype=np.float32)
        if before:
            sums[:before] = self._sums
        np.add.at(sums, pages, found * np.array([row[2] for row in rows], dtype=np.float32)[:, None])
        self._sums = sums
        self._unit = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
        self.last = rows[-1][1]
        return len(rows)

    @property
    def is_empty(self) -> bool:
        return self._sums is None

    def nearest(self, asked: np.ndarray[Any, Any], visible: set[str] | None, most: int) -> dict[str, int]:
        """The sessions with the nearest pages, each with the first message of its nearest page."""
        import numpy as np

        found: dict[str, int] = {}
        near = _times(self._unit, asked)
        first = 8 * most
        if visible is None and len(near) > first:  # the whole order is not needed
            some = np.argpartition(-near, first)[:first]
            order = some[np.argsort(-near[some], kind="stable")]
        else:
            order = np.argsort(-near, kind="stable")
        for page in order.tolist():
            session_id = self._sessions[page]
            if session_id not in found and (visible is None or session_id in visible):
                found[session_id] = self._first[page]
                if len(found) == most:
                    break
        return found


_PAGES: weakref.WeakKeyDictionary[Engine, dict[str, _Pages]] = weakref.WeakKeyDictionary()


class SecondLook:
    """One question, as each model that has vectors in this store and knows its language understands it."""

    def __init__(
        self, tx: Tx, scope: Scope, asked: list[tuple[encoders.Encoder, np.ndarray[Any, Any], _Pages]]
    ) -> None:
        self._tx, self._scope, self._asked = tx, scope, asked

    @classmethod
    def at(cls, engine: Engine, tx: Tx, scope: Scope, question: str) -> SecondLook | None:
        """None where there are no vectors, or no model for them: then words alone decide."""
        if not vectors.are_kept(tx):
            return None
        known = _PAGES.setdefault(engine, {})
        asked = []
        for encoder in encoders.installed():
            if not encoder.suits(question):
                continue
            pages = known.get(encoder.name)
            if pages is None or time.monotonic() - pages.since > FRESH:
                pages = known[encoder.name] = _Pages()
            pages.read(tx, encoder)
            if pages.is_empty:
                continue
            try:
                asked.append((encoder, encoder.question(question), pages))
            except StoreError:  # its file is damaged: `hermes doctor` says so
                continue
        return cls(tx, scope, asked) if asked else None

    def candidates(self) -> dict[str, int]:
        """The sessions whose pages are nearest, each with a message to look around."""
        visible = None
        if self._scope.needs_sessions:
            sql = f"SELECT s.id FROM sessions s WHERE {self._scope.sessions}"
            visible = {row[0] for row in self._tx.rows(sql, self._scope.session_params)}
        found: dict[str, int] = {}
        for _, asked, pages in self._asked:
            for session_id, message_id in pages.nearest(asked, visible, LOOKED_AT).items():
                found.setdefault(session_id, message_id)
        return found

    def look(self, sequences: dict[str, list[int]]) -> Nearness:
        """How near the messages of these sessions are."""
        sessions: dict[str, list[float]] = {}
        messages: dict[int, list[float]] = {}
        related = []
        for encoder, asked, _ in self._asked:
            nearest, count = self._looked(encoder, asked, sequences, sessions, messages)
            least, more = encoder.unrelated
            related.append((nearest - least) / more - math.sqrt(2.0 * math.log(max(count, 2))))
        return Nearness(
            {one: sum(values) / len(values) for one, values in sessions.items()},
            {one: sum(values) / len(values) for one, values in messages.items()},
            sum(related) / len(related),
        )

    def _looked(
        self,
        encoder: encoders.Encoder,
        asked: np.ndarray[Any, Any],
        sequences: dict[str, list[int]],
        sessions: dict[str, list[float]],
        messages: dict[int, list[float]],
    ) -> tuple[float, int]:
        """Add to what sessions and messages count; the nearest cosine, and of how many."""
        import numpy as np

        sql = _VECTORS.replace("{model}", encoder.name).replace("{numbers}", str(encoder.numbers))
        ids = [one for sequence in sequences.values() for one in sequence]
        rows = {row[0]: row for row in rows_of(self._tx, sql, ids)}
        order = [
            (session_id, [rows[one] for one in sequence if one in rows]) for session_id, sequence in sequences.items()
        ]
        order = [(session_id, some) for session_id, some in order if some]
        if not order:
            return 0.0, 0
        found = vectors.as_floats(row[2] for _, some in order for row in some)
        sizes = np.array([row[1] for _, some in order for row in some], dtype=np.float32)[:, None]
        cosines = _times(found, asked)
        middle, spread = float(cosines.mean()), max(float(cosines.std()), LEAST_SPREAD)
        weighed = found * sizes
        starts = np.cumsum([0, *(len(some) for _, some in order[:-1])])
        before, after = np.zeros_like(weighed), np.zeros_like(weighed)
        before[1:], after[:-1] = weighed[:-1], weighed[1:]
        before[starts], after[starts[1:] - 1] = 0.0, 0.0  # no window reaches into the next session
        together = np.maximum.reduceat(_cosines(weighed + before + after, asked), starts)
        whole = _cosines(np.add.reduceat(weighed, starts, axis=0), asked)
        nearest = np.maximum.reduceat(cosines, starts)
        values = BEST * nearest + TOGETHER * together + WHOLE * whole - (BEST + TOGETHER + WHOLE) * middle
        for (session_id, _), value in zip(order, values, strict=True):
            sessions.setdefault(session_id, []).append(float(WEIGHT * value / spread))
        deviations = ((cosines - middle) / spread).tolist()
        for row, deviation in zip((row for _, some in order for row in some), deviations, strict=True):
            messages.setdefault(row[0], []).append(deviation)
        return float(cosines.max()), len(cosines)


def _times(rows: np.ndarray[Any, Any], asked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The product of each row with a vector. On one processor: the threads of a matrix library cost more than they save."""
    import numpy as np

    found: np.ndarray[Any, Any] = np.einsum("ij,j->i", rows, asked)
    return found


def _cosines(rows: np.ndarray[Any, Any], asked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    found: np.ndarray[Any, Any] = _times(rows, asked) / np.maximum(np.sqrt(np.einsum("ij,ij->i", rows, rows)), 1e-9)
    return found

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
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from hermes.errors import StoreError
from hermes.store.engines.base import Engine, Scope, Tx
from hermes.store.meaning import encoders, vectors
from hermes.store.search.message_texts import rows_of

if TYPE_CHECKING:
    import numpy as np

LOOKED_AT = 20  # sessions that come by meaning, of each model; more find nothing more
WEIGHT = 6.0  # of a deviation
BEST, TOGETHER, WHOLE = 0.5, 0.5, 0.25
LEAST_SPREAD = 0.02  # of cosines
PAGE = 8  # messages
AT_ONCE = 5_000  # vectors
EVERY = 1 << 62  # more than any message's id
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
        self._last: list[int] = []  # and the last one
        self._gone: set[str] = set()  # sessions that were deleted since their pages were read
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
                self._last.append(message_id)
            self._last[page] = message_id
            self._places[session_id] = page, held + 1
            pages[number] = page
        self._gone.difference_update(row[0] for row in rows)
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

    def nearest(
        self, asked: np.ndarray[Any, Any], visible: dict[str, tuple[int, int]] | None, most: int
    ) -> dict[str, int]:
        """The sessions with the nearest pages, each with the first message of its nearest page. `visible`: only these sessions,
        and of each only pages between two messages."""
        import numpy as np

        found: dict[str, int] = {}
        seen = self._gone.copy()
        near = _times(self._unit, asked)
        first = 8 * most
        if visible is None and len(near) > first:  # the whole order is not needed
            some = np.argpartition(-near, first)[:first]
            order = some[np.argsort(-near[some], kind="stable")]
        else:
            order = np.argsort(-near, kind="stable")
        for page in order.tolist():
            session_id = self._sessions[page]
            if session_id not in seen and (visible is None or self._is_visible(page, visible.get(session_id))):
                found[session_id] = self._first[page]
                seen.add(session_id)
                if len(found) == most:
                    break
        return found

    def forget(self, session_ids: set[str]) -> None:
        """Sessions were deleted: they take no place of others."""
        self._gone |= session_ids

    def _is_visible(self, page: int, between: tuple[int, int] | None) -> bool:
        """Whether a page has messages between two."""
        return between is not None and self._first[page] <= between[1] and self._last[page] >= between[0]


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
        visible = self._visible()
        found: dict[str, int] = {}
        for _, asked, pages in self._asked:
            near = pages.nearest(asked, visible, LOOKED_AT)
            while visible is None and (gone := near.keys() - self._existing(near)):
                pages.forget(set(gone))
                near = pages.nearest(asked, visible, LOOKED_AT)
            for session_id, message_id in near.items():
                found.setdefault(session_id, message_id)
        return found

    def _existing(self, session_ids: Collection[str]) -> set[str]:
        marks = ", ".join("?" * len(session_ids)) or "NULL"
        return {row[0] for row in self._tx.rows(f"SELECT id FROM sessions WHERE id IN ({marks})", tuple(session_ids))}

    def _visible(self) -> dict[str, tuple[int, int]] | None:
        """The sessions that may be seen, each with its first and last message that may; None for all."""
        scope = self._scope
        if not scope.needs_sessions:
            return None
        if scope.by_message:  # nearer sessions without such a message take no place of those that have one
            sql = (
                "SELECT m.session_id, min(m.id), max(m.id) FROM messages m JOIN sessions s ON s.id = m.session_id"
                f" WHERE {scope.where} GROUP BY m.session_id"
            )
            return {row[0]: (int(row[1]), int(row[2])) for row in self._tx.rows(sql, scope.params)}
        rows = self._tx.rows(f"SELECT s.id FROM sessions s WHERE {scope.sessions}", scope.session_params)
        return dict.fromkeys((row[0] for row in rows), (0, EVERY))

    def look(self, sequences: dict[str, list[int]]) -> Nearness:
        """How near the messages of these sessions are. The first model that has vectors of a session decides."""
        found = Nearness({}, {})
        related = []
        for encoder, asked, _ in self._asked:
            left = {one: ids for one, ids in sequences.items() if one not in found.sessions}
            nearest, count = self._looked(encoder, asked, left, found)
            if count:
                least, more = encoder.unrelated
                related.append((nearest - least) / more - math.sqrt(2.0 * math.log(max(count, 2))))
        found.related = sum(related) / len(related) if related else -math.inf
        return found

    def _looked(
        self,
        encoder: encoders.Encoder,
        asked: np.ndarray[Any, Any],
        sequences: dict[str, list[int]],
        nearness: Nearness,
    ) -> tuple[float, int]:
        """Add to what sessions and messages count; the nearest cosine, and of how many."""
        import numpy as np

        sql = _VECTORS.replace("{model}", encoder.name).replace("{numbers}", str(encoder.numbers))
        rows = {row[0]: row for row in rows_of(self._tx, sql, [one for ids in sequences.values() for one in ids])}
        sessions: list[str] = []
        starts: list[int] = []
        order: list[int] = []
        for session_id, ids in sequences.items():
            some = [one for one in ids if one in rows]
            if some:
                sessions.append(session_id)
                starts.append(len(order))
                order += some
        if not order:
            return 0.0, 0
        found = vectors.as_floats(rows[one][2] for one in order)
        sizes = np.array([rows[one][1] for one in order], dtype=np.float32)
        cosines = _times(found, asked)
        middle, spread = float(cosines.mean()), max(float(cosines.std()), LEAST_SPREAD)
        together = np.maximum.reduceat(_of_three(found, sizes, cosines, starts), starts)
        whole = _cosines(np.add.reduceat(found * sizes[:, None], starts, axis=0), asked)
        nearest = np.maximum.reduceat(cosines, starts)
        values = BEST * nearest + TOGETHER * together + WHOLE * whole - (BEST + TOGETHER + WHOLE) * middle
        nearness.sessions.update(zip(sessions, (WEIGHT * values / spread).tolist(), strict=True))
        nearness.messages.update(zip(order, ((cosines - middle) / spread).tolist(), strict=True))
        return float(cosines.max()), len(cosines)


def _of_three(
    found: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], cosines: np.ndarray[Any, Any], starts: list[int]
) -> np.ndarray[Any, Any]:
    """The cosine of each message together with the one before and the one after, weighed by their sizes; no window reaches
    into the next session. Computed from the products of neighbours: sums of whole vectors take several times as long."""
    import numpy as np

    count = len(found)
    session = np.zeros(count, dtype=np.int64)
    session[starts[1:]] = 1
    session = np.cumsum(session)
    along, square = sizes * cosines, sizes * sizes
    for step in (1, 2):
        if count <= step:
            continue
        same = session[:-step] == session[step:]
        product = 2.0 * np.einsum("ij,ij->i", found[:-step], found[step:]) * sizes[:-step] * sizes[step:] * same
        if step == 1:
            own, length = along.copy(), square.copy()
            along[1:] += own[:-1] * same
            along[:-1] += own[1:] * same
            square[1:] += length[:-1] * same + product
            square[:-1] += length[1:] * same + product
        else:
            square[1:-1] += product
    near: np.ndarray[Any, Any] = along / np.sqrt(np.maximum(square, 1e-9))
    return near


def _times(rows: np.ndarray[Any, Any], asked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The product of each row with a vector. On one processor: the threads of a matrix library cost more than they save."""
    import numpy as np

    found: np.ndarray[Any, Any] = np.einsum("ij,j->i", rows, asked)
    return found


def _cosines(rows: np.ndarray[Any, Any], asked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    found: np.ndarray[Any, Any] = _times(rows, asked) / np.maximum(np.sqrt(np.einsum("ij,ij->i", rows, rows)), 1e-9)
    return found

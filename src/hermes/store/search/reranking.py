"""Reranking: the sessions that a question's words found, in the order of how near their messages are to what it means.

A session counts by its nearest message, its nearest three messages in a row and all of it together, each as so many
deviations from the middle of what was looked at; a message by its own nearness. Sessions whose pages (a few messages in a
row) are nearest join those that the words found: a question in other words, or in another language, shares none with its
answer. The weights were compared on the sets of `make recall`.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from hermes.errors import StoreError
from hermes.store.engines.base import Engine, Scope, Tx, rows_among
from hermes.store.search import encoders, vectors

LOOKED_AT, ALONE = 10, 20  # sessions that come by meaning, of each model: beside those by words, and without them
SPOKEN = 0.75  # of a question's vector: the question as the person would say it whom it is about
LEAST_SPREAD = 0.02  # of cosines
PAGE = 8  # messages
AT_ONCE = 5_000  # vectors
EVERY = 1 << 62  # more than any message's id
FRESH = 600.0  # seconds until pages are read again from the beginning
FIRST_CHECKED = 160  # pages whose sessions are looked at first; then four times as many, and so on
_VECTORS = (
    "SELECT message_id, size, vector FROM message_vectors WHERE model = '{model}' AND length(vector) = {numbers}"
    " AND {these}"
)
Array = np.ndarray[Any, Any]
Spans = dict[str, tuple[int, int]]  # sessions, each with its first and last message that may be seen
_Vector = tuple[int, int, bytes]  # the message, of how many tokens it was made, its numbers


class Nearness(msgspec.Struct):
    """The nearness of messages and sessions to the meaning of a question."""

    messages: dict[int, tuple[float, float]]
    """How near each message is, in deviations: alone, and together with the one before and the one after."""
    sessions: dict[str, float]
    """How near all that was looked at of a session is together."""
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
        self._sums: Array | None = None
        self.count = 0
        """How many messages have a vector."""
        self.unit: Any = None
        """A vector of each page, of length 1; None where there are no pages."""

    def read(self, tx: Tx, encoder: encoders.Encoder) -> None:
        """Add the pages of new messages."""
        with self._lock:
            while self._read(tx, encoder) == AT_ONCE:
                pass

    def _read(self, tx: Tx, encoder: encoders.Encoder) -> int:
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
        sums = np.zeros((len(self._sessions), found.shape[1]), dtype=np.float32)
        if self._sums is not None:
            sums[: len(self._sums)] = self._sums
        np.add.at(sums, pages, found * np.array([row[2] for row in rows], dtype=np.float32)[:, None])
        self._sums = sums
        self.unit = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
        self.last, self.count = rows[-1][1], self.count + len(rows)
        return len(rows)

    def nearest(self, near: Array, visible: Callable[[Sequence[str]], Spans], most: int) -> dict[str, int]:
        """The sessions with the nearest pages, each with the first message of its nearest page. `seen` returns which of some
        sessions may be seen: it is called for a few of the nearest, and for more while these are not enough."""
        found: dict[str, int] = {}
        known: dict[str, tuple[int, int] | None] = {}
        order = np.argsort(-near, kind="stable").tolist()  # of equally near ones the older first
        start, some = 0, FIRST_CHECKED
        while len(found) < most and (pages := order[start : start + some]):
            fresh = [*{self._sessions[page]: None for page in pages if self._sessions[page] not in known}]
            spans = visible(fresh)
            known.update((one, spans.get(one)) for one in fresh)
            for page in pages:
                span = known[self._sessions[page]]
                if span is not None and self._first[page] <= span[1] and self._last[page] >= span[0]:
                    found.setdefault(self._sessions[page], self._first[page])
            start, some = start + some, 4 * some
        return dict(islice(found.items(), most))


_PAGES: weakref.WeakKeyDictionary[Engine, dict[str, _Pages]] = weakref.WeakKeyDictionary()


class Reranking:
    """One question, as one model understands it: the first that knows its language and has vectors in this store (the English
    one comes before the multilingual one), unless another one knows more than twice as many messages."""

    def __init__(self, tx: Tx, scope: Scope, encoder: encoders.Encoder, pages: _Pages, question: Array) -> None:
        self._tx, self._scope, self._encoder, self._pages, self._question = tx, scope, encoder, pages, question

    @classmethod
    def at(
        cls, engine: Engine, tx: Tx, scope: Scope, question: str, spoken: Callable[[], str | None] = lambda: None
    ) -> Reranking | None:
        """None where there is no model for the vectors of this store: then words alone decide."""
        known = _PAGES.setdefault(engine, {})
        chosen: tuple[encoders.Encoder, _Pages] | None = None
        for encoder in encoders.installed():
            if not encoder.suits(question):
                continue
            pages = known.get(encoder.name)
            if pages is None or time.monotonic() - pages.since > FRESH:
                pages = known[encoder.name] = _Pages()
            pages.read(tx, encoder)
            if pages.count > (2 * chosen[1].count if chosen else 0):
                chosen = encoder, pages
        if chosen is None:
            return None
        with suppress(StoreError, ImportError):  # its file is damaged (`hermes doctor` says so), or a library
            return cls(tx, scope, *chosen, _vector(chosen[0], question, spoken()))  # type: ignore[arg-type]
        return None

    def candidates(self, *, alone: bool = False) -> dict[str, int]:
        """The sessions whose pages are nearest, each with a message to look around. `alone`: none came by words."""
        near = _products(self._pages.unit, self._question)
        return self._pages.nearest(near, self._visible, ALONE if alone else LOOKED_AT)

    def _visible(self, session_ids: Sequence[str]) -> Spans:
        """The sessions among these that exist and may be seen, each with its first and last message that may."""
        scope, tx = self._scope, self._tx
        these, params = tx.among("m.session_id" if scope.by_message else "s.id", session_ids)
        if scope.by_message:  # nearer sessions without such a message take no place of those that have one
            sql = (
                "SELECT m.session_id, min(m.id), max(m.id) FROM messages m JOIN sessions s ON s.id = m.session_id"
                f" WHERE {these} AND {scope.where} GROUP BY m.session_id"
            )
            params = [*params, *scope.params]
        else:
            sql = f"SELECT s.id, 0, {EVERY} FROM sessions s WHERE {these} AND {scope.sessions}"
            params = [*params, *scope.session_params]
        return {row[0]: (int(row[1]), int(row[2])) for row in tx.rows(sql, params)}

    def look(self, sequences: dict[str, list[int]]) -> Nearness:
        """How near the messages of these sessions are."""
        sql = _VECTORS.format(model=self._encoder.name, numbers=self._encoder.numbers, these="{these}")
        ids = [one for some in sequences.values() for one in some]
        vectors_of = {row[0]: row for row in rows_among(self._tx, sql, ids, "message_id")}
        known = {
            session_id: [vectors_of[one] for one in ids if one in vectors_of] for session_id, ids in sequences.items()
        }
        return self._compared({session_id: some for session_id, some in known.items() if some})

    def _compared(self, read: dict[str, list[_Vector]]) -> Nearness:
        rows = [row for some in read.values() for row in some]
        if not rows:
            return Nearness({}, {}, -math.inf)
        starts = np.cumsum([0, *(len(some) for some in read.values())])[:-1].tolist()
        found = vectors.as_floats(row[2] for row in rows)
        sizes = np.array([row[1] for row in rows], dtype=np.float32)
        cosines = _products(found, self._question)
        middle, spread = float(cosines.mean()), max(float(cosines.std()), LEAST_SPREAD)
        alone = ((cosines - middle) / spread).tolist()
        weighed = found * sizes[:, None]
        together = ((_cosines(_sums_of_three(weighed, starts), self._question) - middle) / spread).tolist()
        whole = _cosines(np.add.reduceat(weighed, starts, axis=0), self._question)
        least, more = self._encoder.unrelated
        return Nearness(
            dict(zip((row[0] for row in rows), zip(alone, together, strict=True), strict=True)),
            dict(zip(read, ((whole - middle) / spread).tolist(), strict=True)),
            (float(cosines.max()) - least) / more - math.sqrt(2.0 * math.log(max(len(cosines), 2))),
        )


@lru_cache(maxsize=64)
def _vector(encoder: encoders.Encoder, question: str, spoken: str | None) -> Array:
    """The vector of a question, cached: the next page of hits, and the same question in other sessions, need no model."""
    encoded = encoder.questions([question] if spoken is None else [question, spoken])
    found: Array = encoded[0]
    if spoken is not None:
        found = (1.0 - SPOKEN) * encoded[0] + SPOKEN * encoded[1]
        found /= np.linalg.norm(found)
    return found


def _sums_of_three(rows: Array, starts: list[int]) -> Array:
    """Each row together with the one before and the one after; no sum reaches into the next session, which begins at a start."""
    sums = rows.copy()
    sums[1:] += rows[:-1]
    sums[:-1] += rows[1:]
    first = np.array(starts[1:], dtype=np.int64)
    sums[first] -= rows[first - 1]
    sums[first - 1] -= rows[first]
    return sums


def _cosines(rows: Array, vector: Array) -> Array:
    """How near each row, of whatever length, is to a vector of length 1."""
    found: Array = _products(rows, vector) / np.maximum(np.sqrt(np.einsum("ij,ij->i", rows, rows)), 1e-9)
    return found


def _products(rows: Array, vector: Array) -> Array:
    """The product of each row with a vector. On one processor: the threads of a matrix library cost more than they save."""
    found: Array = np.einsum("ij,j->i", rows, vector)
    return found

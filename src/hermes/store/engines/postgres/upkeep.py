"""Upkeep of the index: the thread that indexes messages a moment after they are stored, and the check.

An append queues its message in `unindexed`. Making its words, and inserting them at the server, takes longer than storing
it, so a thread does this: soon after the append, or when a burst of them is over. A search in between reads
what waits (engines/unindexed.py), so everything is found from the moment it is stored. What has waited for some seconds is
indexed by any process, whichever process stored it: that one was killed, or has more than it can do.

One statement removes messages from `unindexed` and inserts their words. A second process finds none left, so none
is ever indexed twice, and a stopped process blocks no other.

New words go to a list of the server (GIN's pending list) that every search reads, until it is as long as the index allows
(migrate.py): then the server moves them into the index, a word of a hundred messages once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psycopg

from hermes.errors import HermesError
from hermes.store.engines.base import finding
from hermes.store.engines.postgres.connection import REMOVE_OLD_KEYS, PooledConnection, PostgresTx
from hermes.store.engines.postgres.fulltext import BATCH as READ
from hermes.store.engines.postgres.fulltext import PostgresFullText
from hermes.store.engines.postgres.lexemes import entries
from hermes.store.records import codec
from hermes.store.records.rows import Finding

BURST = 3  # appends in a pause: it waits until there are fewer
LONGEST = 3.0  # seconds to wait for the end of a burst
MOST = 2_000  # messages that may wait meanwhile
BATCH = 64
AT_ONCE = 50  # batches of other processes' messages
BEGINNING = 10_000  # characters
SELDOM = 60.0  # seconds between two checks for messages of others, after this process was idle for a while
ADOPT_AFTER = 5  # seconds that a message of another process has waited
ADOPT_BUSY = 30  # the same, while messages of its own wait: other processes may be as busy
# At random: several processes look at the same time.
_LEFT = (
    b"SELECT message_id FROM unindexed WHERE since < clock_timestamp() - make_interval(secs => %s)"
    b" ORDER BY random() LIMIT %s"
)


Links = Callable[[], AbstractContextManager[PooledConnection]]  # a connection for a while


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When an indexer does what. Each has its own: a test of a moment that hardly ever comes makes it come, or waits."""

    pause: float = 0.05  # seconds from an append to its indexing
    too_many: int = 2 * MOST  # waiting messages; from here on appending callers help
    adopt_every: float = 5.0  # seconds between two checks for messages of others
    at_the_end: float = 10.0  # seconds for the rest when the store is closed


class Indexer:
    """The messages that wait to be indexed, and the thread that indexes them."""

    def __init__(self, links: Links, fulltext: PostgresFullText) -> None:
        self._links, self._fulltext, self.pace = links, fulltext, Pace()
        self._guard = threading.Lock()  # protects the waiting messages; never held for long
        self._waiting: dict[int, None] = {}  # ids, the oldest first
        self._count = 0  # messages ever taken
        self._working = threading.Lock()  # one thread at a time, so that no words are made twice
        self._thread: threading.Thread | None = None
        self._wake, self._stopped = threading.Event(), threading.Event()
        # When it last looked for messages of others, and removed old keys.
        self._looked = self._keys_removed = time.monotonic()

    def take(self, message_ids: Sequence[int]) -> None:
        """Called with the messages that were stored."""
        with self._guard:
            self._waiting.update(dict.fromkeys(message_ids))
            self._count += len(message_ids)
        self.wake()
        with suppress(psycopg.Error, HermesError):
            while len(self._waiting) >= self.pace.too_many:
                self.index(self._some())

    def wake(self) -> None:
        """Signal that messages wait: its own are indexed soon, those of others when they have waited for some seconds."""
        if self._thread is None:
            with self._guard:
                if self._thread is None and not self._stopped.is_set():
                    thread = threading.Thread(target=self._work, daemon=True, name="hermes-index")
                    with suppress(RuntimeError):  # no thread can start: another process does it
                        thread.start()
                        self._thread = thread
        self._wake.set()

    def _some(self) -> list[int]:
        with self._guard:
            return list(islice(self._waiting, BATCH))

    def index(self, message_ids: Sequence[int]) -> None:
        """Index those of these messages that wait, including other processes'."""
        for start in range(0, len(message_ids), BATCH):
            some = message_ids[start : start + BATCH]
            with self._working, self._links() as link:
                self._write(link, some)
                with self._guard:
                    for one in some:
                        self._waiting.pop(one, None)

    def _write(self, link: PooledConnection, message_ids: Sequence[int]) -> None:
        documents = self._fulltext.documents(PostgresTx(link), message_ids)
        try:
            self._fulltext.index(link, message_ids, documents)
        except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded):
            # No known message causes this; if one does, its beginning is indexed.
            if len(message_ids) > 1:
                for one in message_ids:
                    self._write(link, [one])
                return
            beginnings = [(one, (text[:BEGINNING], name, "")) for one, (text, name, _) in documents]
            self._fulltext.index(link, message_ids, beginnings)

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        try:
            pause = self.pace.adopt_every
            while not self._stopped.is_set():
                quiet = not self._wake.wait(pause)
                self._wake.clear()
                pause = min(2 * pause, SELDOM) if quiet else self.pace.adopt_every
                end = time.monotonic() + LONGEST
                self._wait_for_pause(end)
                while not self._stopped.is_set() and (some := self._some()):
                    before = self._count
                    self.index(some)
                    self._adopt(ADOPT_BUSY)
                    if self._is_burst(before, end):
                        self._wait_for_pause(end)
                self._adopt(ADOPT_AFTER)
        except (psycopg.Error, HermesError):
            with self._guard:
                self._thread = None  # the connection is lost, or nothing can be written: the next append retries

    def _adopt(self, after: int) -> None:
        """From time to time: index messages of other processes that have waited for this many seconds."""
        if time.monotonic() - self._looked < self.pace.adopt_every:
            return
        for _ in range(AT_ONCE):
            with self._links() as link:
                left = [row[0] for row in link.execute(_LEFT, (after, BATCH)).fetchall()]
            self.index(left)
            if len(left) < BATCH or self._stopped.is_set():
                break
        self._looked = time.monotonic()
        if self._looked - self._keys_removed > SELDOM:
            self._keys_removed = self._looked
            with self._links() as link:
                link.execute(REMOVE_OLD_KEYS)

    def _wait_for_pause(self, end: float) -> None:
        """Wait a moment, and longer while messages keep coming."""
        burst = True
        while burst and not self._stopped.is_set():
            before = self._count
            self._stopped.wait(self.pace.pause)
            burst = self._is_burst(before, end)

    def _is_burst(self, before: int, end: float) -> bool:
        return self._count - before >= BURST and len(self._waiting) < MOST and time.monotonic() < end

    def stop(self) -> None:
        """End the thread, and index the rest if that does not take long."""
        self._stopped.set()
        self._wake.set()
        thread = self._thread
        if thread is not None:
            thread.join(5.0)
            if thread.is_alive():  # the server does not answer
                return
        end = time.monotonic() + self.pace.at_the_end
        with suppress(psycopg.Error, HermesError):
            while time.monotonic() < end and (some := self._some()):
                self.index(some)


# ---------------------------------------------------------------------------------------------- checking
#
# Each message is tokenized again; the server compares the result with the index.


def drift(tx: Any, fulltext: PostgresFullText) -> Iterator[Finding]:
    """Messages the index lacks, entries without a message, entries of another text, damaged texts."""
    for (message_id,) in tx.rows(
        "SELECT DISTINCT w.message_id FROM message_words w LEFT JOIN messages m ON m.id = w.message_id WHERE m.id IS NULL"
    ):
        yield finding("fts-extra", f"message {message_id}", "is in the full-text index but not in the store")
    last = 0
    waiting = set(tx.column("SELECT message_id FROM unindexed"))
    while rows := tx.rows("SELECT id, content_rest FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, READ)):
        last = rows[-1][0]
        for message_id, rest in rows:
            if (damage := codec.text_damage("", rest, None)) is not None:
                yield finding("damaged-text", f"message {message_id}", damage)
        yield from _differing(tx, fulltext, [row[0] for row in rows if row[0] not in waiting])


def _differing(tx: Any, fulltext: PostgresFullText, message_ids: list[int]) -> Iterator[Finding]:
    wanted = []
    for message_id, columns in fulltext.documents(tx, message_ids):
        texts = [words for _, _, _, _, words in entries(message_id, columns)]
        wanted += [(message_id, number, text) for number, text in enumerate(texts)]
    rows = tx.ask(
        "SELECT DISTINCT coalesce(w.message_id, given.id), w.message_id IS NULL FROM unnest(%s::bigint[], %s::int[],"
        " %s::text[]) AS given(id, part, words) FULL JOIN (SELECT * FROM message_words WHERE message_id ="
        " ANY(%s)) w ON w.message_id = given.id AND w.part = given.part WHERE w.words IS DISTINCT FROM given.words::tsvector"
        " ORDER BY 1",
        (*([list(column) for column in zip(*wanted, strict=True)] or [[], [], []]), message_ids),
    ).fetchall()
    for message_id, absent in rows:
        if absent:
            yield finding("fts-missing", f"message {message_id}", "is not in the full-text index")
        else:
            yield finding("fts-stale", f"message {message_id}", "the full-text index has another text")

"""The thread that indexes messages a moment after they are stored, and tidies the index.

An append queues its message in `unindexed`. Making its words, and inserting them at the server, takes longer than storing
it, so a thread does this: soon after the append, or when a burst of them is over. A search in between reads
what waits (unindexed_tail.py), so everything is found from the moment it is stored. What has waited for some seconds is
indexed by any keeper, whichever process stored it: that one was killed, or has more than it can do.

One statement removes messages from `unindexed` and inserts their words. A second process finds none left, so none
is ever indexed twice, and a stopped process blocks no other. To take messages of other processes, an indexer marks them as
claimed; if it dies, another one claims them some seconds later.

New words go to a list of the server (GIN's pending list) that every search reads. Moving them from there into the index
costs more the fewer they are: a word of a hundred messages is written once, not a hundred times. So while messages come the
server does it, when the list has become as long as the index allows (schema.py), for one process at a time. When it
is quiet, the process that indexed last moves the rest. If it dies, autovacuum does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

import psycopg

from hermes.errors import HermesError
from hermes.store.engines.base import Document, columns_of
from hermes.store.engines.postgres.fulltext import Numbered, PostgresFullText
from hermes.store.engines.postgres.pool import PooledConnection

BURST = 3  # appends in a pause: it waits until there are fewer
LONGEST = 3.0  # seconds to wait for the end of a burst
MOST = 2_000  # messages that may wait meanwhile
BATCH = 64
BATCH_CHARACTERS = 300_000
BEGINNING = 10_000  # characters
ADOPT_SELDOM = 60.0  # seconds between two checks for messages of others, after this process was idle for a while
ADOPT_AFTER = 5  # seconds that a message has waited
ADOPT_BUSY = 30  # the same, while messages of its own wait: other processes may be as busy
CLAIMED = 10  # seconds that a claim holds
_TIDY = b"SELECT gin_clean_pending_list('idx_words'), gin_clean_pending_list('idx_words_parts'), gin_clean_pending_list('idx_words_pieces'), gin_clean_pending_list('idx_names_pieces')"  # noqa: E501
_CLAIM = (
    b"UPDATE unindexed SET claimed = clock_timestamp() WHERE ctid = ANY(ARRAY(SELECT ctid FROM unindexed"
    b" WHERE since < clock_timestamp() - make_interval(secs => %s)"
    b" AND (claimed IS NULL OR claimed < clock_timestamp() - make_interval(secs => %s))"
    b" ORDER BY message_id LIMIT %s FOR UPDATE SKIP LOCKED)) RETURNING message_id"
)


Links = Callable[[], AbstractContextManager[PooledConnection]]  # a connection for a while


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When an indexer does what. Each has its own: a test of a moment that hardly ever comes makes it come, or waits."""

    pause: float = 0.05  # seconds from an append to its indexing
    too_many: int = 2 * MOST  # waiting messages; from here on appending callers help
    kept_characters: int = 16_000_000  # of waiting messages; those of further ones are read again
    adopt_every: float = 5.0  # seconds between two checks for messages of others
    tidy_after: float = 2.0  # seconds without a message, of any process
    many_imported: int = 500  # messages, after which it tidies, too: of fewer the list stays short
    at_the_end: float = 2.0  # seconds for the rest when the store is closed


STANDARD = Pace()


class Indexer:
    """The messages that wait to be indexed, and the thread that indexes them."""

    def __init__(self, links: Links, fulltext: PostgresFullText, pace: Pace = STANDARD) -> None:
        self._links, self._fulltext, self.pace = links, fulltext, pace
        self._guard = threading.Lock()  # protects the waiting messages; never held for long
        self._waiting: dict[int, Document | None] = {}
        self._characters = 0
        self._count = 0  # messages ever taken
        self._working = threading.Lock()  # one thread at a time, so that no words are made twice
        self._thread: threading.Thread | None = None
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._last = 0  # the number of the last batch it indexed and has not tidied yet
        self._imported = 0  # messages that were indexed with their transaction since it tidied last

    def take(self, messages: Sequence[tuple[int, Document]]) -> None:
        """Called with the messages that were stored."""
        with self._guard:
            for message_id, document in messages:
                size = len(document[0] or "")
                kept = self._characters + size <= self.pace.kept_characters
                self._waiting[message_id] = document if kept else None
                self._characters += size if kept else 0
            self._count += len(messages)
            waiting = len(self._waiting)
        self.wake()
        if waiting >= self.pace.too_many:
            with suppress(psycopg.Error, HermesError):
                self.index(self._some(BATCH))

    def imported(self, count: int) -> None:
        """So many messages were indexed with their transaction: their words are in the pending list, which every search reads."""
        self._imported += count
        if self._imported >= self.pace.many_imported:
            self.wake()

    def wake(self) -> None:
        """Signal that messages wait: its own are indexed soon, those of others when they have waited for some seconds."""
        if self._thread is None:
            with self._guard:
                if self._thread is None and not self._stopped.is_set():
                    thread = threading.Thread(target=self._work, daemon=True, name="hermes-keeper")
                    with suppress(RuntimeError):  # no thread can start: another process does it
                        thread.start()
                        self._thread = thread
        self._wake.set()

    def _some(self, most: int) -> list[int]:
        with self._guard:
            return [message_id for message_id, _ in zip(self._waiting, range(most), strict=False)]

    def index(self, message_ids: Iterable[int]) -> None:
        """Index those of these messages that wait, including other processes'."""
        left = list(message_ids)
        if not left:
            return
        with self._working, self._links() as link:
            while left:
                left = self._index_some(link, left)

    def _index_some(self, link: PooledConnection, message_ids: list[int]) -> list[int]:
        """Index a batch of them; returns the rest."""
        documents: list[Numbered] = []
        absent: list[int] = []
        characters = number = 0
        with self._guard:
            kept = [(message_id, self._waiting.get(message_id)) for message_id in message_ids[:BATCH]]
        for message_id, document in kept:
            if document is None:
                absent.append(message_id)
            else:
                documents.append((message_id, columns_of(*document)))
                characters += len(document[0] or "")
            number += 1
            if characters >= BATCH_CHARACTERS:
                break
        self._write(link, documents, absent)
        with self._guard:
            for message_id in message_ids[:number]:
                document = self._waiting.pop(message_id, None)
                self._characters -= 0 if document is None else len(document[0] or "")
        return message_ids[number:]

    def _write(self, link: PooledConnection, documents: list[Numbered], absent: list[int]) -> None:
        try:
            self._last = self._fulltext.index(link, documents, absent)
        except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded):
            if (
                len(documents) == 1 and not absent
            ):  # no known message causes this; if one does, its beginning is indexed
                ((message_id, (text, name, _)),) = documents
                self._fulltext.index(link, [(message_id, (text[:BEGINNING], name, ""))], [])
                return
            documents = documents + self._fulltext.read(link, absent)
            for one in documents:
                self._write(link, [one], [])
            self._fulltext.index(link, [], absent)  # those that were deleted

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        try:
            looked, pause = time.monotonic(), self.pace.adopt_every
            while not self._stopped.is_set():
                untidy = self._last or self._imported >= self.pace.many_imported
                quiet = not self._wake.wait(self.pace.tidy_after if untidy else pause)
                self._wake.clear()
                pause = min(2 * pause, ADOPT_SELDOM) if quiet else self.pace.adopt_every
                end = time.monotonic() + LONGEST
                self._let_pass(end)
                while not self._stopped.is_set() and (some := self._some(BATCH)):
                    before = self._count
                    self.index(some)
                    if time.monotonic() - looked >= self.pace.adopt_every:
                        self._adopt(ADOPT_BUSY)
                        looked = time.monotonic()
                    if self._is_burst(before, end):
                        self._let_pass(end)
                if time.monotonic() - looked >= self.pace.adopt_every:
                    while not self._stopped.is_set() and not self._waiting and self._adopt(ADOPT_AFTER):
                        pass
                    looked = time.monotonic()
                if quiet and (self._last or self._imported >= self.pace.many_imported):
                    self._tidy()
        except (psycopg.Error, HermesError):
            with self._guard:
                self._thread = None  # the connection is lost, or nothing can be written: the next append retries

    def _adopt(self, after: int) -> bool:
        """Index some messages that have waited for this many seconds, of any process; returns whether there were any."""
        with self._links() as link:
            found = [row[0] for row in link.execute(_CLAIM, (after, CLAIMED, BATCH)).fetchall()]
        self.index(found)
        return bool(found)

    def _let_pass(self, end: float) -> None:
        """Wait a moment, and longer while messages keep coming."""
        burst = True
        while burst and not self._stopped.is_set():
            before = self._count
            self._stopped.wait(self.pace.pause)
            burst = self._is_burst(before, end)

    def _is_burst(self, before: int, end: float) -> bool:
        return self._count - before >= BURST and len(self._waiting) < MOST and time.monotonic() < end

    def _tidy(self) -> None:
        """Move the pending words into the index, unless another process has indexed since: then that one does it."""
        with self._working, self._links() as link:
            last, self._last = self._last, 0
            imported, self._imported = self._imported, 0
            row = link.execute(b"SELECT last_value FROM index_batches").fetchone()
            if imported >= self.pace.many_imported or (row is not None and row[0] == last):
                with suppress(psycopg.errors.InsufficientPrivilege):  # not the owner of the index
                    link.execute(_TIDY)

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
            while time.monotonic() < end and (some := self._some(BATCH)):
                self.index(some)
            if self._imported >= self.pace.many_imported:
                self._tidy()

"""Updates the full-text index in bounded pieces, in the process that has just written, searches, closes or requests it.

What the background thread does while no process writes is in checkpoint.py; the pieces themselves are in fulltext.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.errors import StoreError
from hermes.store.engines.sqlite import migrate
from hermes.store.engines.sqlite.fulltext import BATCH, BULK, Bounds, Tidying
from hermes.store.engines.sqlite.word_table import merge
from hermes.store.engines.sqlite.write_queue import WriteQueue

if TYPE_CHECKING:
    from hermes.store.engines.sqlite.engine import SqliteEngine
    from hermes.store.engines.sqlite.transaction import SqliteTx

MANY_WORDS = 100_000  # each is looked up when unused ones are removed: a second or two
FORGET_PAGES = 500  # of the index, merged in one transaction


class IndexUpkeep:
    """The work on one store's index that callers' calls do."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._fulltext = engine.fulltext
        self._indexing = WriteQueue(engine.path.with_name(engine.path.name + "-indexing"))
        self._changed_seen = 0  # rows of changed_messages that were processed
        self._stop = threading.Event()
        self._worker: threading.Thread | None = None

    def start(self) -> None:
        """After an upgrade there is much to index: a thread does it in the background."""
        with self._engine.read() as tx:
            if self._fulltext.pending_over(tx, self._fulltext.SETTLE):
                self._worker = threading.Thread(target=self._work, daemon=True, name="hermes-index")
                self._worker.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._worker is not None:
            self._worker.join()

    def close(self) -> None:
        """Close the lock file."""
        self._indexing.close()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                more = self._sweep()  # the new index reuses the space of the old one
                if not self._batch() and not more:
                    return
                self._stop.wait(0.002)  # let waiting writers take the lock first
        except StoreError:
            pass  # closed, or another process is busy: the next process that opens the store continues

    def _sweep(self) -> bool:
        with self._engine.read() as tx:
            if not migrate.has_old_index(tx.connection):
                return False
        with self._engine.write() as tx:
            return migrate.sweep(tx.connection)

    def has_changes(self, tx: SqliteTx) -> bool:
        """Whether another program has changed messages with SQL since the last check."""
        return _changes(tx) != self._changed_seen

    def note_changes(self, *, again: bool = False) -> None:
        """Re-index messages whose rows another program has changed with SQL since they were indexed."""
        with self._engine.read() as tx:
            noted = _changes(tx)
            if noted == self._changed_seen and not again:
                return
            stale = self._fulltext.stale(tx)
        if stale:
            with self._engine.write(lasting=False) as tx:
                there = [one for one in stale if tx.row("SELECT 1 FROM messages WHERE id = ?", (one,)) is not None]
                self._fulltext.drop(tx, [one for one in stale if one not in there])
                self._fulltext.reindex(tx, there)
        self._changed_seen = noted

    def appended(self, message_id: int) -> None:
        """A batch is due: index it soon, or now if the background thread can't keep up."""
        self._engine._keeper.index_soon()
        if self._fulltext.is_far_behind(message_id) and self._engine._mutex.acquire(
            blocking=False
        ):  # the thread can't keep up
            try:
                if self._indexing.enter():  # one process is enough; the others skip it
                    try:
                        if self._batch(least=self._fulltext.TAIL // 2, most=BULK):
                            self._keep_up()
                    finally:
                        self._indexing.leave()
            except StoreError:
                pass  # the message is stored and can be found; indexing can wait
            finally:
                self._engine._mutex.release()

    def _batch(self, *, least: int = 1, most: Bounds = BATCH) -> int:
        """Index the next few messages; 0 when there was nothing (or too little) to do."""
        for _ in range(5):
            with self._engine.read() as tx:
                prepared = self._fulltext.prepare_batch(tx, least, most)
            if prepared is None:
                return 0
            if prepared.parts:
                self._engine.on_parts(prepared.parts)
                with self._engine.read() as tx:  # the current rows
                    prepared = self._fulltext.prepare_batch(tx, least, most) or prepared
            with self._engine.write(lasting=False) as tx:  # index entries can always be made again
                done = self._fulltext.write_batch(tx, prepared)
            if done and prepared.strangers:
                self._engine.on_adopted(prepared.strangers)
            if done:
                self._engine._keeper.tidy_later()
                return done
        return 0

    def _keep_up(self) -> None:
        """Do some deferred work if too much of it has accumulated."""
        with self._engine.read() as tx:
            behind = self._fulltext.words.is_behind(tx, self._fulltext.mark(tx))
        if behind:
            self._tidy()

    def _tidy(self) -> bool:
        """Do one piece of deferred work; returns whether there may be more."""
        tidying = Tidying(self._fulltext)
        with self._engine.read() as tx:
            piece = tidying.prepare(tx)
        with self._engine.write(lasting=False) as tx:
            more = tidying.write(tx, piece)
        tidying.written(piece)
        return more

    def _note_words(self) -> None:
        """Record the words of all indexed messages."""
        words = self._fulltext.words
        while True:
            with self._engine.read() as tx:
                chunk = words.prepare(tx, self._fulltext.mark(tx))
            if chunk is None:
                return
            with self._engine.write(lasting=False) as tx:
                words.write(tx, chunk)
            words.learn(chunk)

    def catch_up(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Index every message that is not indexed yet; returns how many."""
        done = 0
        self.note_changes(again=True)
        while True:
            more = self._sweep()
            count = self._batch()
            if not count and not more:
                self._note_words()
                return done
            done += count
            if progress is not None:
                with self._engine.read() as tx:
                    progress(done, done + self._fulltext.pending(tx))

    def forget_words(self, *, whole: bool) -> None:
        """Remove words that only deleted messages had from the word list, and (`whole`) from the pages of the index."""
        fulltext, last = self._fulltext, ""
        with self._engine.read() as tx:
            if not whole and tx.row("SELECT 1 FROM words LIMIT 1 OFFSET ?", (MANY_WORDS,)) is not None:
                return  # that takes seconds: it is left to `optimize`
        while True:
            with self._engine.read() as tx:
                some = fulltext.words.listed_after(tx, last)
                unused = fulltext.unused(tx, some)
            if not some:
                break
            last = some[-1][1]
            if unused:
                with self._engine.write() as tx:
                    if gone := fulltext.unused(tx, unused):
                        fulltext.words.take_out(tx, gone)
        for table in ("messages_fts", "messages_fts_trigram") if whole else ():
            pages = -FORGET_PAGES  # a negative number starts a full merge, then step by step: others write in between
            more = True
            while more:
                with self._engine.write() as tx:
                    more = merge(tx.connection, table, pages)
                pages = FORGET_PAGES

    def settle(self) -> None:
        """Index what this process has not indexed yet, unless that takes long."""
        try:
            with self._engine.read() as tx:
                few = self._fulltext.pending(tx) <= self._fulltext.SETTLE
            if few:
                self.catch_up()
            for _ in range((self._fulltext.batches + 1) // 2):  # in proportion to what this process wrote
                if not self._tidy():
                    break
        except StoreError:
            pass  # the next process does it


def _changes(tx: SqliteTx) -> int:
    """How many messages are recorded as changed with SQL."""
    return int(tx.value("SELECT count(*) FROM changed_messages"))

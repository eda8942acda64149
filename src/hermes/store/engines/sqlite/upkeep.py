"""Work on a SQLite store besides reading and writing: indexing, checkpoints, free space, backups.

The functions are methods of SqliteEngine. Its one background thread indexes new messages, moves the WAL into the database and
empties it: in pieces so small that the next append waits little, and only once no append has come for a moment. While messages
come without a pause, the appending callers index them: a thread would compete with them for Python's interpreter lock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import InvalidInput, StoreError
from hermes.home import make_private
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite import migrate
from hermes.store.engines.sqlite.connection import holder_of, pragma
from hermes.store.engines.sqlite.fulltext import BATCH, PIECE, Bounds, merge

if TYPE_CHECKING:
    from hermes.store.engines.sqlite.engine import SqliteEngine

EVERY = 50  # commits, after which the WAL is moved into the database
VACUUM_STEP = 256  # pages returned in one transaction
MANY_WORDS = 100_000  # each is looked up when unused ones are removed: a second or two
FORGET_PAGES = 500  # of the index, merged in one transaction
_MOMENT = 0.01  # seconds without a commit, after which waiting messages are indexed
_IDLE = 0.4  # seconds without a commit, after which the WAL is emptied if it holds deleted text


class Maintenance:
    """The background thread, which starts when it is first needed, and what it has to do."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine
        self._commits = 0
        self._unindexed = self._long = self._deleted = False
        self._wanted = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def committed(self) -> None:
        """Count a commit. Deleted rows are still in the WAL, which is emptied later."""
        self._commits += 1
        if self._commits % EVERY == 0:
            self._long = True
            self._wake()
        if self._engine.fulltext.dropped:
            self._engine.fulltext.dropped = False
            self._deleted = True
            self._wake()

    def index_soon(self) -> None:
        """Signal that messages wait to be indexed."""
        if not self._unindexed:
            self._unindexed = True
            self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, daemon=True, name="hermes-maintenance")
            # RuntimeError: no more threads, or the interpreter ends; the change is committed all the same.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
        self._wanted.set()

    def stop(self) -> None:
        """Finish the current piece and end the thread; the WAL is emptied if it holds deleted text."""
        self._stopped = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
        if self._deleted:
            self._try_emptying()

    def _run(self) -> None:
        seen, size, pause = -1, PIECE, None
        while not self._stopped:
            self._wanted.wait(pause)
            self._wanted.clear()
            is_quiet, seen = self._commits == seen, self._commits
            try:
                if self._long:
                    self._long = False
                    self._engine.checkpoint()
                elif self._unindexed and is_quiet:
                    self._unindexed = self._engine.index_batch(size) > 0
                    seen, size, pause = seen + 1, BATCH, 0.0  # its own commit
                    continue
                elif self._deleted and is_quiet:
                    self._try_emptying()
            except (StoreError, OSError):
                self._unindexed = False  # another process does it, or the disk is full: the next append asks again
            size, pause = PIECE, _MOMENT if self._unindexed else _IDLE if self._deleted else None

    def _try_emptying(self) -> None:
        with suppress(StoreError, OSError):
            self._deleted = not self._engine.checkpoint(truncate=True)


# ---------------------------------------------------------------------------------------- the index


def index_batch(engine: SqliteEngine, most: Bounds) -> int:
    """Index the next few messages, and remove a piece of an old index; how many pieces of work were done."""
    from hermes.store.records.file_changes import note_stored  # it is above the engines

    with engine.write(durable=False) as tx:  # index entries can always be made again
        swept = migrate.has_old_index(tx.connection) and migrate.sweep(tx.connection)
        engine.fulltext.follow_changes(tx)
        rows = engine.fulltext.next_rows(tx, most)
        foreign = engine.fulltext.index_rows(tx, rows) if rows else set()
        note_stored(
            tx, [(row.id, row.session_id, row.tool_calls) for row in rows if row.writer is None and row.tool_calls]
        )
    if foreign:
        engine.on_behind(foreign)
    return len(rows) + swept


def catch_up(engine: SqliteEngine, *, progress: Callable[[int, int], None] | None = None) -> int:
    """Index every message that is not indexed yet; returns how many."""
    done = 0
    while count := engine.index_batch(BATCH):
        done += count
        if progress is not None:
            with engine.read() as tx:
                progress(done, done + engine.fulltext.pending(tx))
    return done


def rebuild_index(engine: SqliteEngine) -> None:
    """Rebuild the full-text index from the messages."""
    with engine.write() as tx:
        migrate.reset_index(tx.connection)
    engine.catch_up()


def _forget_words(engine: SqliteEngine, *, whole: bool) -> None:
    """Remove words that only deleted messages had from the word list, and (`whole`) from the pages of the index."""
    fulltext, last = engine.fulltext, ""
    with engine.read() as tx:
        if not whole and tx.row("SELECT 1 FROM words LIMIT 1 OFFSET ?", (MANY_WORDS,)) is not None:
            return  # that takes seconds: it is left to `optimize`
    while True:
        with engine.read() as tx:
            some = fulltext.words.listed_after(tx, last)
            unused = fulltext.unused(tx, some)
        if not some:
            break
        last = some[-1][1]
        if unused:
            with engine.write() as tx:
                if gone := fulltext.unused(tx, unused):
                    fulltext.words.remove(tx, gone)
    for table in ("messages_fts", "messages_fts_trigram") if whole else ():
        # A negative number starts a full merge, step by step: others write in between.
        pages, more = -FORGET_PAGES, True
        while more:
            with engine.write() as tx:
                more = merge(tx, table, pages)
            pages = FORGET_PAGES


# ---------------------------------------------------------------------------------------- the file


def reclaim(engine: SqliteEngine, *, full: bool = False) -> bool:
    """Give free space back to the disk, where there is much of it, or all (`full`); whether anything was done."""
    engine._require_writable()
    _forget_words(engine, whole=full)
    with engine._exclusively() as connection:
        pages, free, mode = (pragma(connection, name) for name in ("page_count", "freelist_count", "auto_vacuum"))
        if not full and free * 8 < pages:
            return False
        if mode != 2 or full:
            connection.execute("VACUUM")
            return True
    while free > 0:
        with engine.write() as tx:
            tx.rows(f"PRAGMA incremental_vacuum({VACUUM_STEP})")
        free -= VACUUM_STEP
        time.sleep(0.001)  # let waiting writers go first
    return True


def scrub(engine: SqliteEngine) -> list[str]:
    """Leave nothing of what was deleted in the file or in its WAL; what could not be done."""
    engine.catch_up()  # what is left of an older index goes, too
    engine.reclaim(full=True)
    if any(engine.checkpoint(truncate=True) for _ in range(3)):  # SQLite itself waits a second for readers, each time
        return []
    return [
        f"{engine.path}-wal can't be emptied while another process reads it{holder_of(engine.path)}; end that process"
    ]


def backup(engine: SqliteEngine, target: Path) -> None:
    """Write a consistent copy into a new file while others write, encrypted with the same key if the store is."""
    engine._require_open()
    if target.exists():
        raise InvalidInput(f"{target} exists already; choose the name of a new file")
    make_private(target.parent)
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    with engine._translated(), engine._borrowed() as source:
        os.close(os.open(part, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        key = driver.key_of(engine.path)
        with closing(driver.connect(part, key=key)) as copy:
            source.backup(copy)  # in one step: it reads one state of the database, whatever is written meanwhile
            copy.execute("PRAGMA journal_mode=DELETE")
        if key is not None:
            from hermes.store import keys

            keys.share(engine.path, target)
        os.replace(part, target)

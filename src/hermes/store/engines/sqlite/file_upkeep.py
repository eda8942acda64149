"""The file as a whole: free space given back, nothing left of what was deleted, a copy made while others write."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from hermes.errors import InvalidInput, StoreReadOnly
from hermes.home import make_private
from hermes.store.engines.sqlite import cipher, locks
from hermes.store.engines.sqlite.file_connection import connect
from hermes.store.engines.sqlite.file_identity import holder_of
from hermes.store.engines.sqlite.write_queue import QUEUE_SECONDS, RETRY_SECONDS

if TYPE_CHECKING:
    from hermes.store.engines.sqlite.engine import SqliteEngine

EMPTYING_SECONDS = 3.0  # that readers of the WAL are waited for when it must be empty
VACUUM_STEP = 256  # pages returned in one transaction


def reclaim(engine: SqliteEngine, *, full: bool = False) -> bool:
    """Give free space back to the disk, where there is much of it, or all (`full`); whether anything was done."""
    engine._require_open()
    if engine.read_only:
        raise StoreReadOnly(engine.notice or f"{engine.path} is opened for reading only")
    if not engine.overlay:
        engine._upkeep.forget_words(whole=full)
    with engine._translated(), engine._mutex:
        pages, free, mode = (
            int(str(engine._main.pragma(name))) for name in ("page_count", "freelist_count", "auto_vacuum")
        )
        if not full and free * 8 < pages:
            return False
        if mode == 2 and not full:
            while free > 0:
                with engine.write() as tx:
                    tx.rows(f"PRAGMA incremental_vacuum({VACUUM_STEP})")
                free -= VACUUM_STEP
                time.sleep(0.001)  # let waiting writers go first
            return True
        engine._gate.enter(QUEUE_SECONDS)
        try:
            engine._main.execute("VACUUM")
        finally:
            engine._gate.leave()
        return True


def scrub(engine: SqliteEngine) -> list[str]:
    """Leave nothing of what was deleted in the file or in its WAL; what could not be done."""
    engine.catch_up()  # what is left of an older index goes, too
    reclaim(engine, full=True)
    return [] if _emptied_wal(engine) else [
        f"{engine.path}-wal can't be emptied while another process reads it{holder_of(engine.path)}; end that process"
    ]  # fmt: skip


def _emptied_wal(engine: SqliteEngine) -> bool:
    """Move the WAL into the database and cut it to nothing, waiting a while for those who read from it."""
    until = time.monotonic() + EMPTYING_SECONDS
    while True:
        with engine._translated(), engine._mutex:
            if engine._main.pragma("journal_mode") != "wal":
                return True
            engine._gate.enter(QUEUE_SECONDS)
            try:
                engine._main.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                return True
            except (apsw.BusyError, apsw.LockedError):
                if time.monotonic() > until:
                    return False
            finally:
                engine._gate.leave()
        time.sleep(random.uniform(*RETRY_SECONDS))


def backup(engine: SqliteEngine, target: Path) -> None:
    """A consistent copy in a new file, encrypted with the same key if the store is."""
    engine._require_open()
    if target.exists():
        raise InvalidInput(f"{target} exists already; choose the name of a new file")
    make_private(target.parent)
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    with engine._translated():
        os.close(os.open(part, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        source = connect(engine.path, apsw.SQLITE_OPEN_READONLY, read_only=engine.read_only)
        copy = apsw.Connection(str(part))
        vault = cipher.vault_of(engine.path)
        if vault is not None and not cipher.is_plain(engine.path):
            cipher.set_key(copy, cipher.key_of(engine.path, vault))
            copy.execute(f"PRAGMA page_size={source.pragma('page_size')}")  # encrypted pages are copied as they are
        try:
            source.execute("BEGIN").fetchall()
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()  # pins the snapshot
            with copy.backup("main", source, "main") as work:
                while not work.done:
                    work.step(2000)
            copy.execute("PRAGMA journal_mode=DELETE")
        finally:
            copy.close()
            source.close()
            locks.tidy()
        if vault is not None:
            cipher.give_key_file(engine.path, target)
        os.replace(part, target)

"""The file as a whole: free space given back, nothing left of what was deleted, a copy made while others write."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import InvalidInput
from hermes.home import make_private
from hermes.store.engines.sqlite import cipher
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite.connection import pragma
from hermes.store.engines.sqlite.file_connection import holder_of, open_file

if TYPE_CHECKING:
    from hermes.store.engines.sqlite.engine import SqliteEngine

EMPTYING_SECONDS = 3.0  # that readers of the WAL are waited for when it must be empty
VACUUM_STEP = 256  # pages returned in one transaction


def reclaim(engine: SqliteEngine, *, full: bool = False) -> bool:
    """Give free space back to the disk, where there is much of it, or all (`full`); whether anything was done."""
    engine._require_writable()
    engine.forget_words(whole=full)
    with engine._alone() as connection:
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
    reclaim(engine, full=True)
    until = time.monotonic() + EMPTYING_SECONDS
    while not engine.checkpoint(truncate=True):
        if time.monotonic() > until:
            return [
                f"{engine.path}-wal can't be emptied while another process reads it{holder_of(engine.path)}; end that process"
            ]
        time.sleep(0.05)
    return []


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
        key = cipher.key_of(engine.path)
        source = open_file(engine.path, read_only=True)
        copy = driver.connect(part, key=key)
        try:
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()  # pins the snapshot
            source.backup(copy, pages=2000)
            copy.execute("PRAGMA journal_mode=DELETE")
        finally:
            copy.close()
            source.close()
        if key is not None:
            from hermes.store import encryption_keys

            encryption_keys.share(engine.path, target)
        os.replace(part, target)

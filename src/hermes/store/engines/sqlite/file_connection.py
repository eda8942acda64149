"""A connection to one SQLite file: the file found or created, refused where it is no database, our settings on the connection."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from hermes.errors import NotADatabase, StoreError, StoreReadOnly
from hermes.home import make_private
from hermes.store.engines.sqlite import cipher, locks, migrate
from hermes.store.engines.sqlite.error_mapping import from_os

BUSY_MS = 1000  # for which SQLite itself waits for a lock
_NO_SHARED_MEMORY = (apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMOPEN, apsw.SQLITE_IOERR_SHMMAP)


def open_file(path: Path, *, read_only: bool) -> apsw.Connection:
    """The writing connection, on a file that is created if it is missing; for reading only, on one that is there."""
    if path.is_dir():
        raise NotADatabase(f"{path} is a folder, not a database file")
    if read_only:
        return connect(path, apsw.SQLITE_OPEN_READONLY, read_only=True)
    make_private(path.parent)
    if not path.exists():
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise from_os(error, path) from error
    elif not _looks_like_a_database(path):
        raise NotADatabase(f"{path} is not a database; move it away, or choose another file")
    elif not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise StoreReadOnly(f"{path} can't be written; check its permissions and its folder's")
    return connect(path, apsw.SQLITE_OPEN_READWRITE, read_only=False)


def connect(path: Path, flags: int, *, read_only: bool) -> apsw.Connection:
    """A connection with our settings. `read_only`: where nothing can be created beside the file, it is read alone."""
    if read_only and not path.exists():
        raise StoreError(f"{path} does not exist; there is nothing to read")
    try:
        connection = locks.connect(str(path), flags=flags, statementcachesize=200)
        connection.set_busy_timeout(BUSY_MS)
        # Until the file is known to be ours, closing it must not even move its WAL into it.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("PRAGMA application_id").fetchone()  # the first actual read of the file
        locks.watch_shared_memory(path)
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.FullError, apsw.IOError) as error:
        no_room = isinstance(error, apsw.FullError) or getattr(error, "extendedresult", 0) in _NO_SHARED_MEMORY
        if not read_only or (isinstance(error, apsw.IOError) and not no_room):
            raise
        if has_content(path.with_name(path.name + "-wal")):
            if no_room:
                raise
            raise StoreReadOnly(
                f"{path} has changes in its -wal file that can only be read where its folder can be written"
            ) from None
        # A folder (or a full disk) in which not even the shared-memory file can be created, so no other process has the
        # database open: read the file alone.
        uri = f"{path.absolute().as_uri()}?immutable=1"
        connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        cipher.apply(connection)
    connection.execute("PRAGMA cache_size=-24000; PRAGMA temp_store=MEMORY; PRAGMA foreign_keys=OFF")
    # SQLite would inspect the value of `LIMIT ?`, and plan the statement again each time it is bound.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    migrate.add_functions(connection)
    return connection


def _looks_like_a_database(path: Path) -> bool:
    """SQLite treats a file of a few bytes as empty. (It must not be opened here: closing drops SQLite's locks.)"""
    size = path.stat().st_size
    return size == 0 or size >= 512


def has_content(path: Path) -> bool:
    """Whether a file is there and not empty."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False

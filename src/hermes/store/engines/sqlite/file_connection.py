"""Connections to the file of a store: found or created, refused where it is no database, with our settings."""

from __future__ import annotations

import os
from pathlib import Path

from hermes.errors import NotADatabase, StoreError, StoreReadOnly
from hermes.home import make_private
from hermes.store.engines.base import from_os
from hermes.store.engines.sqlite import cipher, migrate
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite.connection import Connection, code, codes

_NO_ROOM = (4618, 4874, 5386)  # SQLITE_IOERR_SHMOPEN, _SHMSIZE, _SHMMAP: the shared-memory file can't be made


def require_file(path: Path) -> None:
    """Make sure that there is a file to write to, creating an empty one; an error that says why there is none."""
    if path.is_dir():
        raise NotADatabase(f"{path} is a folder, not a database file")
    make_private(path.parent)
    if not path.exists():
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise from_os(error, path) from error
    elif 0 < path.stat().st_size < 512:  # SQLite treats a file of a few bytes as empty
        raise NotADatabase(f"{path} is not a database; move it away, or choose another file")
    elif not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        raise StoreReadOnly(f"{path} can't be written; check its permissions and its folder's")


def open_file(path: Path, *, read_only: bool) -> Connection:
    """A connection with our settings. Read-only, where nothing can be created beside the file, it is read alone."""
    if read_only and not path.exists():
        raise StoreError(f"{path} does not exist; there is nothing to read")
    key = cipher.key_of(path)
    try:
        opened = driver.connect(path, key=key, read_only=read_only)
        opened.execute("PRAGMA application_id").fetchone()  # the first actual read of the file
    except driver.Error as error:
        no_room = code(error) == codes.SQLITE_FULL or getattr(error, "sqlite_errorcode", 0) in _NO_ROOM
        if not read_only or not (no_room or code(error) in (codes.SQLITE_CANTOPEN, codes.SQLITE_READONLY)):
            raise
        if has_content(path.with_name(path.name + "-wal")):
            if no_room or code(error) == codes.SQLITE_IOERR:
                raise
            raise StoreReadOnly(
                f"{path} has changes in its -wal file that can only be read where its folder can be written"
            ) from None
        # Not even the shared-memory file can be created there, so no other process has the database open.
        opened = driver.connect(path, key=key, read_only=True, immutable=True)
    for setting in ("cache_size=-24000", "temp_store=MEMORY", "foreign_keys=OFF"):
        opened.execute(f"PRAGMA {setting}")
    migrate.add_functions(opened)
    return opened


def has_content(path: Path) -> bool:
    """Whether a file is there and not empty."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def identity(name: str | Path) -> tuple[int, int] | None:
    """Device and inode of a file; None when there is none."""
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def holder_of(path: Path) -> str:
    """The other processes that have the database open, where the system tells (Linux): ' (process 123, python)'."""
    try:
        wanted, me, found = identity(path), os.getpid(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) == me:
                continue
            try:
                if any(identity(f"/proc/{pid}/fd/{one}") == wanted for one in os.listdir(f"/proc/{pid}/fd")):
                    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
                    stopped = f", stopped (Ctrl-Z?): fg or kill -CONT {pid}" if rest.split()[0] in "Tt" else ""
                    found.append(f"process {pid}, {name}{stopped}")
            except OSError:
                continue
        return f" ({'; '.join(found)})" if found else ""
    except OSError:
        return ""

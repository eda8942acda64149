"""Errors of SQLite and of the system mapped to errors of this program: what happened, to which file, what to do."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import apsw

from hermes.errors import (
    InvalidInput,
    NotADatabase,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from hermes.home import default_database
from hermes.store.engines.sqlite import cipher

# SQLite's messages for damaged pages that it reports as another problem.
_DAMAGE = (
    "no such table",
    "no such column",
    "no such module",
    "malformed",
    "unsupported file format",
    "missing from",
    "vtable constructor failed",  # a table of the full-text index is not listed any more
)
_HINTS: dict[type[apsw.Error], tuple[type[StoreError], str]] = {
    apsw.NotADBError: (NotADatabase, "is not a database; move it away, or choose another file"),
    apsw.CorruptError: (StoreCorrupt, "is damaged"),
    apsw.FullError: (StoreFull, "has no space left to grow; free some and try again"),
    apsw.ReadOnlyError: (StoreReadOnly, "can't be written; check its permissions and its folder's"),
    apsw.CantOpenError: (StoreError, "can't be opened; check the path and its permissions"),
    apsw.PermissionsError: (StoreReadOnly, "can't be used; check its permissions"),
    apsw.BusyError: (StoreBusy, "is held by another process"),
    apsw.LockedError: (StoreBusy, "is held by another connection"),
}


def as_ours(
    error: apsw.Error | OSError | UnicodeDecodeError, path: Path, connection: apsw.Connection | None
) -> Exception:
    """What this program raises for an error of SQLite or of the system; the connection has the system's error code."""
    if isinstance(error, apsw.Error):
        return _translate(error, path, connection)
    if isinstance(error, OSError):
        return from_os(error, path)
    return StoreCorrupt(f"{path} holds text that is damaged ({error}); {_repair_hint(path)}")


def _repair_hint(path: Path) -> str:
    """What to type to repair a file: a line that can be pasted into a shell as it stands."""
    if path.resolve() == default_database().resolve():
        return "`hermes sessions repair` repairs it"
    return f"`python -m hermes.store.check {shlex.quote(str(path))} --repair` repairs it"


def _system_error(connection: apsw.Connection | None) -> int:
    try:
        return 0 if connection is None else int(connection.system_errno)
    except apsw.Error:
        return 0


def _translate(error: apsw.Error, path: Path, connection: apsw.Connection | None) -> Exception:
    if isinstance(error, apsw.NotADBError) and (encrypted := cipher.unreadable(path)) is not None:
        return encrypted
    for kind, (ours, hint) in _HINTS.items():
        if isinstance(error, kind):
            return ours(f"{path} {hint}" + (f"; {_repair_hint(path)}" if ours is StoreCorrupt else ""))
    if isinstance(error, apsw.SQLError) and any(sign in str(error) for sign in _DAMAGE):
        return StoreCorrupt(f"{path} is damaged ({error}); {_repair_hint(path)}")
    if isinstance(error, apsw.IOError):
        if _no_space(path) or _system_error(connection) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return StoreFull(f"{path} has no space left to grow; free some and try again")
        return StoreError(f"{path} could not be read or written ({error})")
    if isinstance(error, apsw.TooBigError):
        return InvalidInput("a value is larger than the database can hold (1 GB)")
    if isinstance(error, apsw.ConnectionClosedError):
        return StoreClosed(f"{path} was closed")
    return StoreError(f"{path}: {error}")


def _no_space(path: Path) -> bool:
    try:
        free = os.statvfs(path.parent)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < 1 << 20


def from_os(error: OSError, path: Path) -> Exception:
    """The same for an error of the system alone."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"{path} has no space left to grow; free some and try again")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreReadOnly(f"{path} can't be written ({error.strerror}); check its permissions and its folder's")
    return StoreError(f"{path}: {error.strerror or error}")

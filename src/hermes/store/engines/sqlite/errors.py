"""Errors of SQLite and of the system mapped to errors of this program: what happened, to which file, what to do."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from hermes import errors
from hermes.home import default_database
from hermes.store.engines.base import FULL, from_os
from hermes.store.engines.sqlite import connection as driver
from hermes.store.engines.sqlite.connection import code, codes, identity, is_busy

# SQLite's messages for damaged pages that it reports as another problem.
_DAMAGE = (
    "no such table",
    "no such column",
    "no such module",
    "malformed",
    "unsupported file format",
    "missing from",
    "vtable constructor failed",  # a table of the full-text index is not listed any more
    "Could not decode",  # text that is no valid UTF-8
)
_HINTS: dict[int, tuple[type[errors.StoreError], str]] = {
    codes.SQLITE_NOTADB: (errors.NotADatabase, "is not a database; move it away, or choose another file"),
    codes.SQLITE_CORRUPT: (errors.StoreCorrupt, "is damaged"),
    codes.SQLITE_FULL: (errors.StoreFull, FULL),
    codes.SQLITE_READONLY: (errors.StoreReadOnly, "can't be written; check its permissions and its folder's"),
    codes.SQLITE_CANTOPEN: (errors.StoreError, "can't be opened; check the path and its permissions"),
    codes.SQLITE_PERM: (errors.StoreReadOnly, "can't be used; check its permissions"),
}


def as_ours(error: BaseException, path: Path) -> Exception:
    """The exception that this program raises for an error of SQLite or of the system."""
    if isinstance(error, OSError):
        return from_os(error, path)
    number = code(error)
    if number == codes.SQLITE_NOTADB and (encrypted := driver.unreadable(path)) is not None:
        return encrypted
    if is_busy(error):
        return errors.StoreBusy(f"{path} is held by another process{holder_of(path)}; try again")
    if number in _HINTS:
        ours, hint = _HINTS[number]
        return ours(f"{path} {hint}" + (f"; {_repair_hint(path)}" if ours is errors.StoreCorrupt else ""))
    if any(sign in str(error) for sign in _DAMAGE) or isinstance(error, UnicodeDecodeError):
        return errors.StoreCorrupt(f"{path} is damaged ({error}); {_repair_hint(path)}")
    if number == codes.SQLITE_IOERR:
        return errors.StoreFull(f"{path} {FULL}") if _no_space(path) else errors.StoreError(
            f"{path} could not be read or written ({error})"
        )  # fmt: skip
    if "binding parameter" in str(error):
        return errors.InvalidInput(f"a value can't be stored: {error}")
    if number == codes.SQLITE_TOOBIG or "too big" in str(error):
        return errors.InvalidInput("a value is larger than the database can hold (1 GB)")
    if "closed database" in str(error):
        return errors.StoreClosed(f"{path} was closed")
    return errors.StoreError(f"{path}: {error}")


def holder_of(path: Path) -> str:
    """The other processes that have a file open, where the system tells (Linux): ' (process 123, python)'."""
    wanted, found = identity(path) or (), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if folder.name != str(os.getpid()) and any(identity(one) == wanted for one in (folder / "fd").iterdir()):
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                stopped = f", stopped (Ctrl-Z?): fg or kill -CONT {folder.name}" if rest.split()[0] in "Tt" else ""
                found.append(f"process {folder.name}, {name}{stopped}")
    return f" ({'; '.join(found)})" if found else ""


def _repair_hint(path: Path) -> str:
    """The command that repairs a file, in a line that can be pasted into a shell as it stands."""
    if path.resolve() == default_database().resolve():
        return "`hermes sessions repair` repairs it"
    return f"`hermes sessions repair {shlex.quote(str(path))}` repairs it"


def _no_space(path: Path) -> bool:
    """Whether the disk is full, or one of the files is as large as a file may be (ulimit -f)."""
    import resource

    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    with suppress(OSError):
        free = os.statvfs(path.parent)
        size = max(os.path.getsize(name) for name in (path, f"{path}-wal") if os.path.exists(name))
        is_limited = largest != resource.RLIM_INFINITY and size + (1 << 16) > largest
        return is_limited or free.f_bavail * free.f_frsize < 1 << 20
    return False

"""Opens SQLite files, runs statements in them, and maps errors of SQLite and the system to this program's. The only module
that imports a driver: Python's own sqlite3, and sqlcipher3 for encrypted files.

SQLite locks with POSIX locks, which belong to the process: when any code in it opens and closes state.db, or copies it, the
kernel drops all of them. Another process that closes its last connection would then take itself for the last user of the file
and remove the WAL, with everything in it. `WalGuard` holds two read locks of an open file description of our own, on the bytes
that such a process must lock: those stay. They cost nothing per write. Where a system has no such locks (macOS),
docs/format.md says what must not be done.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sqlite3
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes import errors
from hermes.errors import HermesError, InvalidInput, MissingExtra, StoreError, StoreLocked
from hermes.home import default_database, has_key_file, key_file, lock_within
from hermes.store.engines.base import FULL, HELD, Params, Row, from_os
from hermes.store.engines.unindexed import WaitingMessages
from hermes.store.records.codec import storable

OLDEST = (3, 40, 0)
codes = sqlite3  # for the other modules: SQLite's result codes and actions, by their names
BUSY_SECONDS = 1.0  # for which SQLite itself waits for a lock
Connection = sqlite3.Connection
Error: tuple[type[Exception], ...] = (sqlite3.Error,)
"""The errors of the drivers in use. Write `except driver.Error` (of the module): the tuple grows with sqlcipher3."""
Failure: tuple[type[Exception], ...] = (sqlite3.Error, OSError)
"""The errors of the drivers in use, and of the operating system."""


def connect(
    path: Path,
    *,
    key: str | None = None,
    read_only: bool = False,
    immutable: bool = False,
    cipher: bool = False,
    busy: float | None = None,
) -> Connection:
    """A connection to an existing file, in autocommit mode, with `key` (hexadecimal) if the file is encrypted.

    `cipher` opens a plain file with the driver for encrypted ones, which can copy it into one.
    """
    driver: Any = sqlcipher() if key is not None or cipher else sqlite3
    if driver.sqlite_version_info < OLDEST:
        raise StoreError(
            f"Python's SQLite is {driver.sqlite_version}; 3.40 or newer is needed: install a newer Python or SQLite library"
        )
    address = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}{'&immutable=1' if immutable else ''}"
    opened: Connection = driver.connect(
        address,
        uri=True,
        timeout=BUSY_SECONDS if busy is None else busy,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=200,
    )
    if driver is not sqlite3:
        opened.execute("PRAGMA cipher_log_level=NONE")  # it would write to the standard error
    if key is not None:
        opened.execute(f"PRAGMA key = \"x'{key}'\"")
    opened.execute("PRAGMA wal_autocheckpoint=0")  # checkpoints wait in the queue of writers (engine.py)
    return opened


def sqlcipher() -> Any:
    """The driver for encrypted files; MissingExtra when it is not installed."""
    global Error, Failure
    try:
        from sqlcipher3 import dbapi2
    except ImportError:
        raise MissingExtra("an encrypted store", "encryption") from None
    if dbapi2.Error not in Error:
        Error, Failure = (*Error, dbapi2.Error), (*Failure, dbapi2.Error)
    return dbapi2


def code(error: BaseException) -> int:
    """SQLite's primary result code of an error; 0 when it has none."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether another connection holds the lock."""
    return code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def pragma(connection: Connection, name: str) -> Any:
    """The value of a PRAGMA; a number where it is one."""
    row = connection.execute(f"PRAGMA {name}").fetchone()
    value = None if row is None else row[0]
    return int(value) if isinstance(value, str) and value.isdigit() else value  # sqlcipher3 gives texts


# ----------------------------------------------------------------------------------------------------
# Descriptors and locks of our own.

_IN_USE = (("", 0x40000002), ("-shm", 128))  # the bytes that every user of a database in WAL mode has a read lock on
_DESCRIPTORS = "/proc/self/fd"


@dataclass(slots=True)
class _File:
    """A descriptor of a database's file."""

    descriptor: int
    users: int = 0

    def lock(self, kind: int, byte: int) -> None:
        # Linux alone has these locks; elsewhere SQLite's own have to suffice.
        with suppress(OSError, AttributeError):
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, struct.pack("hhxxxxqqixxxx", kind, 0, byte, 1, 0))


_files: dict[tuple[int, int], _File] = {}  # by device and inode
_lock = threading.Lock()


def _file(name: str) -> _File:
    """The one descriptor that this process has of a file. Call it with `_lock` held."""
    found = os.stat(name)
    key = (found.st_dev, found.st_ino)
    if key not in _files:
        _files[key] = _File(os.open(name, os.O_RDONLY | os.O_CLOEXEC))
    return _files[key]


def _close_unused() -> None:
    """Close descriptors that no store uses. Not while other code here has the file open: that would drop its locks."""
    with _lock, suppress(OSError):
        numbers = os.listdir(_DESCRIPTORS) if os.path.isdir(_DESCRIPTORS) else []
        counts = Counter(identity(f"{_DESCRIPTORS}/{one}") for one in numbers)
        for key in [one for one, file in _files.items() if not file.users and counts[one] <= 1]:
            os.close(_files.pop(key).descriptor)


def identity(name: str | Path) -> tuple[int, int] | None:
    """Device and inode of a file; None when there is none."""
    with suppress(OSError):
        found = os.stat(name)
        return found.st_dev, found.st_ino
    return None


def file_size(path: str | Path) -> int:
    """How many bytes a file has; 0 when there is none."""
    with suppress(OSError):
        return os.stat(path).st_size
    return 0


def beginning(path: Path, size: int = 100) -> bytes:
    """The first bytes of a file, empty if there is none. Use this to look at a database: plain reading would drop locks."""
    try:
        with _lock:
            return os.pread(_file(str(path)).descriptor, size, 0)
    except OSError:
        return b""
    finally:
        _close_unused()


class WalGuard:
    """Keeps other processes from taking the WAL of an open database away, whatever code in this process does with the file."""

    def __init__(self, path: Path) -> None:
        self._held: list[tuple[_File, int]] = []
        for ending, byte in _IN_USE:
            with suppress(OSError), _lock:  # no -shm: the file is not in WAL mode
                file = _file(f"{path}{ending}")
                file.users += 1
                file.lock(fcntl.F_RDLCK, byte)
                self._held.append((file, byte))

    def release(self) -> None:
        """Release the locks, before the last connection is closed: it then moves the WAL into the database."""
        with _lock:
            while self._held:
                file, byte = self._held.pop()
                file.users -= 1
                if not file.users:
                    file.lock(fcntl.F_UNLCK, byte)

    def close(self) -> None:
        """Close the descriptors, once the connections are closed."""
        self.release()
        _close_unused()


class WriteQueue:
    """A queue in front of SQLite's write lock, and of checkpoints: a lock file. Used by one thread at a time.

    SQLite's waiting writers sleep for long and poll, so some wait long. A file lock that is tried often lets the next one go
    on at once; and no two of our processes write or checkpoint at the same moment. It is advisory: where it is not
    available, or its holder hangs, SQLite's own lock still decides.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._held = False

    def enter(self, timeout: float) -> bool:
        """Wait for the lock; False on a timeout (or where there is no such lock)."""
        if self._file < 0:
            with suppress(OSError):  # it can't be made here
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._held = self._held or (self._file >= 0 and lock_within(self._file, timeout))
        return self._held

    def leave(self) -> None:
        """Release the lock."""
        if self._held:
            self._held = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file."""
        self.leave()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _in_child() -> None:
    """A forked child shares the descriptions: unlocking there would unlock here. It opens its own."""
    global _lock
    _lock = threading.Lock()
    _files.clear()


os.register_at_fork(after_in_child=_in_child)


# ----------------------------------------------------------------------------------------------------
# Files encrypted page by page with SQLCipher (AES-256, each page authenticated). A file is encrypted when its key file is beside
# it and it does not begin as a plain SQLite file does: so the one rename that puts an encrypted copy in place of a plain file (or
# the reverse) decides, at any moment of a move.

_PLAIN = b"SQLite format 3\0"
_CIPHER_PAGE = 4096  # bytes of an encrypted page, which are as good as random


def key_of(path: Path) -> str | None:
    """The key of a database in hexadecimal; None for a plain one. StoreLocked when it is not available."""
    if not is_encrypted(path):
        return None
    from hermes.store import keys

    vault = keys.vault_of(path)
    return None if vault is None else vault.key.for_database()


def copy_database(source: Connection, target: Path, key: str | None) -> None:
    """Write a whole copy of the database into a new or empty file, with this key or none. The source is SQLCipher's."""
    source.execute("ATTACH DATABASE ? AS copy KEY ?", (str(target), "" if key is None else f"x'{key}'"))
    try:
        source.execute("PRAGMA copy.auto_vacuum=INCREMENTAL")
        source.execute("SELECT sqlcipher_export('copy')").fetchall()
        for name in ("application_id", "user_version"):
            (value,) = source.execute(f"PRAGMA main.{name}").fetchone()
            source.execute(f"PRAGMA copy.{name}={value}")
    finally:
        source.execute("DETACH DATABASE copy")


def is_encrypted(path: Path) -> bool:
    """Whether a database is encrypted, or will be when it is made."""
    return has_key_file(path) and not is_plain(path)


def is_plain(path: Path) -> bool:
    """Whether a file begins as an unencrypted SQLite file does."""
    return beginning(path, len(_PLAIN)) == _PLAIN


def unreadable(path: Path) -> HermesError | None:
    """The error for a file that is no database for SQLite, if it looks like an encrypted one; else None."""
    start = beginning(path, _CIPHER_PAGE)
    if start[: len(_PLAIN)] == _PLAIN or len(start) < _CIPHER_PAGE or len(zlib.compress(start)) < _CIPHER_PAGE:
        return None
    name, back = key_file(path).name, "put it back from a backup"
    if has_key_file(path):
        why = f"its key file {name} is another store's or an earlier one, or the database is damaged"
        return StoreLocked(f"{path} is encrypted, and can't be read: {why}; {back}")
    return StoreLocked(f"{path} is encrypted and its key file {name} is not beside it; {back}")


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
    if number == codes.SQLITE_NOTADB and (encrypted := unreadable(path)) is not None:
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


# ----------------------------------------------------------------------------------------------------
# A transaction, as the modules above the engine use it.


class SqliteTx:
    """A transaction on one connection."""

    __slots__ = ("_execute", "connection", "waiting")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._execute = connection.execute
        self.waiting: WaitingMessages | None = None  # messages above the mark, once a search has asked for them

    def cursor(self, sql: str, params: Params) -> Any:
        """The rows one by one; for results that are too large to be held."""
        try:
            return self._execute(sql, params)
        except UnicodeEncodeError:  # lone surrogates are stored, and compared, as bytes
            return self._execute(sql, [storable(value) if isinstance(value, str) else value for value in params])
        except OverflowError as error:
            raise InvalidInput(f"a value can't be stored: {_too_large(error)}") from error

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        found: list[Row] = self.cursor(sql, params).fetchall()
        return found

    def row(self, sql: str, params: Params = ()) -> Row | None:
        found: Row | None = self.cursor(sql, params).fetchone()
        return found

    def value(self, sql: str, params: Params = ()) -> Any:
        row = self.cursor(sql, params).fetchone()
        return None if row is None else row[0]

    def column(self, sql: str, params: Params = ()) -> list[Any]:
        return [row[0] for row in self.cursor(sql, params)]

    def dicts(self, sql: str, params: Params = ()) -> list[Any]:
        cursor = self.cursor(sql, params)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def run(self, sql: str, params: Params = ()) -> int:
        count = self.cursor(sql, params).rowcount
        return int(count if count >= 0 else self.value("SELECT changes()"))

    def run_many(self, sql: str, many: Sequence[Params]) -> None:
        for params in many:
            self.cursor(sql, params)

    def insert(self, sql: str, params: Params = ()) -> int:
        return int(self.cursor(sql, params).lastrowid)

    def has_table(self, name: str) -> bool:
        return self.row("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)) is not None

    def among(self, column: str, values: Sequence[int] | Sequence[str]) -> tuple[str, list[Any]]:
        return f"{column} IN ({', '.join('?' * len(values))})", [*values]

    def spans(self, spans: Sequence[tuple[str, int, int]]) -> tuple[str, list[Any]]:
        rows = ", ".join(["(?, ?, ?)"] * len(spans)) or "(NULL, NULL, NULL)"
        source = f"(SELECT column1 AS session_id, column2 AS first, column3 AS last FROM (VALUES {rows})) AS a"
        return source, [one for span in spans for one in span]

    def hold(self, session_id: str) -> None:
        """Nothing to do: there is one writer at a time."""

    def holds(self, lease: str, token: int) -> bool:
        return self.row(HELD, (lease, token)) is not None

    def now(self) -> float:
        return time.time()

    def reserve(self, highest: int, table: str = "messages") -> None:
        """AUTOINCREMENT continues from the highest id ever used."""
        if highest > self.last_number(table):
            self.run("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            self.run("INSERT INTO sqlite_sequence(name, seq) VALUES(?, ?)", (table, highest))

    def last_number(self, table: str) -> int:
        return int(self.value("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)) or 0)

    def store_message(self, count: tuple[str, Params], insert: tuple[str, Params]) -> int | None:
        return self.insert(*insert) if self.run(*count) else None


def _too_large(error: OverflowError) -> str:
    return "a number has more than 64 bits" if "int" in str(error) else "it is larger than the database can hold (1 GB)"


# -------------------------------------------------------- a caller's own SQL, allowed to read and nothing else

_READING = frozenset((codes.SQLITE_SELECT, codes.SQLITE_READ, codes.SQLITE_FUNCTION, codes.SQLITE_RECURSIVE))
# Those that would change something with an argument can't: the connection is opened for reading only.
_ABOUT = frozenset(
    "application_id collation_list compile_options data_version database_list encoding foreign_key_list freelist_count"
    " function_list index_info index_list index_xinfo integrity_check module_list page_count page_size pragma_list quick_check"
    " schema_version table_info table_list table_xinfo user_version".split()
)
_OTHERS_FAULT = (codes.SQLITE_CORRUPT, codes.SQLITE_BUSY, codes.SQLITE_IOERR, codes.SQLITE_NOTADB)


def read_only_rows(connection: Connection, sql: str, params: Sequence[Any]) -> list[dict[str, Any]]:
    """All rows of a query; InvalidInput when the statement would write, or SQLite rejects it."""
    connection.execute("PRAGMA table_list").fetchall()  # virtual tables are set up by statements that would be refused
    connection.set_authorizer(_judge)
    try:
        cursor = connection.execute(sql, params)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]
    except (Warning, TypeError, ValueError, OverflowError, *Error) as error:  # type: ignore[misc]
        if code(error) in _OTHERS_FAULT:
            raise
        if code(error) == codes.SQLITE_AUTH or "one statement" in str(error):
            raise InvalidInput(
                "sql() only reads: it takes one SELECT; use the methods of SessionDB to change something"
            ) from error
        raise InvalidInput(f"sql(): {error}") from error
    finally:
        connection.set_authorizer(None)


def _judge(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    is_allowed = action in _READING or (action == codes.SQLITE_PRAGMA and first in _ABOUT)
    return codes.SQLITE_OK if is_allowed else codes.SQLITE_DENY

"""SQLite's locks, held so that no other code in this process can drop them.

SQLite locks with POSIX locks, which belong to a process: another copy of SQLite in it (Python's sqlite3 is one) neither
sees our locks nor do we see its; and when any code closes the file, the kernel drops ours. The next
connection then takes itself for the last one and removes the WAL, with everything in it.

Locks of an open file description do not have these problems, and they conflict with POSIX locks of any process, this one
included. So the system calls of the SQLite that this program uses are replaced (thunks.py): the same locks on
the same bytes, on a description of our own. Another copy in this process is then like another process. Programs that lock
with POSIX locks, on this machine or in an older version, respect our locks and we respect theirs.

Conversely, closing a descriptor of ours would drop the POSIX locks of another copy in this process: such
descriptors are kept open until it holds none.

A description is shared with a forked child; the child gets one of its own at once.
Where this is not available (not Linux, another processor), SQLite's own locks are used: docs/format.md says what
must not be done then.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from pathlib import Path
from typing import Any

import apsw

from hermes.store.engines.sqlite import cipher
from hermes.store.engines.sqlite.thunks import SIZE, Thunks

try:
    import fcntl
except ImportError:  # not Linux: nothing below is used
    fcntl = None  # type: ignore[assignment]

_F_OFD_SETLK = 37
_SHARED = (0x40000002, 510)  # the bytes of a database file that every connection in WAL mode has a read lock on
_IN_USE = (128, 1)  # the same for a -shm file
_SHM_SEEN, _SHM_OURS, _LEAVE_ALONE = -1, -2, -3
_KEPT_MOST = 200  # descriptors that stay open for another copy of SQLite
_DESCRIPTOR_AT = 24  # in SQLite's unixFile, behind three pointers
_INNER_FILE_AT = 8  # in the file of SQLite3 Multiple Ciphers, behind one pointer: the unixFile


class _Locks:
    """What this process knows about its databases' locks."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.thunks: Thunks | None = None
        self.tried = False
        self.on_file: dict[tuple[int, int], int] = {}  # device and inode → the descriptor whose locks count
        self.kept: list[int] = []  # closed by SQLite, still open for another copy of it


_locks = _Locks()


def connect(name: str, **options: Any) -> apsw.Connection:
    """A connection to a database file, with locks that only closing it drops."""
    with _locks.mutex:
        thunks = _installed()
        connection = apsw.Connection(name, **options)  # takes no lock yet
        if thunks is not None:
            _adopt(thunks, connection)
    cipher.apply(connection)
    return connection


def watch_shared_memory(path: Path) -> None:
    """After the first read of a database: register its -shm file as well."""
    thunks = _locks.thunks
    if thunks is None:
        return
    with contextlib.suppress(OSError), _locks.mutex:
        wanted = _identity(os.stat(f"{path}-shm"))
        for number in _open_descriptors():
            if thunks.table[number] == _SHM_SEEN and _identity(os.fstat(number)) == wanted:
                thunks.table[number] = _SHM_OURS


def tidy() -> None:
    """Close the descriptors that SQLite has closed, unless another copy of it in this process has locks there."""
    thunks = _locks.thunks
    if thunks is None:
        return
    with _locks.mutex:
        for number in thunks.parked_descriptors():
            thunks.parked[number] = 0
            _lock(number, _F_OFD_SETLK, 2)  # F_UNLCK: SQLite trusts that closing does it
            _locks.kept.append(number)
        in_use = {thunks.table[number] for number in _open_descriptors()}
        for key, number in list(_locks.on_file.items()):
            if number not in in_use:
                del _locks.on_file[key]
                _locks.kept.append(number)
        if _locks.kept:
            used = _inodes_locked_here() if len(_locks.kept) <= _KEPT_MOST else set()
            for number in list(_locks.kept):
                if os.fstat(number).st_ino not in used:
                    _locks.kept.remove(number)
                    os.close(number)


def _installed() -> Thunks | None:
    """Replace SQLite's system calls once, before this process first opens a store."""
    if not _locks.tried and os.environ.get("HERMES_SQLITE_LOCKS") != "posix":
        _locks.tried = True
        vfs = None
        try:
            _try_kernel()
            vfs = apsw.VFS("hermes-system-calls", "unix")
            real_fcntl, real_close = vfs.xGetSystemCall("fcntl"), vfs.xGetSystemCall("close")
            if not real_fcntl or not real_close:
                return None
            thunks = Thunks(real_fcntl, real_close)
            if apsw.connections():  # opened by other code: their locks are already POSIX locks
                for number in _open_descriptors():
                    thunks.table[number] = _LEAVE_ALONE
            vfs.xSetSystemCall("close", thunks.close)
            vfs.xSetSystemCall("fcntl", thunks.fcntl)
            os.register_at_fork(after_in_child=_in_child)
            _locks.thunks = thunks
        except (OSError, ValueError, AttributeError, apsw.Error):
            pass
        finally:
            if vfs is not None:
                vfs.unregister()
    return _locks.thunks


def _try_kernel() -> None:
    """Raise OSError unless the kernel supports these locks."""
    if fcntl is None or struct.calcsize("P") != 8:
        raise OSError("not here")
    number = os.memfd_create("hermes-locks")
    try:
        _lock(number, _F_OFD_SETLK, fcntl.F_WRLCK)
    finally:
        os.close(number)


def _lock(number: int, command: int, kind: int, start: int = 0, length: int = 0) -> None:
    fcntl.fcntl(number, command, struct.pack("hhxxxxqqixxxx", kind, 0, start, length, 0))


def _adopt(thunks: Thunks, connection: apsw.Connection) -> None:
    """Use the locks of the one description that this process has for the file."""
    pointer = ctypes.c_void_p()
    connection.file_control("main", apsw.SQLITE_FCNTL_FILE_POINTER, ctypes.addressof(pointer))
    if pointer.value and cipher.IS_HERE:
        pointer = ctypes.c_void_p.from_address(pointer.value + _INNER_FILE_AT)
    try:
        number = ctypes.c_int.from_address((pointer.value or 0) + _DESCRIPTOR_AT).value if pointer.value else -1
        if not 0 <= number < SIZE:
            return
        key = _identity(os.fstat(number))
        if key != _identity(os.stat(connection.filename)):
            return
        if key not in _locks.on_file:
            _locks.on_file[key] = _opened_again(number)
        thunks.table[number] = _locks.on_file[key]
    except OSError:
        pass  # SQLite's own locks have to suffice


def _opened_again(number: int) -> int:
    """Open another description of the same file."""
    try:
        return os.open(f"/proc/self/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open_descriptors() -> list[int]:
    return [number for number in map(int, os.listdir("/proc/self/fd")) if number < SIZE]


def _inodes_locked_here() -> set[int]:
    """Files on which this process has POSIX locks: ours are not."""
    me, found = str(os.getpid()), set()
    with contextlib.suppress(OSError), open("/proc/locks") as lines:
        for line in lines:
            words = line.split()
            if words[1] == "POSIX" and words[4] == me:
                found.add(int(words[5].rpartition(":")[2]))
    return found


def _in_child() -> None:
    """A child must not share the parent's descriptions: unlocking here would unlock there.

    SQLite in the child assumes the locks it had in the parent. The locks that mark a file as in use are taken again,
    so that this holds for a store that the child opens.
    """
    _locks.mutex = threading.Lock()
    thunks = _locks.thunks
    if thunks is None:
        return
    with contextlib.suppress(OSError):
        mapped = set(_locks.on_file.values())
        for number in _open_descriptors():
            if number in mapped or thunks.table[number] in (_SHM_SEEN, _SHM_OURS):
                with contextlib.suppress(OSError):
                    fresh = _opened_again(number)
                    os.dup2(fresh, number, inheritable=False)
                    os.close(fresh)
                    _lock(number, _F_OFD_SETLK, fcntl.F_RDLCK, *(_SHARED if number in mapped else _IN_USE))

"""Whether a store's files are still the ones that were opened.

A program that has a file open continues to write to it after the file was deleted, moved or replaced, and no
other process ever reads that. So every commit checks the folder: while no file in it was created, removed or renamed
(one `fstat`), the files are in place.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_SETTLED = 100_000_000  # nanoseconds after which another change would change the folder's mtime


class Presence:
    """The files of one store, as they were when it was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = [f"{path}{end}" for end in ("", "-wal", "-shm")]
        self._files: dict[str, tuple[int, int]] = {}
        self._folder = -1
        self._unchanged = 0  # the folder's mtime when the files were last seen in place
        self.lost: str | None = None  # a file that is missing or was replaced

    def remember(self) -> None:
        """Record the current files as the right ones."""
        self._files = {name: found for name in self._names if (found := identity(name)) is not None}
        self._folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the folder."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def holds(self) -> bool:
        """Whether all files are in place. Once one is lost, the result stays False."""
        if self._folder < 0:
            return True
        folder = os.fstat(self._folder)
        if folder.st_ctime_ns == self._unchanged:
            return True
        for name, known in self._files.items():
            if identity(name) != known:
                self.lost = name
                return False
        if time.time_ns() - folder.st_ctime_ns > _SETTLED:
            self._unchanged = folder.st_ctime_ns
        return self.lost is None

    def database_is_here(self) -> bool:
        """Whether the database itself is still the same file, with no other -wal or -shm next to it."""
        database, *others = self._names
        return identity(database) == self._files.get(database) and all(
            identity(name) in (None, self._files.get(name)) for name in others
        )


def identity(name: str | Path) -> tuple[int, int] | None:
    """Device and inode of a file; None when there is none."""
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ----------------------------------------------------------------------------------------------------
# Who uses a database file, where the system tells (Linux).

_WRITE_LOCK = 120  # the byte of the -shm file that a writer locks


def holder_of(path: Path) -> str:
    """The processes that have the database open: ' (process 123, python)'."""
    try:
        wanted, me, found = path.stat(), os.getpid(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) == me:
                continue
            try:
                for number in os.listdir(f"/proc/{pid}/fd"):
                    seen = os.stat(f"/proc/{pid}/fd/{number}")
                    if (seen.st_ino, seen.st_dev) == (wanted.st_ino, wanted.st_dev):
                        name = Path(f"/proc/{pid}/comm").read_text().strip()
                        found.append(f"process {pid}, {name}")
                        break
            except OSError:
                continue
        return f" ({'; '.join(found)})" if found else ""
    except OSError:
        return ""


def stopped_holder(path: Path) -> int | None:
    """A process that was stopped (Ctrl-Z, SIGSTOP) while it held the database's write lock."""
    try:
        inode = os.stat(f"{path}-shm").st_ino
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state in ("T", "t") and _has_write_lock(pid, inode):
                    return int(pid)
            except OSError:
                continue
    except OSError:
        pass
    return None


def _has_write_lock(pid: str, inode: int) -> bool:
    for number in os.listdir(f"/proc/{pid}/fdinfo"):
        for line in Path(f"/proc/{pid}/fdinfo/{number}").read_text().splitlines():
            words = line.split()  # lock: 1: OFDLCK ADVISORY WRITE -1 00:1b:1234 120 120
            if words[:1] != ["lock:"] or words[4] != "WRITE" or not words[6].endswith(f":{inode}"):
                continue
            if int(words[7]) <= _WRITE_LOCK and (words[8] == "EOF" or int(words[8]) >= _WRITE_LOCK):
                return True
    return False

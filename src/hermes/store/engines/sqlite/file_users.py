"""Which processes use a database file, where the system reports it (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

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

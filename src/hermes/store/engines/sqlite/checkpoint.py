"""Getting what was written onto the disk, and from the WAL into the database, beside the writing.

A commit is safe once the WAL is synced up to it. SQLite would do that while it holds the write lock; done right after
the lock is given up, and before the caller is told, it promises the same and lets the next writer write meanwhile.
A passive checkpoint waits for nobody and stops nobody, but it writes and syncs a few megabytes: a thread with a
connection of its own does that, so that no append has to.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import apsw


class WalSync:
    """Syncs a database's WAL. (Its locks are on other files, so opening and closing it here is harmless.)"""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + "-wal")
        self._file = -1

    def __call__(self) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        os.fdatasync(self._file)

    def close(self) -> None:
        """Forget the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Checkpointer:
    """Makes a passive checkpoint each time it is woken. Its thread starts with the first one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wanted = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Ask for a checkpoint; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="hermes-checkpoint")
            self._thread.start()
        self._wanted.set()

    def stop(self) -> None:
        """Finish what is under way and end the thread."""
        self._stopped = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)
        except apsw.Error:
            return  # the last connection to close moves the WAL
        try:
            while True:
                self._wanted.wait()
                self._wanted.clear()
                if self._stopped:
                    return
                try:
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                except apsw.Error:
                    continue  # the WAL keeps everything; a later one will do it
        finally:
            connection.close()

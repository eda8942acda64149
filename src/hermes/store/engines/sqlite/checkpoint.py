"""Moving the WAL into the database, beside the writing.

A passive checkpoint waits for nobody and stops nobody, but it writes and syncs a few megabytes: a thread with a
connection of its own does that, so that no append has to.
"""

from __future__ import annotations

import threading
from pathlib import Path

import apsw


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

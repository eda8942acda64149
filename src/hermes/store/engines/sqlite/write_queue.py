"""A queue in front of SQLite's write lock, and of checkpoints.

SQLite's waiting writers sleep for long and poll, so some wait long. A file lock that is tried often lets the next one go on at
once; and no two of our processes write or checkpoint at the same moment. It is advisory: where it is not available, or its
holder hangs, SQLite's own lock and the retry around it still decide.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
from pathlib import Path

QUEUE_SECONDS = 2.0  # a writer that waits longer skips the queue and uses SQLite's own lock
_FIRST, _LAST = 0.000_2, 0.002  # seconds between two tries


class WriteQueue:
    """An advisory lock file, one holder at a time over all processes. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._held = False

    def enter(self, timeout: float = QUEUE_SECONDS) -> bool:
        """Wait for the lock; False on a timeout (or where there is no such lock)."""
        pause, until = _FIRST, 0.0
        try:
            if self._file < 0:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            while not self._held:
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._held = True
                except BlockingIOError:
                    now = time.monotonic()
                    until = until or now + timeout
                    if now >= until:
                        break
                    time.sleep(random.uniform(0.5, 1.5) * pause)
                    pause = min(1.2 * pause, _LAST)
        except OSError:
            pass  # it can't be made here, or this file system has no such locks
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

"""A queue in front of SQLite's write lock.

SQLite's own waiting sleeps longer and longer, so the unlucky wait long. Here waiters look at a file lock often, and the
more often the longer they have waited. It is a courtesy, not the lock itself: where it can't be had, or its
holder hangs, SQLite's lock and the retry around it still decide.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without flock: SQLite's own waiting has to do
    fcntl = None  # type: ignore[assignment]

_LOOK_AGAIN = (0.0004, 0.0002, 0.0001)  # seconds between looks: at first, after 5 ms, after 15 ms
_HANGING = 0.2  # someone does something long: no need to look that often


class Gate:
    """An advisory lock file, one holder at a time over all processes. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._held = False

    def enter(self, timeout: float = 0.0) -> bool:
        """Wait for one's turn; False when it did not come in time (or there is no such lock here)."""
        if fcntl is None or not self._open():
            return False
        if self._try():
            return True
        start = time.monotonic()
        while (waited := time.monotonic() - start) < timeout:
            time.sleep(_LOOK_AGAIN[0 if waited < 0.005 else 1 if waited < 0.015 else 2] if waited < _HANGING else 0.002)
            if self._try():
                return True
        return False

    def leave(self) -> None:
        """Let the next one in."""
        if self._held:
            self._held = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Forget the lock file."""
        self.leave()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self._held = True
        return True

    def _open(self) -> bool:
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                return False
        return True

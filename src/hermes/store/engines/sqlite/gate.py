"""A queue in front of SQLite's write lock.

SQLite lets waiting writers poll, so the unlucky wait long and all of them burn time. A file lock lets the kernel
wake the next writer at once. It is a courtesy, not the lock itself: where it can't be had, or its holder
hangs, SQLite's own lock and the retry around it still decide.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without flock: SQLite's own waiting has to do
    fcntl = None  # type: ignore[assignment]


class Gate:
    """An advisory lock file, one holder at a time over all processes. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._held = False
        self._waiter: threading.Thread | None = None

    def enter(self, timeout: float) -> bool:
        """Wait for one's turn; False when it did not come in time (or there is no such lock here)."""
        if fcntl is None or not self._open():
            return False
        if self._waiter is not None and self._waiter.is_alive():
            return False  # an earlier wait is still stuck behind a holder that hangs
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held = True
            return True
        except BlockingIOError:
            return self._wait(timeout)
        except OSError:
            return False

    def leave(self) -> None:
        """Let the next one in."""
        if self._held:
            self._held = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Forget the lock file."""
        self.leave()
        if self._file >= 0 and not (self._waiter is not None and self._waiter.is_alive()):
            os.close(self._file)
            self._file = -1

    def _open(self) -> bool:
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                return False
        return True

    def _wait(self, timeout: float) -> bool:
        """Most turns come within milliseconds: a thread blocks in the kernel so that this one can give up."""
        got, lock = threading.Event(), threading.Lock()
        abandoned = False

        def block() -> None:
            nonlocal abandoned
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            except OSError:
                return
            with lock:
                if abandoned:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                else:
                    got.set()

        self._waiter = threading.Thread(target=block, daemon=True, name="hermes-write-queue")
        self._waiter.start()
        deadline = time.monotonic() + timeout
        while not got.wait(max(0.0, deadline - time.monotonic())):
            with lock:
                if got.is_set():
                    break
                abandoned = True
                return False
        self._held = True
        return True

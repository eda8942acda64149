"""A queue in front of SQLite's write lock.

SQLite's waiting writers sleep and poll, so some wait long and all of them waste time. A file lock lets the
kernel wake the next one at once. It is advisory, not the lock itself: where it is not available, or its holder
hangs, SQLite's lock and the retry around it still decide.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without flock: SQLite's own waiting has to suffice
    fcntl = None  # type: ignore[assignment]

QUEUE_SECONDS = 2.0  # the queue is advisory: a writer that waits longer skips it and uses SQLite's own lock
RETRY_SECONDS = (0.020, 0.150)  # between two tries to get that lock


class WriteQueue:
    """An advisory lock file, one holder at a time over all processes. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._held = False
        self._waiter: _Waiter | None = None

    def enter(self, timeout: float = 0.0) -> bool:
        """Wait for the lock; False on a timeout (or where there is no such lock)."""
        if fcntl is None or not self._open():
            return False
        if self._waiter is not None and self._waiter.stuck:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if timeout <= 0:
                return False
            if self._waiter is None:
                self._waiter = _Waiter(self._file)
            if not self._waiter.wait(timeout):
                return False
        self._held = True
        return True

    def leave(self) -> None:
        """Release the lock to the next waiter."""
        if self._held:
            self._held = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the lock file."""
        self.leave()
        if self._waiter is not None:
            stuck = self._waiter.stuck
            self._waiter.end()
            self._waiter = None
            if stuck:  # its thread still waits in the kernel: the file stays open until that ends
                self._file = -1
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> bool:
        if self._file < 0:
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                return False
        return True


class _Waiter:
    """A thread that waits in the kernel on behalf of one that must be able to time out."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._wanted, self._got = threading.Lock(), threading.Lock()  # used as signals: held until signalled
        self._wanted.acquire()
        self._got.acquire()
        self._state = threading.Lock()
        self._ended = False
        self.stuck = False  # a wait timed out and is still in progress
        self._thread = threading.Thread(target=self._run, daemon=True, name="hermes-write-queue")
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        self._wanted.release()
        if self._got.acquire(timeout=timeout):
            return True
        with self._state:
            if self._got.acquire(blocking=False):  # the lock was acquired at the last moment
                return True
            self.stuck = True
            return False

    def end(self) -> None:
        """End the thread; it is joined unless it is stuck."""
        self._ended = True
        if not self.stuck:
            self._wanted.release()
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            if self._ended:
                return
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            except OSError:
                return
            with self._state:
                if self.stuck:
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                    self.stuck = False
                    if self._ended:
                        os.close(self._file)
                        return
                else:
                    self._got.release()

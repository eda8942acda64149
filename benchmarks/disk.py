"""How long the disk takes to make a small write safe, and waiting until it does so as fast as it can.

A contestant that rewrites a gigabyte leaves the disk busy, and rented disks answer only so many writes quickly and
are throttled after that; the next one to fsync would pay for it. So the writing rows let the disk rest before each
turn, and a turn that ended with a slow disk is named in the report.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

PROBES = 40
REST_SECONDS = 6.0  # before each turn, whatever the probe says: it cannot see how much is left until throttling
PATIENCE_SECONDS = 30.0
AT_REST = 1.6  # times the best median seen in this run
SLOW = 4.0  # the same, for a disk that spoils a measurement


class Disk:
    """The disk below one directory."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "fsync-probe"
        self.best_ms = self.probe()
        self.worst_ms = self.best_ms  # at the start of any turn

    def probe(self) -> float:
        """The median time of an fsync after writing 4 KB, in milliseconds."""
        taken = []
        descriptor = os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            for _ in range(PROBES):
                os.write(descriptor, bytes(4096))
                before = time.perf_counter()
                os.fsync(descriptor)
                taken.append(time.perf_counter() - before)
        finally:
            os.close(descriptor)
            self._file.unlink()
        return statistics.median(taken) * 1e3

    def settle(self) -> None:
        """Return when the disk is at rest, or after some patience."""
        os.sync()
        time.sleep(REST_SECONDS)
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            now = self.probe()
            self.best_ms = min(self.best_ms, now)
            if now <= AT_REST * self.best_ms or time.monotonic() > end:
                self.worst_ms = max(self.worst_ms, now)
                return
            time.sleep(1.0)

    def is_slow(self) -> bool:
        """Whether an fsync now takes several times what it takes at rest."""
        return self.probe() > SLOW * self.best_ms

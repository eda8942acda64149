"""The run itself: who takes part, on what, and the order of turns.

Every measurement is made in rounds; within a round each contestant has one turn, and the order rotates from
round to round, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cache import BuildError, Cache
from benchmarks.contestants import Contestant
from benchmarks.data import Data
from benchmarks.table import Rounds

KEYS = ("rival", "raw", "ours")
ConfigFor = Callable[[str, int], dict[str, Any]]  # (contestant's key, number of the round) → the job's configuration


@dataclass
class Bench:
    """What the groups of rows need to measure."""

    contestants: dict[str, Contestant]
    cache: Cache
    data: Data
    size: str  # what the stores are loaded with: XS or S
    ten_times: bool  # search and size at L as well
    rounds: int
    append_count: int  # messages a round
    slow_turns: list[str] = field(default_factory=list)  # those that ended with a slow disk
    _copies: dict[str, Path] = field(default_factory=dict)

    def turns(
        self,
        job: str,
        config_for: ConfigFor,
        *,
        rounds: int | None = None,
        timeout: float = 120.0,
        who: tuple[str, ...] = KEYS,
        watch: Callable[[str], Path] | None = None,
        settle: bool = False,
    ) -> Rounds:
        """Let the contestants take turns at a job; all results, in order of rounds.

        With `settle`, each turn waits until the disk is at rest again: what one contestant wrote must not
        slow the next.
        """
        order = [key for key in who if key in self.contestants]
        found: Rounds = {key: [] for key in order}
        for number in range(rounds or self.rounds):
            shift = -number % len(order) if order else 0
            for key in order[shift:] + order[:shift]:
                try:
                    config = {"timeout": timeout, **config_for(key, number)}
                except BuildError as error:
                    found[key].append({"error": str(error)})
                    continue
                if settle:
                    self.cache.disk.settle()
                say(f"{job}, round {number + 1}: {key}")
                contestant = self.contestants[key]
                beside = watch(key) if watch else None
                found[key].append(contestant.run(job, config, home=self.cache.home, timeout=timeout, watch=beside))
                if settle and self.cache.disk.is_slow():
                    self.slow_turns.append(f"{job} {number + 1} {key}")
        return found

    def store(self, key: str, size: str | None = None) -> Path:
        """The contestant's loaded store; for reading only."""
        return self.cache.store(self.contestants[key], size or self.size, self.data)

    def working_copy(self, key: str) -> Path:
        """A copy of the contestant's loaded store that all the writing rows of this run go on writing to."""
        if key not in self._copies:
            self._copies[key] = self.cache.copy(self.store(key), f"writing-{key}")
        return self._copies[key]


_START = time.monotonic()


def say(text: str) -> None:
    """Progress, on the error channel: the table alone is the output."""
    print(f"[{time.monotonic() - _START:6.0f} s] {text}", file=sys.stderr, flush=True)

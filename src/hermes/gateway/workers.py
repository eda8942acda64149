"""Worker threads: each session key has a lane. Within a lane jobs run one at a time, in order; lanes don't wait for each other.

A turn may take minutes, so there are as many threads as lanes with jobs, up to a number no machine should
need; beyond it lanes take turns, one job each. A lane without jobs is forgotten. `LoopCalls` is the way back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

MOST_THREADS = 256


class Lane:
    """The jobs of one key. `data` is the gateway's state of the running job."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.waiting: deque[Any] = deque()
        self.running: Any = None
        self.data: Any = None


class Workers:
    """Threads and lanes. `add` may be called from any thread; `work(lane, item)` is called in a lane's thread."""

    def __init__(self, work: Callable[[Lane, Any], None], *, most_threads: int = MOST_THREADS) -> None:
        self._work = work
        self._most = most_threads
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}  # those with jobs
        self._ready: deque[Lane] = deque()  # those of them that wait for a thread
        self._wake = threading.Condition(self._lock)
        self._threads = 0
        self._idle = 0  # threads that wait for a lane, or were just assigned one
        self._running = 0
        self._stopped = False
        self._log = logging.getLogger("hermes.gateway")

    def add(self, key: str, item: Any) -> None:
        """Append a job to a lane."""
        with self._lock:
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = Lane(key)
            lane.waiting.append(item)
            if lane.running is None and len(lane.waiting) == 1:
                self._assign_thread(lane)

    def data(self) -> list[Any]:
        """The state of every running job."""
        with self._lock:
            return [lane.data for lane in self._lanes.values() if lane.data is not None]

    def _assign_thread(self, lane: Lane, *, free: int = 0) -> None:
        """Have a thread take this lane; `free` threads will look for one anyway."""
        if self._stopped:
            return
        self._ready.append(lane)
        if len(self._ready) <= self._idle + free:  # each idle thread takes one lane
            self._wake.notify()
        elif self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._run, name="hermes-lane", daemon=True).start()

    def get(self, key: str) -> Lane | None:
        """The lane of a key, if it has jobs."""
        with self._lock:
            return self._lanes.get(key)

    def current(self, lane: Lane) -> Any:
        """The running or next job of a lane; None without one."""
        with self._lock:
            return lane.waiting[0] if lane.running is None and lane.waiting else lane.running

    def following(self, lane: Lane) -> Any:
        """The job after that; None without one."""
        with self._lock:
            waiting = list(lane.waiting)[1 if lane.running is None else 0 :][:1]
            return waiting[0] if waiting else None

    def waiting(self, lane: Lane) -> list[Any]:
        """The jobs that wait in a lane, in order."""
        with self._lock:
            return list(lane.waiting)

    @property
    def busy(self) -> int:
        """How many lanes have jobs."""
        return len(self._lanes)

    @property
    def running(self) -> int:
        """How many jobs run now."""
        return self._running

    def under_way(self) -> list[Any]:
        """The jobs that run now."""
        with self._lock:
            return [lane.running for lane in self._lanes.values() if lane.running is not None]

    def stop(self) -> None:
        """Begin no more jobs; running ones continue. Waiting ones are in the store."""
        with self._lock:
            self._stopped = True
            self._ready.clear()
            self._wake.notify_all()

    def _run(self) -> None:
        while (lane := self._next()) is not None:
            try:
                self._work(lane, lane.running)
            except BaseException:  # the lane continues with its next job
                self._log.exception("a job in %s failed", lane.key)
            with self._lock:
                self._running -= 1
                lane.running = lane.data = None
                if lane.waiting:
                    self._assign_thread(lane, free=1)
                else:
                    del self._lanes[lane.key]

    def _next(self) -> Lane | None:
        """A lane with its next job taken; None: this thread is not needed any more."""
        with self._lock:
            while not self._ready:
                if self._stopped:
                    return None
                self._idle += 1
                called = self._wake.wait(30.0)
                self._idle -= 1
                if not called and not self._ready:
                    self._threads -= 1
                    return None
            lane = self._ready.popleft()
            lane.running = lane.waiting.popleft()
            self._running += 1
            return lane


class LoopCalls:
    """Calls from any thread to the event loop, made in order; calls that come close together share one wake-up of it."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._log = logging.getLogger("hermes.gateway")

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Have the loop call this soon. After the loop's end nothing is called: unsent messages are in the outbox."""
        with self._lock:
            self._calls.append((work, arguments))
            first = len(self._calls) == 1
        if first and self.loop is not None:
            try:
                self.loop.call_soon_threadsafe(self._run)
            except RuntimeError:
                pass

    def _run(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
        for work, arguments in calls:
            try:
                work(*arguments)
            except Exception:  # the next calls are still made
                self._log.exception("a call on the gateway's event loop failed")


def log_failure(task: asyncio.Task[Any]) -> None:
    """The callback of a task that is not awaited: log its failure."""
    if not task.cancelled() and task.exception() is not None:
        logging.getLogger("hermes.gateway").error("a background task failed", exc_info=task.exception())

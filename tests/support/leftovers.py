"""The servers that a test run started end with the run, also when it is killed.

SIGTERM ends a run as Ctrl-C does: fixtures are torn down, servers stopped. What can't be torn down (a killed process has
no last word) is ended by a watcher, a process of its own: every process of a run inherits the run's mark in its
environment, and when the run is over, the watcher ends those that still have it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

MARK = "HERMES_TEST_RUN"
_GRACE = os.environ.get("HERMES_TEST_GRACE", "20")  # seconds for the processes of a run to come to their own end
_LAST = 3.0  # and for those that were asked to end


def pytest_configure(config: pytest.Config) -> None:
    if threading.current_thread() is threading.main_thread():
        _end_by_sigterm()
    if not hasattr(config, "workerinput"):  # the processes xdist starts belong to this one's run
        name = os.urandom(8).hex()
        os.environ[MARK] = f"{os.environ.get(MARK, '')}/{name}"  # a run in a run has both marks
        config.stash_of_watcher = _watcher(name)  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    watcher: Any = getattr(config, "stash_of_watcher", None)
    if watcher is not None:
        os.environ[MARK] = os.environ[MARK].rpartition("/")[0]
        watcher.stdin.close()


def _end_by_sigterm() -> None:
    owner = os.getpid()

    def ended(*_: object) -> None:
        if os.getpid() != owner:  # a forked child has nothing of this run's to tear down
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        raise KeyboardInterrupt("ended by SIGTERM")

    signal.signal(signal.SIGTERM, ended)


def _watcher(name: str) -> subprocess.Popen[bytes] | None:
    if not Path("/proc/self/environ").exists():
        return None
    return subprocess.Popen(
        [sys.executable, "-S", __file__, name, _GRACE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/",
        start_new_session=True, env={"PATH": os.environ.get("PATH", "")},
    )  # fmt: skip


def marked(name: str) -> Iterator[int]:
    """The processes of a run."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # (a process that is gone but not waited for has an empty environment)
                if f"/{name}".encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                    yield int(entry.name)
            except OSError:
                continue  # gone, or somebody else's


def _send(number: int, name: str) -> None:
    for pid in marked(name):
        try:
            os.kill(pid, number)
        except OSError:
            pass


def _gone(name: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(marked(name)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _watch(name: str, grace: float) -> None:
    sys.stdin.buffer.read()  # to its end: the run is over
    if _gone(name, grace):
        return
    _send(signal.SIGTERM, name)
    seconds = _LAST
    for _ in range(600):  # again: a process may start others while the list is read
        if _gone(name, seconds):
            return
        _send(signal.SIGKILL, name)
        seconds = 0.1


if __name__ == "__main__":
    _watch(sys.argv[1], float(sys.argv[2]))

"""Processes and folders that are worth having once."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import Nursery, size

_ROOM = 300 << 20
_LIMIT = size(400, 1200)  # seconds for one test: many times what it takes, for machines that have other work, too


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A store that hangs in this process fails its test and not the whole run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        pytest.fail(f"it hangs: not done after {_LIMIT} s", pytrace=True)

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _in_memory() -> Iterator[Path]:
    """Memory is as good as a disk where processes die and the machine does not, and it need not wait for one."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > _ROOM
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=memory if roomy else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A quick folder for one test."""
    with _in_memory() as one:
        yield one


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in which a process without any rights of its own may do everything."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    """A quick folder for what the tests of a file share."""
    with _in_memory() as one:
        yield one


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one

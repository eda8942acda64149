"""One process at a time imports a foreign file into a store of this machine.

An import that has read a file and stores it after a later one has stored more would take the newer messages for messages that
were taken back there, and hide them. So reading and storing a file are one step, and a lock in the home (never one on the
foreign file) keeps other processes out until it is done. The lock goes with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.home import get_hermes_home, make_private

NAME = "import.lock"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Hold the lock of a foreign file during this block; waits while another process holds it."""
    place = get_hermes_home() / NAME
    make_private(place.parent)
    # A byte of the lock file for each foreign file: imports of different files don't wait for each other.
    byte = int.from_bytes(hashlib.sha256(os.fsencode(path.resolve())).digest()[:6], "big")
    handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX, 1, byte)
        yield
    finally:
        os.close(handle)

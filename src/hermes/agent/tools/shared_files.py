"""Small files that several processes share: written whole or not at all, one writer at a time, readable by the owner only."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.errors import ToolError
from hermes.whole_files import write_whole

LOCK_SECONDS = 10.0


@contextmanager
def locked(folder: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """One writer at a time in this folder, across processes; the folder is created if it is missing.

    ToolError when another process still writes after so many seconds.
    """
    with explained(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ToolError(f"another program is writing in {folder}; try again in a moment") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)  # this also releases the lock


def write_shared(path: Path, text: str) -> None:
    """Replace the file in one step; readers see the old text or the new one, also after a crash. A link stays a link."""
    with explained(path):
        write_whole(Path(os.path.realpath(path)), text.encode(errors="surrogateescape"))


def read_whole(path: Path) -> str | None:
    """The text of a file, bytes that are no UTF-8 preserved; None when there is no such file."""
    with explained(path):
        try:
            return path.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            return None


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an OSError into a ToolError that names the file."""
    try:
        yield
    except OSError as error:
        raise ToolError(f"{path}: {error.strerror or error}") from error

"""A copy of standard input or of a pipe, made by an import: detecting a format consumes bytes.

For a store that is not encrypted the copy is a file in the import's own temporary folder. For an encrypted store nothing may lie
on the disk in plain text, not even for a moment: the copy is in memory, and longer input than fits there is refused.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO

from hermes.errors import InvalidInput

MOST_IN_MEMORY = 128 << 20  # bytes: an import stays below 200 MB
_DATABASE = b"SQLite format 3\0"
_INSTEAD = "the store is encrypted, so it is not copied to the disk; import it as a file"


def copied(stream: BinaryIO, folder: Path, *, encrypted: bool) -> Path:
    """The bytes of a stream as a file that can be read several times. `encrypted`: they must not come to a disk."""
    if encrypted:
        return _in_memory(stream)
    copy = folder / "standard-input"
    with copy.open("wb") as file:
        shutil.copyfileobj(stream, file)
    return copy


def _in_memory(stream: BinaryIO) -> Path:
    """A file without a name, open until this process ends."""
    if not hasattr(os, "memfd_create"):
        raise InvalidInput(f"standard input can't be kept in memory on this system, and {_INSTEAD}")
    data = stream.read(MOST_IN_MEMORY + 1)
    if data.startswith(_DATABASE):
        raise InvalidInput(f"standard input is a database, and {_INSTEAD}")
    if len(data) > MOST_IN_MEMORY:
        raise InvalidInput(f"standard input is longer than {MOST_IN_MEMORY >> 20} MB, and {_INSTEAD}")
    handle = os.memfd_create("hermes-import")
    with os.fdopen(handle, "wb", closefd=False) as file:
        file.write(data)
    return Path(f"/proc/self/fd/{handle}")

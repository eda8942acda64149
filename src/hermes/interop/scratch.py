"""Files that an import keeps on the side: a copy of standard input or of a pipe, since telling a format consumes bytes.

For a store that is not encrypted the copy is a file in a folder below TMPDIR; a folder that a killed import left is removed by
the next one. For an encrypted store nothing may lie on the disk in plain text, not even for a moment: the copy is in memory, and
longer input than fits there is refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hermes.errors import InvalidInput

MOST_IN_MEMORY = 128 << 20  # bytes: an import stays below 200 MB
_PREFIX = "hermes-import-"
_DATABASE = b"SQLite format 3\0"


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for this import; removes those of imports that no longer run."""
    remove_stale()
    made = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def remove_stale() -> None:
    """Remove the folders that killed imports of this user have left."""
    with suppress(OSError):
        for found in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            with suppress(OSError):
                number = found.name.removeprefix(_PREFIX).partition("-")[0]
                ours = found.lstat().st_uid == os.getuid() and found.is_dir() and not found.is_symlink()
                if ours and not (number.isdigit() and _runs(int(number))):
                    shutil.rmtree(found, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def copied(stream: BinaryIO, scratch: Path, *, encrypted: bool) -> Path:
    """The bytes of a stream as a file that can be read several times. `encrypted`: they must not come to a disk."""
    if encrypted:
        return _in_memory(stream)
    copy = scratch / "standard-input"
    with copy.open("wb") as file:
        shutil.copyfileobj(stream, file)
    return copy


def _in_memory(stream: BinaryIO) -> Path:
    """A file without a name, open until this process ends."""
    instead = "the store is encrypted, so it is not copied to the disk; import it as a file"
    if not hasattr(os, "memfd_create"):
        raise InvalidInput(f"standard input can't be kept in memory on this system, and {instead}")
    handle = os.memfd_create("hermes-import")
    length = 0
    while chunk := stream.read(1 << 20):
        if not length and chunk.startswith(_DATABASE):
            raise InvalidInput(f"standard input is a database, and {instead}")
        length += len(chunk)
        if length > MOST_IN_MEMORY:
            raise InvalidInput(f"standard input is longer than {MOST_IN_MEMORY >> 20} MB, and {instead}")
        while chunk:
            chunk = chunk[os.write(handle, chunk) :]
    return Path(f"/proc/self/fd/{handle}")

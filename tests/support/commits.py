"""Count the transactions that a database has committed, in its WAL."""

from __future__ import annotations

import struct
from pathlib import Path


def commits(database: Path) -> tuple[bytes, int]:
    """The commits in a database's WAL since it was last begun anew, and the salt that tells when it is."""
    data = database.with_name(f"{database.name}-wal").read_bytes()
    size, salt = struct.unpack(">I", data[8:12])[0], data[16:24]
    frames = range(32, len(data) - 24 - size + 1, 24 + size)
    ours = (frame for frame in frames if data[frame + 8 : frame + 16] == salt)
    return salt, sum(data[frame + 4 : frame + 8] != bytes(4) for frame in ours)

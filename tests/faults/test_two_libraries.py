"""Python's own sqlite3, or anything else, uses the file in the very process that has the store open.

Two copies of SQLite in one process do not know of each other, and when one closes the file the system drops the other's
POSIX locks. Whatever the other does, nothing that was acknowledged may be lost.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from . import Remote, contents, store

WAYS = ["select", "bytes", "write", "fork"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its locks are POSIX locks there: see docs/format.md")


def prepared(folder: Path) -> Path:
    path = folder / "state.db"
    with store(path) as db:
        for name in ("talk", "theirs", "a", "b", "c", "d"):
            db.create_session(name, "cli")
    return path


def stored(path: Path) -> list[str]:
    with store(path) as db:
        assert db.check() == []
        return [text for row in db.list_sessions_rich(limit=100) for text in contents(db.get_messages(row["id"]))]


@pytest.mark.parametrize("way", WAYS)
def test_what_was_acknowledged_is_there_after_another_library_used_the_file(folder: Path, way: str) -> None:
    path = prepared(folder)
    with Remote(path) as ours:
        wanted = ["first"]
        ours.append_message("talk", "user", "first")
        wanted += ours.foreign(way, str(path)) or []
        with Remote() as other:  # it comes and goes: the last one to close removes the WAL
            other.foreign("select", str(path))
            other.open(str(path))
            other.append_message("talk", "user", "other")
            other.close()
        wanted.append("other")
        for number in range(20):
            ours.append_message("talk", "user", f"later {number}")
            wanted.append(f"later {number}")
        ours.kill()
    assert sorted(stored(path)) == sorted(wanted)


def test_descriptors_are_closed_and_the_last_one_to_leave_removes_the_wal(folder: Path) -> None:
    path = prepared(folder)
    with Remote() as ours:
        counts = []
        for number in range(6):
            ours.open(str(path))
            ours.append_message("talk", "user", f"m{number}")
            ours.foreign("select", str(path))
            ours.close()
            counts.append(ours.descriptors())
            assert not os.path.exists(f"{path}-wal"), "nobody uses the store, but its WAL is left"
        assert len(set(counts[1:])) == 1, counts
    assert len(stored(path)) == 6

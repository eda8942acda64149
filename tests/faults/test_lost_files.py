"""Files of an open store are deleted, moved or replaced: the next append says so instead of writing where nobody reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from . import Refused, Remote, contents, store

ACKNOWLEDGED = [f"m{number}" for number in range(5)]


def writing(folder: Path) -> tuple[Remote, Path]:
    path = folder / "home" / "state.db"
    remote = Remote(path)
    remote.create_session("talk", "cli")
    for text in ACKNOWLEDGED:
        remote.append_message("talk", "user", text)
    return remote, path


def replace(path: Path) -> None:
    shutil.copy(path, f"{path}.other")
    os.replace(f"{path}.other", path)


WAYS: dict[str, Callable[[Path], object]] = {
    "home deleted": lambda path: shutil.rmtree(path.parent),
    "deleted": Path.unlink,
    "replaced": replace,
    "moved": lambda path: path.rename(f"{path}.moved"),
    "home moved": lambda path: path.parent.rename(f"{path.parent}.moved"),
    "wal deleted": lambda path: os.unlink(f"{path}-wal"),
    "shm deleted": lambda path: os.unlink(f"{path}-shm"),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_append_to_a_file_that_is_gone_is_refused(folder: Path, way: str) -> None:
    remote, path = writing(folder)
    with remote:
        WAYS[way](path)
        for turn in range(3):
            with pytest.raises(Refused) as refused:
                remote.append_message("talk", "user", f"lost {turn}")
            assert refused.value.kind == "StoreGone", refused.value
            assert str(path) in refused.value.text
            assert "open the store again" in refused.value.text
        assert contents(remote.get_messages("talk"))[:5] == ACKNOWLEDGED, "what it had can still be read"
        remote.close()


@pytest.mark.parametrize("way", ["wal deleted", "shm deleted"])
def test_what_only_the_lost_wal_had_is_saved(folder: Path, way: str) -> None:
    remote, path = writing(folder)
    with remote:
        WAYS[way](path)
        with pytest.raises(Refused):
            remote.append_message("talk", "user", "maybe")
        remote.kill()
    with store(path) as db:
        assert contents(db.get_messages("talk"))[:5] == ACKNOWLEDGED
        db.append_message("talk", "user", "on it goes")
        assert db.check() == []

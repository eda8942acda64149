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


def delete_home(path: Path) -> None:
    shutil.rmtree(path.parent)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    shutil.copy(path, f"{path}.other")
    os.replace(f"{path}.other", path)


def move(path: Path) -> None:
    path.rename(f"{path}.moved")


def move_home(path: Path) -> None:
    path.parent.rename(f"{path.parent}.moved")


def delete_wal(path: Path) -> None:
    os.unlink(f"{path}-wal")


def delete_shm(path: Path) -> None:
    os.unlink(f"{path}-shm")


WAYS = [delete_home, delete, replace, move, move_home, delete_wal, delete_shm]


@pytest.mark.parametrize("way", WAYS)
def test_an_append_to_a_file_that_is_gone_is_refused(folder: Path, way: Callable[[Path], None]) -> None:
    remote, path = writing(folder)
    with remote:
        way(path)
        for turn in range(3):
            with pytest.raises(Refused) as refused:
                remote.append_message("talk", "user", f"lost {turn}")
            assert refused.value.kind == "StoreGone", refused.value
            assert str(path) in refused.value.text
            assert "open the store again" in refused.value.text
        assert contents(remote.get_messages("talk"))[:5] == ACKNOWLEDGED, "what it had can still be read"
        remote.close()


@pytest.mark.parametrize("way", [delete_wal, delete_shm])
def test_what_only_the_lost_wal_had_is_saved(folder: Path, way: Callable[[Path], None]) -> None:
    remote, path = writing(folder)
    with remote:
        way(path)
        with pytest.raises(Refused):
            remote.append_message("talk", "user", "maybe")
        remote.kill()
    with store(path) as db:
        assert contents(db.get_messages("talk"))[:5] == ACKNOWLEDGED
        db.append_message("talk", "user", "on it goes")
        assert db.check() == []


@pytest.mark.parametrize("name", ["state.db", "link.db"])
def test_a_link_or_a_relative_path_names_the_same_store_for_ever(folder: Path, name: str) -> None:
    real = folder / "real"
    real.mkdir()
    (folder / "link.db").symlink_to(real / "state.db")
    with Remote() as remote:
        remote.os("chdir", str(real if name == "state.db" else folder))
        remote.open(name)
        remote.create_session("talk", "cli")
        remote.append_message("talk", "user", "one")
        remote.os("chdir", "/")
        remote.append_message("talk", "user", "two")
        assert remote.search_messages("two")
        remote.close()
    with store(real / "state.db") as db:
        assert contents(db.get_messages("talk")) == ["one", "two"]
        assert db.check() == []
    assert sorted(entry.name for entry in real.iterdir() if "-" not in entry.name) == ["sessions", "state.db"]

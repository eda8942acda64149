"""A home that may not be written: writing is refused by name, reading and searching go on, with everything there is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from . import Refused, Remote, can_mount, need, store, word

COUNT = 90


def fill(path: Path) -> list[int]:
    """A store with messages above and below the index's mark, closed, that anyone may read."""
    with store(path) as db:
        db.create_session("talk", "cli")
        ids = [db.append_message("talk", "user", f"{word('w', n)} hello") for n in range(COUNT)]
    readable(path.parent)
    return ids


def readable(folder: Path) -> None:
    for one in folder.rglob("*"):
        one.chmod(0o755 if one.is_dir() else 0o644)
    folder.chmod(0o755)


def assert_reads(remote: Remote, path: Path, ids: list[int]) -> None:
    """Opened for reading, everything is shown and found."""
    assert remote.open(str(path), read_only=True) is True
    assert [row["id"] for row in remote.get_messages("talk")] == ids
    assert remote.list_sessions_rich()[0]["message_count"] == len(ids)
    for number in (0, 63, len(ids) - 1):
        assert [hit["id"] for hit in remote.search_messages(word("w", number))] == [ids[number]]
    with pytest.raises(Refused) as refused:
        remote.append_message("talk", "user", "x")
    assert refused.value.kind == "StoreReadOnly"
    remote.close()


def assert_refuses(remote: Remote, path: Path) -> None:
    with pytest.raises(Refused) as refused:
        remote.open(str(path))
    assert refused.value.kind == "StoreReadOnly", refused.value
    assert str(path) in refused.value.text


@pytest.mark.parametrize("what", ["folder", "file", "both"])
def test_without_permission_to_write(open_folder: Path, what: str) -> None:
    path = open_folder / "home" / "state.db"
    ids = fill(path)
    path.parent.chmod(0o555 if what in ("folder", "both") else 0o777)
    path.chmod(0o444 if what in ("file", "both") else 0o666)
    before = sorted(one.name for one in path.parent.iterdir())
    with Remote() as remote:
        remote.become_nobody()
        assert_refuses(remote, path)
        assert_reads(remote, path, ids)
    path.parent.chmod(0o755)
    after = sorted(one.name for one in path.parent.iterdir() if one.suffix not in (".db-shm", ".db-wal"))
    assert after == before, "nothing was made beside it"


def test_a_new_store_where_nothing_may_be_made(open_folder: Path) -> None:
    home = open_folder / "home"
    home.mkdir()
    home.chmod(0o555)
    with Remote() as remote:
        remote.become_nobody()
        for path in (home / "state.db", home / "deeper" / "state.db"):
            with pytest.raises(Refused) as refused:
                remote.open(str(path))
            assert refused.value.kind == "StoreReadOnly", refused.value
            assert str(path) in refused.value.text
    assert list(home.iterdir()) == []


def test_a_file_that_may_not_even_be_read_is_a_typed_error(open_folder: Path) -> None:
    path = open_folder / "home" / "state.db"
    fill(path)
    path.chmod(0)
    with Remote() as remote:
        remote.become_nobody()
        for read_only in (True, False):
            with pytest.raises(Refused) as refused:
                remote.open(str(path), read_only=read_only)
            assert "StoreError" in refused.value.kinds, refused.value
            assert str(path) in refused.value.text


def test_a_read_only_file_system(tmp_path: Path) -> None:
    need(can_mount(), "file systems can't be mounted here (it takes root, or user namespaces)")
    with Remote(own_mounts=True) as remote:
        disk = tmp_path / "disk"
        assert remote.mount(str(disk), "-t", "tmpfs", "faults") == ""
        path = disk / "state.db"
        remote.open(str(path))
        remote.create_session("talk", "cli")
        ids = [remote.append_message("talk", "user", f"{word('w', n)} hello") for n in range(COUNT)]
        remote.close()
        assert remote.mount(str(disk), "-o", "remount,ro") == ""
        assert_refuses(remote, path)
        assert_reads(remote, path, ids)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_what_a_killed_writer_left_in_its_wal_is_read_where_nothing_may_be_written(
    open_folder: Path, shared_memory: bool
) -> None:
    """A snapshot on a read-only medium: the newest messages are still in the -wal. All of it, or a word."""
    path = open_folder / "home" / "state.db"
    with Remote() as other, Remote(path) as remote:
        remote.create_session("talk", "cli")
        other.look(str(path))  # keeps the WAL from being emptied
        ids = [remote.append_message("talk", "user", f"{word('w', n)} hello") for n in range(COUNT)]
        remote.kill()
        other.kill()
    assert (path.parent / "state.db-wal").stat().st_size > 0
    if not shared_memory:
        (path.parent / "state.db-shm").unlink()
    readable(path.parent)
    path.parent.chmod(0o555)
    with Remote() as nobody:
        nobody.become_nobody()
        try:
            assert_reads(nobody, path, ids)
        except Refused as refused:  # without shared memory it takes a copy; saying so is an answer, a part is none
            if shared_memory or refused.kind != "StoreReadOnly":
                raise


def test_a_read_only_look_never_changes_a_byte(folder: Path) -> None:
    path = folder / "home" / "state.db"
    ids = fill(path)
    shutil.rmtree(path.parent / "sessions")
    before = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file()}
    with Remote() as remote:
        assert_reads(remote, path, ids)
    after = {one.name: one.read_bytes() for one in path.parent.iterdir() if one.is_file() and "-shm" not in one.name}
    after = {name: data for name, data in after.items() if not (name.endswith("-wal") and not data)}
    before = {name: data for name, data in before.items() if "-shm" not in name}
    assert after == before
    assert not (path.parent / "sessions").exists()

"""The -wal beside the file: what a killed process left in it is there; what does not belong there does no harm."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from . import Nursery, Remote, assert_found, clone, contents, exports, size, step, store

MANY = size(300, 3000)


def left_behind(folder: Path, count: int, name: str = "talk") -> tuple[Path, list[tuple[int, str, str, int]]]:
    """A killed writer's store, with all its messages in a -wal that no checkpoint could empty."""
    path = folder / "state.db"
    with Remote() as reader, Remote(path) as writer:
        writer.create_session(name, "cli")
        writer.append(name, "early", 0, 3)
        reader.look(str(path))
        acks = [(one, name, "w", n) for n, one in enumerate(writer.append(name, "w", 0, count))]
        writer.kill()
        reader.kill()
    assert Path(f"{path}-wal").stat().st_size > count * 4000
    return path, acks


@pytest.mark.parametrize("files", ["all", "without shared memory", "shared memory of another"])
def test_everything_in_a_large_wal_left_by_a_killed_process_is_there(folder: Path, files: str) -> None:
    path, acks = left_behind(folder / "store", MANY)
    memory = Path(f"{path}-shm")
    if files == "without shared memory":
        memory.unlink()
    elif files == "shared memory of another":
        memory.write_bytes(random.Random(1).randbytes(32768))
    with store(path, read_only=True) as db:
        assert len(db.get_messages("talk")) == MANY + 3
        assert_found(db, acks[:: MANY // 20])
    with store(path) as db:
        assert [row["id"] for row in db.get_messages("talk")[3:]] == [one for one, *_ in acks]
        assert_found(db, acks[:: MANY // 20])
        assert db.check() == []
    assert not Path(f"{path}-wal").exists() or Path(f"{path}-wal").stat().st_size == 0
    with store(path) as db:
        assert len(db.get_messages("talk")) == MANY + 3


def wal_header(page_size: int, dice: random.Random) -> bytes:
    """A well-formed beginning of a WAL, checksum and all."""
    start = struct.pack(">6I", 0x377F0682, 3007000, page_size, 0, dice.randrange(1 << 32), dice.randrange(1 << 32))
    first = second = 0
    for x, y in struct.iter_unpack("<2I", start):
        first = (first + x + second) & 0xFFFFFFFF
        second = (second + y + first) & 0xFFFFFFFF
    return start + struct.pack(">2I", first, second)


def rubbish(kind: str) -> bytes:
    dice = random.Random(kind)
    return {
        "empty": b"",
        "text": b"not a log at all\n" * 3000,
        "random": dice.randbytes(200_000),
        "zeros": bytes(100_000),
        "header only": wal_header(2048, dice),
        "header and half a frame": wal_header(2048, dice) + dice.randbytes(1500),
        "header and random frames": wal_header(2048, dice) + dice.randbytes(2072 * 12),
        "header of another page size": wal_header(8192, dice) + dice.randbytes(8216 * 12),
        "impossible page size": wal_header(1, dice) + dice.randbytes(8216 * 3),
    }[kind]


KINDS = (
    "empty", "text", "random", "zeros", "header only", "header and half a frame", "header and random frames",
    "header of another page size", "impossible page size",
)  # fmt: skip


@pytest.fixture(scope="module")
def base(module_folder: Path) -> Path:
    """A store that was closed: all of it is in the file itself."""
    folder = module_folder / "base"
    with store(folder / "state.db") as db:
        for name in ("talk", "other"):
            db.create_session(name, "cli")
            for number in range(80):
                db.append_message(name, "user", f"{name}word{number}q hello")
        db.catch_up()
    assert not (folder / "state.db-wal").exists()
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_rubbish_in_place_of_the_wal_takes_nothing_away(base: Path, folder: Path, kind: str) -> None:
    path = clone(base, folder / "work")
    Path(f"{path}-wal").write_bytes(rubbish(kind))
    with Remote() as remote:
        for read_only in (True, False):
            remote.open(str(path), read_only=read_only)
            for name in ("talk", "other"):
                assert contents(remote.get_messages(name)) == [f"{name}word{n}q hello" for n in range(80)]
            assert len(remote.search_messages("talkword7q")) == 1
            if not read_only:
                remote.append_message("talk", "user", "still here")
                assert remote.check() == []
            remote.close()


def foreign_wal(folder: Path, kind: str) -> Path:
    """The -wal of some other database, with whole and valid frames in it."""
    if kind == "another store":
        return Path(f"{left_behind(folder, 40, 'theirs')[0]}-wal")
    path = folder / "other.db"
    folder.mkdir()
    pages = 2048 if kind == "another program" else 8192
    with closing(sqlite3.connect(path)) as sql:
        sql.executescript(f"PRAGMA page_size={pages}; PRAGMA journal_mode=WAL; CREATE TABLE recipes(name)")
        sql.executemany("INSERT INTO recipes VALUES (?)", [(f"soup {n}" * 200,) for n in range(100)])
        sql.commit()
        copy = folder / "copy-wal"
        shutil.copy(f"{path}-wal", copy)
    return copy


@pytest.mark.parametrize("kind", ["another store", "another program", "another program with larger pages"])
def test_the_wal_of_another_database_takes_nothing_away_for_good(
    nursery: Nursery, base: Path, folder: Path, kind: str
) -> None:
    """SQLite can't tell whose log it is. We either notice, or have everything back after a repair."""
    path = clone(base, folder / "work")
    with store(path, read_only=True) as db:
        shown = exports(db)
    shutil.copy(foreign_wal(folder / "other", kind), f"{path}-wal")

    def everything() -> dict[str, Any]:
        life = nursery.life(step("open", str(path)), step("everything", ["talkword7q"]), step("close"))
        assert life["status"] == 0, life["status"]
        for reply in life["replies"]:
            if "error" in reply:
                assert reply["error"]["type"] in ("StoreCorrupt", "NotADatabase"), reply["error"]["trace"]
        return life["replies"][1]["ok"] if len(life["replies"]) == 3 else {"sessions": {}}

    if everything()["sessions"] != shown:
        found = nursery.run(step("module", "hermes.cli.main", "sessions", "check", str(path)))[0]
        assert found["code"] == 1, f"check sees nothing: {found['out']}"
        mended = nursery.run(step("module", "hermes.cli.main", "sessions", "rebuild", str(path)))[0]
        assert mended["code"] == 0, mended["out"]
        after = everything()
        for name, one in shown.items():
            assert contents(after["sessions"][name]["messages"]) == contents(one["messages"])
        assert after["found"]["talkword7q"]


def test_a_process_that_merely_opens_and_closes_leaves_the_wal_of_the_others_alone(folder: Path) -> None:
    path = folder / "state.db"
    with Remote(path) as writer, Remote() as visitor:
        writer.create_session("talk", "cli")
        acks = [(one, "talk", "w", n) for n, one in enumerate(writer.append("talk", "w", 0, 20))]
        log = os.stat(f"{path}-wal").st_ino
        for turn in range(10):
            visitor.open(str(path), read_only=bool(turn % 2))
            visitor.close()
            acks += [(one, "talk", "w", 20 + turn) for one in writer.append("talk", "w", 20 + turn)]
            assert os.stat(f"{path}-wal").st_ino == log, "another -wal lies in its place"
            assert os.stat(f"{path}-wal").st_size > 0
        writer.kill()
    with store(path) as db:
        assert [row["id"] for row in db.get_messages("talk")] == [one for one, *_ in acks]
        assert_found(db, acks)
        assert db.check() == []


def test_a_checkpoint_of_another_process_makes_no_stored_message_a_failed_one(folder: Path) -> None:
    """The WAL is so long that each commit wants a checkpoint, a reader keeps it so, and another process checkpoints."""
    path = folder / "state.db"
    told = [f"{number} " + "many words " * 20_000 for number in range(150)] + [f"{number} few" for number in range(600)]
    with Remote() as reader, Remote() as other, Remote(path) as writer:
        writer.create_session("talk", "cli")
        reader.look(str(path))
        other.checkpointing(str(path))
        for text in told:
            assert writer.tried("append_message", "talk", "user", text) is None
        assert Path(f"{path}-wal").stat().st_size > 30_000_000
    with store(path) as db:
        assert contents(db.get_messages("talk")) == told


def test_a_check_is_not_misled_by_what_another_connection_merged(tmp_path: Path) -> None:
    from hermes_state import SessionDB

    path = tmp_path / "state.db"
    with SessionDB(db_path=path) as db:
        db.create_session("s", "cli")
        for number in range(400):
            db.append_message("s", "user", f"word{number} and some more words that are in every message")
        db.catch_up()
        assert db.search_messages("word399")
        other = sqlite3.connect(path, isolation_level=None)
        for table in ("messages_fts", "messages_fts_trigram"):
            other.execute(f"INSERT INTO {table}({table}) VALUES('optimize')")
        other.close()
        assert db.check() == []
        assert len(db.search_messages("every", limit=1000)) == 400

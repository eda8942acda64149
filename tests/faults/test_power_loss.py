"""A power cut at any moment: what was acknowledged is there afterwards.

A child writes messages while every write, truncation and sync it asks for is noted in order (power.c). From the notes
many possible disks are built: at some moment the power goes; what a sync had covered is there, of the later writes
any part may be, whole or torn at the borders of 512 bytes. Each such disk must open, be sound, and hold every message
that was acknowledged before that moment. The shared-memory file is never kept: nobody promises it.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.sizes import size

HERE = Path(__file__).parent
SECTOR = 512
MESSAGES = 90  # of each of two writers: checkpoints and a restarted log are among them
DISKS = int(os.environ.get("HERMES_TEST_DISKS", size(20, 120)))

CHILD = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
import workers
from hermes_state import SessionDB

folder, durability, count = sys.argv[2], sys.argv[3], int(sys.argv[4])
acks = os.open(os.path.join(folder, "told.acks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
db = SessionDB(db_path=os.path.join(folder, "state.db"), durability=durability, transcripts="off")

def write(tag):
    db.create_session(tag, "cli")
    os.write(acks, f"{tag} -1 0\\n".encode())
    for number in range(count):
        message_id = db.append_message(tag, **workers.message(tag, number))
        os.write(acks, f"{tag} {number} {message_id}\\n".encode())

threads = [threading.Thread(target=write, args=(tag,)) for tag in ("mixed", "other")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
os._exit(0)  # no closing: the power goes, nobody says goodbye
"""


@dataclass(slots=True)
class Note:
    """One thing the child asked for."""

    kind: str
    path: str
    offset: int
    data: bytes


@dataclass(slots=True)
class Run:
    """Everything a child asked for, in order."""

    notes: list[Note]
    told: list[int] = field(default_factory=list)  # where the acknowledgements are among the notes

    def acknowledged(self, moment: int) -> dict[str, list[tuple[int, int]]]:
        """For each session, the (number, id) told before the moment; number -1 is the session itself."""
        known: dict[str, list[tuple[int, int]]] = {}
        for at in self.told:
            if at < moment:
                for line in self.notes[at].data.decode().splitlines():
                    tag, number, message_id = line.split()
                    known.setdefault(tag, []).append((int(number), int(message_id)))
        return known


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        reason = "needs a C compiler and Linux (LD_PRELOAD)"
        if os.environ.get("HERMES_TEST_REQUIRE") == "all":
            pytest.fail(reason)
        pytest.skip(reason)
    target = tmp_path_factory.mktemp("power") / "power.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", target, HERE / "power.c", "-ldl", "-pthread"], check=True
    )
    return target


def recorded(library: Path, work: Path, durability: str, program: str = CHILD) -> Run:
    """Let a child write, and read the notes about it."""
    disk = work / "disk"
    disk.mkdir(parents=True)
    log = work / "notes"
    child = subprocess.run(
        [sys.executable, "-c", program, str(HERE), str(disk), durability, str(MESSAGES)],
        env={
            **os.environ, "LD_PRELOAD": str(library), "POWER_LOG": str(log), "POWER_FOLDER": str(disk),
            "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        },
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    run = Run(list(_notes(log.read_bytes())))
    run.told = [at for at, note in enumerate(run.notes) if note.kind == "A"]
    return run


def _notes(log: bytes) -> Iterator[Note]:
    at = 0
    while at < len(log):
        kind, name, offset, length = struct.unpack_from("<cHQI", log, at)
        at += 15
        path = log[at : at + name].decode()
        at += name
        data = log[at : at + length]
        at += length
        yield Note(kind.decode(), os.path.basename(path), offset, data)


def disk_at(run: Run, moment: int, dice: random.Random, *, lucky: float) -> dict[str, bytes]:
    """A disk the power could leave when it goes right before notes[moment]; `lucky` is how likely an unsynced write is there."""
    before = run.notes[:moment]
    synced: dict[str, int] = {}
    for at, note in enumerate(before):
        if note.kind == "S":
            synced[note.path] = at
    folder_synced = synced.get("disk", -1)
    files: dict[str, bytearray] = {}
    for at, note in enumerate(before):
        if note.kind in "AS":
            continue
        safe = at < (folder_synced if note.kind == "U" else synced.get(note.path, -1))
        if note.kind == "U":
            if safe or dice.random() < lucky:
                files.pop(note.path, None)
            continue
        content = files.setdefault(note.path, bytearray())
        if safe:
            _apply(content, note)
        elif dice.random() < lucky:
            torn = note.kind == "W" and dice.random() < 0.3
            _apply(content, note, dice if torn else None)
    return {name: bytes(content) for name, content in files.items()}


def _apply(content: bytearray, note: Note, dice: random.Random | None = None) -> None:
    """Do a write or truncation; with dice only some of its sectors arrive."""
    if note.kind == "T":
        del content[note.offset :]
        content.extend(bytes(note.offset - len(content)))
        return
    end = note.offset + len(note.data)
    start = note.offset
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        if dice is None or dice.random() < 0.5:
            if len(content) < stop:
                content.extend(bytes(stop - len(content)))
            content[start:stop] = note.data[start - note.offset : stop - note.offset]
        start = stop


def moments(run: Run, dice: random.Random, count: int) -> list[int]:
    """When the power goes: right after something was told, in the middle of moving the log, at any time."""
    moved = [at for at, note in enumerate(run.notes) if note.path == "state.db" and note.kind in "WT"]
    syncs = [at for at, note in enumerate(run.notes) if note.kind == "S"]
    chosen = [len(run.notes)]
    while len(chosen) < count:
        where = dice.choice(("told", "moved", "synced", "any"))
        if where == "told":
            chosen.append(dice.choice(run.told) + 1)
        elif where == "moved" and moved:
            chosen.append(dice.choice(moved) + dice.randrange(2))
        elif where == "synced":
            chosen.append(dice.choice(syncs) + dice.randrange(2))
        else:
            chosen.append(dice.randrange(len(run.notes) + 1))
    return chosen


def examined(folder: Path, files: dict[str, bytes], durability: str) -> dict[str, list[tuple[int, int]]]:
    """Open a disk, insist that it is sound, and read it: for each session the (number, id) of its messages."""
    sys.path.insert(0, str(HERE))
    try:
        import workers
    finally:
        sys.path.remove(str(HERE))
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    found: dict[str, list[tuple[int, int]]] = {}
    with SessionDB(db_path=folder / "state.db", durability=durability, transcripts="off") as db:
        assert db.check() == []
        for tag in ("mixed", "other"):
            if db.get_session(tag) is None:
                assert db.get_messages(tag) == []
                continue
            rows = db.get_messages(tag)
            for number, row in enumerate(rows):
                wanted = workers.message(tag, number)
                assert {key: row[key] for key in wanted} == wanted, f"{tag} {number}"
            found[tag] = [(-1, 0), *((number, row["id"]) for number, row in enumerate(rows))]
    shutil.rmtree(folder)
    return found


def test_with_full_durability_every_acknowledged_message_survives_a_power_cut(library: Path, folder: Path) -> None:
    run = recorded(library, folder, "full")
    kinds = Counter((note.path, note.kind) for note in run.notes)
    assert kinds["state.db-wal", "W"] and kinds["state.db-wal", "S"], "the log was not seen"
    assert kinds["state.db", "W"], "no checkpoint was seen"
    assert len(run.told) == 2 * (MESSAGES + 1)
    for seed in range(DISKS):
        dice = random.Random(seed)
        (moment,) = moments(run, dice, 2)[1:]
        where = f"seed {seed}, moment {moment} of {len(run.notes)}, after {_last(run, moment)}"
        files = disk_at(run, moment, dice, lucky=dice.choice((0.0, 0.1, 0.5, 0.9, 1.0)))
        try:
            found = examined(folder / "possible", files, "full")
        except BaseException as error:
            error.add_note(where)
            raise
        for tag, told in run.acknowledged(moment).items():
            assert found.get(tag, [])[: len(told)] == told, f"lost: {where}"


def test_with_normal_durability_at_most_a_tail_is_lost(library: Path, folder: Path) -> None:
    run = recorded(library, folder, "normal")
    lost = 0
    for seed in range(DISKS):
        dice = random.Random(seed)
        (moment,) = moments(run, dice, 2)[1:]
        files = disk_at(run, moment, dice, lucky=dice.choice((0.0, 0.1, 0.5, 0.9, 1.0)))
        try:
            found = examined(folder / "possible", files, "normal")  # asserts: sound, each session from its beginning
        except BaseException as error:
            error.add_note(f"seed {seed}, moment {moment} of {len(run.notes)}, after {_last(run, moment)}")
            raise
        for tag, told in run.acknowledged(moment).items():
            assert found.get(tag, [])[: len(told)] == told[: len(found.get(tag, []))]
            lost += len(found.get(tag, [])) < len(told)
    assert lost, "without syncing something must be lost now and then, or these disks prove nothing"


def _last(run: Run, moment: int) -> str:
    return "; ".join(
        f"{note.kind} {note.path} {note.offset}+{len(note.data)}" for note in run.notes[max(0, moment - 6) : moment]
    )

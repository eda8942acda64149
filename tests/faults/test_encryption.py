"""kill -9 in the middle of encrypting, decrypting and changing the key: nothing is lost, and the next try finishes it."""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import StoreBusy
from hermes.store import encryption, keys

from . import Nursery, Remote, Step, exports, seeded, size, step, store

KILLS = size(3, 30)  # moments spread over the whole move,
LAST = size(2, 10)  # and one after the other at its end
WORD = b"wombatword"
PICTURE = b"\x89PNG wombatword in a picture " * 8


def build(folder: Path) -> Path:
    """A home with something of everything that holds text, closed."""
    path = folder / "state.db"
    with store(path, durability="normal") as db:
        for name in ("one", "two", "three"):
            db.create_session(name, "cli", system_prompt=f"be kind, wombatword {name}")
            for n in range(8):
                db.append_message(name, ("user", "assistant")[n % 2], f"wombatword number {n} of {name}")
        url = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
        db.append_message("one", "user", [{"type": "image_url", "image_url": {"url": url}}])
        db.set_session_title("two", "the wombatword")
        db.branch_session("one", "branch", title="a branch")
        db.catch_up()
        draft = db.drafts.begin("three", after=3, model="m")
        draft.write("wombatword half a reply")
        draft.close(keep=True)
    (folder / "history").write_text("\n# 2026-01-01\n+wombatword typed\n")
    return path


@pytest.fixture(scope="module")
def base(module_folder: Path) -> Path:
    return build(module_folder / "plain").parent


@pytest.fixture(scope="module")
def encrypted(base: Path, module_folder: Path) -> Path:
    folder = module_folder / "encrypted"
    shutil.copytree(base, folder)
    encryption.encrypt(folder / "state.db", lambda: keys.by_file(module_folder / "key"))
    return folder


def shown(path: Path) -> dict[str, Any]:
    """Everything a person can see of a store, and that its check finds nothing."""
    with store(path) as db:
        assert db.check() == []
        assert len(db.search_messages("wombatword", limit=100)) >= 24
        with pytest.raises(InterruptedError), db.drafts.left_behind("three") as draft:
            raise InterruptedError  # it is left where it is
        picture = db.read_attachment(hashlib.sha256(PICTURE).hexdigest())
        return {"sessions": exports(db), "picture": picture, "draft": draft}


def plain_files(folder: Path) -> list[str]:
    return sorted(
        str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and WORD in file.read_bytes()
    )


def each_death(
    nursery: Nursery, base: Path, folder: Path, call: Callable[[Path], Step], verify: Callable[[Path], None]
) -> None:
    """Kill a move at many moments. After each death the store is whole, and the same call brings it to its end."""
    truth = shown(base / "state.db")
    work = folder / "work"

    def fresh() -> Path:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        return work / "state.db"

    path = fresh()
    nursery.run(call(path))  # makes the key of the test
    path = fresh()
    total = nursery.run(step("count"), call(path), step("counted"))[-1]
    assert total > 20, "nothing was counted: this test would prove nothing"
    verify(work)
    assert shown(path) == truth
    chosen = seeded(call(path)[0]).sample(range(1, total), min(KILLS, total - 1))
    for at in sorted({1, *chosen, *range(total - LAST, total)}):
        path = fresh()
        life = nursery.life(step("count"), call(path), step("counted"), die_at=at)
        assert life["status"] == -9, f"it was to die at {at}: {life}"
        assert shown(path) == truth, f"killed at input/output call {at}"
        nursery.run(call(path))
        verify(work)
        assert shown(path) == truth, f"killed at {at} and repeated"
        assert not [file for file in work.rglob("*") if file.name.endswith("-moving")]


def test_killed_while_encrypting(nursery: Nursery, base: Path, folder: Path) -> None:
    def verify(work: Path) -> None:
        assert plain_files(work) == []

    each_death(nursery, base, folder, lambda path: step("encrypt", str(path), str(folder / "key")), verify)


def test_killed_while_decrypting(nursery: Nursery, encrypted: Path, folder: Path) -> None:
    def verify(work: Path) -> None:
        assert not (work / "state.db-key").exists()
        names = {Path(name).name for name in plain_files(work)}
        assert {"state.db", "one.jsonl", "two.jsonl", "three.jsonl"} <= names

    def again(path: Path) -> Step:
        """A process that died after its very last step has done everything."""
        return step("decrypt", str(path))

    truth = shown(encrypted / "state.db")
    work = folder / "work"
    shutil.copytree(encrypted, work)
    total = nursery.run(step("count"), again(work / "state.db"), step("counted"))[-1]
    for at in sorted({1, *seeded("decrypt").sample(range(1, total), KILLS), *range(total - LAST, total)}):
        shutil.rmtree(work)
        shutil.copytree(encrypted, work)
        life = nursery.life(step("count"), again(work / "state.db"), step("counted"), die_at=at)
        assert life["status"] == -9
        assert shown(work / "state.db") == truth, f"killed at input/output call {at}"
        if (work / "state.db-key").exists():
            nursery.run(again(work / "state.db"))
        verify(work)
        assert shown(work / "state.db") == truth


def test_killed_while_the_key_is_wrapped_in_another_way(nursery: Nursery, encrypted: Path, folder: Path) -> None:
    """The old key opens it, or the new one does."""
    truth = shown(encrypted / "state.db")
    work = folder / "work"
    for at in range(1, 40):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(encrypted, work)
        order = step("rekey", str(work / "state.db"), str(folder / "new key"))
        life = nursery.life(step("count"), order, step("counted"), die_at=at)
        assert shown(work / "state.db") == truth, f"killed at {at}"
        if life["status"] == 0:
            return
    pytest.fail("it never came to its end")


def test_a_store_that_another_process_has_open_is_not_moved(base: Path, folder: Path) -> None:
    work = folder / "work"
    shutil.copytree(base, work)
    with Remote(work / "state.db") as remote:
        remote.append("one", "small", 0)
        with pytest.raises(StoreBusy, match=r"is open in another process \(process \d+, .*\); end it, then try again"):
            encryption.encrypt(work / "state.db", lambda: keys.by_file(folder / "key"))
        assert not (work / "state.db-key").exists()
        remote.append("one", "small", 1)
    encryption.encrypt(work / "state.db", lambda: keys.by_file(folder / "key"))
    with store(work / "state.db") as db:
        assert len(db.search_messages("hello", limit=10)) == 2


def test_a_process_that_waits_for_the_move_writes_into_the_encrypted_file(base: Path, folder: Path) -> None:
    """It has opened the old file, which has lost its name when the move is done."""
    work = folder / "work"
    shutil.copytree(base, work)
    with Remote() as remote:
        asked = []

        def way() -> keys.Way:  # the move holds the database now
            remote.begin("open", str(work / "state.db"))
            asked.append(1)
            return keys.by_file(folder / "key")

        encryption.encrypt(work / "state.db", way)
        assert asked
        remote.answer()
        remote.append("one", "small", 0)
    with store(work / "state.db") as db:
        assert len(db.search_messages("hello", limit=10)) == 1
        assert db.check() == []
    assert plain_files(work) == []

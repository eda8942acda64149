"""Every way out of a store and into another: what is shown, in its order, and what is hidden arrive as they were."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import example, given, settings

from hermes.interop import formats, jsonl
from hermes.store.records.attachments import Attachments
from hermes.store.upkeep.check import rebuild_store
from hermes_state import SessionDB
from tests.support.lives import (
    LIVES,
    Life,
    Step,
    all_ids,
    assert_only_what_is_shown_is_found,
    assert_stays_away,
    facts,
    session_facts,
    undone,
)
from tests.support.sizes import size

_COMPRESSED: list[Step] = [
    ("say", 0, 0, 0), ("say", 0, 0, 0), ("compress", 0, 1, 3), ("say", 2, 0, 0), ("say", 2, 0, 0), ("rewind", 2, 4, 1),
]  # fmt: skip
_ORPHANED: list[Step] = [*_COMPRESSED, ("branch", 0, 1, 0), ("delete", 0, 0, 0)]
_TWICE_UNDONE: list[Step] = [("branch", 0, 2, 0), ("rewind", 2, 1, 1), ("say", 2, 0, 0), ("rewind", 2, 0, 1), ("replace", 0, 1, 0)]  # fmt: skip

_TAKEN_BACK: list[Step] = [
    *_COMPRESSED, ("redact", 0, 1, 0), ("edit", 2, 0, 0), ("redact", 2, 1, 0), ("branch", 2, 4, 0), ("edit", 0, 3, 1),
    ("unrewind", 2, 0, 0), ("delete", 0, 0, 0), ("edit", 3, 0, 1), ("redact", 3, 1, 0),
]  # fmt: skip
_CUT_REDACTED: list[Step] = [
    ("rewind", 0, 1, 1), ("redact", 0, 1, 0), ("say", 0, 0, 0), ("branch", 1, 2, 0), ("rewind", 2, 1, 1), ("redact", 1, 1, 0),
    ("edit", 1, 0, 0), ("delete", 1, 0, 0), ("edit", 2, 0, 4),
]  # fmt: skip


def _open(folder: Path, name: str) -> SessionDB:
    return SessionDB(folder / name / "state.db", durability="normal")


def _lines(folder: Path, name: str, sessions: object) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_bytes(
        b"".join(
            jsonl.write(formats.Export(sessions=sessions, attachments=Attachments(folder / "one" / "attachments").read))
        )
    )  # type: ignore[arg-type]
    return path


def _import(db: SessionDB, path: Path, unpack: Path) -> dict[str, int]:
    problems: list[jsonl.Problem] = []
    counts = db.import_sessions((one.session for one in jsonl.read(path, unpack, problems)), attachments_dir=unpack)
    assert problems == []
    db.catch_up()  # as the command does
    return counts


@settings(max_examples=size(2, 12))
@given(LIVES)
@example(_COMPRESSED)
@example(_ORPHANED)
@example(_TWICE_UNDONE)
@example(_TAKEN_BACK)
@example(_CUT_REDACTED)
def test_whatever_a_store_lived_through_comes_out_and_in_as_it_was(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with _open(folder, "one") as db:
            life = Life(db)
            life.live(steps)
            assert_stays_away(db, life.gone)
            assert_only_what_is_shown_is_found(db)
            assert db.check() == []
            whole = facts(db)
            seen = facts(db, trash=False, parents=not whole["trash"], lists=not whole["trash"])
            undoing = _undone_elsewhere(db, folder, life.gone)
            _all_at_once(db, folder, seen, undoing)
            _one_by_one(db, folder, seen, undoing)
            db.backup(folder / "copy.db")
            held = db.attachments_dir  # they are no part of the copy
        with _open(folder, "file") as file:
            file.import_database(folder / "one" / "state.db")
            assert facts(file, trash=False, parents=not whole["trash"], lists=not whole["trash"]) == seen
        if not any((folder / "one" / "sessions").glob("*.jsonl")):  # everything was deleted
            return
        rebuild_store(folder / "again.db", folder / "one" / "sessions")
        _same_to_the_end(folder, held, whole)


def _all_at_once(db: SessionDB, folder: Path, seen: dict[str, object], undoing: dict[str, object]) -> None:
    """One file with everything, into an empty store and into one that has given out the same ids; twice."""
    path = _lines(folder, "all", db.iter_export())
    has_list = "lists" in seen
    with _open(folder, "empty") as empty:
        _import(empty, path, folder / "unpacked")
        assert facts(empty, trash=False, parents=has_list, lists=has_list) == seen
        assert _import(empty, path, folder / "unpacked")["sessions"] == 0
        assert facts(empty, trash=False, parents=has_list, lists=has_list) == seen
        assert empty.check() == []
        assert undone(empty) == undoing
    with _open(folder, "used") as used:
        used.create_session("mine", "cli")
        for number in range(7):
            used.append_message("mine", "user", f"my own {number}")
        _import(used, path, folder / "unpacked")
        used.delete_session("mine")
        assert facts(used, trash=False, parents=has_list, lists=has_list) == seen
        assert used.check() == []


def _undone_elsewhere(db: SessionDB, folder: Path, gone: set[str]) -> dict[str, object]:
    """The contents after undoing, made in a copy of the store."""
    copy = folder / "undone" / "state.db"
    copy.parent.mkdir()
    db.backup(copy)
    with SessionDB(copy, transcripts="off") as other:
        told = undone(other)
        assert_stays_away(other, gone)
        return told


def _one_by_one(db: SessionDB, folder: Path, seen: dict[str, object], undoing: dict[str, object]) -> None:
    """Each session in a file of its own, imported in any order: at each moment right, in the end the same store."""
    names = all_ids(db)
    random.Random(len(names)).shuffle(names)
    with _open(folder, "single") as single:
        single.create_session("mine", "cli")
        single.append_message("mine", "user", "has the first id")
        for name in names:
            path = _lines(folder, "single", [db.export_session(name)])
            assert _import(single, path, folder / "unpacked")["sessions"] == 1
            mine, theirs = session_facts(single, name, parents=False), session_facts(db, name, parents=False)
            for told in (mine, theirs):  # a taken title is numbered, and a parent's title may come later
                told["session"] = {**told["session"], "title": None}
            assert mine == theirs
            assert_only_what_is_shown_is_found(single)
        single.delete_session("mine")
        has_list = "lists" in seen
        assert facts(single, trash=False, parents=has_list, lists=has_list) == seen
        assert single.check() == []
        assert undone(single) == undoing


def _same_to_the_end(folder: Path, held: Path, whole: dict[str, object]) -> None:
    """Backup and rebuild give everything, the trash included."""
    with SessionDB(folder / "copy.db", durability="normal") as copy, SessionDB(folder / "again.db") as again:
        for db in (copy, again):
            if held.is_dir():
                shutil.copytree(held, db.attachments_dir, dirs_exist_ok=True)
        assert json.dumps(facts(copy), sort_keys=True) == json.dumps(whole, sort_keys=True)
        assert facts(again) == whole
        assert copy.check() == [] and again.check() == []
        assert undone(again) == undone(copy)

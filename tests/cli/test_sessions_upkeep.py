"""`hermes sessions check`, `repair`, `optimize` and `backup`; backups while four processes write."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import pytest

from hermes_state import SessionDB
from tests.support import seeds, start_python
from tests.support.program import environment, run


@pytest.fixture
def home(hermes_home: Path) -> Path:
    seeds.guide(hermes_home)
    return hermes_home


def test_a_list_tells_of_a_lost_database(home: Path) -> None:
    with SessionDB(db_path=home / "state.db") as db:  # a test store of its own has no transcripts yet
        db.create_session("kept", "cli")
        db.append_message("kept", "user", "the only copy is the transcript")
    for file in home.glob("state.db*"):
        file.unlink()
    assert "hermes sessions rebuild" in run("sessions", "list", home=home).out
    assert run("sessions", "rebuild", home=home).status == 0
    assert "the only copy" in run("sessions", "list", home=home).out


def test_a_sound_record_is_status_0(home: Path) -> None:
    done = run("sessions", "check", home=home)
    assert (done.status, done.out, done.err) == (0, "sound: 5 sessions, 15 messages\n", "")
    assert json.loads(run("sessions", "check", "--json", home=home).out) == []
    assert run("sessions", "repair", home=home).out == "sound: nothing to repair\n"


def run_where_nothing_can_be_written(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """The command as a user who may only read the home."""
    command = [str(word) for word in words]
    before = "import os, sys; from hermes.cli.main import main; main(['sessions', 'check']);"  # loads what it needs
    if os.geteuid() == 0:
        before += "os.setgid(65534); os.setuid(65534);"
        for folder in [home, *home.parents]:
            if folder.stat().st_uid == 0 and folder.is_relative_to(gettempdir()):
                folder.chmod(folder.stat().st_mode | 0o055)
    for path in [home, *home.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = subprocess.run(
        [sys.executable, "-c", f"{before} sys.exit(main({command!r}))"], env=environment(home),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return done


def test_a_record_that_can_not_be_written_is_checked_as_well(home: Path) -> None:
    done = run_where_nothing_can_be_written(home, "sessions", "check")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.splitlines()[-1].startswith("sound: ")


@pytest.mark.parametrize("harm", ["counter", "truncated"])
def test_any_file_can_be_checked_and_repaired(home: Path, tmp_path: Path, harm: str) -> None:
    file = tmp_path / "two words" / "other.db"
    with SessionDB(file) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "kept in the transcript")
    assert run("sessions", "check", str(file), home=home).out == "sound: 1 session, 1 message\n"
    if harm == "counter":
        with closing(sqlite3.connect(file)) as outside, outside:
            outside.execute("UPDATE sessions SET message_count = 99")
    else:
        file.write_bytes(file.read_bytes()[:3000])
    done = run("sessions", "check", str(file), home=home)
    assert done.status == 1 and f"hermes sessions repair '{file}'" in done.err
    done = run("sessions", "repair", str(file), home=home)
    assert done.status == 0 and "repaired: " in done.out
    with SessionDB(file) as db:
        assert [one["content"] for one in db.get_messages("s")] == ["kept in the transcript"] and db.check() == []
    assert run("sessions", "check", str(tmp_path / "none.db"), home=home).status == 2
    assert run("sessions", "check", home=home).out == "sound: 5 sessions, 15 messages\n"


def test_what_is_wrong_is_listed_and_repair_mends_it(home: Path) -> None:
    with sqlite3.connect(home / "state.db") as outside:
        outside.execute("UPDATE sessions SET message_count = 99 WHERE id LIKE '20250612%'")
    outside.close()
    done = run("sessions", "check", home=home)
    assert done.status == 1 and "counters" in done.out and "hermes sessions repair" in done.err
    assert [one["kind"] for one in json.loads(run("sessions", "check", "--json", home=home).out)] == ["counters"]
    mended = run("sessions", "repair", home=home)
    assert mended.status == 0 and "repaired: " in mended.out and mended.out.endswith("sound\n")
    assert run("sessions", "check", home=home).status == 0


def test_the_index_can_be_made_anew(home: Path) -> None:
    done = run("sessions", "repair", "--rebuild-index", home=home)
    assert done.status == 0 and "repaired: " in done.out
    assert run("sessions", "search", "maples", home=home).status == 0


def test_a_torn_file_is_named_and_saved_from_its_transcripts(home: Path) -> None:
    file = home / "state.db"
    data = bytearray(file.read_bytes())
    data[100:20_000] = b"\xa5" * 19_900
    file.write_bytes(bytes(data))
    done = run("sessions", "check", home=home)
    assert done.status == 1 and done.out.startswith("corruption: ") and "Traceback" not in done.err
    listed = run("sessions", "list", home=home)
    assert listed.status == 1 and listed.err.count("\n") == 1
    mended = run("sessions", "repair", home=home)
    assert mended.status == 0, mended
    with SessionDB(file) as db:
        assert db.check() == []
        assert db.message_count() == 15


def test_optimize_gives_space_back(hermes_home: Path) -> None:
    with SessionDB(hermes_home / "state.db", transcripts="off") as db:
        db.create_session("s", "cli")
        for number in range(200):
            db.append_message("s", "user", f"{number} " + "word " * 4000)
        db.delete_session("s")
    before = (hermes_home / "state.db").stat().st_size
    done = run("sessions", "optimize", home=hermes_home)
    assert done.status == 0 and " → " in done.out
    assert (hermes_home / "state.db").stat().st_size < before / 4


def test_a_backup_is_a_store_of_its_own_and_never_replaces_a_file(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copies" / "copy.db"
    done = run("sessions", "backup", copy, home=home)
    assert done.status == 0 and done.out.startswith(f"backed up to {copy}")
    assert copy.stat().st_mode & 0o777 == 0o600
    with SessionDB(copy) as db, SessionDB(home / "state.db") as own:
        assert db.export_all() == own.export_all()
        assert db.check() == []
    again = run("sessions", "backup", copy, home=home)
    assert again.status == 1 and "exists already" in again.err


def test_a_record_that_can_not_be_written_is_backed_up(home: Path) -> None:
    folder = Path(mkdtemp())
    try:
        folder.chmod(0o777)
        done = run_where_nothing_can_be_written(home, "sessions", "backup", folder / "copy.db")
        assert done.returncode == 0, done
        with SessionDB(folder / "copy.db", read_only=True) as copy:
            assert copy.message_count() == 15
    finally:
        shutil.rmtree(folder)


def test_attachments_lie_beside_the_backup(home: Path, tmp_path: Path) -> None:
    import base64

    with SessionDB(home / "state.db") as db:
        url = "data:image/png;base64," + base64.b64encode(b"\x89PNG" * 200).decode()
        db.append_message("20250615_125000_0badc0", "user", [{"type": "image_url", "image_url": {"url": url}}])
    assert run("sessions", "backup", tmp_path / "copy.db", home=home).status == 0
    with SessionDB(tmp_path / "copy.db") as db:
        kept = [path.read_bytes() for path in db.attachments_dir.rglob("*") if path.is_file()]
    assert kept == [b"\x89PNG" * 200]


WRITER = """
import sys
from hermes_state import SessionDB
name = sys.argv[2]
with SessionDB(sys.argv[1]) as db:
    db.create_session(name, "cli")
    print("ready", flush=True)
    number = 0
    while True:
        db.append_message(name, "user", f"{name} {number}")
        print(number, flush=True)
        number += 1
"""


def test_a_backup_while_four_processes_write_is_consistent(home: Path, tmp_path: Path) -> None:
    writers = {name: start_python(WRITER, home / "state.db", name) for name in ("w1", "w2", "w3", "w4")}
    try:
        acknowledged = {}
        for name, writer in writers.items():
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            for _ in range(20):
                acknowledged[name] = int(writer.stdout.readline())
        done = run("sessions", "backup", tmp_path / "copy.db", home=home)
        assert done.status == 0, done.err
        assert all(writer.poll() is None for writer in writers.values())
    finally:
        for writer in writers.values():
            writer.kill()
            writer.communicate(timeout=120)
    assert run("sessions", "import", tmp_path / "copy.db", home=tmp_path / "other").status == 0
    with SessionDB(tmp_path / "copy.db") as db:
        assert db.check() == []
        for name, last in acknowledged.items():
            said = [message["content"] for message in db.get_messages(name)]
            assert said == [f"{name} {number}" for number in range(len(said))] and len(said) > last
            assert len(db.search_messages(f'"{name} {last}"')) == 1


def test_what_was_changed_with_sql_stays_and_the_old_transcript_is_set_aside(home: Path) -> None:
    with sqlite3.connect(home / "state.db") as outside:
        message_id, session_id = outside.execute(
            "SELECT id, session_id FROM messages WHERE role = 'user' LIMIT 1"
        ).fetchone()
        outside.execute("DELETE FROM messages WHERE id = ?", (message_id,))
        outside.execute("UPDATE sessions SET model = 'another' WHERE id LIKE '20250612%'")
    outside.close()
    found = run("sessions", "check", home=home)
    assert found.status == 1 and "differs" in found.out
    assert run("sessions", "repair", home=home).out.endswith("sound\n")
    assert list((home / "sessions").glob(f"{session_id}.jsonl.before-repair-*"))
    with SessionDB(home / "state.db") as db:
        assert db.message_count() == 14
        assert [row["model"] for row in db.list_sessions_rich(limit=20)].count("another") >= 1
        assert db.check() == []


def test_a_lost_database_is_rebuilt_from_its_transcripts(home: Path) -> None:
    with SessionDB(home / "state.db") as db:
        before = {row["id"]: (row["title"], db.get_messages(row["id"])) for row in db.search_sessions(limit=100)}
    (home / "state.db").unlink()
    done = run("sessions", "rebuild", home=home)
    assert done.status == 0 and done.out.endswith("sound\n"), done
    with SessionDB(home / "state.db") as db:
        assert {
            row["id"]: (row["title"], db.get_messages(row["id"])) for row in db.search_sessions(limit=100)
        } == before


def test_where_neither_a_database_nor_transcripts_are_there_is_nothing_to_rebuild(tmp_path: Path) -> None:
    done = run("sessions", "rebuild", tmp_path / "typo.db", home=tmp_path)
    assert (done.status, done.out) == (1, "") and "typo.db" in done.err and not (tmp_path / "typo.db").exists()


def test_a_file_that_is_no_database_is_not_rebuilt_over(home: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("not a database")
    for command in ("rebuild", "repair"):
        done = run("sessions", command, notes, home=home)
        assert done.status in (1, 2) and "no database" in done.err, done
        assert notes.read_text() == "not a database" and [one.name for one in tmp_path.glob("notes*")] == ["notes.txt"]

"""`hermes sessions check`, `repair`, `optimize` and `backup`; backups while four processes write."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from tempfile import gettempdir

import pytest

from hermes_state import SessionDB
from tests.support import seeds, start_python
from tests.support.program import environment, run


@pytest.fixture
def home(hermes_home: Path) -> Path:
    seeds.guide(hermes_home)
    return hermes_home


def test_a_sound_record_is_status_0(home: Path) -> None:
    done = run("sessions", "check", home=home)
    assert (done.status, done.out, done.err) == (0, "sound: 5 sessions, 15 messages\n", "")
    assert json.loads(run("sessions", "check", "--json", home=home).out) == []
    assert run("sessions", "repair", home=home).out == "sound: nothing to repair\n"


def test_a_record_that_can_not_be_written_is_checked_as_well(home: Path) -> None:
    before = "import os, sys; from hermes.cli.main import main; main(['sessions', 'check']);"  # loads what it needs
    if os.geteuid() == 0:
        before += "os.setgid(65534); os.setuid(65534);"
        for folder in [home, *home.parents]:
            if folder.stat().st_uid == 0 and folder.is_relative_to(gettempdir()):
                folder.chmod(folder.stat().st_mode | 0o055)
    for path in [home, *home.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = subprocess.run(
        [sys.executable, "-c", f"{before} sys.exit(main(['sessions', 'check']))"], env=environment(home),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.splitlines()[-1].startswith("sound: ")


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
            writer.communicate(timeout=30)
    assert run("sessions", "import", tmp_path / "copy.db", home=tmp_path / "other").status == 0
    with SessionDB(tmp_path / "copy.db") as db:
        assert db.check() == []
        for name, last in acknowledged.items():
            said = [message["content"] for message in db.get_messages(name)]
            assert said == [f"{name} {number}" for number in range(len(said))] and len(said) > last
            assert len(db.search_messages(f'"{name} {last}"')) == 1


def test_what_was_deleted_with_sql_comes_back_only_with_from_transcripts(home: Path) -> None:
    with sqlite3.connect(home / "state.db") as outside:
        message_id, text = outside.execute("SELECT id, content FROM messages WHERE role = 'user' LIMIT 1").fetchone()
        outside.execute("DELETE FROM messages WHERE id = ?", (message_id,))
    outside.close()
    copy = home.parent / "copy"
    shutil.copytree(home, copy)
    found = run("sessions", "check", home=home)
    assert found.status == 1 and "1 message was deleted with SQL" in found.out
    assert run("sessions", "repair", home=home).out.endswith("sound\n")
    with SessionDB(home / "state.db") as db:
        assert db.message_count() == 14
    assert run("sessions", "repair", "--from-transcripts", home=copy).out.endswith("sound\n")
    with SessionDB(copy / "state.db") as db:
        assert db.message_count() == 15
        assert text in [row["content"] for one in db.export_all() for row in one["messages"]]


def test_where_an_edit_cant_be_told_from_damage_repair_says_what_to_do(home: Path) -> None:
    with sqlite3.connect(home / "state.db") as outside:
        outside.execute("UPDATE sessions SET model = 'another' WHERE id LIKE '20250612%'")
    outside.close()
    for _ in range(2):
        done = run("sessions", "repair", home=home)
        assert done.status == 1 and "transcript-differs" in done.out and "--from-transcripts" in done.err
    assert run("sessions", "repair", "--from-transcripts", "--from-database", home=home).status == 2
    assert run("sessions", "repair", "--from-database", home=home).status == 0
    with SessionDB(home / "state.db") as db:
        assert [row["model"] for row in db.list_sessions_rich(limit=20)].count("another") >= 1
        assert db.check() == []

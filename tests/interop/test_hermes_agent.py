"""Hermes Agent: its database is imported as it is, and again when it has grown (tests/cli/test_arrival.py: its home is ours)."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hermes.interop import formats
from hermes_state import SessionDB
from tests.support.old_files import build, build_foreign
from tests.support.program import run

SAMPLE = Path(__file__).parents[1] / "support" / "foreign" / "schema-22.db.gz"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / ".hermes"
    home.mkdir()
    (home / "state.db").write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    return home


@pytest.mark.parametrize("version", [11, 12, 30])
def test_a_file_is_theirs_from_schema_12_on(version: int, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    if version > 11:
        build_foreign(path, version)
    else:
        build(path, version, fill="small")
    assert formats.reader_for(path).name == ("hermes-agent" if version > 11 else "database")


def test_what_is_imported_is_what_their_file_says(home: Path, tmp_path: Path) -> None:
    assert run("sessions", "import", home / "state.db", home=home).status == 0
    with SessionDB(db_path=tmp_path / "other" / "state.db") as other, SessionDB(db_path=home / "record.db") as ours:
        other.import_database(home / "state.db")
        for session in other.export_all():
            assert [one["content"] for one in ours.get_messages(session["id"])] == [
                one["content"] for one in other.get_messages(session["id"])
            ]
            assert ours.get_session(session["id"])["title"] == session.get("title")


def test_import_found_lists_their_store_and_brings_what_is_new_later(home: Path, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    seen = run("sessions", "import", "--found", "--dry-run", home=home, env=env)
    assert "Hermes Agent" in seen.out and not (home / "record.db").exists()
    assert run("sessions", "import", "--found", "--yes", home=home, env=env).status == 0
    assert "Birds" in run("sessions", "list", home=home).out
    with closing(sqlite3.connect(home / "state.db")) as other, other:
        other.execute(
            "INSERT INTO messages(session_id, role, content, timestamp) VALUES('parts', 'user', 'and a heron?', 2e9)"
        )
    again = run("sessions", "import", "--found", "--yes", home=home, env=env)
    assert again.status == 0 and "1 session updated" in again.out
    assert "heron" in run("sessions", "show", "parts", home=home).out
    assert "0 sessions updated" not in run("sessions", "import", "--found", "--yes", home=home, env=env).out

"""An import into an encrypted store: no plain text of a message is in any file, during it, after it, or after a kill."""

from __future__ import annotations

import base64
import os
import random
import signal
import time
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support import program
from tests.support.encrypted_homes import files_with
from tests.support.sizes import size

WORDS = [b"pangolinword", b"attachedword"]
FILE = b"attachedword " + random.Random(1).randbytes(30_000)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """An export of sessions that each have a file of their own."""
    url = "data:application/octet-stream;base64,"
    with SessionDB(tmp_path / "other" / "state.db") as db:
        for number in range(size(60, 300)):
            db.create_session(f"s{number}", "cli")
            data = base64.b64encode(FILE + str(number).encode()).decode()
            parts = [
                {"type": "text", "text": f"a pangolinword {number}"},
                {"type": "image_url", "image_url": {"url": url + data}},
            ]
            db.append_message(f"s{number}", "user", parts)
    made = tmp_path / "export.jsonl"
    done = program.run("sessions", "export", made, home=tmp_path / "other")
    assert done.status == 0, done
    assert b"pangolinword" in made.read_bytes()
    return made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An encrypted store without a message."""
    made = tmp_path / "home"
    with SessionDB(made / "state.db"):
        pass
    (tmp_path / "key").write_bytes(os.urandom(32))
    done = program.run("sessions", "encrypt", "--key-file", tmp_path / "key", home=made)
    assert done.status == 0, done
    return made


def test_nothing_of_an_import_lies_in_plain_text_at_any_moment(home: Path, export: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary), "SQLITE_TMPDIR": str(temporary)}
    whole = export.stat().st_size
    for seconds in (0.5, 1, 60):  # killed after so long
        process, until_ = program.start("sessions", "import", export, home=home, env=env), time.monotonic() + seconds
        try:
            while process.poll() is None and time.monotonic() < until_:
                process.send_signal(signal.SIGSTOP)
                assert files_with(WORDS, home, temporary) == {}
                process.send_signal(signal.SIGCONT)
                time.sleep(0.02)
        finally:
            process.kill()
            process.communicate()
        assert files_with(WORDS, home, temporary) == {}
    done = program.run("sessions", "import", export, home=home, env=env)
    assert done.status == 0, done
    assert not any(one.is_file() for one in temporary.rglob("*"))  # a killed process leaves an empty folder
    assert whole == export.stat().st_size
    with SessionDB(home / "state.db") as db:
        assert db.check() == []
        for number in range(size(60, 300)):
            (message,) = db.get_messages_as_conversation(f"s{number}")
            assert base64.b64encode(FILE + str(number).encode()).decode() in str(message["content"])


def test_standard_input_is_refused_as_it_would_be_copied_to_the_disk(home: Path, export: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary)}
    done = program.run("sessions", "import", "-", home=home, env=env, input=export.read_bytes())
    assert (done.status, len(done.err.splitlines())) == (1, 1) and "as a file" in done.err, done
    assert files_with(WORDS, home, temporary) == {}

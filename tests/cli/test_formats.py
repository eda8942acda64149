"""Formats come from one registry: a package beside ours adds one, and every command knows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support import program

pytestmark = pytest.mark.mechanism

MODULE = '''
"""A line for each message: session, role, text."""
from hermes.interop.formats import Format, Found, Problem

SHOUT = Format(name="shout", module="shouting", help="in capitals", endings=(".shout",), writes=True, reads=True)

def write(export):
    for session in export.sessions:
        for message in session["messages"]:
            yield f"SHOUT {session['id']} {message['role']} {message['content'].upper()}\\n".encode()

def sniff(path):
    return path.read_bytes().startswith(b"SHOUT ")

def read(path, folder, problems):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split(" ", 3)
        if len(words) < 4:
            problems.append(Problem(number, "too short"))
            continue
        message = {"role": words[2], "content": words[3]}
        yield Found(number, {"id": words[1], "source": "shout", "messages": [message]})
'''


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "packages"
    about = folder / "shouting-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[hermes.formats]\nshout = shouting:SHOUT\n")
    (folder / "shouting.py").write_text(MODULE)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


def test_a_format_of_another_package_is_written_read_and_named_in_help(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    home = tmp_path / "home"
    with SessionDB(home / "state.db") as db:
        db.create_session("s1", "cli")
        db.append_message("s1", "user", "a kingfisher")
    for command in ("export", "import"):
        assert (
            "shout (in capitals)" in program.run("sessions", command, "--help", home=home, env=variables, width=200).out
        )
    file = tmp_path / "out.shout"
    assert program.run("sessions", "export", file, home=home, env=variables).status == 0
    assert file.read_text() == "SHOUT s1 user A KINGFISHER\n"
    assert program.run("sessions", "export", "-", "--format", "shout", home=home, env=variables).out == file.read_text()
    with file.open("a") as stream:
        stream.write("SHOUT\n")
    other = tmp_path / "other"
    done = program.run("sessions", "import", file, home=other, env=variables)
    assert (done.status, done.err) == (1, "hermes: line 2: too short\n")
    with SessionDB(other / "state.db", read_only=True) as db:
        assert [message["content"] for message in db.get_messages("s1")] == ["A KINGFISHER"]
    assert program.run("sessions", "import", file, home=other).status == 1  # without the package it is no export


def test_an_import_reads_a_pipe_with_a_name(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    with SessionDB(home / "state.db") as db:
        db.create_session("s1", "cli")
        db.append_message("s1", "user", "a kingfisher")
    file = tmp_path / "all.jsonl"
    assert program.run("sessions", "export", file, home=home).status == 0
    for source in (file, home / "state.db"):
        pipe = tmp_path / f"pipe-{source.suffix}"
        os.mkfifo(pipe)
        feeder = subprocess.Popen(["sh", "-c", 'cat "$0" > "$1"', source, pipe])
        done = program.run("sessions", "import", pipe, home=other / source.suffix)
        assert feeder.wait(120) == 0
        assert done.out.startswith("1 session with 1 message imported"), done

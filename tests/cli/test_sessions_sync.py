"""`hermes sessions sync` as a process: a folder, another machine, another store; killed at any moment, it continues."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes.errors import HermesError
from hermes_state import SessionDB
from tests.support import program

MANY = 40


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with SessionDB(one / "state.db") as db:
        db.create_session("a", "cli")
        db.append_message("a", "user", "hello ocelot")
    return one, other


def shown(home: Path) -> dict[str, list[str]]:
    with SessionDB(home / "state.db", read_only=True) as db:
        rows = db.list_sessions_rich(limit=1000, include_children=True)
        return {row["id"]: [one["content"] for one in db.get_messages(row["id"])] for row in rows}


def sync(home: Path, *words: object, **more: object) -> str:
    done = program.run("sessions", "sync", *words, home=home, **more)
    assert done.status == 0, done.err
    return done.out


def test_two_homes_meet_in_a_folder(homes, tmp_path):
    one, other = homes
    folder = tmp_path / "meeting"
    folder.mkdir()
    assert sync(one, folder) == "received 0 sessions and 0 messages, wrote 1 session to the folder\n"
    assert sync(other, folder) == "received 1 session and 1 message, wrote 0 sessions to the folder\n"
    assert shown(other) == {"a": ["hello ocelot"]}
    assert "1 hit in 1 session" in program.run("sessions", "search", "ocelot", home=other).out
    with SessionDB(other / "state.db") as db:
        db.append_message("a", "user", "there")
    with SessionDB(one / "state.db") as db:
        db.append_message("a", "user", "here")
    sync(other, folder)
    assert "1 session continued on both sides" in sync(one, folder)


def test_with_a_store_in_a_file(homes):
    one, other = homes
    with SessionDB(other / "state.db") as db:
        db.create_session("b", "cli")
        db.append_message("b", "user", "there")
    expected = "received 1 session and 1 message, sent 1 session and 1 message\n"
    assert sync(one, other / "state.db") == expected
    assert shown(one) == shown(other) == {"a": ["hello ocelot"], "b": ["there"]}
    assert sync(one, f"sqlite:///{other}/state.db").startswith("received 0 sessions and 0 messages")


@pytest.fixture
def with_ssh(tmp_path: Path) -> dict[str, str]:
    """A PATH with an `ssh` that runs the command here, and a `hermes`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(
        '#!/bin/sh\necho "$@" >> "$0.calls"\nwhile [ "$1" != -- ]; do shift; done\n[ "$2" = me@box ] || exit 255\nexec sh -c "$3"\n'
    )
    (folder / "hermes").write_text(f'#!/bin/sh\nexec {sys.executable} -m hermes.cli.main "$@"\n')
    for name in ("ssh", "hermes"):
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "BIN": str(folder)}


def test_with_another_machine(homes, with_ssh):
    one, other = homes
    with SessionDB(other / "state.db") as db:
        db.create_session("b", "cli")
        db.append_message("b", "user", [{"type": "text", "text": "data:image/png;base64," + "QUJD" * 60}])
    said = sync(one, f"ssh://me@box:2222{other}", env=with_ssh)
    assert said == "received 1 session and 1 message, sent 1 session and 1 message\n"
    assert shown(one) == shown(other)
    with SessionDB(one / "state.db") as db:
        assert db.check() == [], "the attachment came along"
    assert "-p 2222 -- me@box" in Path(with_ssh["BIN"], "ssh.calls").read_text()


def test_another_machine_that_can_not_be_used(homes, with_ssh):
    one, _ = homes
    for url, why in (
        ("ssh://nobody@elsewhere", "ssh failed"),
        ("ssh://-oProxyCommand=x", "is not an address"),
        ("ssh://", "is not an address"),
    ):
        done = program.run("sessions", "sync", url, home=one, env=with_ssh)
        assert done.status != 0 and why in done.err and len(done.err.splitlines()) == 1, done.err
    done = program.run("sessions", "sync", "ssh://me@box", "--hermes", "echo", home=one, env=with_ssh)
    assert done.status != 0 and "must be silent" in done.err


def test_what_is_no_place(homes, tmp_path):
    one, _ = homes
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("x")
    for dest, why in (
        (tmp_path / "absent", "is not a folder"), (tmp_path / "full", "holds other files"), (one / "state.db", "is the store in use")
    ):  # fmt: skip
        done = program.run("sessions", "sync", dest, home=one)
        assert done.status != 0 and why in done.err and len(done.err.splitlines()) == 1
    assert program.run("sessions", "sync", home=one).status == 2


def _killed_when(home: Path, folder: Path, reached: Callable[[], bool]) -> None:
    process = program.start("sessions", "sync", folder, home=home)
    while process.poll() is None and not reached():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_killed_in_the_middle_it_continues_with_the_next_call(homes, tmp_path):
    one, other = homes
    folder = tmp_path / "meeting"
    folder.mkdir()
    with SessionDB(one / "state.db", durability="normal", transcripts="off") as db:
        for number in range(MANY):
            db.create_session(f"s{number}", "cli")
            db.append_message(f"s{number}", "user", f"said {number}")

    def written() -> int:
        return sum(path.is_file() for path in folder.glob("stores/*/*/*"))

    def came() -> int:
        try:
            with SessionDB(other / "state.db", read_only=True) as db:
                return db.session_count()
        except HermesError:
            return 0

    for part in (1, MANY // 3):
        _killed_when(one, folder, lambda part=part: written() >= part)
    sync(one, folder)
    for part in (1, MANY // 3):
        _killed_when(other, folder, lambda part=part: came() >= part)
    sync(other, folder)
    assert len(shown(one)) == MANY + 1 and shown(one) == shown(other)
    assert not list(folder.rglob("*.part")), "a killed writer's file is removed by the next sync"
    for home in homes:
        with SessionDB(home / "state.db") as db:
            assert db.check() == []


def test_an_import_does_not_bring_back_what_was_deleted(homes, tmp_path):
    one, other = homes
    file = tmp_path / "export.jsonl"
    assert program.run("sessions", "export", file, home=one).status == 0
    assert program.run("sessions", "import", file, home=other).status == 0
    assert program.run("sessions", "delete", "--now", "--yes", "a", home=other).status == 0
    done = program.run("sessions", "import", file, home=other)
    assert done.status == 0 and "1 session deleted here before" in done.out
    assert shown(other) == {}
    assert program.run("sessions", "import", "--again", file, home=other).status == 0
    assert shown(other) == {"a": ["hello ocelot"]}

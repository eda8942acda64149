"""`hermes sessions watch` brings in what other programs write, and goes on where it was stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.errors import HermesError
from hermes.interop.history_watch import FileEvents
from hermes_state import SessionDB
from tests.interop.test_claude_code import NAME, said
from tests.support import program

SESSION = f"claude-code-{NAME}"


@contextlib.contextmanager
def watching(folder: Path, home: Path) -> Iterator[subprocess.Popen[str]]:
    process = program.start("sessions", "watch", folder, home=home)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def shown(home: Path) -> list[str]:
    try:
        with SessionDB(home / "state.db", read_only=True) as db:
            return [str(one["content"]) for one in db.get_messages(SESSION)]
    except HermesError:  # not there yet, or still being made
        return []


def until(home: Path, wanted: list[str]) -> None:
    end = time.monotonic() + 60
    while (found := shown(home)) != wanted:
        assert time.monotonic() < end, found
        time.sleep(0.05)


def write(file: Path, number: int) -> None:
    with file.open("a") as stream:
        stream.write(
            json.dumps(said(f"u{number}", f"u{number - 1}" if number else None, f"line {number}", number)) + "\n"
        )


def test_what_is_written_comes_in_also_after_a_kill(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "projects"
    file = folder / "later" / f"{NAME}.jsonl"
    folder.mkdir()
    with watching(folder, home) as process:
        file.parent.mkdir()  # a folder that was not there when watching began
        write(file, 0)
        until(home, ["line 0"])
        write(file, 1)
        until(home, ["line 0", "line 1"])
        process.send_signal(signal.SIGKILL)
        process.wait()
    write(file, 2)
    with watching(folder, home) as process:
        until(home, [f"line {number}" for number in range(3)])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    stamp = file.stat().st_mtime_ns
    done = program.run("sessions", "watch", folder, "--once", home=home)
    assert (done.status, done.out) == (0, "0 messages imported\n") and file.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("by_looking", [False, True])
def test_events_name_the_file_that_was_written(tmp_path: Path, by_looking: bool) -> None:
    events = FileEvents([tmp_path])
    if by_looking:  # as where there is no inotify
        events.close()
        assert events.wait(0) == set()
    try:
        assert events.wait(0.01) == set()
        (tmp_path / "one").write_text("x")
        assert tmp_path / "one" in events.wait(30)
        os.replace(tmp_path / "one", tmp_path / "two")
        assert tmp_path / "two" in events.wait(30)
    finally:
        events.close()

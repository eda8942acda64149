"""`hermes sessions watch` brings in what other programs write, and goes on where it was stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.errors import HermesError
from hermes.interop.history_watch import FileEvents
from hermes_state import SessionDB
from tests.interop import test_gemini as gemini
from tests.interop.importing import lines
from tests.interop.test_claude_code import NAME, said
from tests.support import program
from tests.support.sizes import size

SESSION = f"claude-code-{NAME}"


@contextlib.contextmanager
def watching(folder: Path, home: Path) -> Iterator[subprocess.Popen[str]]:
    process = program.start("sessions", "watch", folder, home=home)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def shown(home: Path, session: str) -> list[str]:
    try:
        with SessionDB(home / "state.db", read_only=True) as db:
            return [str(one["content"]) for one in db.get_messages(session)]
    except HermesError:  # not there yet, or still being made
        return []


def until(home: Path, wanted: list[str], session: str = SESSION) -> None:
    end = time.monotonic() + 60
    while (found := shown(home, session)) != wanted:
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


def test_a_chat_that_is_resumed_keeps_its_calls_and_tokens(tmp_path: Path) -> None:
    home, folder, session = tmp_path / "home", tmp_path / "tmp", f"gemini-{gemini.NAME}"
    file = lines(folder / "parser" / "chats" / "session-1.jsonl", gemini.TALK)
    words = ["which files?", "Two files.", "a\nb", "read a", "None", "alpha"]
    with watching(folder, home):
        until(home, words, session)
        before = gemini.everything(home)
        with file.open("a") as stream:
            for one in gemini.resumed("of the API"):
                stream.write(json.dumps(one) + "\n")
                stream.flush()
            stream.write(json.dumps(gemini.user("m6", "thanks")) + "\n")
        until(home, [*words, "thanks"], session)
    after = gemini.everything(home)
    assert after["messages"][:-1] == before["messages"]
    assert [after[name] == before[name] for name in ("input_tokens", "output_tokens", "model")] == [True] * 3


def processor_time(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_at_rest_it_uses_next_to_nothing_of_a_core(tmp_path: Path) -> None:
    """Docs promise 1 % and name what was measured; the limit here leaves room for a busy machine's clock ticks."""
    home, folder = tmp_path / "home", tmp_path / "projects"
    for number in range(300):
        file = folder / f"project-{number % 20}" / f"{NAME[:-3]}{number:03}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(said("u0", None, "line 0", 0)).replace(NAME, file.stem) + "\n")
    write(folder / f"{NAME}.jsonl", 0)
    with watching(folder, home) as process:
        until(home, ["line 0"])
        write(folder / f"{NAME}.jsonl", 1)  # the first look at everything is over when this one is in
        until(home, ["line 0", "line 1"])
        before, began = processor_time(process), time.monotonic()
        time.sleep(5)
        used, passed = processor_time(process) - before, time.monotonic() - began
    assert used / passed < 0.03, f"{used:.2f} s of processor time in {passed:.1f} s"


def test_a_folder_that_comes_with_its_files_is_seen(tmp_path: Path) -> None:
    """The files of a new folder may be written before it is watched."""
    (tmp_path / "watched").mkdir()
    events = FileEvents([tmp_path / "watched"], [tmp_path / "later" / "deep"])
    try:
        made = tmp_path / "made" / "inner"
        made.mkdir(parents=True)
        (made / "one").write_text("x")
        os.replace(tmp_path / "made", tmp_path / "watched" / "new")
        assert tmp_path / "watched" / "new" / "inner" / "one" in events.wait(30)
        assert not events.appeared
        (tmp_path / "later").mkdir()
        tries = iter(range(30))
        while not events.appeared and next(tries, None) is not None:
            events.wait(1)
        assert events.appeared
    finally:
        events.close()


def test_a_place_that_appears_before_it_is_awaited_is_seen(tmp_path: Path) -> None:
    place = tmp_path / "later" / "deep"
    events = FileEvents([], [place])
    assert not events.appeared
    events.close()
    place.mkdir(parents=True)  # between the look for places and the watch
    events = FileEvents([], [place])
    assert events.appeared
    events.close()


def test_folders_that_are_made_while_the_watch_begins_are_watched(tmp_path: Path) -> None:
    for number in range(size(30, 300)):
        root = tmp_path / str(number)
        root.mkdir()
        for name in range(20):  # so that listing takes a moment
            (root / str(name)).mkdir()
        maker = threading.Thread(target=(root / "made" / "meanwhile").mkdir, kwargs={"parents": True})
        maker.start()
        events = FileEvents([root])
        maker.join()
        while events.wait(0):
            pass
        (root / "made" / "meanwhile" / "file").write_text("words")
        assert root / "made" / "meanwhile" / "file" in events.wait(10)
        events.close()


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


@pytest.mark.parametrize("by_looking", [False, True])
def test_of_a_history_that_is_one_file_only_its_folder_is_watched(tmp_path: Path, by_looking: bool) -> None:
    """aider's lies in the home, with everything else; other programs' folders may still appear there."""
    (tmp_path / "work").mkdir()
    events = FileEvents([tmp_path], [tmp_path / ".claude" / "projects"], alone=[tmp_path])
    if by_looking:
        events.close()
        assert events.wait(0) == set()
    try:
        (tmp_path / "work" / "file").write_text("x")
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "file").write_text("x")
        (tmp_path / ".aider.chat.history.md").write_text("x")
        found: set[Path] = set()
        while tmp_path / ".aider.chat.history.md" not in found:
            found |= events.wait(30)
        assert not {tmp_path / "work" / "file", tmp_path / "made" / "file"} & (found | events.wait(0.01))
        assert not events.appeared
        (tmp_path / ".claude" / "projects").mkdir(parents=True)
        tries = iter(range(30))
        while not events.appeared and next(tries, None) is not None:
            events.wait(1)
        assert events.appeared
    finally:
        events.close()

"""`hermes sessions watch` beside others: one process follows the histories of a machine, another takes over, and no file stops it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.errors import HermesError
from hermes_state import SessionDB
from tests.interop.test_claude_code import NAME, said
from tests.support import program
from tests.support.labs.base import until

SESSION = f"claude-code-{NAME}"


def write(folder: Path, number: int) -> None:
    file = folder / "-work-parser" / f"{NAME}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as stream:
        stream.write(
            json.dumps(said(f"u{number}", f"u{number - 1}" if number else None, f"line {number}", number)) + "\n"
        )


class Home:
    """A home, and the processes that follow histories there."""

    def __init__(self, folder: Path) -> None:
        self.path, self.user = folder / "home", folder / "user"
        self.path.mkdir()
        self.user.mkdir()
        self.output = folder / "output"
        self.claude = self.user / ".claude" / "projects"

    def shown(self) -> list[str]:
        try:
            with SessionDB(self.path / "state.db") as db:
                return [str(one["content"]) for one in db.get_messages(SESSION)]
        except HermesError:  # not there yet, or still being made
            return []

    def await_lines(self, most: int) -> None:
        wanted = [f"line {number}" for number in range(most)]
        until(lambda: self.shown() == wanted, str(self.shown()))

    @contextmanager
    def started(self, *words: object) -> Iterator[subprocess.Popen[str]]:
        with self.output.open("a") as output:
            process = program.start(*words, home=self.path, env={"HOME": str(self.user)}, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def await_output(self, text: str, times: int = 1) -> None:
        until(lambda: self.output.read_text().count(text) >= times, text)


def test_one_process_follows_and_another_takes_over(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write(home.claude, 0)
    with home.started("sessions", "watch") as first:
        home.await_lines(1)
        with home.started("sessions", "watch") as second:
            home.await_output(f"process {first.pid} on")  # it waits
            write(home.claude, 1)
            home.await_lines(2)
            first.kill()
            first.wait()
            home.await_output("Watching;", 2)
            write(home.claude, 2)
            home.await_lines(3)
            second.terminate()
            assert second.wait(120) == 0
    with home.started("sessions", "watch"):  # released in order: nothing to wait for
        home.await_output("Watching;", 3)
    assert home.output.read_text().count("follows these places") == 1


def test_a_file_that_cannot_be_read_stops_nothing(tmp_path: Path) -> None:
    later = tmp_path / "later"
    later.mkdir()
    home = Home(tmp_path)
    with home.started("sessions", "watch", later) as watching:
        home.await_output("Watching;")
        broken = later / "-work-parser" / "damaged.jsonl"
        broken.parent.mkdir(parents=True)
        broken.write_text(json.dumps(said("u1", None, "fine", 1)).replace(NAME, "another") + "\n{\x00 torn\n")
        loop = later / "loop"
        loop.symlink_to(loop)
        os.mkfifo(later / "pipe.jsonl")
        home.await_output("line 2: ")
        write(later, 0)
        home.await_lines(1)
        (home.path / "import.lock").unlink()
        (home.path / "import.lock").mkdir()  # no file can be imported now
        write(later, 1)
        home.await_output("Is a directory")
        (home.path / "import.lock").rmdir()
        write(later, 2)
        home.await_lines(3)
        assert watching.poll() is None


def test_an_import_reads_a_file_after_the_one_before_it_has_stored_it(tmp_path: Path) -> None:
    """Else the older reading would take the newer messages for messages that were taken back, and hide them."""
    import fcntl
    import hashlib

    home = Home(tmp_path)
    write(home.claude, 0)
    file = home.claude / "-work-parser" / f"{NAME}.jsonl"
    with (home.path / "import.lock").open("w") as lock:  # as another process that imports this file
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, int.from_bytes(hashlib.sha256(os.fsencode(file)).digest()[:6], "big"))
        with home.started("sessions", "import", file) as one:
            until(lambda: (home.path / "state.db").exists())
            time.sleep(0.5)  # it would be through; the assertion below holds whenever it comes here
            assert one.poll() is None
            write(home.claude, 1)
            fcntl.lockf(lock, fcntl.LOCK_UN)
            assert one.wait(60) == 0
    assert home.shown() == ["line 0", "line 1"]

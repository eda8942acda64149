"""`gateway.watch`: a running gateway imports what other programs write, and nothing of that ever stops it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import HermesError
from hermes_state import SessionDB
from tests.interop.test_claude_code import NAME, said
from tests.support import program
from tests.support.labs.base import until
from tests.support.postgres import server

SESSION = f"claude-code-{NAME}"


def write(folder: Path, number: int) -> None:
    file = folder / "-work-parser" / f"{NAME}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as stream:
        stream.write(
            json.dumps(said(f"u{number}", f"u{number - 1}" if number else None, f"line {number}", number)) + "\n"
        )


class Home:
    """A home whose gateway only follows histories, and the processes on it."""

    def __init__(self, folder: Path, url: str | None = None, **watch: Any) -> None:
        self.path, self.user, self.store = folder / "home", folder / "user", url or folder / "home" / "state.db"
        self.path.mkdir(parents=True)
        self.user.mkdir(exist_ok=True)
        self.environment = {"HOME": str(self.user)}
        store = {"store": {"url": url}} if url else {}
        config = {
            "gateway": {"watch": {"enabled": True, **watch}},
            "model": {"default": "echo", "base_url": "http://127.0.0.1:9/v1"},
            **store,
        }
        (self.path / "config.yaml").write_text(json.dumps(config))

    @property
    def claude(self) -> Path:
        return self.user / ".claude" / "projects"

    def shown(self) -> list[str]:
        try:
            with SessionDB(url=self.store) if isinstance(self.store, str) else SessionDB(self.store) as db:
                return [str(one["content"]) for one in db.get_messages(SESSION)]
        except HermesError:  # not there yet, or still being made
            return []

    def await_lines(self, most: int) -> None:
        wanted = [f"line {number}" for number in range(most)]
        until(lambda: self.shown() == wanted, str(self.shown()))

    def log(self) -> list[str]:
        file = self.path / "logs" / "gateway.jsonl"
        return [str(json.loads(line)["text"]) for line in file.read_text().splitlines()] if file.exists() else []

    def run(self, *words: object) -> program.Result:
        return program.run(*words, home=self.path, env=self.environment)

    @contextmanager
    def started(self, *words: object) -> Iterator[subprocess.Popen[str]]:
        process = program.start(*words, home=self.path, env=self.environment)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def await_log(self, text: str) -> None:
        until(lambda: any(text in line for line in self.log()), text)


def test_the_gateway_imports_what_is_written_also_after_a_kill(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with home.started("gateway") as gateway:
        home.await_log("following the histories of other programs in the usual places")
        write(home.claude, 0)  # in a place that did not exist when it began
        home.await_lines(1)
        write(home.claude, 1)
        home.await_lines(2)
        told = home.run("gateway", "status")
        assert f"are followed in the usual places (process {gateway.pid} on" in told.out, told
        checked = home.run("doctor")
        assert f"follows the usual places (process {gateway.pid} on" in checked.out, checked
        gateway.send_signal(signal.SIGKILL)
        gateway.wait()
    write(home.claude, 2)
    assert "histories of other programs are not followed" in home.run("gateway", "status").out
    with home.started("gateway") as gateway:
        home.await_lines(3)
        gateway.terminate()
        assert gateway.wait(30) == 0


def test_one_process_follows_and_another_takes_over(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write(home.claude, 0)
    with home.started("sessions", "watch") as command:
        home.await_lines(1)
        with home.started("gateway") as gateway:
            home.await_log(f"process {command.pid} on")  # it waits
            write(home.claude, 1)
            home.await_lines(2)
            assert not any("message from" in line for line in home.log())
            command.send_signal(signal.SIGKILL)
            command.wait()
            home.await_log("following the histories")
            write(home.claude, 2)
            home.await_lines(3)
            gateway.terminate()
            assert gateway.wait(30) == 0
    with home.started("sessions", "watch") as command:  # released in order: nothing to wait for
        assert command.stderr is not None
        assert command.stderr.readline() == "Watching; Ctrl-C stops it.\n"


@pytest.fixture
def url() -> Iterator[str]:
    yield server().store("histories")
    server().forget("histories")


def test_a_watcher_that_fails_stops_neither_the_gateway_nor_itself(tmp_path: Path) -> None:
    later = tmp_path / "later"
    home = Home(tmp_path, folders=[str(later)])
    with home.started("gateway") as gateway:
        home.await_log("(gateway.watch.folders) is not a folder")
        broken = later / "-work-parser" / "damaged.jsonl"
        broken.parent.mkdir(parents=True)
        broken.write_text(json.dumps(said("u1", None, "fine", 1)).replace(NAME, "another") + "\n{\x00 torn\n")
        loop = later / "loop"
        loop.symlink_to(loop)
        os.mkfifo(later / "pipe.jsonl")
        home.await_log("line 2: ")
        write(later, 0)
        home.await_lines(1)
        (home.path / "import.lock").unlink()
        (home.path / "import.lock").mkdir()  # no file can be imported now
        write(later, 1)
        home.await_log("Is a directory")
        (home.path / "import.lock").rmdir()
        write(later, 2)
        home.await_lines(3)
        assert gateway.poll() is None
        assert len([line for line in home.log() if "Is a directory" in line]) == 1


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

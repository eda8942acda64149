"""A terminal with a program in it, looked at the way a person does: tmux on a private socket.

Keys go in, the screen comes out as text. Waiting always polls for what should appear, with a deadline.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from tests.support.waiting import PATIENCE, until

from . import relay
from .forking import fork_on_terminal

_SETTINGS = """
set -g default-terminal "tmux-256color"
set -g history-limit 50000
set -g remain-on-exit on
set -g remain-on-exit-format ""
set -g status off
set -s escape-time 0
"""


class Screen:
    """A program in a terminal of its own. Without tmux the test is skipped, unless HERMES_TEST_REQUIRE=all."""

    def __init__(
        self,
        command: Sequence[str],
        width: int = 80,
        height: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        terminal: str | None = None,
    ) -> None:
        if shutil.which("tmux") is None:
            if os.environ.get("HERMES_TEST_REQUIRE") == "all":
                pytest.fail("tmux is not installed")
            pytest.skip("tmux is not installed")
        self._folder = Path(tempfile.mkdtemp(prefix="screen-"))  # a socket's path must be short
        self._env = {
            key: value for key, value in (env or os.environ).items() if key not in ("TMUX", "COLUMNS", "LINES")
        }
        settings = self._folder / "tmux.conf"
        settings.write_text(_SETTINGS)
        where = ["-c", str(cwd)] if cwd is not None else []
        begin = ["-f", str(settings), "new-session", "-d", "-x", str(width), "-y", str(height), *where, "--"]
        self._pid: int | None = None
        if not self._forked(command, (width, height), cwd, terminal, begin):
            self._tmux(*begin, *(["env", f"TERM={terminal}"] if terminal else []), *command)

    def _forked(
        self, command: Sequence[str], size: tuple[int, int], cwd: Path | None, terminal: str | None, begin: Sequence[str]
    ) -> bool:  # fmt: skip
        """Fork the program instead of starting it, on a terminal that a relay in the pane shows; False if that can't be."""
        controller, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        as_in_tmux = {"TERM": terminal or "tmux-256color", "TERM_PROGRAM": "tmux", "TMUX": f"{self._folder / 's'},1,0"}
        try:
            found = fork_on_terminal(command, self._env | as_in_tmux, cwd, slave)
        finally:
            os.close(slave)
        try:
            if found is None:
                return False
            self._pid, ended = found
            try:
                with socket.socket(socket.AF_UNIX) as door:
                    door.settimeout(60)
                    door.bind(str(self._folder / "relay"))
                    door.listen()
                    self._tmux(*begin, sys.executable, "-I", "-S", relay.__file__, str(self._folder / "relay"))
                    with door.accept()[0] as channel:
                        socket.send_fds(channel, [b"x"], [controller, ended])
            finally:
                os.close(ended)
        finally:
            os.close(controller)
        return True

    def _tmux(self, *words: str, input: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._folder / "s"), *words],
            env=self._env, input=input, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        if check and done.returncode:
            raise RuntimeError(f"tmux {words[0]}: {done.stderr.strip()}")
        return done.stdout

    # ------------------------------------------------------------------------------------------ in

    def type(self, text: str) -> None:
        """Type these characters."""
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: Enter, C-c, C-d, M-Enter, Tab, Up."""
        self._tmux("send-keys", *keys)

    def line(self, text: str) -> None:
        """Type a line and send it."""
        self.type(text)
        self.press("Enter")

    def paste(self, text: str) -> None:
        """Paste, as a terminal with bracketed paste does."""
        self._tmux("load-buffer", "-", input=text)
        self._tmux("paste-buffer", "-p", "-d")

    # ------------------------------------------------------------------------------------------ out

    def text(self) -> str:
        """The text on the screen now."""
        return _trimmed(self._tmux("capture-pane", "-p"))

    def history(self) -> str:
        """The screen and everything that scrolled off it; lines that were wrapped are joined."""
        return _trimmed(self._tmux("capture-pane", "-p", "-J", "-S", "-"))

    def styled(self) -> str:
        """The screen with its colours, as escape sequences."""
        return self._tmux("capture-pane", "-p", "-e")

    def wait_for(self, text: str, timeout: float = PATIENCE, *, times: int = 1) -> str:
        """The screen, once this text is on it (or above it) so many times."""
        end = time.monotonic() + timeout
        between = "== 8< =="  # one tmux a look: each is a process
        look = ["display-message", "-p", "#{pane_dead}", ";", "capture-pane", "-p", ";"]
        look += ["display-message", "-p", between, ";", "capture-pane", "-p", "-J", "-S", "-"]
        while True:
            over, _, shown = self._tmux(*look).partition("\n")
            screen, _, history = (_trimmed(part) for part in shown.partition(f"{between}\n"))
            if max(screen.count(text), history.count(text)) >= times:
                return screen
            if time.monotonic() > end or over == "1":
                raise AssertionError(f"{text!r} did not come up; the screen:\n{self.history()}")
            time.sleep(0.05)

    def is_over(self) -> bool:
        """Whether the program has ended."""
        return self._tmux("display-message", "-p", "#{pane_dead}").strip() == "1"

    def leave(self) -> None:
        """Ctrl-D at the prompt; the program ends well."""
        self.press("C-d")
        assert self.wait_until_over() == 0

    def wait_until_over(self) -> int | None:
        """The exit status of the program, once it has ended; None when a signal ended it."""
        until(self.is_over, lambda: f"the program ends; the screen:\n{self.history()}")

        def told() -> str:  # tmux knows that a program is gone a moment before it knows how
            how = self._tmux("display-message", "-p", "#{pane_dead_status}#{?pane_dead_signal,signal,}").strip()
            if not how:
                os.kill(int(self._tmux("display-message", "-p", "#{pid}")), signal.SIGCHLD)  # tmux 3.3 can miss it
            return how

        how = until(told, "tmux tells how the program ended")
        return None if how == "signal" else int(how)

    def pid(self) -> int:
        """The program's process id."""
        return self._pid if self._pid is not None else int(self._tmux("display-message", "-p", "#{pane_pid}"))

    def resize(self, width: int, height: int) -> None:
        """Make the terminal another size."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def close(self) -> None:
        """End the terminal and whatever runs in it."""
        self._tmux("kill-server", check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n")).rstrip("\n")

"""Running the real `hermes` as a process, the way a shell does.

A child gets its own home, a quiet environment (no colour, UTC, no terminal width unless asked for) and never a
terminal on its standard input (`in_terminal` gives it one); what it wrote comes back as text.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.forking import Forked
from tests.support.waiting import PATIENCE

ONLY_OLLAMA = {"HERMES_NO_LOCAL": "LM Studio,vLLM,llama.cpp"}  # OLLAMA_HOST says where: a server of the test
PROGRAM = [sys.executable, "-m", "hermes.cli.main"]
_LEFT_OUT = (
    "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "HERMES_NOW", "HERMES_DEBUG", "PYTHONWARNINGS",
    "PYTHONUNBUFFERED",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """The status and output of a finished program."""

    status: int
    out: str
    err: str


def environment(home: Path, env: dict[str, str] | None = None, width: int | None = None) -> dict[str, str]:
    """The variables of a child: this process's, without what would colour or size its output."""
    kept = {key: value for key, value in os.environ.items() if key not in _LEFT_OUT}
    kept["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
    kept |= {"HERMES_HOME": str(home), "TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    kept["PAGER"] = "cat"  # nobody is there to leave a pager
    kept["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), kept.get("PATH", os.defpath)])  # `hermes` is found
    if width is not None:
        kept["COLUMNS"] = str(width)
    return kept | (env or {})


def run(
    *words: object,
    home: Path,
    input: str | bytes | None = None,
    env: dict[str, str] | None = None,
    width: int | None = None,
    timeout: float = 120,
    cwd: Path | None = None,
) -> Result:
    """Run `hermes words…` to its end. `input` is its standard input (nothing: an empty one)."""
    given = input.encode() if isinstance(input, str) else (input or b"")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked([*PROGRAM, *map(str, words)], env=environment(home, env, width), cwd=cwd, **pipes) as process:
        try:
            out, err = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return Result(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def start(*words: object, home: Path, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
    """Start `hermes words…` and leave it running; its output comes through pipes, line by line."""
    settings: dict[str, Any] = {
        "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True,
        "env": environment(home, {"PYTHONUNBUFFERED": "1", **(env or {})}),
    }  # fmt: skip
    return Forked([*PROGRAM, *map(str, words)], **(settings | more))


def ended(process: subprocess.Popen[Any]) -> int:
    """The exit status of a program; its pipes are closed."""
    status = process.wait(PATIENCE)
    with process:
        return status


def in_terminal(
    *words: object,
    home: Path,
    answer: Callable[[str], str | None] | None = None,
    env: dict[str, str] | None = None,
    width: int = 80,
) -> tuple[int, str]:
    """Run `hermes words…` on a terminal of its own; its status and everything that appeared there.

    `answer` is called with what is on the screen so far; the text it gives (once) is typed.
    """
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = Forked(
        [*PROGRAM, *map(str, words)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment(home, {"TERM": "xterm-256color", **(env or {})}),
        start_new_session=True,
    )
    os.close(terminal)
    seen = b""
    while True:
        try:
            some = os.read(controller, 65_536)
        except OSError:  # the other end is closed
            break
        if not some:
            break
        seen += some
        typed = answer(seen.decode(errors="replace")) if answer is not None else None
        if typed is not None:
            os.write(controller, typed.encode())
            answer = None
    os.close(controller)
    return process.wait(timeout=60), seen.decode(errors="replace").replace("\r\n", "\n")

"""The line that is printed on leaving continues the conversation as it stands: in that shell and in a new one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.chat.server import ModelServer
from tests.support.program import PROGRAM, environment
from tests.support.screen import Screen

SYSTEM = "/usr/bin:/bin"


def resume_line(home: Path, path: str) -> str:
    """Talk once with this search path, leave, and read the line."""
    with Screen([*PROGRAM], width=100, height=30, env=environment(home) | {"PATH": path}) as screen:
        screen.wait_for("❯")
        screen.line("hello")
        screen.wait_for("That is all I have to say.")
        screen.leave()
        (line,) = [one for one in screen.history().splitlines() if one.startswith("Resume ")]
        return line.removeprefix("Resume ").strip()


def in_a_new_shell(line: str, home: Path, path: str) -> str:
    env = environment(home) | {"PATH": path}
    done = subprocess.run(
        ["sh", "-c", f"{line} -q again"], env=env, cwd="/", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_line_that_resumes_works_with_and_without_an_installed_command(
    server: ModelServer, home: Path, tmp_path: Path
) -> None:
    bare = resume_line(home, SYSTEM)
    assert Path(bare.partition(" -r ")[0]).expanduser().is_absolute()
    assert in_a_new_shell(bare, home, SYSTEM) == "That is all I have to say.\n"
    assert [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "user"] == ["hello", "again"]

    linked = tmp_path / "bin"  # as `make install` does
    linked.mkdir()
    (linked / "hermes").symlink_to(Path(sys.executable).parent / "hermes")
    short = resume_line(home, f"{linked}:{SYSTEM}")
    assert short.startswith("hermes -r ")
    assert in_a_new_shell(short, home, f"{linked}:{SYSTEM}") == "That is all I have to say.\n"

    (linked / "hermes").unlink()
    (linked / "hermes").write_text("#!/bin/sh\necho another program of that name\n")
    (linked / "hermes").chmod(0o755)
    other = resume_line(home, f"{linked}:{SYSTEM}")
    assert not other.startswith("hermes -r ")

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
from hermes_state import SessionDB
from tests.interop.importing import lines
from tests.interop.test_claude_code import NAME, said
from tests.support import program
from tests.support.waiting import until

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


def until_shown(home: Path, wanted: list[str], session: str = SESSION) -> None:
    until(lambda: shown(home, session) == wanted, lambda: shown(home, session))


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
        until_shown(home, ["line 0"])
        write(file, 1)
        until_shown(home, ["line 0", "line 1"])
        process.send_signal(signal.SIGKILL)
        process.wait()
    write(file, 2)
    with watching(folder, home) as process:
        until_shown(home, [f"line {number}" for number in range(3)])
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    stamp = file.stat().st_mtime_ns
    done = program.run("sessions", "watch", folder, "--once", home=home)
    assert (done.status, done.out) == (0, "0 messages imported\n") and file.stat().st_mtime_ns == stamp


def test_a_program_that_is_installed_later_is_followed(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "later" / "projects" / "-work" / f"{NAME}.jsonl"
    process = program.start(
        "sessions", "watch", home=home, env={"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "later")}
    )
    try:
        assert process.stderr is not None and "Watching" in process.stderr.readline()
        lines(file, [said("u0", None, "line 0", 0)])
        until_shown(home, ["line 0"])
        write(file, 1)
        until_shown(home, ["line 0", "line 1"])
    finally:
        process.kill()
        process.communicate()


# ------------------------------------------------------------------------------------------------ for good


def test_watch_as_a_service(tmp_path: Path) -> None:
    """A stand-in for systemctl writes down how it was called: the machine's own may have no user session."""
    home, folder, calls = tmp_path / "home", tmp_path / "my projects", tmp_path / "calls"
    unit = tmp_path / "configuration" / "systemd" / "user"
    folder.mkdir()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    (tools / "systemctl").chmod(0o755)
    variables = {
        "XDG_CONFIG_HOME": str(tmp_path / "configuration"),
        "HOME": str(tmp_path),
        "PATH": f"{tools}:/usr/bin:/bin",
    }
    done = program.run("sessions", "watch", folder, "--install", home=home, env=variables)
    assert done.status == 0 and (found := list(unit.iterdir()))
    assert f'sessions watch "{folder}"\n' in found[0].read_text() and f"HERMES_HOME={home}\n" in found[0].read_text()
    assert f"--user enable --now {found[0].name}" in calls.read_text() and found[0].name.startswith("hermes-watch")
    done = program.run("sessions", "watch", "--uninstall", home=home, env=variables)
    assert done.status == 0 and not list(unit.iterdir()) and f"disable --now {found[0].name}" in calls.read_text()
    again = program.run("sessions", "watch", "--uninstall", home=home, env=variables)
    assert again.status == 1 and "--install" in again.err
    (tools / "systemctl").write_text("#!/bin/sh\nexit 1\n")  # as without a session of the user
    refused = program.run("sessions", "watch", "--install", home=home, env=variables)
    assert refused.status == 0 and "systemctl --user enable --now" in refused.out
    assert program.run("sessions", "watch", "--install", "--once", home=home, env=variables).status == 2


@pytest.mark.parametrize(("settings", "told"), [
    (None, "2 sessions"), ('{"cleanupPeriodDays": 60}', "1 session"), ('{"cleanupPeriodDays": 0}', ""),
    ('{"cleanupPeriodDays": 9999}', ""), ("{", "2 sessions"),
])  # fmt: skip
def test_sessions_that_the_program_is_about_to_delete_are_named_once(
    tmp_path: Path, settings: str | None, told: str
) -> None:
    home, claude = tmp_path / "home", tmp_path / "claude"
    for days in (1, 24, 56, 57):
        name = f"{NAME[:-2]}{days:02}"
        file = claude / "projects" / "-work" / f"{name}.jsonl"
        lines(file, [{**said(f"u{days}", None, f"line {days}", 0), "sessionId": name}])
        os.utime(file, (time.time() - days * 86400, time.time() - days * 86400 - 60))
    if settings is not None:
        (claude / "settings.json").write_text(settings)
    variables = {"CLAUDE_CONFIG_DIR": str(claude), "HOME": str(tmp_path)}
    here = sorted((claude / "projects" / "-work").iterdir())[:3]  # one of them is not in the record
    done = program.run("sessions", "import", *here, home=home, env=variables)
    assert done.status == 0 and ("Claude Code will delete" in done.err) == bool(told) and told in done.err
    for words in (("watch", claude, "--once"), ("import", here[0])):
        assert "will delete" not in program.run("sessions", *words, home=home, env=variables).err

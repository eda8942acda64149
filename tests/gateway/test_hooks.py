"""The user's own commands when sessions end: they get the session, and whatever they do, conversations go on."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hermes.config import Config
from hermes.gateway.chats.participants import FINALIZE, RESET, run_hook
from hermes.gateway.settings import Timings
from tests.support import gateway as in_process
from tests.support.echo import Echo
from tests.support.gateway import Clock
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab

running = partial(in_process.running, timings=Timings(reset_check=0.05))

SESSION = {"id": "20260101_000000_abcdef01", "title": "Tulpen \N{TULIP}", "cost": 1.5}


def run(command: str | list[str], name: str = FINALIZE, **more: Any) -> None:
    """Run a hook to its end."""
    thread = run_hook(Config(hooks={name: command}), name, dict(SESSION), **more)
    assert thread is not None
    thread.join(120)
    assert not thread.is_alive()


def writing(target: Path) -> list[str]:
    """A command that writes what it is told to a file, all or nothing."""
    script = (
        "import os, sys; part = sys.argv[1] + '.part'; open(part, 'wb').write(sys.stdin.buffer.read());"
        " os.replace(part, sys.argv[1])"
    )
    return [sys.executable, "-c", script, str(target)]


@pytest.mark.parametrize("shell", [False, True])
def test_a_hook_gets_the_session_as_json(tmp_path: Path, shell: bool) -> None:
    command = writing(tmp_path / "told")
    run(shlex.join(command) if shell else command, reason="idle", large="x" * 300_000)
    told = json.loads((tmp_path / "told").read_text())
    assert {name: told[name] for name in SESSION} == SESSION
    assert told["reason"] == "idle"
    assert len(told["large"]) == 300_000


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo it broke >&2; exit 3", "status 3: it broke"),
        (["/no/such/program"], "could not be started"),
        ("exit 0 <&-", None),
        ("true", None),
    ],
)
def test_a_failing_hook_is_a_line_in_the_log(
    command: str | list[str], words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "hermes.gateway"):
        run(command, large="x" * 300_000)  # more than a pipe holds, to one that does not read it
    assert [words in record.getMessage() for record in caplog.records] == ([] if words is None else [True])


def test_a_hook_that_hangs_is_ended_with_all_it_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "hermes.gateway"):
        run(f"sleep 600 & echo $! > {shlex.quote(str(tmp_path / 'number'))}; wait", timeout=1.0)
    assert "within 1 s" in caplog.text
    number = int((tmp_path / "number").read_text())

    def gone() -> bool:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    until(gone)


def test_without_a_hook_or_a_session_nothing_runs() -> None:
    assert run_hook(Config(), RESET, dict(SESSION)) is None
    assert run_hook(Config(hooks={RESET: "true"}), RESET, None) is None


# ------------------------------------------------------------------------------------------------ in the gateway


def said(path: Path) -> dict[str, Any]:
    until(path.exists)
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def test_hooks_hear_of_a_reset_and_of_a_session_that_was_left(lab: PlainLab, tmp_path: Path) -> None:
    clock = Clock()
    commands = {FINALIZE: writing(tmp_path / "final"), RESET: writing(tmp_path / "reset")}
    idle = {"mode": "idle", "idle_minutes": 60}
    with (
        Echo() as model,
        running(lab, model, clock=clock, session_reset=idle, hooks=commands) as gateway,
    ):
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        lab.say("/new")
        told = said(tmp_path / "final")
        (row,) = gateway.db.list_sessions_rich(source="plain")
        assert (told["id"], told["reason"], told["end_reason"]) == (row["id"], "user_exit", "user_exit")
        assert not (tmp_path / "reset").exists()
        (tmp_path / "final").unlink()
        lab.say("again")
        until(lambda: "echo: again" in lab.shown())
        clock.forward(7200)
        for name in ("final", "reset"):
            told = said(tmp_path / name)
            assert (told["source"], told["user_id"], told["reason"]) == ("plain", "u-alice", "idle")
            assert told["message_count"] >= 2
            assert told["ended_at"]


def test_a_hook_that_hangs_holds_up_nobody(lab: PlainLab) -> None:
    commands = {FINALIZE: "sleep 15", RESET: "sleep 15"}
    with Echo() as model, running(lab, model, hooks=commands):
        lab.say("one")
        until(lambda: "echo: one" in lab.shown())
        lab.say("/new")
        lab.say("two")
        until(lambda: "echo: two" in lab.shown())

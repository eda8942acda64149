"""A terminal and a chat in one session: one process answers at a time, the later one waits and says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.program import PROGRAM, ended, environment, start
from tests.support.screen import Screen

SLOW = "slow=30 " + "x " * 100  # half a minute, unless the model is told to hurry


def configured(home: Path, model: Echo) -> dict[str, str]:
    """A home whose terminal speaks to the same model; what its environment needs besides."""
    home.mkdir(parents=True, exist_ok=True)
    settings = {"model": {"default": "echo", "base_url": model.base_url, "api_key": "x"}}
    (home / "config.yaml").write_text(yaml.safe_dump(settings))
    return {"HERMES_NO_LOCAL": "1", "HERMES_NO_EMBEDDED": "1"}


def asked(model: Echo, words: str) -> bool:
    return any(words in str(one["messages"][-1]) for one in list(model.requests))


@contextmanager
def begun(lab: PlainLab, model: Echo, home: Path) -> Iterator[tuple[Any, str]]:
    """A gateway, and a conversation in which nobody answers at the moment."""
    with running(lab, model, home) as gateway:
        lab.say("first")
        until(lambda: lab.shown() == ["echo: first"])
        (row,) = gateway.db.list_sessions_rich(source="plain")
        until(lambda: not gateway.db.is_live(str(row["id"])))
        yield gateway, str(row["id"])


def told(gateway: Any, session_id: str) -> list[tuple[str, str]]:
    return [(row["role"], row["content"][:20].strip()) for row in gateway.db.get_messages(session_id)]


def test_a_chat_waits_while_a_terminal_answers(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    env = configured(hermes_home, model)
    with begun(lab, model, hermes_home) as (gateway, session_id):
        terminal = start("chat", "-q", SLOW, "--resume", session_id, home=hermes_home, env=env)
        try:
            until(lambda: asked(model, "slow=30"))
            lab.say("second")
            until(
                lambda: any("waits until it is done" in one and "(cli)" in one for one in lab.shown()),
                str(lab.shown()),
            )
            assert not asked(model, "second")
            model.hurry = True
            _, err = terminal.communicate(timeout=120)
            assert terminal.returncode == 0, err
            until(lambda: "echo: second" in lab.shown(), str(lab.shown()))
        finally:
            terminal.kill()
            ended(terminal)
        assert told(gateway, session_id) == [
            ("user", "first"), ("assistant", "echo: first"), ("user", SLOW[:20].strip()), ("assistant", f"echo: {SLOW}"[:20].strip()),
            ("user", "second"), ("assistant", "echo: second"),
        ]  # fmt: skip


def test_a_chat_goes_on_when_the_terminal_is_killed(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    env = configured(hermes_home, model)
    with begun(lab, model, hermes_home) as (_, session_id):
        terminal = start("chat", "-q", SLOW, "--resume", session_id, home=hermes_home, env=env)
        until(lambda: asked(model, "slow=30"))
        lab.say("second")
        until(lambda: any("(cli)" in one for one in lab.shown()), str(lab.shown()))
        os.kill(terminal.pid, signal.SIGKILL)
        ended(terminal)
        until(lambda: "echo: second" in lab.shown(), str(lab.shown()))


def test_a_message_that_waits_outlives_the_gateway(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    env = configured(hermes_home, model)
    with begun(lab, model, hermes_home) as (gateway, session_id):
        terminal = start("chat", "-q", SLOW, "--resume", session_id, home=hermes_home, env=env)
        until(lambda: asked(model, "slow=30"))
        lab.say("second")
        until(lambda: any("(cli)" in one for one in lab.shown()), str(lab.shown()))
    model.hurry = True
    terminal.communicate(timeout=120)
    with running(lab, model) as gateway:
        until(lambda: "echo: second" in lab.shown(), str(lab.shown()))
        assert [text for role, text in told(gateway, session_id) if role == "user"].count("second") == 1


def test_a_terminal_waits_while_a_chat_answers(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    env = configured(hermes_home, model)
    with begun(lab, model, hermes_home) as (gateway, session_id):
        screen = Screen([*PROGRAM, "--resume", session_id], env=environment(hermes_home, env))
        try:
            screen.wait_for("❯")
            lab.say(SLOW)  # an open terminal alone keeps nobody from answering
            until(lambda: asked(model, "slow=30"))
            screen.line("typed here")
            screen.wait_for("(plain); waiting…")
            screen.press("C-c")
            screen.wait_for("Not sent")
            screen.wait_for("❯ typed here", times=2)  # it is back at the prompt
            screen.press("Enter")
            screen.wait_for("(plain); waiting…", times=2)
            assert not asked(model, "typed here")
            model.hurry = True
            screen.wait_for("echo: typed here")
        finally:
            screen.close()
        assert [text for role, text in told(gateway, session_id) if role == "user"] == [
            "first", SLOW[:20].strip(), "typed here",
        ]  # fmt: skip

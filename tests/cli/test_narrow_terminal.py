"""Screens of 60 columns: lines end between words, and an id is never on two lines."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.program import in_terminal, run

ID = "20260301_101500_4f2a9c"


def test_doctor_breaks_lines_between_words_below_the_text(hermes_home: Path) -> None:
    env = {"NO_COLOR": "1", "HERMES_NO_LOCAL": "1"}
    _, text = in_terminal("doctor", home=hermes_home, width=60, env=env)
    lines = [line.rstrip() for line in text.replace("\r", "").split("\n")]
    at = next(number for number, line in enumerate(lines) if line.startswith("✓ model"))
    assert lines[at].startswith("✓ model            none: ") and lines[at + 1].startswith(" " * 19)
    assert all(len(line) <= 60 for line in lines if "/" not in line), text
    commands = [command for command in re.findall(r"`[^`]*`", text) if "\n" in command]
    assert commands == [] and "`hermes model install smollm2`" in text, commands


def test_help_cuts_nothing(hermes_home: Path) -> None:
    for words in ([], ["chat"], ["config"], ["cron"], ["gateway"]):
        text = run(*words, "--help", home=hermes_home, width=60).out
        _, _, commands = text.partition("Commands:")
        assert "..." not in commands, commands
        assert max(map(len, text.split("\n"))) <= 60, text


def test_an_error_is_broken_between_words_and_a_command_stays_whole(hermes_home: Path) -> None:
    status, text = in_terminal("--resume", "nothing-like-that", home=hermes_home, width=60)
    lines = [line.rstrip() for line in text.replace("\r", "").strip().split("\n")]
    assert (status, lines) == (1, [
        "hermes: no session matches 'nothing-like-that';",
        "`hermes sessions list` lists them",
    ])  # fmt: skip

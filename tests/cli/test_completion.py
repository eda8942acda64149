"""Completion in real shells: scripts are sourced, Tab is pressed, and what lands on the line means the right thing."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from hermes.cli.main import COMMANDS
from hermes_state import SessionDB
from tests.support.program import environment, run
from tests.support.screen import Screen
from tests.support.waiting import until

TITLES = ["Parser rewrite", "Fix: the 'odd' \"quotes\" & $HOME `x`, !", "漢字 title", "slash/in it", "key=value: x"]
IDS = [f"20260101_00000{number}_abcde{number}" for number in range(len(TITLES) + 1)]


@pytest.fixture
def home(hermes_home: Path) -> Path:
    """Sessions with awkward titles, and one without."""
    with SessionDB(db_path=hermes_home / "state.db") as db:
        for number, session_id in enumerate(IDS):
            db.create_session(session_id, "cli" if number else "telegram", model="gpt-5")
            db.append_message(session_id, role="user", content=f"question {number}", timestamp=1_700_000_000 + number)
        for session_id, title in zip(IDS, TITLES, strict=False):
            db.set_session_title(session_id, title)
    return hermes_home


def words(home: Path, *typed: str) -> list[str]:
    """The candidates after these words (the last one is being typed)."""
    asked = {
        "_HERMES_COMPLETE": "bash_complete",
        "COMP_WORDS": "\n".join(["hermes", *typed]),
        "COMP_CWORD": str(len(typed)),
    }
    done = run(home=home, env=asked)
    assert (done.status, done.err) == (0, "")
    return [re.sub(r"\\(.)", r"\1", line) for line in done.out.splitlines() if line]


# ── what is offered ──


def test_commands_and_options(home: Path) -> None:
    assert words(home, "") == list(COMMANDS)
    assert words(home, "se") == ["sessions", "search"]
    assert "list" in words(home, "sessions", "") and words(home, "sessions", "exp") == ["export"]
    assert words(home, "config", "") == ["edit", "get", "path", "set", "show", "unset"]
    assert "--json" in words(home, "sessions", "list", "--")
    assert {"--continue", "--resume"} <= set(words(home, "--"))
    assert {"--continue", "--resume"} <= set(words(home, "chat", "--"))
    assert words(home, "completion", "") == ["bash", "zsh", "fish"]
    assert words(home, "sessions", "nonsense", "") == [] or "list" in words(home, "sessions", "nonsense", "")


def test_every_command_and_subcommand_can_be_asked_for_its_options(home: Path) -> None:
    from hermes.cli.sessions import COMMANDS as SESSIONS

    for path in [[name] for name in COMMANDS] + [["sessions", name] for name in SESSIONS]:
        offered = words(home, *path, "--")
        assert "--help" in offered, path


@pytest.mark.parametrize(
    "before",
    [
        ["-c"],
        ["--continue"],
        ["-r"],
        ["chat", "--resume"],
        ["sessions", "show"],
        ["sessions", "rename"],
        ["sessions", "pin", "x"],
    ],
)
def test_sessions_by_title_and_untitled_ones_by_id(home: Path, before: list[str]) -> None:
    assert words(home, *before, "") == [*reversed(TITLES), IDS[-1]]
    assert words(home, *before, "pars") == ["Parser rewrite"]
    assert words(home, *before, "20260101_000002") == [IDS[2]]
    assert words(home, *before, "2026") == IDS


def test_option_values(home: Path) -> None:
    assert set(words(home, "sessions", "list", "--source", "")) == {"cli", "telegram"}
    assert words(home, "sessions", "list", "--source", "=", "t") == ["telegram"]
    assert words(home, "sessions", "export", "--session-id", "Par") == ["Parser rewrite"]
    assert set(words(home, "sessions", "export", "--format", "")) >= {"jsonl", "md", "html"}
    assert words(home, "sessions", "export", "") == [":files"]


def test_config_keys_and_values(home: Path) -> None:
    (home / "config.yaml").write_text("model: {default: my-model}\nmcp_servers: {files: {command: sh}}\n")
    assert words(home, "config", "get", "model.") == [
        "model.default",
        "model.base_url",
        "model.api_key",
        "model.context_length",
    ]
    assert words(home, "config", "get", "model.default", "") == []


def test_the_trash_is_offered_to_restore(home: Path) -> None:
    with SessionDB(db_path=home / "state.db") as db:
        db.trash_session(IDS[0])
    assert words(home, "sessions", "restore", "") == [IDS[0]]
    assert IDS[0] not in words(home, "sessions", "show", "2")


def test_nothing_is_made_and_nothing_is_said_when_there_is_no_history_or_it_is_broken(hermes_home: Path) -> None:
    assert words(hermes_home, "-c", "") == []
    assert not hermes_home.exists()
    hermes_home.mkdir()
    (hermes_home / "state.db").write_bytes(b"rubbish" * 100)
    (hermes_home / "config.yaml").write_text("modle: [")
    assert words(hermes_home, "-c", "") == []
    assert "model.default" in words(hermes_home, "config", "get", "")


@pytest.mark.parametrize(
    "typed", [["'a"], ['"a\\'], ["\\"], ["-c", "--", "-"], ["--x="], ["--source", "="], ["x" * 5000]]
)
def test_half_a_line_of_any_kind_is_no_error(home: Path, typed: list[str]) -> None:
    words(home, *typed)


def test_the_command_prints_a_script(hermes_home: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        done = run("completion", shell, home=hermes_home)
        assert (done.status, done.err) == (0, "") and "_hermes_completion" in done.out
    for wrong in ([], ["tcsh"], ["bash", "zsh"]):
        done = run("completion", *wrong, home=hermes_home)
        assert (done.status, done.out) == (2, "") and done.err.startswith("hermes: ")


# ── a real Tab ──


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        if os.environ.get("HERMES_TEST_REQUIRE") == "all":
            pytest.fail(f"{program} is not installed")
        pytest.skip(f"{program} is not installed")
    return found


@pytest.fixture
def shell_home(home: Path, tmp_path: Path) -> dict[str, str]:
    """The variables of a shell that finds `hermes` on its path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    hermes = programs / "hermes"
    hermes.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hermes.cli.main "$@"\n')
    hermes.chmod(0o755)
    variables = environment(home, {"HOME": str(tmp_path), "TERM": "xterm", "HISTFILE": str(tmp_path / "history")})
    return variables | {"PATH": f"{programs}:{variables['PATH']}"}


SHELLS = {
    "bash": (
        ["--norc", "--noprofile", "-i"],
        "PS1='$ '; source <(hermes completion bash); words() { printf '<%s>\\n' \"$@\"; }; complete -F _hermes_completion words; echo rea''dy",
    ),
    "zsh": (
        ["-f", "-i"],
        "PS1='$ '; autoload -Uz compinit; compinit -u -D; source <(hermes completion zsh); words() { printf '<%s>\\n' \"$@\" }; compdef _hermes_completion words; echo rea''dy",
    ),
    "fish": (
        ["--no-config", "-i"],
        "function fish_prompt; echo '$ '; end; hermes completion fish | source; function words; printf '<%s>\\n' $argv; end; complete -c words -f -k -a '(_hermes_completion)'; echo rea''dy",
    ),
}


@pytest.mark.parametrize("shell", list(SHELLS))
def test_a_real_tab_completes_commands_keys_ids_and_titles(shell: str, shell_home: dict[str, str]) -> None:
    options, setup = SHELLS[shell]
    awkward = TITLES[1]
    seen: list[str] = []
    with Screen([need(shell), *options], width=150, height=50, env=shell_home) as screen:
        screen.line(setup)
        screen.wait_for("ready")
        for typed, wanted in [
            ("words sess", ["sessions"]),
            ("words config get sessions.retention_d", ["config", "get", "sessions.retention_days"]),
            ("words sessions show 20260101_000002", ["sessions", "show", IDS[2]]),
            ("words -c Pars", ["-c", "Parser rewrite"]),
            ("words -c 漢", ["-c", "漢字 title"]),
            ("words -c Fix", ["-c", awkward]),
            ("words -c 'Fix", ["-c", awkward]),
            ('words -c "Pars', ["-c", "Parser rewrite"]),
            ('words -c "漢', ["-c", "漢字 title"]),
            ('words -c "Fix', ["-c", awkward]),
            ("words -c slash", ["-c", "slash/in it"]),
            ("words -c key", ["-c", "key=value: x"]),
        ]:
            screen.press("C-l")
            screen.type(typed)
            before = screen.text()
            screen.press("Tab")
            until(lambda before=before: screen.text() != before, f"Tab did nothing:\n{before}")
            screen.press("Enter")
            seen.append("\n".join(f"<{word}>" for word in wanted))
            screen.wait_for(seen[-1], times=seen.count(seen[-1]))

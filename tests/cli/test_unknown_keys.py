"""A key in config.yaml that nobody knows: a warning once a run and a line in doctor, never the end of a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.program import run

QUIET = {"HERMES_NO_LOCAL": "1", "HERMES_NO_EMBEDDED": "1"}
TOLD = "line 1: unknown configuration key: model.provider"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A record, and the configuration of somebody who comes from another program."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with SessionDB(db_path=home / "state.db") as db:
        db.create_session("first", "cli")
        db.append_message("first", "user", "hello")
    (home / "config.yaml").write_text("model: {provider: openrouter}\nagent: {max_turns: 60}\n")
    return home


@pytest.mark.parametrize(
    "words",
    [
        ("sessions", "list"), ("sessions", "list", "--json"), ("sessions", "export", "-"), ("sessions", "show", "first"),
        ("sessions", "tag", "first", "x"), ("insights",), ("config", "get", "timezone"), ("-q", "hello"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_does_its_work_and_warns_once(home: Path, words: tuple[str, ...]) -> None:
    done = run(*words, home=home, env=QUIET)
    assert done.status == 0 and done.err.count(TOLD) == 1, done.err
    line = next(one for one in done.err.splitlines() if TOLD in one)
    assert line.startswith("hermes: ") and line.endswith(" (ignored, and 1 more)")
    assert "Warning" not in done.err


def test_values_beside_it_hold(home: Path) -> None:
    (home / "config.yaml").write_text("model: {provider: x, default: mine}\ntimezone: Europe/Berlin\n")
    assert run("config", "get", "model.default", home=home).out == "mine\n"
    assert run("config", "set", "timezone", "UTC", home=home).status == 0
    assert (home / "config.yaml").read_text() == "model: {provider: x, default: mine}\ntimezone: UTC\n"


def test_doctor_has_a_line_and_nothing_is_wrong(home: Path) -> None:
    done = run("doctor", "--json", home=home, env=QUIET)
    lines = [one for one in json.loads(done.out)["checks"] if "unknown configuration key" in str(one)]
    assert len(lines) == 2 and "hermes config unset model.provider" in str(lines[0])
    assert done.status == 0 and TOLD not in done.err


def test_a_wrong_value_is_still_an_error(home: Path) -> None:
    (home / "config.yaml").write_text("model: {provider: x}\nsessions: {retention_days: soon}\n")
    done = run("sessions", "list", home=home)
    assert done.status == 1 and done.out == "" and done.err.count("\n") == 1


def test_a_misspelt_key_of_the_store_is_an_error(home: Path) -> None:
    """Else messages would go to another store than the user meant."""
    (home / "config.yaml").write_text("store: {ulr: 'postgresql://nowhere/x'}\n")
    for words in (("sessions", "list"), ("-q", "hello"), ("sessions", "export", "-")):
        done = run(*words, home=home, env=QUIET)
        assert (done.status, done.out) == (1, "") and "store.ulr; did you mean url?" in done.err


def test_a_wrong_type_ends_only_the_commands_that_need_that_key(home: Path) -> None:
    (home / "config.yaml").write_text("compression: {threshold: lots}\ngateway: {port: [1]}\n")
    for words in (("sessions", "list"), ("sessions", "export", "-"), ("sessions", "tag", "first", "y"), ("insights",)):
        done = run(*words, home=home, env=QUIET)
        assert done.status == 0 and done.err.count("line 1: compression.threshold: expected") == 1, done.err
    asked = run("-q", "hello", home=home, env=QUIET)
    assert asked.status == 1 and "compression.threshold: expected" in asked.err and asked.err.count("\n") == 1
    (home / "config.yaml").write_text("platforms: 7\nsession_reset: {at_hour: noon}\n")
    assert run("-q", "hello", home=home, env=QUIET).status == 0
    (home / "config.yaml").write_text("store: {durability: 7}\n")
    assert run("sessions", "list", home=home, env=QUIET).status == 1
    (home / "config.yaml").write_text("model: [unclosed\n")
    assert run("sessions", "list", home=home, env=QUIET).status == 1

"""First attempts and typing mistakes get an answer, or one clear line, and nothing is written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support.program import PROGRAM, environment, run
from tests.support.screen import Screen


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A record of two sessions."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with SessionDB(db_path=home / "state.db") as db:
        for name, title in (("first", "Flaky test"), ("second", "Bread")):
            db.create_session(name, "cli")
            db.append_message(name, "user", f"about {title}")
            db.set_session_title(name, title)
    return home


def test_config_alone_prints_what_is_set(home: Path) -> None:
    assert "Nothing is set" in run("config", home=home).out
    (home / "config.yaml").write_text("timezone: Europe/Berlin\n")
    done = run("config", home=home)
    assert (done.status, done.err) == (0, "") and done.out == run("config", "show", home=home).out
    assert "Europe/Berlin" in done.out


def test_help_names_the_options_of_talking_with_examples(home: Path) -> None:
    for words in (("--help",), ("-h",)):
        done = run(*words, home=home)
        assert done.status == 0
        for part in ("-c, --continue", "-r, --resume", "-q, --query", 'hermes -q "', "hermes -c  ", "sessions  "):
            assert part in done.out, part


@pytest.mark.parametrize("group", ["pairing", "sessions"])
def test_a_group_alone_prints_its_help(home: Path, group: str) -> None:
    done = run(group, home=home)
    assert (done.status, done.err) == (0, "") and done.out.startswith(f"Usage: hermes {group}")


def test_r_alone_opens_the_picker_and_goes_on_with_the_choice(home: Path) -> None:
    env = environment(home, {"HERMES_NO_LOCAL": "1", "HERMES_NO_EMBEDDED": "1"})
    with Screen([*PROGRAM, "-r"], 100, 30, env=env) as screen:
        screen.wait_for("Flaky test")
        screen.type("bread")
        screen.wait_for("1 of 2")
        screen.press("Enter")
        screen.wait_for("● about Bread")
        screen.press("C-d")
        assert screen.wait_until_over() == 0
        assert "hermes -r second" in screen.history()


def test_r_alone_without_a_terminal_is_wrong_usage(home: Path) -> None:
    done = run("-r", "-q", "hello", home=home)
    assert done.status == 2 and done.err.count("\n") == 1 and "name a session" in done.err


@pytest.mark.parametrize("words", [("-r", "@nosuch"), ("-c", "@nosuch", "-q", "hello")])
def test_an_unknown_program_is_named_before_a_question_is_asked_for(home: Path, words: tuple[str, ...]) -> None:
    done = run(*words, home=home)
    assert done.status == 1 and "@nosuch" in done.err and "@claude" in done.err


@pytest.mark.parametrize("words", [("-q", "hello"), ("batch", "-", "--out", "results.jsonl")])
def test_an_empty_kind_of_command_is_wrong_usage(home: Path, words: tuple[str, ...]) -> None:
    done = run(*words, "--yes-to", "", home=home)
    assert done.status == 2 and "--yes-to" in done.err and done.err.count("\n") == 1


def test_acp_with_a_file_instead_of_an_editor_is_one_line(home: Path, tmp_path: Path) -> None:
    with (tmp_path / "empty").open("w+b") as file:
        done = subprocess.run([*PROGRAM, "acp"], stdin=file, capture_output=True, text=True, env=environment(home))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "standard input is not a pipe" in done.stderr and "`hermes acp --help`" in done.stderr


@pytest.mark.parametrize("command", ["mcp", "acp"])
def test_a_server_for_programs_says_so_in_a_terminal(home: Path, command: str) -> None:
    with Screen([*PROGRAM, command], 100, 30, env=environment(home, {"HERMES_NO_LOCAL": "1"})) as screen:
        screen.wait_for(f"`hermes {command}` waits for messages of")


ONE_LINE: list[tuple[tuple[str, ...], int, str]] = [
    (("sessions", "search", "about", "--role", "robot"), 1, "no messages match"),
    (("sessions", "export", "out.pdf"), 2, "no format has the ending .pdf"),
    (("sessions", "import", "notes.md"), 1, "notes.md is in no format that can be imported"),
    (("sessions", "untag", "first", "nothere"), 1, "has the tag nothere; nothing was changed"),
    (("sessions", "delete", "Flaky", "test", "--yes"), 1, 'a title with spaces is put in quotes: "Flaky test"'),
    (("sessions", "pin", "Flaky", "test"), 1, 'a title with spaces is put in quotes: "Flaky test"'),
]


@pytest.mark.parametrize(
    ("words", "status", "told"), ONE_LINE, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_one_clear_line_and_nothing_written(
    home: Path, tmp_path: Path, words: tuple[str, ...], status: int, told: str
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.md").write_text("# Notes\n\nNothing of ours.\n")
    before = _record(home)
    done = run(*words, home=home, cwd=folder)
    assert done.status == status and done.out == "" and done.err.count("\n") == 1 and told in done.err
    assert [one.name for one in folder.iterdir()] == ["notes.md"] and _record(home) == before


def _record(home: Path) -> list[object]:
    with SessionDB(db_path=home / "state.db", read_only=True) as db:
        return [list(db.export_all()), db.list_trash()]


def test_a_role_of_another_program_is_still_found(home: Path) -> None:
    with SessionDB(db_path=home / "state.db") as db:
        db.append_message("first", "developer", "instructions about style")
    assert "instructions" in run("sessions", "search", "style", "--role", "developer", home=home).out


def test_the_advice_for_a_damaged_file_can_be_pasted(home: Path, tmp_path: Path) -> None:
    path = home / "state.db"
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    done = run("sessions", "tag", "first", "x", home=home)
    assert done.status == 1 and "`hermes sessions repair` repairs it" in done.err and "FILE" not in done.err

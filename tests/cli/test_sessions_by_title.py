"""A session named by its title: every command acts on the exact title; resuming takes it as people type it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes_state import SessionDB
from tests.chat.server import ModelServer
from tests.support.program import run

BUG, OTHER = "20260101_080000_aaaaaa", "20260102_080000_bbbbbb"


def record(home: Path) -> None:
    """Two unrelated sessions, the second titled as if it came after the first."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with SessionDB(home / "state.db") as db:
        for session_id, title, word in ((BUG, "Bug", "heron"), (OTHER, "Bug #2", "walrus")):
            db.create_session(session_id, "cli")
            db.append_message(session_id, "user", f"about the {word}")
            db.append_message(session_id, "assistant", f"all about the {word}")
            db.set_session_title(session_id, title)


def stored(home: Path, session_id: str) -> dict[str, Any]:
    with SessionDB(home / "state.db") as db:
        return {**(db.get_session(session_id) or {}), "tags": db.get_tags(session_id)}


def test_every_command_acts_on_the_session_with_exactly_that_title(hermes_home: Path) -> None:
    home = hermes_home
    record(home)
    before = stored(home, OTHER)
    assert run("sessions", "tag", "Bug", "mine", home=home).out == f'"Bug" ({BUG}) is tagged mine\n'
    assert run("sessions", "pin", "Bug", home=home).out == f'"Bug" ({BUG}) is pinned\n'
    assert run("sessions", "unpin", "Bug", home=home).out == f'"Bug" ({BUG}) is no longer pinned\n'
    assert run("sessions", "archive", "Bug", home=home).out == f'"Bug" ({BUG}) is archived\n'
    assert run("sessions", "unarchive", "Bug", home=home).out == f'"Bug" ({BUG}) is no longer archived\n'
    assert run("sessions", "untag", "Bug", "mine", home=home).out == f'"Bug" ({BUG}) is no longer tagged mine\n'
    for words in (
        ("show", "Bug"),
        ("show", " Bug\t"),
        ("export", "-", "--session-id", "Bug"),
        ("show", "Bug", "--json"),
    ):
        out = run("sessions", *words, home=home).out
        assert "heron" in out and "walrus" not in out, words
    assert "walrus" in run("sessions", "show", "Bug #2", home=home).out
    assert run("sessions", "search", "walrus", "--session", "Bug", home=home).status == 1
    assert run("sessions", "search", "heron", "--session", "Bug", home=home).status == 0
    assert run("sessions", "rename", "Bug", "Heron", home=home).status == 0
    assert run("sessions", "rename", "Heron", "Bug", home=home).status == 0
    assert stored(home, OTHER) == before
    done = run("sessions", "delete", "Bug", "--yes", home=home)
    assert done.out.startswith(f'"Bug" ({BUG}) is in the trash')
    assert stored(home, OTHER) == before
    again = run("sessions", "delete", "Bug", "--yes", home=home)
    assert again.status == 1 and "in the trash" in again.err
    assert stored(home, OTHER) == before
    assert run("sessions", "restore", "Bug", home=home).out == f'"Bug" ({BUG}) is restored\n'


@pytest.fixture
def server(hermes_home: Path) -> Any:
    record(hermes_home)
    with ModelServer() as one:
        (hermes_home / "config.yaml").write_text(one.config())
        yield one


def asked_in(server: ModelServer, word: str) -> bool:
    return word in str(server.requests[-1]["messages"])


@pytest.mark.parametrize("option", ["-c", "-r"])
def test_resuming_takes_the_newest_of_the_numbered_family(server: ModelServer, hermes_home: Path, option: str) -> None:
    home = hermes_home
    assert run(option, "Bug", "-q", "still there?", home=home).status == 0
    assert asked_in(server, "walrus") and not asked_in(server, "heron"), "linked or not, #2 is newer"
    with SessionDB(home / "state.db") as db:
        db.compress_session(BUG, "tip", summary="It was about birds.")
        assert db.get_session_title("tip") == "Bug #3"
    assert run(option, "Bug", "-q", "and now?", home=home).status == 0
    assert stored(home, "tip")["message_count"] == 3
    assert run(option, "Bug #2", "-q", "a numbered title is itself", home=home).status == 0
    assert stored(home, OTHER)["message_count"] == 6


def test_resuming_takes_a_title_in_any_case_and_in_part(server: ModelServer, hermes_home: Path) -> None:
    home = hermes_home
    with SessionDB(home / "state.db") as db:
        for number, title in enumerate(("Parser rewrite", "Parser rewrite #2", "Strange weather")):
            db.create_session(f"s{number}", "cli")
            db.append_message(f"s{number}", "user", f"{title} it is")
            db.set_session_title(f"s{number}", title)
    for words, said in (
        ("BUG", "walrus"),
        ("bug #2", "walrus"),
        ("parser", "Parser rewrite #2 it"),
        ("WEATH", "Strange"),
    ):
        assert run("-c", words, "-q", "still there?", home=home).status == 0, words
        assert asked_in(server, said), words
    several = run("-c", "r", "-q", "which?", home=home)
    assert several.status == 2 and several.err.index("s2  Strange") < several.err.index("s1  Parser rewrite #2")
    assert "s0" not in several.err and BUG not in several.err
    for words in (["show", "parser"], ["delete", "weather", "--yes"], ["rename", "BUG", "x"], ["tag", "parser", "x"]):
        assert run("sessions", *words, home=home).status == 1, words


def test_an_ambiguous_prefix_lists_the_newest_sessions(hermes_home: Path) -> None:
    hermes_home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with SessionDB(hermes_home / "state.db") as db:
        for number in range(13):
            db.create_session(f"2026_{'bca'[number % 3]}{number:02}", "cli")
    done = run("sessions", "show", "2026", home=hermes_home)
    shown = [line.split()[0] for line in done.err.splitlines() if line.startswith("  2026")]
    assert done.status == 2 and [name[-2:] for name in shown] == [f"{number:02}" for number in range(12, 2, -1)]

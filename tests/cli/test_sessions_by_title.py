"""A session named by its title: the exact title wins in every command, and only resuming follows a compression."""

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
    assert again.status == 1 and 'did you mean "Bug #2"?' in again.err
    assert stored(home, OTHER) == before
    assert run("sessions", "restore", "Bug", home=home).out == f'"Bug" ({BUG}) is restored\n'


@pytest.fixture
def server(hermes_home: Path) -> Any:
    record(hermes_home)
    with ModelServer() as one:
        (hermes_home / "config.yaml").write_text(one.config())
        yield one


@pytest.mark.parametrize("option", ["-c", "-r"])
def test_resuming_follows_a_compression_and_never_a_number(server: ModelServer, hermes_home: Path, option: str) -> None:
    home = hermes_home
    assert run(option, "Bug", "-q", "still there?", home=home).status == 0
    assert "heron" in str(server.requests[-1]["messages"]) and "walrus" not in str(server.requests[-1]["messages"])
    with SessionDB(home / "state.db") as db:
        db.compress_session(BUG, "tip", summary="It was about birds.")
        assert db.get_session_title("tip") == "Bug #3"
    assert run(option, "Bug", "-q", "and now?", home=home).status == 0
    assert stored(home, "tip")["message_count"] == 3 and stored(home, OTHER)["message_count"] == 2
    with SessionDB(home / "state.db") as db:
        db.delete_session(BUG)
    assert run(option, "Bug", "-q", "the first part is deleted", home=home).status == 0
    assert stored(home, "tip")["message_count"] == 5
    with SessionDB(home / "state.db") as db:
        db.delete_session("tip")
    done = run(option, "Bug", "-q", "all of it is deleted", home=home)
    assert done.status == 1 and 'did you mean "Bug #2"?' in done.err and stored(home, OTHER)["message_count"] == 2

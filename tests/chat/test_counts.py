"""One number of messages for a conversation, whichever door tells it: compressed and branched parts included."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.chat.server import ModelServer
from tests.support.program import run
from tests.support.screen import Screen

Open = Callable[..., Screen]
CALLS = [{"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}]


@pytest.fixture
def counted(server: ModelServer, home: Path) -> dict[str, int]:
    """A conversation that was compressed twice, with a branch: how many messages each of the two shows."""
    with SessionDB(db_path=home / "state.db") as db:
        db.create_session("first", "cli", model="test-model")
        for number in range(6):
            db.append_message("first", "user", f"question {number}")
            db.append_message("first", "assistant", f"answer {number}", tool_calls=CALLS if number == 5 else None)
        ids = [row["id"] for row in db.get_messages("first")]
        db.compress_session("first", "second", summary="what was said", head_until=ids[1], tail_from=ids[-4])
        db.append_message("second", "user", "more")
        ids = [row["id"] for row in db.get_messages("second")]
        db.compress_session("second", "third", summary="what was said then", head_until=ids[0], tail_from=ids[-3])
        db.append_message("third", "user", "the end")
        db.branch_session("third", "branch", at_message=db.get_messages("third")[-2]["id"])
        db.append_message("branch", "user", "another way")
        db.append_message("branch", "user", "and on")
        return {name: len(db.get_messages(name)) for name in ("third", "branch")}


def test_every_door_counts_the_same(counted: dict[str, int], home: Path, open_screen: Open) -> None:
    assert counted == {"third": 6, "branch": 7}
    listed = {row["id"]: row for row in json.loads(run("sessions", "list", "--json", home=home).out)}
    longest = json.loads(run("insights", "--json", home=home).out)["longest"]
    assert {row["id"]: row["messages"] for row in longest} == counted
    browse = open_screen("sessions", "browse", width=120, until="conversations")
    for name, count in counted.items():
        assert listed[name]["messages"] == count
        assert f" · {count} messages" in run("sessions", "show", name, home=home).out
        browse.type(name)
        browse.wait_for(f"test-model · {count} messages")
        browse.press("Escape")
        screen = open_screen("-r", name, width=100)
        screen.line("/status")
        assert re.search(rf"Messages +{count}\n", screen.wait_for("Started"))
        screen.leave()
        assert re.search(rf"Messages +{count}\n", screen.history())

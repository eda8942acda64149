"""/usage tells what the whole conversation used, and what was not counted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hermes_state import SessionDB
from tests.chat.server import ModelServer
from tests.support.screen import Screen

Open = Callable[..., Screen]


def used(open_screen: Open) -> str:
    screen = open_screen("-r", "second", width=100)
    screen.line("/usage")
    return screen.wait_for("Cost")


def test_a_compressed_conversation_is_counted_whole(server: ModelServer, home: Path, open_screen: Open) -> None:
    with SessionDB(db_path=home / "state.db") as db:
        db.create_session("first", "cli", model="test-model")
        db.append_message("first", "user", "hello")
        db.update_token_counts(
            "first", input_tokens=70, output_tokens=20, cache_read_tokens=30, estimated_cost_usd=0.5, api_call_count=2
        )
        db.end_session("first", "compression")
        db.create_session("second", "cli", model="test-model", parent_session_id="first", kind="compression")
        db.append_message("second", "user", "go on")
        db.update_token_counts("second", input_tokens=5, output_tokens=1, estimated_cost_usd=0.25, api_call_count=1)
    text = used(open_screen)
    assert re.search(r"Model calls +3\n", text)
    assert re.search(r"Input +105 tokens, 30 of them from the cache\n", text)
    assert re.search(r"Output +21 tokens\n", text) and "about $0.7500" in text
    assert "2 sessions: this one and those it was compressed from" in text


def test_what_was_not_counted_is_not_zero(server: ModelServer, home: Path, open_screen: Open) -> None:
    with SessionDB(db_path=home / "state.db") as db:
        db.create_session("second", "cli", model="test-model")
        db.append_message("second", "user", "hello")
        db.update_token_counts("second", api_call_count=1)
    text = used(open_screen)
    assert "unknown" in text and "0 tokens" not in text


def test_the_endpoints_own_cost_counts_and_so_does_that_of_titles_and_summaries(
    server: ModelServer, home: Path, open_screen: Open
) -> None:
    server.usage = {"cost": 0.25}
    screen = open_screen(width=100)
    screen.line("hello")
    screen.wait_for("That is all")
    screen.line("again")
    screen.wait_for("That is all", times=2)
    screen.leave()  # waits for the title
    with SessionDB(db_path=home / "state.db") as db:
        (row,) = db.list_sessions_rich()
        assert (row["actual_cost_usd"], row["cost_status"]) == (0.75, "actual")
        assert (row["api_call_count"], row["input_tokens"], row["output_tokens"]) == (3, 33, 21)
    screen = open_screen("-c", width=100)
    screen.line("/usage")
    text = screen.wait_for("Cost")
    assert re.search(r"Model calls +3\n", text) and re.search(r"Input +33 tokens\n", text)
    assert re.search(r"Cost +\$0.7500 \(as .* reports\)", text)

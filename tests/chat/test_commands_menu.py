"""The menu of commands, the names people type from habit, and the commands about models and the window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.chat.input_line import fuzzy
from hermes.commands.registry import ALIASES, load
from tests.chat.server import ModelServer
from tests.support.screen import Screen

Open = Callable[..., Screen]
Look = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture
def server(home: Path) -> Iterator[ModelServer]:
    with ModelServer(models=("test-model", "other-model", "third-big-model", "text-embed-x")) as one:
        (home / "config.yaml").write_text(one.config())
        yield one


def test_a_slash_opens_a_menu_that_takes_letters_in_their_order(server: ModelServer, open_screen: Open) -> None:
    screen = open_screen(width=60, height=20)
    before = screen.text()
    screen.type("/")
    screen.wait_for("/resume     continue another session")
    screen.type("mdl")
    screen.wait_for("/model  switch to another")
    assert "/resume" not in screen.text()
    screen.press("C-c")
    screen.wait_for("Ctrl-D or /quit leaves.")
    screen.type("/fo")
    screen.wait_for("/branch")  # fork is another name of it
    assert before.splitlines()[0] in screen.text()
    screen.press("C-c")
    screen.wait_for("Ctrl-D leaves.", times=1)
    screen.line("/stat")  # the first of the menu, on the line; nothing runs yet
    screen.wait_for("❯ /status")
    assert "not saved yet" not in screen.text()
    screen.press("Enter")
    screen.wait_for("not saved yet")
    screen.line("/wxyz")
    screen.wait_for("There is no command /wxyz")


def test_models_the_window_searching_and_clearing(server: ModelServer, open_screen: Open, look: Look) -> None:
    screen = open_screen()
    screen.line("hello zebra")
    screen.wait_for("That is all I have to say.")
    screen.line("/model no-such")
    screen.wait_for("/model: the endpoint has no model 'no-such'")
    screen.line("/model")
    text = screen.wait_for("Which one? [1-2, Enter: none]")
    assert "1  other-model" in text and "2  third-big-model" in text and "embed" not in text
    screen.press("Enter")
    screen.type("/model bg")
    screen.press("Tab")
    screen.wait_for("❯ /model third-big-model")
    screen.press("Enter")
    screen.wait_for("From now on third-big-model answers in this conversation.")
    screen.line("and you?")
    screen.wait_for("That is all I have to say.", times=2)
    assert [request["model"] for request in server.requests] == ["test-model", "third-big-model"]
    screen.line("/cost")
    screen.wait_for("Model calls")
    screen.line("/context")
    text = screen.wait_for("is summarised")
    assert "About" in text and "Your messages" in text and "Free" in text and "█" in text
    screen.line("/find zebra")
    screen.wait_for("hello zebra", times=2)
    screen.line("/clear")
    text = screen.wait_for("A new session. /resume")
    assert "zebra" not in screen.text()
    session_id = look(lambda db: db.list_sessions_rich(limit=1)[0]["id"])
    screen.line(f"/resume {session_id}")
    screen.wait_for("● hello zebra")
    screen.line("still you?")  # the model chosen in the conversation comes back with it
    screen.wait_for("That is all I have to say.", times=3)
    assert server.requests[-1]["model"] == "third-big-model"


def test_every_habit_leads_to_a_command() -> None:
    commands = load()
    for alias, name in ALIASES.items():
        assert alias not in commands and name in commands, alias


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_fuzzy_finds_every_name_that_holds_the_letters(first: str, middle: str, last: str) -> None:
    typed = (first + last).casefold()
    assert fuzzy(typed, first + middle + last) is not None
    assert fuzzy(first, first + middle) == 0
    assert fuzzy(first + middle + last + "x", first + middle + last) is None

"""/model in a chat: the choice belongs to the conversation, and outlives the agent, the process and the chat it was made in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.records.sessions import CONFIGURED
from tests.support import program
from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab


@pytest.fixture
def model() -> Iterator[Echo]:
    with Echo() as echo:
        echo.models = ["echo", "other", "third"]
        yield echo


def asker(lab: PlainLab) -> Callable[..., str]:
    """Says something and returns the answer."""

    def ask(text: str, **place: str) -> str:
        before = len(lab.shown(**place))
        lab.say(text, **place)
        until(lambda: len(lab.shown(**place)) > before, text)
        return lab.shown(**place)[before]

    return ask


def used(model: Echo) -> str:
    """The model that was asked last in a conversation; side tasks (a title) have a limit of tokens."""
    return str([one["model"] for one in model.requests if "max_tokens" not in one][-1])


def test_a_choice_outlives_the_process_and_the_word_default_takes_it_back(
    lab: PlainLab, model: Echo, tmp_path: Path
) -> None:
    ask, home = asker(lab), tmp_path / "home"
    with GatewayProcess(home, [lab], model.base_url) as gateway:
        assert "echo" in ask("hello") and used(model) == "echo"
        assert "other answers" in ask("/model other")
        gateway.kill()  # at once: the command's answer is the promise
        gateway.start()
        assert ask("who is there?") == "echo: who is there?" and used(model) == "other"
        assert "other" in (told := ask("/status")) and "chosen for this conversation" in told
        ask("and in another chat?", who="bob")
        assert used(model) == "echo"
        assert "echo answers" in ask("/model default")
        gateway.kill()
        gateway.start()
        assert ask("back?") == "echo: back?" and used(model) == "echo"
        assert "chosen for" not in ask("/status")
        assert "already answers" in ask("/model default")


def test_a_choice_before_the_first_message_is_the_first_sessions(lab: PlainLab, model: Echo, tmp_path: Path) -> None:
    ask, home = asker(lab), tmp_path / "home"
    with GatewayProcess(home, [lab], model.base_url) as gateway:
        ask("/model third")
        gateway.kill()
        gateway.start()
        assert "chosen for this conversation" in ask("/status")
        ask("hello")
        assert used(model) == "third"
        gateway.kill()
        gateway.start()
        ask("still?")
        assert used(model) == "third"
        ask("/new")
        ask("a new conversation")
        assert used(model) == "echo"
        ask("/new")
        ask("/model third")
        ask("/new")  # what was chosen for the conversation that did not begin is gone with it
        ask("a newer one")
        assert used(model) == "echo"


def test_the_terminal_goes_on_with_the_chosen_model(lab: PlainLab, model: Echo, tmp_path: Path) -> None:
    ask, home = asker(lab), tmp_path / "home"
    with GatewayProcess(home, [lab], model.base_url) as gateway:
        ask("one")
        ask("/model other")  # and nothing is said there after it
        assert gateway.stop() == 0
    with SessionDB(home / "state.db") as db:
        (row,) = db.list_sessions_rich(source="plain")
    assert program.run("-r", row["id"], "-q", "in the terminal", home=home).out.strip() == "echo: in the terminal"
    assert used(model) == "other"
    with SessionDB(home / "state.db") as db:
        db.choose_model(row["id"], CONFIGURED)
    assert program.run("-r", row["id"], "-q", "once more", home=home).status == 0
    assert used(model) == "echo"  # although the other one answered last

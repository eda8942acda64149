"""A conversation with a real agent and a real (scripted) server behind it; only the screen is a list of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.models.endpoint import EndpointModel
from hermes.chat.terminal_conversation import TerminalConversation
from hermes.commands.registry import run_command, sent_text
from hermes.config import Config
from hermes_state import SessionDB
from tests.chat.server import ModelServer


class Listener:
    """Hears what a conversation says, and answers what it asks."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.events: list[Any] = []
        self.yes = False
        self.choice: int | None = None
        self.options: list[str] = []

    def say(self, text: str) -> None:
        self.heard.append(text)

    note = say

    def ask(self, question: str) -> bool:
        self.heard.append(question)
        return self.yes

    def permission(self, question: str) -> bool:
        return self.ask(question)

    def clear(self) -> None:
        pass

    def choose(self, question: str, options: Sequence[str], says: Sequence[str] = ()) -> int | None:
        self.options = list(options)
        return self.choice

    def display(self, *, reasoning: bool = False) -> Any:
        return self

    def typing(self, *shown: Any) -> None:
        """Nobody types during a turn here, and so nothing is shown of it."""

    def recap(self, db: SessionDB, session_id: str, config: Config) -> None:
        self.heard.append(f"recap of {session_id}")

    # the display of a turn
    def feed(self, event: Any) -> None:
        self.events.append(event)

    def tick(self) -> None:
        pass

    pause = finish = tick


class Talk:
    """Types lines into a conversation."""

    def __init__(self, db: SessionDB, server: ModelServer, config: Config | None = None) -> None:
        self.db, self.server, self.voice = db, server, Listener()
        model = EndpointModel("test-model", server.base_url, "x")
        self.conversation = TerminalConversation(db, config or Config(), model, self.voice, yes=False, keep_model=False)

    def type(self, line: str) -> str:
        """Type a line; returns the messages that answer it."""
        self.voice.heard.clear()
        if not run_command(self.conversation, line):
            self.conversation.talk(sent_text(line))
        return "\n".join(self.voice.heard)

    @property
    def session_id(self) -> str:
        return self.conversation.session_id

    def said(self, session_id: str | None = None) -> list[Any]:
        return [row["content"] for row in self.db.get_messages(session_id or self.session_id)]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as one:
        yield one


@pytest.fixture
def make_talk(server: ModelServer, hermes_home: Path) -> Iterator[Callable[..., Talk]]:
    talks: list[Talk] = []
    hermes_home.mkdir(mode=0o700)

    def make(**options: Any) -> Talk:
        talks.append(Talk(SessionDB(), server, **options))
        return talks[-1]

    yield make
    for talk in talks:
        talk.conversation.close()
        talk.db.close()


@pytest.fixture
def talk(make_talk: Callable[..., Talk]) -> Talk:
    return make_talk()

"""A home with a model server behind it, and terminals that are closed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat.server import ModelServer
from tests.support.program import PROGRAM, environment
from tests.support.screen import Screen


@pytest.fixture(autouse=True)
def no_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model answers no test, even where it is installed."""
    monkeypatch.setenv("HERMES_NO_EMBEDDED", "1")


@pytest.fixture
def home(hermes_home: Path) -> Path:
    hermes_home.mkdir(mode=0o700, parents=True, exist_ok=True)
    return hermes_home


@pytest.fixture
def server(home: Path) -> Iterator[ModelServer]:
    with ModelServer() as one:
        (home / "config.yaml").write_text(one.config())
        yield one


@pytest.fixture
def open_screen(home: Path) -> Iterator[Callable[..., Screen]]:
    """open_screen("-c", width=…) → `hermes -c` in a terminal that shows the prompt, or `until` ("" is the very beginning)."""
    opened: list[Screen] = []

    def start(
        *words: str, until: str = "❯", width: int = 80, height: int = 24, env: dict[str, str] | None = None, **more: Any
    ) -> Screen:
        screen = Screen([*PROGRAM, *words], width, height, env=environment(home, env), **more)
        opened.append(screen)
        if until:
            screen.wait_for(until)
        return screen

    yield start
    for screen in opened:
        screen.close()


@pytest.fixture
def look(home: Path) -> Callable[[Callable[[Any], Any]], Any]:
    """look(question) → what the store answers, opened for the moment."""

    def ask(question: Callable[[Any], Any]) -> Any:
        from hermes_state import SessionDB

        with SessionDB(db_path=home / "state.db", read_only=True) as db:
            return question(db)

    return ask

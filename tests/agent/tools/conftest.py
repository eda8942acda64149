"""A context as the agent gives it to its tools, with a user who answers by a list and can interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.tools.terminal import background
from hermes.agent.tools.tool import Context
from hermes.config import Config


@dataclass
class Person:
    """Who is asked: every question is kept; `says` is the answer to all of them, `meanwhile` happens before it."""

    says: bool = True
    asked: list[str] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None
    stop: threading.Event = field(default_factory=threading.Event)

    def confirm(self, question: str) -> bool:
        self.asked.append(question)
        self.meanwhile()
        return self.says


@pytest.fixture
def person() -> Person:
    return Person()


@pytest.fixture
def make_context(hermes_home: Path, tmp_path: Path, person: Person, db: Any) -> Iterator[Callable[..., Context]]:
    made: list[Context] = []

    def make(config: Config | None = None) -> Context:
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        context = Context(
            db=db,
            config=config or Config(),
            session_id="s1",
            home=hermes_home,
            cwd=folder.resolve(),
            confirm=person.confirm,
            cancelled=person.stop.is_set,
        )
        made.append(context)
        return context

    yield make
    for context in made:
        background(context).close()


@pytest.fixture
def context(make_context: Callable[..., Context]) -> Context:
    return make_context()

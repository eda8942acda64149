"""A home whose model server answers each prompt by its own words, so that lines can be told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chat.conftest import home, look, no_embedded_model  # noqa: F401
from tests.chat.server import ModelServer

Script = Callable[[str], list[Any]]


class AnsweringServer(ModelServer):
    """Answers "re: <prompt>"; `special` has scripts for single prompts, taken once each."""

    def __init__(self) -> None:
        super().__init__()
        self.special: dict[str, list[Any]] = {}

    def script_for(self, body: dict[str, Any]) -> list[Any]:
        super().script_for(body)
        prompt = str(body["messages"][-1]["content"])
        return self.special.pop(prompt, [f"re: {prompt}"])

    def asked(self) -> list[str]:
        """The prompts it got, in no order."""
        return sorted(str(body["messages"][-1]["content"]) for body in self.requests)


@pytest.fixture
def server(home: Path) -> Iterator[AnsweringServer]:  # noqa: F811
    with AnsweringServer() as one:
        (home / "config.yaml").write_text(one.config())
        yield one

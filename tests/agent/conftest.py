"""Fixtures of the agent tests: a fake model, and an agent that talks to it over a real socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.loop import Agent
from hermes.agent.models.endpoint import EndpointModel
from hermes.config import Auxiliary, Config
from tests.support.aimock import aimock

__all__ = ["aimock"]


NOBODY = "http://127.0.0.1:9/v1"


def without_titles(config: Config | None = None) -> Config:
    """A configuration whose titles are made without the model, so that it hears only what the test says."""
    config = config or Config()
    config.auxiliary.title = Auxiliary(model="nobody", base_url=NOBODY)
    return config


@pytest.fixture
def make_agent(make_db: Callable[..., Any], hermes_home: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """make_agent(server, …) → an Agent on a fresh store that asks this server, quick to try again."""
    made: list[Agent] = []

    def make(
        server: Any, *, db: Any = None, session_id: str = "s1", config: Config | None = None, **more: Any
    ) -> Agent:
        model = more.pop("model", None) or EndpointModel("fake", server.base_url, "key", 100_000, timeout=60)
        agent = Agent(
            db if db is not None else make_db(), without_titles(config), model,
            session_id=session_id, home=hermes_home, cwd=tmp_path, **more,
        )  # fmt: skip
        agent.first_wait = 0.01
        made.append(agent)
        return agent

    yield make
    for agent in made:
        agent.close()

"""Scenes for tests of the Slack adapter: the lab, an adapter connected to it, and a gateway that notes everything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.events import Chat
from hermes.gateway.platforms import adapter_class
from tests.support.labs import recording
from tests.support.labs.recording import Recorder
from tests.support.labs.slack import Lab

HOME: dict[Lab, Path] = {}  # a folder of its own for each test


@pytest.fixture(scope="module", name="workspace")
def one_workspace() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()


@pytest.fixture(name="lab")
def fresh_lab(workspace: Lab, tmp_path: Path) -> Iterator[Lab]:
    workspace.reset()
    HOME[workspace] = tmp_path
    yield workspace
    assert workspace.problems() == [], workspace.problems()


def made(lab: Lab, **settings: Any) -> Any:
    return adapter_class("slack")(lab.settings | settings, HOME[lab])


@asynccontextmanager
async def connected(
    lab: Lab, *, heartbeat: float | None = None, **settings: Any
) -> AsyncIterator[tuple[Any, Recorder]]:
    adapter, link = made(lab, **settings), Recorder()
    adapter.heartbeat = heartbeat or adapter.heartbeat
    adapter.reads_missed = False  # the recorder recognises no repetition
    async with recording.connected(adapter, link):
        yield adapter, link


def chat(lab: Lab, where: str = "dm", thread: str | None = None) -> Chat:
    return Chat(
        platform="slack", chat_id=lab.chat_id(where), type="dm" if where == "dm" else "channel", thread_id=thread
    )

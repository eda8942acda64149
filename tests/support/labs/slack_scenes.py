"""Scenes for tests of the Slack adapter: the lab, an adapter connected to it, and a gateway that notes everything."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.gateway.events import Chat, Event, Revision
from hermes.gateway.platforms import adapter_class
from tests.support.labs.slack import Lab
from tests.support.waiting import until_async

HOME: dict[Lab, Path] = {}  # a folder of its own for each test


class Recorder:
    """A gateway that notes everything."""

    def __init__(self) -> None:
        self.log = logging.getLogger("test.slack")
        self.events: list[Event] = []
        self.revisions: list[Revision] = []
        self.identities: list[str] = []
        self.errors: list[Exception] = []
        self.before_keeping: Callable[[Event], Awaitable[None]] | None = None

    async def received(self, event: Event) -> None:
        if self.before_keeping is not None:
            await self.before_keeping(event)
        self.events.append(event)

    async def revised(self, revision: Revision) -> None:
        self.revisions.append(revision)

    def connected(self, identity: str) -> None:
        self.identities.append(identity)

    def lost(self, error: Exception) -> None:
        self.errors.append(error)

    async def heard(self, count: int = 1) -> list[Event]:
        """The events, once there are so many."""
        await until_async(lambda: len(self.events) >= count, lambda: f"{len(self.events)} of {count} events")
        return self.events


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
    await adapter.connect(link)
    try:
        yield adapter, link
    finally:
        await adapter.disconnect()


def chat(lab: Lab, where: str = "dm", thread: str | None = None) -> Chat:
    return Chat(
        platform="slack", chat_id=lab.chat_id(where), type="dm" if where == "dm" else "channel", thread_id=thread
    )

"""Webhooks of vendors that do not deliver a message again: it lies on the disk until the store has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from hermes.errors import PlatformUnreachable
from hermes.gateway.adapter import Listening
from hermes.gateway.platforms import adapter_class
from tests.support.labs import dingtalk, teams, wecom
from tests.support.labs.recording import Recorder, connected


@pytest.fixture(params=[teams.Lab, wecom.Lab, dingtalk.Lab], ids=["teams", "wecom", "dingtalk"])
def lab(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param()
    yield made
    made.close()


@asynccontextmanager
async def adapted(lab: Any, home: Path, link: Recorder) -> AsyncIterator[Recorder]:
    adapter = adapter_class(lab.platform)(lab.settings, home)
    port = lab.listens_at or 0
    adapter.webhook_place = Listening(port=port, public_url=f"http://127.0.0.1:{port}")
    async with connected(adapter, link):
        yield link


def spooled(home: Path) -> list[Path]:
    return sorted(home.glob("*/unkept/*.json"))


async def test_a_message_that_the_store_does_not_take_is_stored_by_the_next_gateway(lab: Any, tmp_path: Path) -> None:
    link = Recorder()
    link.refuse = PlatformUnreachable("the gateway is stopping")
    async with adapted(lab, tmp_path, link):
        await asyncio.to_thread(lab.say, "precious sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD")
        await link.until(lambda: spooled(tmp_path))
        lab.close()  # the vendor gives up
    assert link.events == []
    (file,) = spooled(tmp_path)
    assert file.stat().st_mode & 0o077 == 0 and "sk-proj-abcdefgh" not in file.read_text()
    other = type(lab)()
    try:
        async with adapted(other, tmp_path, Recorder()) as link:
            await link.until(lambda: any("precious" in text for text in link.texts))
            await link.until(lambda: not spooled(tmp_path))
    finally:
        other.close()

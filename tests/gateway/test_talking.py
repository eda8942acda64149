"""The gateway end to end on the plainest platform: what a person says is answered once, in order, and kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.store.api.session_db import SessionDB
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


@pytest.fixture
def lab() -> Iterator[PlainLab]:
    made = PlainLab()
    yield made
    made.close()


def test_what_is_said_is_answered_and_kept(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    with running(lab, hermes_home, model.base_url) as gateway:
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"], str(lab.shown()))
        lab.say("and again")
        until(lambda: lab.shown() == ["echo: hello", "echo: and again"])
        rows = gateway.db.list_sessions_rich(source="plain")
        assert [row["user_id"] for row in rows] == ["u-alice"]
        assert [m["content"] for m in gateway.db.get_messages(rows[0]["id"])] == [
            "hello", "echo: hello", "and again", "echo: and again",
        ]  # fmt: skip
    assert not lab.unacknowledged
    with SessionDB(hermes_home / "state.db") as db:
        assert db.check() == []

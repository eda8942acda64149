"""In a group nobody waits for another member's turn: a finished reply is shown whatever other turns do."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest

from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import Lab, until

PLATFORMS = ("plain", "telegram", "discord", "slack", "signal")
SLOW = "slow=60 " + "x " * 100  # a minute, if nobody stops it
ASKS = 'call=terminal {"command": "rm -rf nothing"}'


@pytest.fixture(params=PLATFORMS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made: Lab = import_module(f"tests.support.labs.{request.param}").Lab()
    yield made
    made.close()


def group(lab: Lab) -> str:
    return "group" if "group" in lab.places else "channel"


def shown(lab: Lab) -> list[str]:
    return [text.strip() for text in lab.shown(group(lab))]


@pytest.mark.parametrize("first", [SLOW, ASKS], ids=["a turn that takes long", "a question that is open"])
def test_a_reply_is_shown_while_another_members_turn_goes_on(lab: Lab, model: Echo, first: str) -> None:
    with running(lab, model) as gateway:
        lab.say(first, who="alice", where=group(lab))
        until(lambda: any("nothing" in one for one in shown(lab)) if first is ASKS else model.requests)
        for number in range(3):
            lab.say(f"quick {number}", who="bob", where=group(lab))
            until(lambda number=number: any(f"echo: quick {number}" in one for one in shown(lab)), str(shown(lab)))
        until(lambda: [item.event.sender.id for item in gateway.turns.running] == [lab.user_id("alice")])
        lab.say("no" if first is ASKS else "/stop", who="alice", where=group(lab))
        until(lambda: not gateway.turns.running)
        until(lambda: any("declined" in one or "stopped" in one for one in shown(lab)), str(shown(lab)))
    quick = [one for one in shown(lab) if "echo: quick" in one]
    assert [one.rpartition(" ")[2] for one in quick] == ["0", "1", "2"]

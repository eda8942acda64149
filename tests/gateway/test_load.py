"""Many chats at once, in small: answered once, in order, at the same cost with few chats and with many, memory flat.

`python -m benchmarks.run --only gateway` does the same with 2,000 chats and 20,000 messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.echo import Echo
from tests.support.gateway_load import load
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.plain import PlainLab
from tests.support.sizes import size

QUEUE = {"display": {"busy": "queue"}}


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo(latency=0.05) as echo:
        yield echo


def test_many_chats_are_answered_once_in_order_and_memory_stays_flat(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    outcome = load(GatewayProcess(hermes_home, [lab], model.base_url, **QUEUE), lab, chats=120, messages=size(360, 600))
    assert outcome.wrong == []
    assert outcome.growth < 1.3


def test_killed_again_and_again_many_chats_are_answered_once_in_order(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    gateway = GatewayProcess(hermes_home, [lab], model.base_url, **QUEUE)
    outcome = load(gateway, lab, chats=50, messages=size(180, 250), at_once=40, kill_every=0)
    assert outcome.kills >= 4  # by count: 40 wait at once, so at the latest at the answers 40, 80, 120 and 160
    assert outcome.wrong == []


def test_a_message_costs_the_same_with_few_chats_and_with_many(model: Echo, tmp_path: Path) -> None:
    """Processor time, not the clock: the machine may be busy. The rival's cost grows fourteenfold over this range."""
    each = []
    for chats in (10, size(150, 400)):
        lab = PlainLab()
        gateway = GatewayProcess(tmp_path / f"home-{chats}", [lab], model.base_url, **QUEUE)
        outcome = load(gateway, lab, chats=chats, messages=size(150, 500))
        lab.close()
        assert outcome.wrong == []
        each.append(outcome.each)
    assert each[1] < 3 * each[0]

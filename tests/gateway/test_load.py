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

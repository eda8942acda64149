"""What waits in the boxes is found however many rows were done with before it, and nothing else is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import outbox
from hermes.store.gateway.gateway_db import GatewayDB
from hermes.store.gateway.inbox import IncomingEvent

pytestmark = pytest.mark.mechanism


def incoming(number: int, chat: int) -> IncomingEvent:
    return IncomingEvent(
        f"agent:main:plain:dm:{chat}", "plain", f"e{number}", "{}", "{}", "dm", f"Person {chat}", str(chat)
    )


@pytest.mark.parametrize("seed", range(3))
def test_what_waits_is_found_in_order_and_what_is_done_with_never(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    waiting: list[int] = []
    unsent: list[int] = []
    with SessionDB(tmp_path / "state.db") as db:
        store = GatewayDB(db)
        for number in range(150):
            kept = store.receive(incoming(number, dice.randrange(4)))
            assert kept.id is not None
            waiting.append(kept.id)
            for one in dice.sample(waiting, min(len(waiting), dice.randrange(3))):
                parts = store.finish(one, "plain", "{}", [{"text": "reply", "nonce": f"n{one}"}])
                unsent += [part.id for part in parts]
                waiting.remove(one)
            for one in dice.sample(unsent, min(len(unsent), dice.randrange(3))):
                store.write(outbox.sent, one, "m", "{}")
                unsent.remove(one)
            if dice.random() < 0.3:
                rows, parts = store.unfinished("plain")
                assert [row.id for row in rows] == sorted(waiting)
                assert [part.id for part in parts] == sorted(unsent)
                assert store.unfinished("other") == ([], [])
                known = set(unsent[::2])
                found = store.parts_of_others(["plain"], known, -1.0)
                assert [part.id for part in found] == sorted({*unsent} - known)
                assert store.parts_of_others(["plain"], known, 60.0) == store.parts_of_others(["other"], (), -1.0) == []


def test_an_event_that_comes_again_is_kept_once(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        store = GatewayDB(db)
        first, again = store.receive(incoming(1, 1)), store.receive(incoming(1, 1))
        assert first.id == again.id is not None
        store.finish(first.id, "plain", "{}")
        assert store.receive(incoming(1, 1)).id is None

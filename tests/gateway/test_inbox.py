"""What waits in the boxes is found however many rows were done with before it, and nothing else is."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from hermes.store import gateway_outbox, instances
from hermes.store.db import SessionDB
from hermes.store.gateway_db import GatewayDB
from hermes.store.gateway_inbox import IncomingEvent

NAME = "here:1:gateway:a"


def incoming(number: int, chat: int) -> IncomingEvent:
    return IncomingEvent(
        f"agent:main:plain:dm:{chat}", "plain", f"e{number}", "{}", "{}", "dm", f"Person {chat}", str(chat)
    )


@pytest.mark.parametrize("seed", range(3))
def test_what_waits_is_found_in_order_and_what_is_done_with_never(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    waiting: dict[int, str] = {}
    unsent: list[int] = []
    with SessionDB(tmp_path / "state.db") as db:
        store = GatewayDB(db)
        store.write(instances.join, NAME, "label", "", ["plain"], 600.0)
        for number in range(150):
            (kept,) = store.batch([partial(store.receive, event=incoming(number, dice.randrange(4)))])
            assert kept.serving == NAME
            assert sorted(kept.before) == [one for one, key in sorted(waiting.items()) if key == kept.key]
            waiting[kept.id] = kept.key
            for one in dice.sample(sorted(waiting), min(len(waiting), dice.randrange(3))):
                parts = store.finish(one, "plain", "{}", [{"text": "reply", "nonce": f"n{one}"}])
                unsent += [part.id for part in parts]
                del waiting[one]
            for one in dice.sample(unsent, min(len(unsent), dice.randrange(3))):
                store.batch([partial(gateway_outbox.sent, outbox_id=one, message_id="m", now=1.0, chat="{}")])
                unsent.remove(one)
            if dice.random() < 0.3:
                rows, parts = store.find_work(NAME, set(), {"plain": set()})
                assert [row.id for row in rows] == sorted(waiting)
                assert [part.id for part in parts] == sorted(unsent)


def test_an_event_that_comes_again_is_kept_once(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "state.db") as db:
        store = GatewayDB(db)
        store.write(instances.join, NAME, "label", "", ["plain"], 600.0)
        first, again = store.batch([partial(store.receive, event=incoming(1, 1))] * 2)
        assert first.id == again.id is not None
        store.finish(first.id, "plain", "{}")
        (late,) = store.batch([partial(store.receive, event=incoming(1, 1))])
        assert late.id is None

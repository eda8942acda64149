"""Which events of the gateway are known for how long; on every engine."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.store.gateway import inbox, outbox
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.gateway import received

pytestmark = pytest.mark.mechanism


def test_the_events_of_a_platforms_last_day_stay_known_however_long_ago_that_was(db: Any) -> None:
    """After a quiet month an adapter asks for what came since its last message, and a little before it."""
    now = [1_000_000.0]
    gateway = GatewayDB(db, clock=lambda: now[0])

    def happened(platform: str, name: str) -> None:
        number = received(gateway, platform, name, "k", "{}")
        assert number is not None
        gateway.finish(number, platform, "{}")

    happened("plain", "old")
    happened("busy", "old")
    now[0] += 2 * 86400
    happened("plain", "last")
    gateway.write(inbox.note, "plain", "edit")
    now[0] += 30 * 86400
    happened("busy", "new")
    gateway.forget_mail()
    known = {
        (platform, name) for platform in ("plain", "busy") for name in ("old", "last", "edit", "new")
        if gateway.read(inbox.is_noted, platform, name)
    }  # fmt: skip
    assert known == {("plain", "last"), ("busy", "new")}


def test_the_newest_row_is_not_forgotten(db: Any) -> None:
    """Numbers go on from it: a reply that had the name of an old one would be taken for it by the platform."""
    now = [1000.0]
    store = GatewayDB(db, clock=lambda: now[0])
    numbers = []
    for n in range(3):
        number = received(store, "plain", f"e{n}", "k", "{}")
        assert number is not None
        numbers.append(number)
        store.finish(number, "plain", "{}", [{"text": "hello", "nonce": f"n{n}"}])
    parts = store.read(outbox.unsent)
    assert len(parts) == 3
    for part in parts:
        store.write(outbox.unsendable, part.id, "not to be sent")
    now[0] += 30 * 86400
    assert store.forget_mail(last_days=-1) == 4
    again = received(store, "plain", "another", "k", "{}")
    assert again is not None and again > max(numbers)
    assert store.post("plain", "{}", "x", "nonce").id > max(part.id for part in parts)

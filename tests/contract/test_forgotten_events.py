"""Which events of the gateway are known for how long; on every engine."""

from __future__ import annotations

from typing import Any

from hermes.store.gateway_db import GatewayDB


def test_the_events_of_a_platforms_last_day_stay_known_however_long_ago_that_was(db: Any) -> None:
    """After a quiet month an adapter asks for what came since its last message, and a little before it."""
    now = [1_000_000.0]
    gateway = GatewayDB(db, clock=lambda: now[0])

    def happened(platform: str, name: str) -> None:
        number = gateway.receive(platform, name, "k", "{}")
        assert number is not None
        gateway.finish(number, platform, "{}")

    happened("plain", "old")
    happened("busy", "old")
    now[0] += 2 * 86400
    happened("plain", "last")
    gateway.note("plain", "edit")
    now[0] += 30 * 86400
    happened("busy", "new")
    gateway.forget_mail()
    known = {
        (platform, name) for platform in ("plain", "busy") for name in ("old", "last", "edit", "new")
        if gateway.is_noted(platform, name)
    }  # fmt: skip
    assert known == {("plain", "last"), ("busy", "new")}

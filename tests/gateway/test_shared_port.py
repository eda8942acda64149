"""Webhooks of several platforms on one port, with the real gateway: stored before they are acknowledged, none in another's way."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("uvicorn")

from hermes.gateway.settings import Timings
from hermes.gateway.startup import webhook
from tests.support.echo import Echo
from tests.support.gateway import configured, running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.labs.sms import Lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.close()


def test_a_delivery_is_acknowledged_when_it_is_stored_however_slow_the_model_is(lab: Lab, model: Echo) -> None:
    with running(lab, model):
        model.latency = 2.0
        lab.say("hello")
        until(lambda: lab.statuses == [200])
        assert lab.shown() == []  # the model is still thinking
        until(lambda: lab.shown() == ["echo: hello"])
        address = f"http://127.0.0.1:{lab.listens_at}"
        assert httpx.post(f"{address}/sms", content=b"{}", trust_env=False).status_code == 403
        # right after the start it may be for a platform that is not connected yet: 403 would end the vendor's tries
        assert httpx.post(f"{address}/another", content=b"{}", trust_env=False).status_code == 503


def test_a_taken_port_ends_no_other_platform_and_is_tried_again(plain: PlainLab, lab: Lab, model: Echo) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", lab.listens_at or 0))
        taken.listen()
        with running([plain, lab], model, timings=Timings(reconnect=0.05), stands_by=True) as gateway:
            plain.say("are you there")
            until(lambda: plain.shown() == ["echo: are you there"])
            until(lambda: "taken by another program" in str(gateway.store.statuses()), str(gateway.store.statuses()))
            taken.close()
            until(lambda: gateway.connections["sms"].delivery.connected.is_set())
            lab.say("and now")
            until(lambda: lab.shown() == ["echo: and now"])


def test_the_webhooks_section_follows_the_shared_port_unless_it_has_its_own(hermes_home: Path) -> None:
    routes = {"build": {"secret": "x" * 32}}
    shared = configured([], gateway={"listen": {"port": 9123}}, webhooks={"routes": routes})
    own = configured([], gateway={"listen": {"port": 9123}}, webhooks={"port": 9124, "routes": routes})
    neither = configured([], webhooks={"routes": routes})
    made = [webhook(config, hermes_home, insecure=False)[0] for config in (shared, own, neither)]
    assert [adapter.port for adapter in made] == [9123, 9124, 8644]

"""A gateway in this process, on a thread of its own, with real adapters, a real store and a model over a socket.

    with running(lab, model) as gateway: lab.say("hello"); until(lambda: lab.shown())

`clock` is a Clock whose time a test can move.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.models.offline import ExtractiveModel
from hermes.config import Config
from hermes.config.loading import parse_config
from hermes.gateway.platforms import adapter_class
from hermes.gateway.runner import Gateway
from hermes.gateway.settings import STANDARD, Timings
from hermes.gateway.startup import made_adapter
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway.gateway_db import GatewayDB
from hermes.store.gateway.inbox import IncomingEvent
from tests.support.labs.base import Lab
from tests.support.waiting import until


def received(store: GatewayDB, platform: str, event_id: str, key: str, event: str) -> int | None:
    """Store an event as the gateway does; returns its number, None when it was answered before."""
    incoming = IncomingEvent(key, platform, event_id, event)
    return store.receive(incoming).id


class Clock:
    """The time, and how far a test has moved it."""

    def __init__(self, start: float | None = None) -> None:
        self.moved = 0.0 if start is None else start - time.time()

    def __call__(self) -> float:
        return time.time() + self.moved

    def forward(self, seconds: float) -> None:
        self.moved += seconds


def configured(labs: Sequence[Lab], **more: Any) -> Config:
    """A configuration with these platforms, where alice and bob may talk and alice is the owner."""
    return parse_config(written(labs, **more), Path("config.yaml"))


def written(labs: Sequence[Lab], **more: Any) -> str:
    """Gateway settings as the text of config.yaml."""
    tree: dict[str, Any] = {"platforms": {}, "owner": [f"{lab.platform}:{lab.user_id('alice')}" for lab in labs]}
    for lab in labs:
        allowed = [lab.user_id("alice"), lab.user_id("bob")]
        section = {**lab.settings, "allowed_users": allowed, "require_mention": False}
        if lab.account is None:
            tree["platforms"][lab.platform] = section
        else:
            accounts = tree["platforms"].setdefault(lab.platform, {"accounts": {}})["accounts"]
            accounts[lab.account] = section
        if lab.listens_at is not None:
            tree["gateway"] = {"listen": {"port": lab.listens_at, "public_url": f"http://127.0.0.1:{lab.listens_at}"}}
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            for name, inner in value.items():
                old = tree[key].get(name)
                tree[key][name] = {**old, **inner} if isinstance(old, dict) and isinstance(inner, dict) else inner
        else:
            tree[key] = value
    return yaml.safe_dump(tree, allow_unicode=True)


@contextmanager
def running(
    labs: Lab | Sequence[Lab],
    model: Any,
    home: Path | None = None,
    *,
    clock: Clock | None = None,
    stands_by: bool = False,
    timings: Timings = STANDARD,
    **config: Any,
) -> Iterator[Gateway]:
    """A running gateway of the test's home, or of another; stopped orderly at the end of the block.

    `model` is a model's server (it has a `base_url`) or a model. `stands_by`: another one is connected to its platforms.
    """
    home = home or Path(os.environ["HERMES_HOME"])
    labs = [labs] if isinstance(labs, Lab) else list(labs)
    settings = configured(labs, **config)
    adapters = []
    for lab in labs:
        kind = getattr(lab, "adapter", None) or adapter_class(lab.platform)
        name = lab.platform if lab.account in (None, "default") else f"{lab.platform}/{lab.account}"
        adapters.append(made_adapter(settings, name, {}, home, kind))
    db = SessionDB(home / "state.db")
    if not isinstance(model, (EndpointModel, ExtractiveModel)):
        model = EndpointModel("echo", model.base_url, None, 100_000)
    gateway = Gateway(db, settings, model, adapters, home, clock=clock or time.time, timings=timings)
    done: list[BaseException | None] = []

    def live() -> None:
        try:
            asyncio.run(gateway.run())
            done.append(None)
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    until(
        lambda: (
            gateway.connections
            and (stands_by or all(c.delivery.connected.is_set() for c in gateway.connections.values()))
        ),
        lambda: f"the gateway is not connected {done}",
        unless=lambda: not thread.is_alive(),
    )
    try:
        yield gateway
    finally:
        if thread.is_alive():
            gateway.loop.call_soon_threadsafe(gateway.stop)
        thread.join(120)
        alive = thread.is_alive()
        db.close()
        assert not alive, "the gateway does not stop"
        assert done == [None], f"the gateway ended with {done}"

"""Replies stay in their chat's order when chats pass from one gateway instance to another, at any moment.

Here one gateway runs on a file; the test plays the other instance, by the same calls to the store that it would make.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.gateway.events import Chat, as_json
from hermes.store import gateway_inbox, instances, routes
from hermes.store.db import SessionDB
from hermes.store.gateway_db import GatewayDB
from hermes.store.gateway_inbox import IncomingEvent
from hermes.store.instances import assign
from tests.gateway.test_cluster import STREAMING, all_answered, record_of, say, url  # noqa: F401
from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.sizes import size

TERMINAL = "terminal-host:1:x:cli"


@pytest.fixture
def model() -> Iterator[Echo]:
    with Echo() as echo:
        yield echo


@pytest.fixture
def lab() -> Iterator[PlainLab]:
    made = PlainLab()
    yield made
    made.close()


def gateway(home: Path, lab: PlainLab, model: Echo, seconds: float) -> GatewayProcess:
    config = {"display": {"busy": "queue"}, "gateway": {**STREAMING, "brake": {"per_minute": 0, "alike": 0}}}
    made = GatewayProcess(home, [lab], model.base_url, **config)
    made.variables = {"HERMES_GATEWAY_SECONDS": str(seconds)}
    return made


def echoes(lab: PlainLab) -> list[str]:
    return [text for text in lab.shown_in("c0") if text.startswith("echo: ")]


def test_a_reply_that_another_instance_left_unsent_comes_before_the_next_one(
    lab: PlainLab, model: Echo, tmp_path: Path
) -> None:
    """The other instance had answered "one", and died before the connected one sent that; then "two" arrives."""
    said: dict[str, list[str]] = {}
    with gateway(tmp_path / "home", lab, model, 30.0), SessionDB(tmp_path / "home" / "state.db") as db:
        store = GatewayDB(db)
        for number in range(6):
            chat = f"c{number}"
            say(lab, defaultdict(list), chat, "zero")
            until(lambda chat=chat: lab.shown_in(chat) == ["echo: zero"])
            place = as_json(Chat(platform="plain", chat_id=chat, type="dm"))
            (key,) = (route.key for route in store.read(routes.bound) if route.key.endswith(f":{chat}"))
            (kept,) = store.batch(
                [lambda tx, key=key, chat=chat: store.receive(tx, IncomingEvent(key, "plain", f"o{chat}", "{}"))]
            )
            store.batch([lambda tx, key=key: assign(tx, key, "elsewhere:1:gateway:dead")])
            store.finish(kept.id, "plain", place, [{"text": "echo: one", "nonce": f"left-{chat}"}])
            lab.say("two", chat={"chat_id": chat, "type": "dm"})
            said[chat] = ["zero", "one", "two"]
        all_answered(lab, said, 30)


def test_an_instance_that_is_declared_dead_again_and_again_answers_each_once_and_in_order(
    lab: PlainLab,
    model: Echo,
    tmp_path: Path,
    url: str,  # noqa: F811
) -> None:
    said: dict[str, list[str]] = defaultdict(list)
    one = gateway(tmp_path / "home", lab, model, 1.0)
    one.variables["HERMES_STORE_URL"] = url
    with one, SessionDB(url=url) as db:
        store, number = GatewayDB(db), 0
        for _ in range(size(12, 40)):
            for _ in range(8):
                say(lab, said, f"c{number % 3}", f"slow=0.1 n{number}" if number % 4 == 0 else f"n{number}")
                number += 1
            before = {one.name for one in store.read(instances.everyone)}
            time.sleep(0.02 * (number % 7))  # at any moment of its work
            store.write(instances.remove_dead, before)
            until(
                lambda before=before: any(
                    one.lives and one.name not in before for one in store.read(instances.everyone)
                ),
                30,
            )
        all_answered(lab, said, 60)
        assert one.stop() == 0
    assert record_of(url) == dict(said)


def test_events_that_wait_under_a_lost_lease_are_answered_before_newer_ones(
    lab: PlainLab,
    model: Echo,
    tmp_path: Path,
    url: str,  # noqa: F811
) -> None:
    """A chat waits for the terminal's turn in its session; meanwhile the instance loses its lease, and joins again."""
    said: dict[str, list[str]] = defaultdict(list)
    one = gateway(tmp_path / "home", lab, model, 1.0)
    one.variables["HERMES_STORE_URL"] = url
    with one, SessionDB(url=url) as db:
        store = GatewayDB(db)
        say(lab, said, "c0", "zero")
        all_answered(lab, said, 60)
        (route,) = store.read(routes.bound)
        assert route.session_id is not None
        until(lambda: not db.is_live(route.session_id), 30)
        token = db.take_turn(route.session_id, TERMINAL, 60.0)
        for text in ("one", "two", "three"):
            say(lab, said, "c0", text)
        until(lambda: len(store.read(gateway_inbox.waiting)) == 3, 30)
        before = {gateway.name for gateway in store.read(instances.everyone)}
        store.write(instances.remove_dead, before)
        until(
            lambda: any(gateway.lives and gateway.name not in before for gateway in store.read(instances.everyone)), 30
        )
        until(lambda: lab.connected, 30)
        say(lab, said, "c0", "four")
        until(lambda: len(store.read(gateway_inbox.waiting)) == 4, 30)
        db.release_lease(f"session:{route.session_id}", token)
        until(lambda: len(echoes(lab)) >= 5, 60, f"{lab.shown_in('c0')}")
        assert echoes(lab) == ["echo: zero", "echo: one", "echo: two", "echo: three", "echo: four"]
        assert one.stop() == 0
    assert record_of(url) == dict(said)

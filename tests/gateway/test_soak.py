"""Many platforms at once in one gateway that is killed again and again: each message is answered, once and in order."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from hermes.store.db import SessionDB
from hermes.store.gateway_db import GatewayDB
from tests.support.aimock import free_port
from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import Lab, until
from tests.support.sizes import size

# Platforms whose vendor keeps a message until it is acknowledged, or has it when it is asked for by time or by number. (Signal's
# daemon, WeCom's bots and Teams do not deliver again what came while the gateway was down; real servers have tests of their own.)
KEEPING = ("telegram", "discord", "slack", "mattermost", "sms", "bluebubbles", "qqbot", "feishu", "dingtalk", "weixin")
QUICK = ("telegram", "slack", "mattermost", "sms", "qqbot")
PEOPLE = ("alice", "bob")


@pytest.fixture
def labs() -> Iterator[list[Lab]]:
    names = size(QUICK, KEEPING)
    made = [import_module(f"tests.support.labs.{name}").Lab() for name in names]
    port = free_port()
    for lab in made:
        if lab.listens_at is not None:
            lab.listens_at = port  # one port for the webhooks of all
    yield made
    for lab in made:
        lab.close()


def shown(lab: Lab, who: str) -> list[str]:
    """What a person sees; labs answer requests in threads of their own meanwhile."""
    while True:
        try:
            return lab.shown(who=who)
        except RuntimeError:  # changed during iteration
            time.sleep(0.01)


def numbers(texts: list[str]) -> list[int]:
    """The numbers of the answers, without those that say that they may be repeated."""
    said = [text for text in texts if "↻" not in text]
    return [int(found[1]) for text in said if (found := re.search(r"echo: number (\d+)", text))]


def test_each_message_is_answered_once_and_in_order_however_often_the_gateway_is_killed(
    labs: list[Lab], tmp_path: Path
) -> None:
    dice, count = random.Random(7), size(8, 40)
    with Echo() as model:
        gateway = GatewayProcess(
            tmp_path / "home", labs, model.base_url, display={"busy": "queue"},
            gateway={"brake": {"per_minute": 0, "alike": 0}, "debounce_seconds": 0},
        )  # fmt: skip
        gateway.start(connected=False)

        def feed() -> None:
            for number in range(count):
                for lab in labs:
                    lab.say(f"number {number}", who=PEOPLE[number % 2])
                time.sleep(dice.uniform(0.0, 0.15))

        feeder = threading.Thread(target=feed, daemon=True)
        try:
            until(lambda: _log(gateway).count("connected as") >= len(labs), 60, "they do not connect")
            feeder.start()
            for kills in range(1, size(2, 4) + 1):
                time.sleep(
                    dice.uniform(0.5, 3.0)
                )  # the moment is random on purpose; what must hold, holds at every moment
                process = gateway.process
                assert process is not None and process.poll() is None, gateway.output()
                process.kill()
                process.wait(10)
                gateway.start(connected=False)
                until(lambda kills=kills: _log(gateway).count("this gateway instance is") > kills, 60, gateway.output())
            feeder.join(300)
            wanted = {who: [n for n in range(count) if PEOPLE[n % 2] == who] for who in PEOPLE}

            def missing() -> list[str]:
                return [
                    f"{lab.platform} {who}: {sorted(set(wanted[who]) - set(numbers(shown(lab, who)) + repeated(lab, who)))}"
                    for lab in labs
                    for who in PEOPLE
                    if set(wanted[who]) - set(numbers(shown(lab, who)) + repeated(lab, who))
                ]

            until(lambda: not missing(), size(60, 180), "")
            assert gateway.stop() == 0
        except AssertionError:
            raise AssertionError(f"{missing()}\n{_log(gateway)[-3000:]}") from None
        finally:
            if gateway.process is not None and gateway.process.poll() is None:
                gateway.process.kill()
                gateway.process.wait(10)
    for lab in labs:
        for who in PEOPLE:
            answers = numbers(shown(lab, who))
            assert answers == sorted(set(answers)), f"{lab.platform}, {who}: {answers}"
    with SessionDB(tmp_path / "home" / "state.db") as db:
        assert db.check() == []
        assert GatewayDB(db).unanswered() == []
        for lab in labs:
            said = [
                message["content"]
                for row in db.list_sessions_rich(source=lab.platform, limit=100)
                for message in db.get_messages(row["id"])
                if message["role"] == "user"
            ]
            assert sorted(said, key=lambda text: int(text.split()[-1])) == [f"number {n}" for n in range(count)]


def repeated(lab: Lab, who: str) -> list[int]:
    """The numbers of answers that say that they may be repeated."""
    return [int(one) for text in shown(lab, who) if "↻" in text for one in re.findall(r"echo: number (\d+)", text)]


def _log(gateway: GatewayProcess) -> str:
    file = gateway.home / "logs" / "gateway.jsonl"
    return file.read_text() if file.exists() else ""

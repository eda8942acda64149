"""Every platform at once in one gateway that is killed again and again: each message is answered, once and in order.

Vendors promise different things. Most keep a message until it is acknowledged, or have it when they are asked: all of theirs are
answered. Signal's daemon, WeCom, Teams and Home Assistant do not deliver again what came while the gateway was down: of theirs,
those that the gateway has acknowledged or kept are answered, and those that came before them by the same connection.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import Lab, until
from tests.support.ports import free_port
from tests.support.sizes import THOROUGH, size

# A lab, and the account where two labs play one platform. (Email, Matrix and Home Assistant are real servers.)
ALL = {
    "telegram": None, "discord": None, "slack": None, "mattermost": None, "sms": None, "bluebubbles": None, "qqbot": None,
    "feishu": None, "dingtalk": None, "weixin": None, "whatsapp": "default", "whatsapp_bridge": "phone", "signal": None,
    "teams": None, "wecom": "bot", "email": None, "matrix": None,
    "homeassistant": None,
}  # fmt: skip
QUICK = ("telegram", "slack", "mattermost", "whatsapp", "signal", "teams")
PEOPLE = ("alice", "bob")
T = TypeVar("T")


class Place:
    """A platform's lab, and what was said there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lab: Lab = import_module(f"tests.support.labs.{name}").Lab()
        self.said: dict[int, str] = {}  # number → the id of the message
        if hasattr(self.lab, "deliver_once"):
            self.lab.deliver_once()

    def say(self, number: int) -> None:
        self.said[number] = self.lab.say(f"{self.name} number {number}", who=PEOPLE[number % 2])

    def answers(self, who: str, *, repeated: bool) -> list[int]:
        """The numbers of the answers, in order: those that say that they may be repeated, or the others."""
        shown = [text for text in _quiet(lambda: self.lab.shown(who=who)) if ("↻" in text) == repeated]
        return [int(one) for text in shown for one in re.findall(rf"echo: {self.name} number (\d+)", text)]

    def kept(self, db: SessionDB) -> list[int]:
        """The numbers of the messages in the record."""
        rows = db.list_sessions_rich(source=self.lab.platform, limit=100)
        texts = [one["content"] for row in rows for one in db.get_messages(row["id"]) if one["role"] == "user"]
        return [int(found[1]) for text in texts if (found := re.fullmatch(rf"{self.name} number (\d+)", text))]

    def owed(self, db: SessionDB, count: int) -> set[int]:
        """The numbers of the messages that must be answered."""
        if self.lab.keeps:
            return set(range(count))
        kept = {self.said[number] for number in self.kept(db)}
        owed = _quiet(lambda: self.lab.owed(kept))
        return {number for number, name in self.said.items() if name in owed}

    def missing(self, db: SessionDB, count: int) -> list[int]:
        answered = {one for who in PEOPLE for kind in (True, False) for one in self.answers(who, repeated=kind)}
        return sorted(self.owed(db, count) - answered)


def _quiet(read: Callable[[], T]) -> T:
    """Read from a lab that answers requests in threads of its own meanwhile."""
    while True:
        with suppress(RuntimeError):  # changed during iteration
            return read()
        time.sleep(0.01)


@pytest.fixture
def places() -> Iterator[list[Place]]:
    made = [Place(name) for name in (ALL if THOROUGH else QUICK)]
    port, twice = free_port(), [place.lab.platform for place in made]
    for place in made:
        if place.lab.listens_at is not None:
            place.lab.listens_at = port  # one port for the webhooks of all
        if twice.count(place.lab.platform) > 1:
            place.lab.account = ALL[place.name]
    yield made
    for place in made:
        place.lab.close()


def test_each_message_is_answered_once_and_in_order_however_often_the_gateway_is_killed(
    places: list[Place], tmp_path: Path
) -> None:
    dice, count = random.Random(), size(8, 200)
    home = tmp_path / "home"
    with Echo() as model:
        gateway = GatewayProcess(
            home, [place.lab for place in places], model.base_url, display={"busy": "queue"},
            gateway={"brake": {"per_minute": 0}},
        )  # fmt: skip
        gateway.start(connected=False)

        def feed() -> None:
            for number in range(count):
                for place in places:
                    place.say(number)
                time.sleep(dice.uniform(0.0, 0.6 if THOROUGH else 0.3))

        feeder = threading.Thread(target=feed, daemon=True)
        try:
            until(lambda: _log(gateway).count("connected as") >= len(places), "they do not connect")
            feeder.start()
            kills = 0
            while kills < 2 or feeder.is_alive():
                time.sleep(
                    dice.uniform(0.5, size(2, 12))
                )  # the moment is random on purpose; what must hold, holds at every moment
                process = gateway.process
                assert process is not None and process.poll() is None, gateway.output()
                process.kill()
                process.wait(120)
                kills += 1
                gateway.start(connected=False)
                until(lambda kills=kills: _log(gateway).count("this gateway is ") > kills, gateway.output())
            feeder.join(300)
            with SessionDB(home / "state.db") as db:

                def missing() -> int:
                    return sum(len(place.missing(db, count)) for place in places)

                while left := missing():  # the deadline is for the next answer, however many there are
                    until(lambda left=left: missing() < left, "some are not answered")
                until(lambda: not GatewayDB(db).read(inbox.waiting), "some messages wait")
            assert gateway.stop() == 0
        except AssertionError as error:
            with SessionDB(home / "state.db") as db:
                unanswered = {place.name: found for place in places if (found := place.missing(db, count))}
            raise AssertionError(f"{error}: {unanswered}\n{_log(gateway)[-3000:]}") from None
        finally:
            if gateway.process is not None and gateway.process.poll() is None:
                gateway.process.kill()
                gateway.process.wait(120)
    with SessionDB(home / "state.db") as db:
        assert db.check() == []
        assert GatewayDB(db).read(inbox.waiting) == []
        for place in places:
            for who in PEOPLE:
                answers = place.answers(who, repeated=False)
                assert answers == sorted(set(answers)), f"{place.name}, {who}: {answers}"
            kept = place.kept(db)
            assert kept or not THOROUGH, f"{place.name} was never heard"
            assert len(kept) == len(set(kept)) and set(kept) == place.owed(db, count), f"{place.name}: {kept}"


def _log(gateway: GatewayProcess) -> str:
    file = gateway.home / "logs" / "gateway.jsonl"
    return file.read_text() if file.exists() else ""

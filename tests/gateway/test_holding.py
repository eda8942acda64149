"""Two gateways on one PostgreSQL store: each connection is held by one of them, and the other takes over when that one dies."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.errors import Fenced
from hermes.gateway.events import Chat, as_json
from hermes.store import leases
from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox
from hermes.store.gateway.gateway_db import GatewayDB
from hermes.store.gateway.inbox import IncomingEvent
from tests.gateway.test_crash import STREAMING, all_answered, record_of, say
from tests.support import program
from tests.support.echo import Echo
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import ForgetfulLab, PlainLab
from tests.support.postgres import server
from tests.support.sizes import size

SECONDS = 3.0  # after which a gateway that gives no sign of life counts as dead


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.nodeid
    yield server("18").store(name)
    server("18").forget(name)


class Pair:
    """Two gateways, each on a host of its own: they have nothing in common but the store."""

    def __init__(self, folder: Path, labs: list[PlainLab], base_url: str, url: str, **config: object) -> None:
        self.url, self._labs = url, labs
        self.both = [self._made(folder / name / "home", labs, base_url, **config) for name in ("one", "two")]
        with SessionDB(url=url) as db:
            GatewayDB(db)

    def _made(self, home: Path, labs: list[PlainLab], base_url: str, **config: object) -> GatewayProcess:
        config = {"display": {"busy": "queue"}, "gateway": STREAMING, **config}
        made = GatewayProcess(home, labs, base_url, **config)
        made.variables = {"HERMES_STORE_URL": self.url, "TEST_GATEWAY_SECONDS": str(SECONDS)}
        return made

    def start(self, which: int) -> None:
        """Start one, and wait until the other knows of it."""
        before = len(self.living())
        self.both[which].start(connected=False)
        until(lambda: len(self.living()) > before or self.ended(which), "it does not join")
        assert not self.ended(which), self.both[which].output()
        until(lambda: all(lab.connected for lab in self._labs), "not connected")

    def ended(self, which: int) -> bool:
        return self.both[which]._ended()

    def kill(self, which: int) -> None:
        """kill -9 (the other one may hold the platform)."""
        process = self.both[which].process
        assert process is not None
        process.send_signal(signal.SIGKILL)
        process.wait(120)
        self.both[which].process = None

    def signal(self, which: int, number: int) -> None:
        process = self.both[which].process
        assert process is not None
        process.send_signal(number)

    def living(self) -> list[str]:
        with SessionDB(url=self.url, read_only=True) as db:
            return GatewayDB(db).read(leases.gateways)

    def process(self, which: int) -> int:
        process = self.both[which].process
        assert process is not None
        return process.pid

    def holder(self, platform: str = "plain") -> int | None:
        """Which of the two is connected to a platform."""
        with SessionDB(url=self.url, read_only=True) as db:
            name = db.lease_holder(leases.connection_lease(platform))
        number = int(name.split(":")[1]) if name else 0
        return next((n for n, one in enumerate(self.both) if one.process and one.process.pid == number), None)

    def __enter__(self) -> Pair:
        self.start(0)
        self.start(1)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.both:
            if one.process is not None and one.process.poll() is None:
                one.process.kill()
                one.process.wait(120)


def log_of(gateway: GatewayProcess) -> str:
    return (gateway.home / "logs" / "gateway.jsonl").read_text()


# ---------------------------------------------------------------------------------------------- in peace


def test_one_stands_by_and_status_tells_of_both(model: Echo, tmp_path: Path, url: str) -> None:
    labs: list[PlainLab] = [PlainLab(), ForgetfulLab()]
    said: list[dict[str, list[str]]] = [defaultdict(list), defaultdict(list)]
    pair = Pair(tmp_path, labs, model.base_url, url)
    try:
        for which in (0, 1):
            pair.start(which)
        until(lambda: {pair.holder("plain"), pair.holder("forgetful")} == {0}, "the first one has not both")
        for part in (0, 1):
            for lab, texts in zip(labs, said, strict=True):
                for number in range(6):
                    say(lab, texts, f"c{number}", f"n{number} {part}")
                    say(lab, texts, f"c{number}", f"long=2600 n{number} {part}")
                all_answered(lab, texts)
            if part == 0:
                home, about = pair.both[0].home, pair.both[0].variables | _platforms(pair, 0)
                told = program.run("gateway", "status", home=home, env=about)
                assert "2 gateways" in told.out
                for platform in ("plain", "forgetful"):
                    assert f"{platform}: connected by process {pair.process(0)}" in told.out
                found = program.run("gateway", "status", "--json", home=home, env=about)
                running = {one["process"] for one in json.loads(found.out)["gateways"]}
                assert running == {pair.process(0), pair.process(1)}
            assert pair.both[part].stop() == 0
    finally:
        pair.__exit__()
        for lab in labs:
            lab.close()


def _platforms(pair: Pair, which: int) -> dict[str, str]:
    from tests.support.gateway_process import environment

    return {"PYTHONPATH": environment(pair.both[which].home)["PYTHONPATH"]}


def test_what_another_process_has_queued_is_sent_by_the_one_who_is_connected(
    lab: PlainLab, model: Echo, tmp_path: Path, url: str
) -> None:
    place = as_json(Chat(platform="plain", chat_id="c0", type="dm"))
    with Pair(tmp_path, [lab], model.base_url, url), SessionDB(url=url) as db:
        for number in range(5):
            GatewayDB(db).post("plain", place, f"n{number}", f"nonce-{number}")
        until(lambda: lab.shown_in("c0") == [f"n{number}" for number in range(5)])


# ---------------------------------------------------------------------------------------------- in trouble


def test_what_a_killed_one_was_doing_the_other_does(lab: PlainLab, model: Echo, tmp_path: Path, url: str) -> None:
    said: dict[str, list[str]] = defaultdict(list)
    with Pair(tmp_path, [lab], model.base_url, url) as pair:
        for number in range(size(6, 16)):
            say(lab, said, f"c{number}", f"slow=2 n{number} " + "x " * 59 + "x")
            say(lab, said, f"c{number}", f"then n{number}")
        until(lambda: not lab.unacknowledged)
        holder = pair.holder()
        assert holder is not None
        pair.kill(holder)
        all_answered(lab, said)
        assert pair.holder() == 1 - holder
        assert pair.both[1 - holder].stop() == 0
    with SessionDB(url=url) as db:
        assert record_of(db) == dict(said)


def test_one_that_is_stopped_and_wakes_up_answers_nothing_that_was_given_away(
    lab: PlainLab, model: Echo, tmp_path: Path, url: str
) -> None:
    said: dict[str, list[str]] = defaultdict(list)
    with Pair(tmp_path, [lab], model.base_url, url) as pair:
        for number in range(16):
            say(lab, said, f"c{number}", f"slow=2 n{number} " + "x " * 59 + "x")
            say(lab, said, f"c{number}", f"then n{number}")
        until(lambda: not lab.unacknowledged)
        holder = pair.holder()
        assert holder is not None
        pair.signal(holder, signal.SIGSTOP)
        until(lambda: len(pair.living()) == 1 and pair.holder() == 1 - holder)
        pair.signal(holder, signal.SIGCONT)
        all_answered(lab, said)
        until(lambda: len(pair.living()) == 2, "it does not join again")
        for number in range(size(6, 16)):
            say(lab, said, f"c{number}", f"at last n{number}")
        all_answered(lab, said)
        assert "taken over plain" in log_of(pair.both[holder])
        for which in (0, 1):
            assert pair.both[which].stop() == 0
    with SessionDB(url=url) as db:
        assert record_of(db) == dict(said)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", (1, 2))
def test_killed_stopped_and_restarted_again_and_again_under_load(
    lab: PlainLab, model: Echo, tmp_path: Path, url: str, seed: int
) -> None:
    dice = random.Random(seed)
    said: dict[str, list[str]] = defaultdict(list)
    kinds = ["{}", "{}", "long=2600 {}", "slow=0.6 {} " + "x " * 39 + "x"]
    messages = [(f"c{dice.randrange(16)}", dice.choice(kinds).format(f"n{n}")) for n in range(size(80, 260))]
    pauses = [dice.uniform(0.0, 0.2) for _ in messages]

    def feed() -> None:
        for (chat, text), pause in zip(messages, pauses, strict=True):
            say(lab, said, chat, text)
            time.sleep(pause)

    with Pair(tmp_path, [lab], model.base_url, url) as pair:
        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        for deed in ["kill", "stop", "pause", "kill", "pause", "stop"][: size(3, 6)]:
            time.sleep(dice.uniform(0.2, 2.0))  # the moment is random on purpose; what must hold, holds at every moment
            which = dice.randrange(2)
            if deed == "pause":
                pair.signal(which, signal.SIGSTOP)
                until(lambda: len(pair.living()) == 1)
                time.sleep(dice.uniform(0.0, 1.0))
                pair.signal(which, signal.SIGCONT)
                until(lambda: len(pair.living()) == 2)
            else:
                if deed == "kill":
                    pair.kill(which)
                else:
                    assert pair.both[which].stop() == 0
                until(lambda: len(pair.living()) == 1)
                pair.start(which)
        feeder.join()
        all_answered(lab, said)
        assert not lab.unacknowledged
        for which in (0, 1):
            assert pair.both[which].stop() == 0
    with SessionDB(url=url) as db:
        assert record_of(db) == dict(said)


def test_one_that_stops_in_order_is_followed_at_once(lab: PlainLab, model: Echo, tmp_path: Path, url: str) -> None:
    with Pair(tmp_path, [lab], model.base_url, url) as pair:
        for one in pair.both:
            one.variables["TEST_GATEWAY_SECONDS"] = "600"  # too long to wait for
        holder = pair.holder()
        assert holder is not None
        assert pair.both[holder].stop() == 0
        until(lambda: pair.holder() == 1 - holder)
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])


# ---------------------------------------------------------------------------------------------- what the dead leave


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionDB]:
    on_server = request.param == "postgres"
    where = {"url": request.getfixturevalue("url")} if on_server else {"db_path": tmp_path / "state.db"}
    with SessionDB(**where) as made:
        yield made


def test_what_a_dead_one_held_is_free_and_what_it_writes_is_refused(db: SessionDB) -> None:
    store, dead, living = GatewayDB(db), "here:1:0a:gateway", "there:1:0b:gateway"
    taken = store.take_connection("plain", dead, 0.05)
    assert taken is not None and taken[1] is None
    event = store.receive(IncomingEvent("key", "plain", "e", "{}")).id
    store.post("plain", "{}", "Run it?", "id-q1")
    db.create_session("s", "plain")
    held = db.hold_session("s", "here:1:0001:plain", 60.0)
    assert held is not None
    until(lambda: store.read(leases.connected) == {})
    again = store.take_connection("plain", living, 60.0)
    assert again == (taken[0] + 1, dead)
    assert store.take_connection("plain", dead, 60.0) is None
    assert store.free_process(dead) == 1
    assert not db.is_live("s")
    assert store.read(leases.connected) == {"plain": living}
    events, parts = store.unfinished("plain")
    assert [one.id for one in events] == [event] and parts == []  # nobody waits for the answer to its question
    with pytest.raises(Fenced), db.fenced(leases.connection_lease("plain"), taken[0]):
        store.finish(event, "plain", "{}")
    with pytest.raises(Fenced), db.fenced(leases.connection_lease("plain"), taken[0]):
        store.receive(IncomingEvent("key", "plain", "too late", "{}"))
    with pytest.raises(Fenced), db.fenced("session:s", held):
        db.append_message("s", "assistant", "too late")
    assert len(store.read(inbox.waiting)) == 1

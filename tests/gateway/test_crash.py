"""Killed at any moment, again and again: every message is answered once, in order, and is in the record once."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.gateway import inbox, outbox, routes
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.echo import Echo, reply_to
from tests.support.gateway_process import GatewayProcess
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab
from tests.support.sizes import size

STREAMING = {"streaming": {"edit_interval": 0.1, "buffer_threshold": 20}}


@pytest.fixture(scope="module")
def model() -> Iterator[Echo]:
    with Echo(latency=0.05) as echo:
        yield echo


def words(texts: list[str]) -> list[str]:
    return " ".join(texts).split()


def record_of(db: SessionDB) -> dict[str, list[str]]:
    """The user messages in the record by chat; the store is sound and nothing waits."""
    found: dict[str, list[str]] = {}
    assert db.check() == []
    store = GatewayDB(db)
    assert store.read(inbox.waiting) == []
    assert store.read(outbox.unsent) == []
    for route in store.read(routes.bound):
        assert route.session_id is not None
        messages = db.get_messages(route.session_id)
        chat = route.key.rpartition(":")[2]
        found[chat] = [one["content"] for one in messages if one["role"] == "user"]
        whole = [one for one in messages if one["role"] == "assistant" and one["finish_reason"] != "interrupted"]
        assert len(whole) == len(found[chat])
    return found


def say(lab: PlainLab, said: dict[str, list[str]], chat: str, text: str) -> None:
    said[chat].append(text)
    lab.say(text, chat={"chat_id": chat, "type": "dm"})


def all_answered(lab: PlainLab, said: dict[str, list[str]]) -> None:
    """In every chat each message is answered once, in order."""

    def wrong() -> dict[str, list[str]]:
        expected = {chat: words([reply_to(one) for one in texts]) for chat, texts in said.items()}
        return {chat: shown for chat in said if (shown := words(lab.shown_in(chat))) != expected[chat]}

    while left := len(wrong()):  # the deadline is for the next chat, however many there are
        until(
            lambda left=left: len(wrong()) < left,
            lambda: {chat: (shown[:40], said[chat]) for chat, shown in wrong().items()},
        )


@pytest.mark.parametrize("seed", range(1, size(1, 2) + 1))
def test_killed_again_and_again_under_load(lab: PlainLab, model: Echo, hermes_home: Path, seed: int) -> None:
    dice = random.Random(seed)
    said: dict[str, list[str]] = defaultdict(list)
    kinds = ["{}", "{}", "long=2600 {}", "slow=0.4 {} " + "x " * 39 + "x"]
    messages = [(f"c{dice.randrange(12)}", dice.choice(kinds).format(f"n{n}")) for n in range(size(60, 140))]
    pauses = [dice.uniform(0.0, 0.12) for _ in messages]
    kills = [dice.uniform(0.05, 1.6) for _ in range(size(3, 6))]

    def feed() -> None:
        for (chat, text), pause in zip(messages, pauses, strict=True):
            say(lab, said, chat, text)
            time.sleep(pause)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    with GatewayProcess(hermes_home, [lab], model.base_url, display={"busy": "queue"}, gateway=STREAMING) as gateway:
        for wait in kills:
            time.sleep(wait)  # the moment is random on purpose; what must hold, holds at every moment
            gateway.kill()
            gateway.start()
        feeder.join()
        all_answered(lab, said)
        assert gateway.stop() == 0
    assert not lab.unacknowledged
    with SessionDB(hermes_home / "state.db") as db:
        assert record_of(db) == dict(said)


def test_a_kill_before_the_first_message_is_stored_leaves_no_empty_session(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    """The session is made a moment before its first message; whatever happens in between, there is one session."""
    with GatewayProcess(hermes_home, [lab], model.base_url) as gateway:
        with closing(sqlite3.connect(hermes_home / "state.db")) as raw:
            raw.execute(
                "CREATE TRIGGER full BEFORE INSERT ON messages BEGIN SELECT raise(ABORT, 'disk I/O error'); END"
            )
            raw.commit()
            lab.say("hello")
            made = "SELECT count(*) FROM sessions"
            until(lambda: raw.execute(made).fetchone()[0] >= 1)
            waited = "waits for the store"
            log = hermes_home / "logs" / "gateway.jsonl"
            until(lambda: log.read_text().count(waited) >= 2)  # it has tried again
            gateway.kill()
            raw.execute("DROP TRIGGER full")
            raw.commit()
        gateway.start()
        until(lambda: lab.shown() == ["echo: hello"])
    with SessionDB(hermes_home / "state.db") as db:
        rows = db.list_sessions_rich(limit=10)
        assert [row["message_count"] for row in rows] == [2]


def test_after_a_kill_in_another_container_the_next_gateway_of_a_file_begins_at_once(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    """Nothing tells that the process is gone, and its leases last: but a file has one gateway at a time."""
    with SessionDB(hermes_home / "state.db") as db:
        assert db.acquire_lease("job:connection:plain", "elsewhere:7:0badcafe:gateway", 600.0)
    with GatewayProcess(hermes_home, [lab], model.base_url) as gateway:
        lab.say("hello")
        until(lambda: lab.shown() == ["echo: hello"])
        assert gateway.stop() == 0, gateway.output()
    with SessionDB(hermes_home / "state.db") as db:
        assert record_of(db) == {"dm-alice": ["hello"]}

"""sessions.json: what the routing table says, whole at every moment, at a cost that no message pays."""

from __future__ import annotations

import json
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hermes.gateway.chats.router import write_index
from hermes.gateway.runner import Gateway
from hermes.gateway.settings import Timings
from hermes.store.api.session_db import SessionDB
from hermes.store.engines.sqlite import connection
from hermes.store.gateway import routes
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support import gateway as in_process
from tests.support.echo import Echo
from tests.support.gateway import Clock
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab

running = partial(in_process.running, timings=Timings(index_pause=0.05, index_check=0.3, reset_check=0.1))

ALICE = "agent:main:plain:dm:dm-alice"


def in_the_file(home: Path) -> dict[str, Any]:
    path = home / "sessions" / "sessions.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    assert all("session_id" in entry for entry in found.values()), "key → entry at the top"
    return found


def in_the_table(home: Path) -> dict[str, Any]:
    """The contents of the index file, read from the tables by plain SQL."""
    names = "session_id created_at updated_at platform chat_type display_name title last_user_at".split()
    tokens = "input_tokens output_tokens cache_read_tokens cache_write_tokens reasoning_tokens".split()
    columns = [f"r.{name}" if name != "title" else "s.title" for name in names] + [f"s.{name}" for name in tokens]
    reading = sqlite3.connect(home / "state.db")
    rows = list(
        reading.execute(
            f"SELECT r.key, r.chat, r.user_id, r.shared, r.reset_reason, r.previous_id, s.message_count, {', '.join(columns)}"
            " FROM gateway_routes r LEFT JOIN sessions s ON s.id = r.session_id"
        )
    )
    reading.close()
    found = {}
    for key, chat, user, shared, reason, previous, count, *rest in rows:
        found[key] = {
            **dict(
                zip([*names, *tokens], [*rest[: len(names)], *(one or 0 for one in rest[len(names) :])], strict=True)
            ),
            "origin": {**json.loads(chat), "user_id": user},
            "messages": count or 0,
            "flags": {"shared": bool(shared), "reset": reason, "previous_session_id": previous},
        }
    return found


def equal(home: Path) -> dict[str, Any]:
    until(lambda: in_the_file(home) == in_the_table(home), "the file does not follow the table")
    return in_the_file(home)


def test_the_file_says_what_the_table_says_after_every_change(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    clock = Clock()
    idle = {"mode": "idle", "idle_minutes": 60}
    with running(lab, model, clock=clock, session_reset=idle) as gateway:
        until(lambda: in_the_file(hermes_home) == {} and (hermes_home / "sessions" / "sessions.json").exists())
        lab.say("hello")
        lab.say("in a thread", where="thread", who="bob")
        until(lambda: lab.shown() and lab.shown("thread"))
        entry = until(lambda: (equal(hermes_home).get(ALICE) or {}).get("output_tokens") and equal(hermes_home)[ALICE])
        assert entry["session_id"]
        assert entry["origin"].items() >= {"platform": "plain", "chat_id": "dm-alice", "user_id": "u-alice"}.items()
        assert (entry["platform"], entry["chat_type"], entry["display_name"]) == ("plain", "dm", "Alice")
        assert entry["input_tokens"] >= 10
        assert equal(hermes_home)["agent:main:plain:group:group-1:thread-0"]["flags"]["shared"] is True
        lab.say("/title Tulips")
        until(lambda: in_the_file(hermes_home)[ALICE]["title"] == "Tulips")
        equal(hermes_home)
        clock.forward(7200)
        until(lambda: in_the_file(hermes_home)[ALICE]["flags"]["reset"] == "idle")
        assert equal(hermes_home)[ALICE]["flags"]["previous_session_id"] == entry["session_id"]
        gateway.db.set_session_title(entry["session_id"], "Roses")
        lab.say("/resume Roses")
        until(lambda: in_the_file(hermes_home)[ALICE]["title"] == "Roses")
        equal(hermes_home)
    assert equal(hermes_home)[ALICE]["session_id"] == entry["session_id"]
    mode = (hermes_home / "sessions" / "sessions.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_a_new_chat_is_in_the_file_before_its_message_is_answered(
    lab: PlainLab, model: Echo, hermes_home: Path
) -> None:
    with in_process.running(lab, model):
        lab.say("pause=3 hello")
        entry = until(
            lambda: in_the_file(hermes_home).get(ALICE, {}).get("session_id") and in_the_file(hermes_home)[ALICE]
        )
        assert lab.shown() == []
        assert entry["messages"] == 1
        until(lambda: lab.shown())
        until(lambda: in_the_file(hermes_home)[ALICE]["messages"] == 2)


def test_a_change_that_nobody_told_of_is_found(lab: PlainLab, model: Echo, hermes_home: Path) -> None:
    with running(lab, model):
        lab.say("hello")
        until(lambda: in_the_file(hermes_home).get(ALICE, {}).get("session_id"))
        with SessionDB(hermes_home / "state.db") as elsewhere:
            elsewhere.set_session_title(in_the_file(hermes_home)[ALICE]["session_id"], "From outside")
        until(lambda: in_the_file(hermes_home)[ALICE]["title"] == "From outside")


def filled(home: Path, number: int) -> SessionDB:
    """A store with so many routes."""
    db = SessionDB(home / "state.db")
    chat = '{"platform":"plain","chat_id":"%d"}'

    def fill(tx: Any, now: float) -> None:
        for n in range(number):
            key = f"agent:main:plain:dm:{n}"
            routes.put(tx, 1000.0 + n, key, "plain", "dm", chat % n, f"Person {n}", str(n), False)
            routes.spoken(tx, 1000.0 + n, key, f"s{n}")

    GatewayDB(db).write(fill)
    return db


def test_a_reader_never_sees_half_of_it(hermes_home: Path) -> None:
    with filled(hermes_home, 400) as db:
        store, over = GatewayDB(db), threading.Event()
        path = write_index(store, db.sessions_dir)
        seen: list[int] = []

        def read() -> None:
            while not over.is_set():
                seen.append(len(json.loads(path.read_text())))

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(40):
            store.set_pending_title(f"agent:main:plain:dm:{number}", "x")
            write_index(store, db.sessions_dir)
        over.set()
        reader.join(120)
        assert seen
        assert set(seen) == {400}
        assert [one.name for one in path.parent.iterdir() if one.name != "sessions.json"] == []


def test_a_file_that_is_up_to_date_is_left_alone(hermes_home: Path) -> None:
    with filled(hermes_home, 3) as db:
        path = write_index(GatewayDB(db), db.sessions_dir)
        before = path.stat().st_ino
        assert write_index(GatewayDB(db), db.sessions_dir).stat().st_ino == before


@contextmanager
def counted_work() -> Iterator[dict[str, int]]:
    """How many steps SQLite's machine makes, in tens, over all connections opened from now on."""
    work = {"steps": 0}
    connect = connection.connect

    def watched(*args: Any, **options: Any) -> Any:
        opened = connect(*args, **options)
        opened.set_progress_handler(count, 10)
        return opened

    def count() -> None:
        work["steps"] += 1

    connection.connect = watched
    try:
        yield work
    finally:
        connection.connect = connect


def cost_of_a_message(lab: PlainLab, gateway: Gateway, work: dict[str, int], model: Echo) -> dict[str, int]:
    """The least that one message has cost, of several: what happens by the way in the background comes and goes."""
    costs = []
    for number in range(8):
        before = dict(work)
        lab.say(f"message {number}")
        until(lambda number=number: f"echo: message {number}" in lab.shown())
        until(lambda: not gateway.turns.running and not gateway.store.mail_counts().get("plain", {}).get("unsent"))
        costs.append({name: work[name] - before[name] for name in work})
    return {name: min(one[name] for one in costs[2:]) for name in work}


def test_a_message_costs_the_same_with_ten_chats_and_with_five_thousand(
    lab: PlainLab, model: Echo, tmp_path: Path
) -> None:
    rarely = Timings(index_pause=3600.0, reset_check=3600.0)
    costs = {}
    for chats in (10, 5000):
        home = tmp_path / str(chats)
        filled(home, chats).close()
        lab.reset()
        with counted_work() as work, running(lab, model, home, timings=rarely) as gateway:
            costs[chats] = cost_of_a_message(lab, gateway, work, model)
    few, many = costs[10], costs[5000]
    assert few["steps"] > 5
    assert many["steps"] <= 1.5 * few["steps"] + 20, costs


def test_the_sample_in_the_format_has_what_an_entry_has(hermes_home: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    block = text.partition("## The index of chats")[2].partition("```json\n")[2].partition("```")[0]
    with filled(hermes_home, 1) as db:
        written = json.loads(write_index(GatewayDB(db), db.sessions_dir).read_text())
    ((_, sample),) = json.loads(block).items()
    ((_, entry),) = written.items()
    assert list(sample) == list(entry)
    assert sample["flags"].keys() == entry["flags"].keys()

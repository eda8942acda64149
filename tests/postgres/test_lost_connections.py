"""Lost connections and servers that go away: nothing is lost, nothing is there twice, waits end, and errors say what to do."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hermes.agent.loop import Agent
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.turn import Text
from hermes.config import Config
from hermes.errors import StoreBusy, StoreError, StoreUnreachable
from hermes.store.engines.postgres import connection as transaction
from hermes.store.engines.postgres import engine as engine_module
from hermes_state import SessionDB
from tests.faults import size
from tests.support.echo import Echo
from tests.support.postgres import Cluster
from tests.support.waiting import until

from . import paced
from .clusters import VERSIONS, Wire, cluster, words_of

CUTS = size(300, 1_000)
COMMITTED = b"COMMIT\0"  # as the server says it


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param) as one:
        yield one


@pytest.fixture
def wire(server: Cluster) -> Iterator[Wire]:
    server.sql("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    with Wire(server.port) as one:
        yield one


@pytest.fixture
def patience() -> float:
    """How long a call waits for the server; a test that is less patient sets it as its parameter."""
    return 15.0


@pytest.fixture
def db(wire: Wire, server: Cluster, tmp_path: Path, patience: float) -> Iterator[Any]:
    url = wire.url(server, connect_timeout="2")
    with SessionDB(db_path=tmp_path / "state.db", url=url, transcripts="off", timeout=1.0, patience=patience) as one:
        one.create_session("s", "cli")
        one.append_message("s", "user", "before")
        yield one


impatient = pytest.mark.parametrize("patience", [1.0])


# ------------------------------------------------------------------ cut wires


def test_hundreds_of_cuts_lose_and_double_nothing(db: Any, wire: Wire) -> None:
    """Four threads append while the wire is cut at random places; appends are tried again by themselves."""
    names, dice, wrong = [f"t{number}" for number in range(4)], random.Random(5), list[BaseException]()
    told: dict[str, list[tuple[int, str]]] = {name: [] for name in names}
    over = threading.Event()

    def write(name: str) -> None:
        try:
            while not over.is_set():
                words = f"{name} n{len(told[name])}"
                told[name].append((db.append_message(name, "user", words), words))
        except BaseException as error:
            wrong.append(error)

    for name in names:
        db.create_session(name, "cli")
    threads = [threading.Thread(target=write, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for number in range(CUTS):  # in the middle of what a client says, or instead of what the server answers
        if number % 3:
            wire.cut_after(dice.randrange(1, 6_000))
        else:
            wire.lose_answer(COMMITTED)
        until(lambda number=number: wire.cuts > number or bool(wrong))
    over.set()
    for thread in threads:
        thread.join(120)
    assert not wrong, wrong
    for name in names:
        assert [(row["id"], row["content"]) for row in db.get_messages(name)] == told[name]
        assert db.get_session(name)["message_count"] == len(told[name])
    db.catch_up()
    assert db.check() == []


@pytest.mark.parametrize("content", ["short words", "x" * 60_000])
def test_when_the_answer_to_a_commit_is_lost_the_message_is_there_once_and_acknowledged(
    db: Any, wire: Wire, content: str
) -> None:
    for number in range(4):
        wire.lose_answer(COMMITTED)
        message_id = db.append_message("s", "user", f"n{number} {content}")
        assert [row["id"] for row in db.get_messages("s")][-1] == message_id
    assert wire.cuts == 4
    assert words_of(db, "s") == ["before", *(f"n{number} {content}" for number in range(4))]
    assert db.get_session("s")["message_count"] == 5
    assert [hit["id"] for hit in db.search_messages("n2")] == [db.get_messages("s")[3]["id"]]
    assert db.check() == []


def test_a_change_that_stores_no_message_is_settled_in_the_same_way(db: Any, wire: Wire) -> None:
    for number in range(3):
        wire.lose_answer(COMMITTED)
        assert db.set_session_title("s", f"title {number}") is True
        assert db.get_session_title("s") == f"title {number}"
    wire.lose_answer(COMMITTED)
    token = db.acquire_lease("x", "a")
    assert isinstance(token, int) and db.renew_lease("x", token)
    assert wire.cuts == 4


def test_reads_that_are_cut_anywhere_are_repeated(db: Any, wire: Wire) -> None:
    for number in range(5):
        db.append_message("s", "user", f"words number {number}")
    rows, hits = db.get_messages("s"), db.search_messages("words")
    listed = [row["id"] for row in db.list_sessions_rich()]
    for call, expected in (
        (lambda: db.get_messages("s"), rows),
        (lambda: db.search_messages("words"), hits),
        (lambda: [row["id"] for row in db.list_sessions_rich()], listed),
        (lambda: db.sql("SELECT count(*) AS n FROM messages"), [{"n": 6}]),
    ):
        before = wire.passed
        call()
        length = wire.passed - before
        for where in range(1, length + 1, max(1, length // 12)):
            wire.cut_after(where)
            assert call() == expected
            wire.cut_after(None)
    assert wire.cuts >= 20


def test_a_commit_that_is_held_up_is_not_overtaken_by_its_repetition(db: Any, wire: Wire) -> None:
    """The server has not got it when the answer is missed: it is stored again, and the first one must not arrive after that."""
    wire.hold_back(b"COMMIT", after=b"once")
    db.append_message("s", "user", "once")
    assert wire.held.is_set()
    wire.pass_on()
    db.append_message("s", "user", "after")
    assert words_of(db, "s") == ["before", "once", "after"]
    assert db.get_session("s")["message_count"] == 3
    assert db.check() == []


@pytest.mark.parametrize("patience", [1.5])
def test_a_reply_whose_commit_could_not_be_confirmed_in_time_is_answered_once(
    db: Any, wire: Wire, tmp_path: Path
) -> None:
    """The reply is in the record, but its answer was lost, and the server was away for longer than the patience."""
    with Echo() as model:
        agent = Agent(db, Config(), EndpointModel("echo", model.base_url, None, 100_000), session_id="s", home=tmp_path)

        def come_back() -> None:
            while not wire.cuts:
                time.sleep(0.01)
            time.sleep(2.2)  # longer than one patience, shorter than two
            wire.open()

        back = threading.Thread(target=come_back)
        back.start()
        with pytest.raises(StoreError) as raised:
            for event in agent.turn("hello"):
                if isinstance(event, Text):
                    wire.lose_answer(COMMITTED, for_good=True, after=b"echo: hello")
        assert raised.value.maybe_stored
        back.join()
        assert words_of(db, "s") == ["before", "hello", "echo: hello"]
        list(agent.resume())  # as a gateway does
        assert words_of(db, "s") == ["before", "hello", "echo: hello"]
        assert len([one for one in model.requests if "hello" in str(one)]) <= 2  # the turn, and perhaps a title
    assert db.check() == []


@pytest.mark.parametrize("patience", [0.6])
def test_a_network_that_stays_away_is_told_and_once_it_is_back_everything_goes_on(db: Any, wire: Wire) -> None:
    wire.shut()
    with pytest.raises(StoreUnreachable, match="can't be reached; is the server running") as raised:
        db.append_message("s", "user", "into the void")
    assert not raised.value.maybe_stored
    with pytest.raises(StoreUnreachable):
        db.get_messages("s")
    wire.open()
    db.append_message("s", "user", "here again")
    assert words_of(db, "s") == ["before", "here again"]


# ------------------------------------------------------------------ servers that go away, stop or wait


@contextmanager
def stopped(server: Cluster) -> Iterator[None]:
    """All processes of a server are stopped (SIGSTOP), as by a machine that hangs: connections stay, nothing is answered."""
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    found: list[int] = []
    try:
        while True:
            others = [pid for pid in [postmaster, *_children(postmaster)] if pid not in found]
            if not others:
                break
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
                found.append(pid)
        yield
    finally:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _children(parent: int) -> list[int]:
    pids = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(place.read_text().rpartition(")")[2].split()[1]) == parent:
                pids.append(int(place.parent.name))
        except (OSError, ValueError):
            continue
    return pids


@impatient
def test_a_server_that_is_stopped_is_not_waited_for_without_end(server: Cluster, db: Any) -> None:
    with stopped(server):
        with pytest.raises(StoreUnreachable) as raised:
            db.append_message("s", "user", "into the void")
        assert not raised.value.maybe_stored
        with pytest.raises(StoreUnreachable):
            db.get_messages("s")
        with pytest.raises(StoreUnreachable):
            db.search_messages("before")
    db.append_message("s", "user", "here again")
    assert words_of(db, "s") == ["before", "here again"]


def test_a_commit_that_waits_for_a_replica_that_is_gone_is_told(server: Cluster, db: Any) -> None:
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'gone'", "SELECT pg_reload_conf()")
    try:
        said = ["before"]
        with pytest.raises(StoreUnreachable, match="no replica has confirmed it") as raised:
            while True:  # until the server has read its new settings
                said.append(f"here, but only here: {len(said)}")
                db.append_message("s", "user", said[-1])
        assert raised.value.maybe_stored
        assert words_of(db, "s") == said
        assert len(db.search_messages("only")) == len(said) - 1  # an index waits for no replica
    finally:
        server.sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
    db.append_message("s", "user", "on")
    assert words_of(db, "s") == [*said, "on"]


def test_a_statement_that_takes_long_is_let_work(db: Any) -> None:
    assert db.sql("SELECT pg_sleep(2.5) IS NOT NULL AS slept") == [{"slept": True}]


def test_a_process_that_was_stopped_in_a_transaction_is_out_of_the_way_before_others_give_up(
    server: Cluster, db: Any
) -> None:
    assert transaction.PAUSED < engine_module.PATIENCE
    with pytest.raises(StoreUnreachable, match="nothing was stored"), db._engine.write() as tx:
        assert tx.value("SHOW idle_in_transaction_session_timeout") == f"{transaction.PAUSED}s"
        tx.ask("SET LOCAL idle_in_transaction_session_timeout = '300ms'")
        (pid,) = tx.row("SELECT pg_backend_pid()")
        until(lambda: not server.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))
        tx.row("SELECT 1")
    db.append_message("s", "user", "on we go")
    assert words_of(db, "s") == ["before", "on we go"]


def test_the_keys_of_writes_are_removed_after_a_while(server: Cluster, wire: Wire, tmp_path: Path) -> None:
    counted = "SELECT count(*) FROM write_keys WHERE key < 100"
    with paced(wire.url(server), tmp_path / "k.db", adopt_every=0.0) as db:
        db.create_session("s", "cli")
        server.sql("INSERT INTO write_keys SELECT n, now() - interval '1 hour' FROM generate_series(1, 50) n")
        db._engine._indexer._keys_removed -= 3600.0  # type: ignore[attr-defined]
        db.append_message("s", "user", "wakes the indexer")
        until(lambda: server.sql(counted) == [(0,)])
        server.sql("INSERT INTO write_keys SELECT n, now() - interval '1 hour' FROM generate_series(1, 50) n")
        db.vacuum()
        assert server.sql(counted) == [(0,)]
    assert server.sql("SELECT count(*) > 0 FROM write_keys") == [(True,)]


# ------------------------------------------------------------------ others in the way


@pytest.mark.parametrize("patience", [5.0])  # for all of them to be made
def test_connections_that_are_all_in_use_are_told_and_come_back(db: Any) -> None:
    leave, inside = threading.Event(), threading.Barrier(engine_module.CONNECTIONS + 1)

    def sit() -> None:
        with db._engine.read() as tx:
            tx.row("SELECT 1")
            inside.wait(30)
            leave.wait(30)

    threads = [threading.Thread(target=sit) for _ in range(engine_module.CONNECTIONS)]
    for thread in threads:
        thread.start()
    inside.wait(30)
    with pytest.raises(StoreBusy, match=f"all {engine_module.CONNECTIONS} connections to .* are in use; try again"):
        db.append_message("s", "user", "no room")
    leave.set()
    for thread in threads:
        thread.join()
    db.append_message("s", "user", "room again")
    assert words_of(db, "s") == ["before", "room again"]


def test_a_failure_that_somebody_passed_over_is_not_taken_for_a_commit(db: Any) -> None:
    with pytest.raises(StoreError, match="rolled the transaction back"), db._engine.write() as tx:
        tx.run("UPDATE sessions SET model = 'x' WHERE id = 's'")
        try:
            tx.row("SELECT 1 / 0")
        except psycopg.Error:
            pass
    assert db.get_session("s")["model"] is None

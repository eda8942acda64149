"""A server that is away, stopped or waiting for longer than the patience: waits end, and nothing is stored or answered twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes.agent.endpoint.client import EndpointModel
from hermes.agent.loop import Agent
from hermes.agent.turn import Text
from hermes.config import Config
from hermes.errors import InvalidInput, StoreError, StoreUnreachable
from hermes_state import SessionDB
from tests.support.echo import Echo
from tests.support.postgres import Cluster

from .clusters import VERSIONS, Wire, cluster, words_of
from .test_faults import COMMITTED


@pytest.fixture(scope="module", params=VERSIONS[:1])
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
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass


def _children(parent: int) -> list[int]:
    pids = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(place.read_text().rpartition(")")[2].split()[1]) == parent:
                pids.append(int(place.parent.name))
        except (OSError, ValueError):
            continue
    return pids


# ------------------------------------------------------------------ answered once


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
        list(agent.go_on())  # as a gateway does
        assert words_of(db, "s") == ["before", "hello", "echo: hello"]
        assert len([one for one in model.requests if "hello" in str(one)]) <= 2  # the turn, and perhaps a title
    assert db.check() == []


@impatient
def test_a_commit_that_reaches_the_server_late_is_not_overtaken_by_who_looks_for_it(db: Any, wire: Wire) -> None:
    """A program that looks, finds nothing and stores it again: the first commit must not arrive after that."""
    wire.hold_back(b"COMMIT", after=b"once")
    with pytest.raises(StoreUnreachable, match="check before you repeat it") as raised:
        db.append_message("s", "user", "once")
    assert raised.value.maybe_stored and wire.held.is_set()
    if "once" not in words_of(db, "s"):
        arrives = threading.Timer(0.5, wire.pass_on)
        arrives.start()
        db.append_message("s", "user", "once")
        arrives.join()
    db.append_message("s", "user", "after")
    assert words_of(db, "s") == ["before", "once", "after"]
    assert db.get_session("s")["message_count"] == 3
    assert db.check() == []


# ------------------------------------------------------------------ bounds


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


@pytest.mark.parametrize("seconds", [0, -1, "soon", None])
def test_a_bound_is_a_number_of_seconds(tmp_path: Path, seconds: Any) -> None:
    with pytest.raises(InvalidInput, match="timeout is a number of seconds"):
        SessionDB(tmp_path / "x.db", timeout=seconds)
    with pytest.raises(InvalidInput, match="patience is a number of seconds"):
        SessionDB(tmp_path / "x.db", patience=seconds)


# ------------------------------------------------------------------ cut at the beginning, or while reading


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


def test_a_cut_at_the_beginning_of_a_transaction_is_not_noticed(db: Any, wire: Wire) -> None:
    """Nothing can have been stored yet, so it begins again, whatever it was to do."""
    told = ["before"]
    for number, where in enumerate((1, 5, 20, 60, 100)):
        wire.cut_after(where)
        db.append_message("s", "user", f"n{number}")
        told.append(f"n{number}")
        wire.cut_after(where)
        assert db.set_session_title("s", f"title {number}") is True
        wire.cut_after(where)
        db.end_session("s", "done")
        wire.cut_after(where)
        db.reopen_session("s")
    wire.cut_after(None)
    assert wire.cuts == 20
    assert words_of(db, "s") == told and db.get_session_title("s") == "title 4"


@impatient
def test_an_append_that_is_stored_says_so_though_the_server_goes_away_right_after(
    server: Cluster, wire: Wire, tmp_path: Path, patience: float
) -> None:
    """After the commit a store that writes no transcripts looks whether the session has one: that fails here."""
    with SessionDB(db_path=tmp_path / "state.db", url=server.url()) as db:
        db.create_session("t", "cli")
    url = wire.url(server, connect_timeout="2")
    with SessionDB(db_path=tmp_path / "state.db", url=url, transcripts="off", patience=patience) as db:
        wire.lose_answer(b"", for_good=True, after=b"SELECT transcript")
        message_id = db.append_message("t", "user", "said once")
        assert wire.cuts
    with SessionDB(db_path=tmp_path / "state.db", url=server.url()) as db:
        assert [(row["id"], row["content"]) for row in db.get_messages("t")] == [(message_id, "said once")]

"""Cut wires and servers that go away: what was acknowledged is there, nothing is there twice, and errors say what to do."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hermes.errors import HermesError, StoreBusy, StoreError, StoreUnreachable
from hermes.store.engines.postgres import engine as engine_module
from hermes.store.engines.postgres import transaction
from hermes_state import SessionDB
from tests.support.postgres import Cluster

from .clusters import VERSIONS, Wire, cluster, words_of

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
    with SessionDB(db_path=tmp_path / "state.db", url=wire.url(server), transcripts="off", patience=patience) as one:
        one.create_session("s", "cli")
        yield one


def attempt(call: Any) -> Any:
    """What a call gives, or the error of ours that it raises."""
    try:
        return call()
    except HermesError as error:
        return error


# ------------------------------------------------------------------ cut wires


@pytest.mark.parametrize("content", ["short words", "x" * 60_000])
def test_when_the_answer_to_a_commit_is_lost_the_message_is_there_once_and_acknowledged(
    db: Any, wire: Wire, content: str
) -> None:
    db.append_message("s", "user", "before")
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


def test_wherever_the_wire_is_cut_an_append_is_done_once_or_refused_whole(db: Any, wire: Wire) -> None:
    """Appends are tried again by themselves, as long as it is sure that nothing was stored."""
    db.append_message("s", "user", "warm")
    before = wire.passed
    db.append_message("s", "user", "how many bytes is this?")
    length = wire.passed - before
    told, dice = ["warm", "how many bytes is this?"], random.Random(5)
    for number, where in enumerate(sorted({*dice.sample(range(1, length + 400), 40), 1, length - 1, length})):
        wire.cut_after(where)
        db.append_message("s", "user", f"cut {number}")
        told.append(f"cut {number}")
    wire.cut_after(None)
    assert wire.cuts >= 20
    assert words_of(db, "s") == told
    assert db.get_session("s")["message_count"] == len(told)
    assert db.check() == []


def test_wherever_the_wire_is_cut_a_compression_is_done_whole_or_not_at_all(db: Any, wire: Wire) -> None:
    ids = [db.append_message("s", ("user", "assistant")[n % 2], f"n{n}") for n in range(6)]
    db.branch_session("s", "rehearsal")
    before = wire.passed
    db.compress_session("rehearsal", "rehearsed", summary="notes", tail_from=ids[4])
    length = wire.passed - before
    refused = 0
    for where in random.Random(6).sample(range(1, length), 12):
        name = f"c{where}"
        db.branch_session("s", name)
        wire.cut_after(where)
        outcome = attempt(lambda name=name: db.compress_session(name, f"{name} c", summary="notes", tail_from=ids[4]))
        wire.cut_after(None)
        if isinstance(outcome, StoreUnreachable):
            refused += 1
            assert not outcome.maybe_stored
            assert db.get_session(f"{name} c") is None and db.get_session(name)["ended_at"] is None
        else:
            assert outcome == f"{name} c" and words_of(db, outcome) == ["notes", "n4", "n5"]
            assert db.get_session(name)["end_reason"] == "compression"
    assert refused
    assert db.check() == []


def test_a_cut_between_two_calls_is_not_noticed(db: Any, wire: Wire) -> None:
    for number in range(3):
        db.append_message("s", "user", f"n{number}")
        wire.cut()
        assert words_of(db, "s") == [f"n{n}" for n in range(number + 1)]
        wire.cut()


def test_a_network_that_comes_back_late_is_waited_for(db: Any, wire: Wire) -> None:
    wire.shut()
    opened = threading.Timer(1.5, wire.open)
    opened.start()
    db.append_message("s", "user", "patient")
    opened.join()
    assert words_of(db, "s") == ["patient"]


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
    assert words_of(db, "s") == ["here again"]


@pytest.mark.parametrize("patience", [0.6])
def test_what_can_not_be_found_out_is_said_so(db: Any, wire: Wire) -> None:
    db.append_message("s", "user", "first")
    wire.lose_answer(COMMITTED, for_good=True)
    with pytest.raises(StoreUnreachable, match="check before you repeat it") as raised:
        db.append_message("s", "user", "perhaps")
    assert raised.value.maybe_stored
    wire.open()
    assert words_of(db, "s") == ["first", "perhaps"], "it was not repeated"


# ------------------------------------------------------------------ servers that go away


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_server_that_is_restarted_in_the_middle_of_everything_loses_and_doubles_nothing(
    server: Cluster, db: Any, how: str
) -> None:
    """Four threads write all the time; they notice at most that it took longer."""
    stop, wrong = threading.Event(), list[BaseException]()
    kept: dict[int, list[tuple[int, str]]] = {number: [] for number in range(4)}

    def write(number: int) -> None:
        count = 0
        try:
            db.create_session(f"t{number}", "cli")
            while not stop.is_set():
                words = f"t{number}n{count}"
                kept[number].append((db.append_message(f"t{number}", "user", words), words))
                count += 1
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in kept]
    for thread in threads:
        thread.start()
    for round_ in range(3):
        _until(lambda goal=20 * (round_ + 1): all(len(some) >= goal for some in kept.values()) or bool(wrong))
        server.stop(how)
        server.start()
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not wrong, wrong
    for number, some in kept.items():
        rows = [(row["id"], row["content"]) for row in db.get_messages(f"t{number}")]
        assert rows == some
        assert db.get_session(f"t{number}")["message_count"] == len(rows)
    assert db.check() == []


def _until(true: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_a_server_that_crashes_between_commit_and_answer_has_it_once(server: Cluster, db: Any, wire: Wire) -> None:
    """Numbers of transactions may be given out again after a crash: what counts is whether the message is there."""
    for number in range(3):
        wire.lose_answer(COMMITTED)
        crash = threading.Thread(target=_crash_when_cut, args=(wire, server, number + 1))
        crash.start()
        db.append_message("s", "user", f"n{number}")
        crash.join()
    assert words_of(db, "s") == ["n0", "n1", "n2"]
    assert db.check() == []


def _crash_when_cut(wire: Wire, server: Cluster, cuts: int) -> None:
    _until(lambda: wire.cuts >= cuts)
    server.stop("immediate")
    server.start()


def test_a_transaction_whose_number_was_given_to_another_is_not_taken_for_stored(
    server: Cluster, db: Any, wire: Wire
) -> None:
    """As after a crash: the server says of the number "committed", but the message is not there. It is stored again."""
    wire.lose_answer(COMMITTED, for_good=True)
    storing = threading.Thread(target=db.append_message, args=("s", "user", "words"))
    storing.start()
    _until(lambda: wire.cuts == 1)
    server.sql("DELETE FROM messages")
    wire.open()
    storing.join(60)
    assert words_of(db, "s") == ["words"]


def test_a_process_that_was_stopped_in_a_transaction_is_out_of_the_way_before_others_give_up(
    server: Cluster, db: Any
) -> None:
    assert transaction.PAUSED < engine_module.PATIENCE
    with pytest.raises(StoreUnreachable, match="nothing was stored"), db._engine.write() as tx:
        assert tx.value("SHOW idle_in_transaction_session_timeout") == f"{transaction.PAUSED}s"
        tx.ask("SET LOCAL idle_in_transaction_session_timeout = '300ms'")
        (pid,) = tx.row("SELECT pg_backend_pid()")
        _until(lambda: not server.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))
        tx.row("SELECT 1")
    db.append_message("s", "user", "on we go")
    assert words_of(db, "s") == ["on we go"]


# ------------------------------------------------------------------ others in the way


@pytest.mark.parametrize("patience", [0.5])
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
    assert words_of(db, "s") == ["room again"]


def test_a_server_without_a_free_connection_is_busy_and_not_gone(server: Cluster, wire: Wire, tmp_path: Path) -> None:
    server.sql("DROP ROLE IF EXISTS few", "CREATE ROLE few LOGIN CONNECTION LIMIT 0")
    with pytest.raises(StoreBusy, match="has no connection left"):
        SessionDB(db_path=tmp_path / "state.db", url=wire.url(server).replace("postgres@", "few@"))


def test_a_deadlock_is_told_as_busy_and_leaves_nothing_behind(server: Cluster, db: Any) -> None:
    for name in ("a", "b"):
        db.create_session(name, "cli")
    meet, outcomes = threading.Barrier(2), list[Any]()

    def cross(first: str, second: str) -> None:
        try:
            with db._engine.write(alone=False) as tx:
                tx.hold(first)
                meet.wait(30)
                tx.run("UPDATE sessions SET model = ? WHERE id = ?", (first, second))
            outcomes.append("done")
        except HermesError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=cross, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    refused = [one for one in outcomes if one != "done"]
    assert len(refused) == 1 and isinstance(refused[0], StoreBusy), outcomes
    assert "nothing was stored, try again" in str(refused[0])
    assert sorted(filter(None, (db.get_session(name)["model"] for name in "ab"))) in (["a"], ["b"])


def test_a_serialization_failure_is_told_as_busy(server: Cluster, db: Any) -> None:
    """As it comes from a server whose owner put something stricter in place."""
    with pytest.raises(StoreBusy, match="nothing was stored, try again"), db._engine.write(alone=False) as tx:
        tx.ask("ROLLBACK")
        tx.ask("BEGIN ISOLATION LEVEL SERIALIZABLE")
        tx.row("SELECT * FROM sessions")
        server.sql("UPDATE sessions SET model = 'quicker'")
        tx.run("UPDATE sessions SET model = 'slower'")
    assert db.get_session("s")["model"] == "quicker"


def test_a_statement_that_takes_longer_than_the_server_allows_is_told(
    server: Cluster, wire: Wire, tmp_path: Path
) -> None:
    url = wire.url(server, options="-cstatement_timeout%3D300")
    with SessionDB(db_path=tmp_path / "state.db", url=url) as db:
        db.create_session("s", "cli")
        with psycopg.connect(server.url()) as other:
            other.execute("SELECT 1 FROM sessions FOR UPDATE")
            with pytest.raises(StoreBusy, match="longer than the server allows"):
                db.append_message("s", "user", "too long")
        db.append_message("s", "user", "now")
        assert words_of(db, "s") == ["now"]


def test_a_failure_that_somebody_passed_over_is_not_taken_for_a_commit(db: Any) -> None:
    with pytest.raises(StoreError, match="rolled the transaction back"), db._engine.write() as tx:
        tx.run("UPDATE sessions SET model = 'x' WHERE id = 's'")
        try:
            tx.row("SELECT 1 / 0")
        except psycopg.Error:
            pass
    assert db.get_session("s")["model"] is None

"""Two servers, one following the other: when the first dies and the second takes over, the same SessionDB goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes.errors import StoreReadOnly, StoreUnreachable
from hermes_state import SessionDB
from tests.support.postgres import Cluster
from tests.support.waiting import until

from .clusters import VERSIONS, Wire, cluster, folder, words_of


class Pair:
    """A server and the replica that has to confirm every commit."""

    def __init__(self, first: Cluster, second: Cluster) -> None:
        self.first, self.second = first, second

    def url(self, *ports: int) -> str:
        """Both of them, the replica first: which one can be written to is found out."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports or (self.second.port, self.first.port))
        return f"postgresql://postgres@{hosts}/postgres"

    def confirmed(self) -> None:
        """From now on the first says "committed" when the second has it, too."""
        self.first.sql("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        until(lambda: self.first.sql("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))

    def fail_over(self) -> None:
        """The first dies, the second takes over."""
        self.first.stop("immediate")
        self.second.run("pg_ctl", "-D", str(self.second.data), "-w", "-s", "promote")


@contextmanager
def pair_of(version: str) -> Iterator[Pair]:
    with cluster(version, wal_level="replica", max_wal_senders="4", hot_standby="on") as first, folder() as place:
        second = Cluster(version, place, first.settings)
        second.run(
            "pg_basebackup", "-D", str(second.data), "-d", first.url(), "-R", "-c", "fast", "-X", "stream", "--no-sync"
        )
        second.own()
        second.start()
        try:
            yield Pair(first, second)
        finally:
            second.stop("immediate")


@pytest.fixture(params=VERSIONS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair_of(request.param) as one:
        one.confirmed()
        yield one


@pytest.fixture(scope="module", params=VERSIONS)
def lasting_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """One in which the first stays the first."""
    with pair_of(request.param) as one:
        one.confirmed()
        yield one


def test_writers_go_on_through_a_failover_and_nothing_acknowledged_is_lost_or_doubled(
    pair: Pair, tmp_path: Path
) -> None:
    stop, wrong = threading.Event(), list[BaseException]()
    kept: dict[str, list[tuple[int, str]]] = {f"t{number}": [] for number in range(4)}
    with SessionDB(db_path=tmp_path / "state.db", url=pair.url(), transcripts="off") as db:
        assert not db.read_only

        def write(name: str) -> None:
            try:
                db.create_session(name, "cli")
                while not stop.is_set():
                    words = f"{name}n{len(kept[name])}"
                    kept[name].append((db.append_message(name, "user", words), words))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=write, args=(name,)) for name in kept]
        for thread in threads:
            thread.start()
        until(lambda: all(len(some) > 20 for some in kept.values()) or wrong)
        pair.fail_over()
        before = {name: len(some) for name, some in kept.items()}
        until(lambda: all(len(some) > before[name] + 20 for name, some in kept.items()) or wrong)
        stop.set()
        for thread in threads:
            thread.join(120)
        assert not wrong, wrong
        for name, some in kept.items():
            assert [(row["id"], row["content"]) for row in db.get_messages(name)] == some
            assert db.get_session(name)["message_count"] == len(some)
            assert [hit["id"] for hit in db.search_messages(some[-1][1])] == [some[-1][0]]
        assert db.check() == []


def test_a_commit_that_returns_without_its_confirmation_is_told(lasting_pair: Pair, tmp_path: Path) -> None:
    """The server gives up waiting (somebody cancelled it): it says "committed", but a failover would lose it."""
    pair = lasting_pair
    with SessionDB(db_path=tmp_path / "state.db", url=pair.url(), transcripts="off") as db:
        db.create_session("s", "cli")
        pair.second.stop("immediate")
        cancel = threading.Thread(target=_cancel_waiting, args=(pair,))
        cancel.start()
        with pytest.raises(StoreUnreachable, match="no replica has confirmed it") as raised:
            db.append_message("s", "user", "alone")
        cancel.join()
        assert raised.value.maybe_stored
        pair.second.start()
        assert db.append_message("s", "user", "with a replica again") > 0
        assert words_of(db, "s") == ["alone", "with a replica again"]


def _cancel_waiting(pair: Pair) -> None:
    until(lambda: pair.first.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))


def test_a_replica_is_opened_for_reading_and_says_so(lasting_pair: Pair, tmp_path: Path) -> None:
    pair = lasting_pair
    with SessionDB(db_path=tmp_path / "a.db", url=pair.url(), transcripts="off") as db:
        db.create_session("wise", "cli")
        db.append_message("wise", "user", "words of wisdom")
    ((end,),) = pair.first.sql("SELECT pg_current_wal_lsn()")
    until(lambda: pair.second.sql(f"SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{end}'"))
    with pytest.warns(UserWarning, match="is a replica; it is opened for reading only"):
        db = SessionDB(db_path=tmp_path / "b.db", url=pair.url(pair.second.port))
    with db:
        assert words_of(db, "wise") == ["words of wisdom"]
        assert [hit["session_id"] for hit in db.search_messages("wisdom")] == ["wise"]
        with pytest.raises(StoreReadOnly, match="is a replica"):
            db.append_message("wise", "user", "x")


def test_of_several_servers_that_are_all_away_each_is_named(tmp_path: Path) -> None:
    url = "postgresql://me:secret@127.0.0.1:1,127.0.0.1:2/x"
    with pytest.raises(StoreUnreachable, match="port 1 failed.*port 2 failed") as raised:
        SessionDB(db_path=tmp_path / "state.db", url=url, patience=0.5)
    assert "secret" not in str(raised.value) and "127.0.0.1:1,127.0.0.1:2/x" in str(raised.value)


def test_an_answer_that_was_lost_in_the_failover_is_found_on_the_second_server(pair: Pair, tmp_path: Path) -> None:
    """Confirmed by the replica, but nobody was told: it is there once, and acknowledged."""
    with Wire(pair.first.port) as wire:
        url = pair.url(wire.port, pair.second.port)
        with SessionDB(db_path=tmp_path / "state.db", url=url, transcripts="off") as db:
            db.create_session("s", "cli")
            db.append_message("s", "user", "before")
            wire.lose_answer(b"COMMIT\0", for_good=True)
            over = threading.Thread(target=lambda: (until(lambda: wire.cuts), pair.fail_over()))
            over.start()
            message_id = db.append_message("s", "user", "at the last moment")
            over.join()
            assert [row["id"] for row in db.get_messages("s")][-1] == message_id
            assert words_of(db, "s") == ["before", "at the last moment"]
            db.set_session_title("s", "after")
            assert wire.cuts == 1 and db.get_session_title("s") == "after"

"""A store behind PgBouncer in transaction mode: each transaction may run on another server connection, which others use next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.errors import StoreError
from hermes_state import SessionDB
from tests.support.pgbouncer import Pooler, pgbouncer
from tests.support.postgres import Cluster

from .clusters import VERSIONS, cluster, folder, words_of


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(request.param) as one:
        yield one


@pytest.fixture(scope="module")
def pooler(server: Cluster) -> Iterator[Pooler]:
    with folder() as place, pgbouncer(server, place) as one:
        yield one


@pytest.fixture
def url(server: Cluster, pooler: Pooler) -> str:
    """An empty store, through the pooler."""
    name = f"d{len(server.sql('SELECT 1 FROM pg_database'))}"
    server.sql(f"CREATE DATABASE {name}")
    return pooler.url(name)


@pytest.fixture
def opened(url: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """opened(**kw) → another client of the store."""
    stores: list[Any] = []

    def make(**kw: Any) -> Any:
        stores.append(SessionDB(db_path=tmp_path / f"{len(stores)}.db", url=url, transcripts="off", **kw))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def at_once(*jobs: Callable[[], None]) -> None:
    """Run all of them side by side; what one of them raises is raised here."""
    wrong: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if wrong:
        raise wrong[0]


def append(db: Any, session_id: str, count: int) -> None:
    for number in range(count):
        db.append_message(session_id, "user", f"number {number} of {session_id}")


def look(db: Any, session_id: str, count: int) -> None:
    for _ in range(count):
        db.get_messages(session_id)
        db.get_session(session_id)
        db.search_messages("number")
        db.list_sessions_rich()


def test_no_call_is_refused_while_readers_and_writers_share_the_poolers_connections(
    opened: Callable[..., Any],
) -> None:
    first, second = opened(), opened(durability="normal")
    for name in ("a", "b", "c"):
        first.create_session(name, "cli")
    readers = [opened(read_only=True) for _ in range(2)]
    at_once(
        lambda: append(first, "a", 60),
        lambda: append(second, "b", 60),
        lambda: append(second, "c", 60),
        *(lambda reader=reader: look(reader, "a", 30) for reader in readers),
        lambda: look(first, "b", 30),
    )
    for name in ("a", "b", "c"):
        assert words_of(first, name) == [f"number {number} of {name}" for number in range(60)]
        assert first.get_session(name)["message_count"] == 60
    assert len(first.search_messages("number", limit=500)) == 180
    assert first.check() == []


def test_what_one_client_asks_for_reaches_no_other_client(
    server: Cluster, opened: Callable[..., Any], url: str
) -> None:
    """Nothing is left on a server connection: a reader makes none read-only, `normal` switches off nobody's sync."""
    careful, quick = opened(), opened(durability="normal")
    careful.create_session("s", "cli")
    reader = opened(read_only=True)
    at_once(
        lambda: append(quick, "s", 20),
        lambda: look(reader, "s", 20),
        lambda: append(careful, "s", 20),
    )
    import psycopg

    asked = "default_transaction_read_only", "synchronous_commit", "lock_timeout", "idle_in_transaction_session_timeout"
    with psycopg.connect(server.url(url.rpartition("/")[2]), autocommit=True) as direct:
        untouched = [direct.execute(f"SHOW {name}".encode()).fetchone() for name in asked]
    others = [psycopg.connect(url, autocommit=True, prepare_threshold=None) for _ in range(3)]
    for other in others:  # as many as the pooler has connections: each sees another one
        other.execute("BEGIN")
    for other in others:
        assert [other.execute(f"SHOW {name}".encode()).fetchone() for name in asked] == untouched
        assert other.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
        other.close()
    with quick._engine.write() as tx:
        assert tx.value("SHOW synchronous_commit") == "off"
    with careful._engine.write() as tx:
        assert tx.value("SHOW synchronous_commit") == "on"
    for db in (careful, quick):
        with db._engine.write() as tx:
            assert tx.value("SHOW lock_timeout") == "15s" and tx.value("SHOW transaction_read_only") == "off"
    with reader._engine.read() as tx:
        assert tx.value("SHOW transaction_read_only") == "on" and tx.value("SHOW jit") == "off"


def test_a_schema_that_the_pooler_does_not_pass_on_is_refused(server: Cluster, pooler: Pooler, tmp_path: Path) -> None:
    """A store must not land in another schema than the URL names."""
    options = "-csearch_path%3Dteam"
    with pytest.raises(StoreError, match=r"pooler.*options.*ALTER ROLE"):
        SessionDB(tmp_path / "x.db", url=pooler.url(options=options))
    with folder() as place, pgbouncer(server, place, ignored="options") as deaf:
        with pytest.raises(StoreError, match=r"pooler.*options.*ALTER ROLE"):
            SessionDB(tmp_path / "x.db", url=deaf.url(options=options))
    assert server.sql("SELECT to_regclass('public.sessions')") == [(None,)]

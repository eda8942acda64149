"""Opening a server that says no, and versions of the tables: errors that say what to do, and never the password."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.errors import HermesError, InvalidInput, StoreError, StoreReadOnly, StoreUnreachable
from hermes.store.engines.postgres import connection, migrate
from hermes_state import SessionDB
from tests.faults import Remote
from tests.support.postgres import Cluster
from tests.support.program import run

from .clusters import VERSIONS, cluster, words_of

SECRET = "quite-secret"


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Over TCP everybody needs a password; the superuser comes in by the socket."""
    with cluster(request.param) as one:
        (one.data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        one.sql(
            "SELECT pg_reload_conf()",
            f"CREATE ROLE owner LOGIN PASSWORD '{SECRET}'",
            f"CREATE ROLE guest LOGIN PASSWORD '{SECRET}'",
        )
        yield one


@pytest.fixture
def database(server: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of the role `owner`."""
    name = f"d{abs(hash(request.node.nodeid))}"
    server.sql(f"CREATE DATABASE {name} OWNER owner")
    yield name
    server.sql(f"DROP DATABASE {name} WITH (FORCE)")


def url(server: Cluster, database: str, user: str = "owner", password: str = SECRET) -> str:
    return f"postgresql://{user}:{password}@127.0.0.1:{server.port}/{database}"


def refused(url: str, tmp_path: Path, **kw: Any) -> HermesError:
    """The error of opening, which holds no secret wherever one looks, and no traceback on the command line."""
    with pytest.raises(HermesError) as raised:
        SessionDB(db_path=tmp_path / "state.db", url=url, **kw).close()
    error = raised.value
    assert SECRET not in "".join(traceback.format_exception(error))
    return error


@pytest.mark.parametrize(
    ("address", "kind", "told"),
    [
        ("owner:{secret}-but-wrong@{server}/{database}", StoreError, "rejects this user"),
        ("nobody:{secret}@{server}/{database}", StoreError, "rejects this user"),
        ("owner:{secret}@{server}/nowhere", StoreError, "createdb"),
        ("owner:{secret}@127.0.0.1:1/x", StoreUnreachable, "can't be reached"),
        ("owner:{secret}%zz@host/x", InvalidInput, "%40"),
        ("owner:{secret}@[::1/x", InvalidInput, "%40"),
    ],
)
def test_why_a_store_can_not_be_opened_is_told(
    server: Cluster, database: str, tmp_path: Path, address: str, kind: type[HermesError], told: str
) -> None:
    place = address.format(secret=SECRET, server=f"127.0.0.1:{server.port}", database=database)
    error = refused(f"postgresql://{place}", tmp_path)
    assert type(error) is kind and told in str(error)


@given(st.text(min_size=4, max_size=30), st.text(max_size=60))
def test_whatever_stands_in_a_url_its_password_is_not_shown(password: str, rest: str) -> None:
    from urllib.parse import quote

    marked = f"pw{password}pw"
    for written in (marked, quote(marked, safe="")):
        for whole in (f"postgresql://me:{written}@{rest}", f"postgresql://host/db?password={written}&x={rest}"):
            shown = connection.shown(whole)
            assert marked not in shown and quote(marked, safe="") not in shown


def test_the_command_line_says_one_line_and_no_secret(server: Cluster, tmp_path: Path) -> None:
    wrong = url(server, "postgres", password=f"{SECRET}-wrong")
    for words in (["sessions", "list"], ["sessions", "search", "x"], ["sessions", "stats"]):
        done = run(*words, home=tmp_path / "home", env={"HERMES_STORE_URL": wrong})
        told = done.out + done.err
        assert done.status != 0 and "rejects this user" in told
        assert "Traceback" not in told and SECRET not in told


HARD, ODD, HEX = "p/a@ss w:rd?#%[", "${HOME} {$x} ü", "50%41-" + SECRET
_WAYS = ("variable", "literal", "encoded variable", "both in one variable")


@pytest.mark.parametrize(
    ("password", "way"),
    # A variable that could be percent-encoded already is taken as that: HEX has to be encoded.
    [*((HARD, way) for way in _WAYS), *((ODD, way) for way in _WAYS), *((HEX, way) for way in _WAYS[1:])],
)
def test_any_password_works_and_is_not_shown(
    server: Cluster, database: str, tmp_path: Path, password: str, way: str
) -> None:
    from urllib.parse import quote

    encoded, place = quote(password, safe=""), f"127.0.0.1:{server.port}/{database}"
    server.sql(f"ALTER ROLE owner PASSWORD '{password}'")
    written, held = {
        "variable": (f"postgresql://owner:${{PGPASS}}@{place}", password),
        "literal": (f"postgresql://owner:{encoded}@{place}", "unused"),
        "encoded variable": (f"postgresql://owner:${{PGPASS}}@{place}", encoded),
        "both in one variable": (f"postgresql://${{PGPASS}}@{place}", f"owner:{encoded}"),
    }[way]
    home = tmp_path / "home"
    try:
        shown = run("config", "set", "store.url", written, home=home, env={"PGPASS": held}).out
        for words in (["config", "show"], ["config", "get", "store.url"], ["doctor"], ["--debug", "sessions", "stats"]):
            done = run(*words, home=home, env={"PGPASS": held})
            assert words[0] == "doctor" or done.status == 0, done.err
            shown += done.out + done.err
        server.sql("ALTER ROLE owner PASSWORD 'another'")
        refused = run("--debug", "sessions", "stats", home=home, env={"PGPASS": held})
        assert refused.status != 0 and "rejects this user" in refused.err
        shown += refused.err
        assert "••••" in shown and database in shown
        assert password not in shown and encoded not in shown
    finally:
        server.sql(f"ALTER ROLE owner PASSWORD '{SECRET}'")


# ------------------------------------------------------------------ rights


def test_without_the_right_to_make_the_extension_it_is_named(server: Cluster, database: str, tmp_path: Path) -> None:
    server.sql("GRANT ALL ON SCHEMA public TO guest", database=database)
    error = refused(url(server, database, "guest"), tmp_path)
    assert type(error) is StoreError
    assert "pg_trgm" in str(error) and "CREATE EXTENSION pg_trgm" in str(error)
    home = tmp_path / "home"
    told = run("doctor", home=home, env={"HERMES_STORE_URL": url(server, database, "guest")})
    assert told.status == 1 and "CREATE EXTENSION pg_trgm" in told.out and "no conversation so far" not in told.out
    server.sql("CREATE EXTENSION pg_trgm", database=database)
    told = run("doctor", home=home, env={"HERMES_STORE_URL": url(server, database, "guest")})
    assert "no conversation so far" in told.out
    assert server.sql("SELECT to_regclass('sessions')", database=database) == [(None,)]  # it changes nothing
    with SessionDB(db_path=tmp_path / "state.db", url=url(server, database, "guest")) as db:
        db.create_session("s", "cli")


def test_without_the_right_to_make_tables_it_is_said_so(server: Cluster, database: str, tmp_path: Path) -> None:
    server.sql("CREATE EXTENSION pg_trgm", "REVOKE CREATE ON SCHEMA public FROM PUBLIC", database=database)
    error = refused(url(server, database, "guest"), tmp_path)
    assert isinstance(error, StoreReadOnly) and "check the user's rights" in str(error)


def test_who_may_only_read_can_read(server: Cluster, database: str, tmp_path: Path) -> None:
    with SessionDB(db_path=tmp_path / "a.db", url=url(server, database)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "for all to read")
    server.sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest", database=database)
    with SessionDB(db_path=tmp_path / "b.db", url=url(server, database, "guest"), read_only=True) as db:
        assert words_of(db, "s") == ["for all to read"]
        assert [hit["session_id"] for hit in db.search_messages("read")] == ["s"]
    with SessionDB(db_path=tmp_path / "c.db", url=url(server, database, "guest")) as db:
        with pytest.raises(StoreReadOnly, match="does not let this user write"):
            db.append_message("s", "user", "x")
        assert words_of(db, "s") == ["for all to read"]


# ------------------------------------------------------------------ versions


def test_a_store_of_a_newer_program_is_only_read_and_is_not_altered(
    server: Cluster, database: str, tmp_path: Path
) -> None:
    with SessionDB(db_path=tmp_path / "state.db", url=url(server, database)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "from the future")
    server.sql("INSERT INTO hermes_migrations VALUES(999, 'what_nobody_knows', 0)", database=database)
    with pytest.warns(UserWarning, match="was written by a newer program"):
        db = SessionDB(db_path=tmp_path / "state.db", url=url(server, database))
    with db:
        assert db.read_only and words_of(db, "s") == ["from the future"]
        with pytest.raises(StoreReadOnly, match="newer program"):
            db.append_message("s", "user", "x")


def test_a_database_of_another_program_is_left_alone(server: Cluster, database: str, tmp_path: Path) -> None:
    server.sql("CREATE TABLE sessions (whatever text)", "ALTER TABLE sessions OWNER TO owner", database=database)
    error = refused(url(server, database), tmp_path)
    assert "holds tables of another program" in str(error)
    assert server.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database=database) == [
        ("sessions",)
    ]


def test_when_many_open_an_empty_database_at_once_one_makes_the_tables_and_all_can_write(
    server: Cluster, database: str, tmp_path: Path
) -> None:
    processes = [Remote() for _ in range(4)]
    try:
        for number, process in enumerate(processes):
            process.begin("open", str(tmp_path / f"{number}.db"), url=url(server, database))
        with ThreadPoolExecutor(4) as threads:
            here = list(
                threads.map(lambda n: SessionDB(db_path=tmp_path / f"t{n}.db", url=url(server, database)), range(4))
            )
        for db in here:
            db.close()
        for number, process in enumerate(processes):
            assert process.answer() is False
            process.create_session(f"s{number}", "cli")
            assert process.append_message(f"s{number}", "user", "words") > 0
    finally:
        for process in processes:
            process.kill()
    with SessionDB(db_path=tmp_path / "state.db", url=url(server, database)) as db:
        assert db.session_count() == 4 and db.check() == []
    assert server.sql("SELECT version FROM hermes_migrations", database=database) == [(migrate.VERSION,)]

"""How often a command connects: setting up a connection takes longer than most of what is said on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_state import SessionDB
from tests.support import postgres
from tests.support.program import run
from tests.support.waiting import until

VERSIONS = [name.removeprefix("postgres") for name in postgres.ENGINES if name != "sqlite"]


@pytest.fixture(params=VERSIONS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[postgres.Shared, str, str]]:
    """A server, a database of the test's own, and the URL of the store in it."""
    server = postgres.server(request.param)
    name = f"connecting_{os.urandom(6).hex()}"
    server.sql(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
    try:
        server.sql("CREATE EXTENSION pg_trgm", database=name)
        with SessionDB(url=server.url(name), db_path=tmp_path / "x.db") as db:
            db.create_session("s", "cli")
            db.append_message("s", "user", "a heron")
            db.search_messages("heron")
        yield server, name, server.url(name)
    finally:
        server.sql(f"DROP DATABASE {name} WITH (FORCE)")


def connections(server: postgres.Shared, name: str) -> int:
    """How many connections there have been to a database, all of which have ended."""
    others = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{name}' AND backend_type = 'client backend'"
    until(lambda: not server.sql(others), "a connection was left open")
    return int(server.sql(f"SELECT sessions FROM pg_stat_database WHERE datname = '{name}'")[0][0])


@pytest.mark.parametrize(
    "words",
    [
        ["sessions", "list"],
        ["sessions", "search", "heron"],
        ["sessions", "show", "s"],
        ["sessions", "rename", "s", "birds"],
        ["sessions", "stats"],
        ["sessions", "migrate", "--rls"],
        ["sessions", "migrate", "--to", "sqlite://{0}/copy.db"],
    ],
    ids=lambda words: "_".join(words[1:3]),
)
def test_a_command_connects_once(place: tuple[postgres.Shared, str, str], words: list[str], tmp_path: Path) -> None:
    server, name, url = place
    before = connections(server, name)
    done = run(*(word.format(tmp_path) for word in words), home=tmp_path / "home", env={"HERMES_STORE_URL": url})
    assert done.status == 0, done
    assert connections(server, name) == before + 1

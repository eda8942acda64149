"""A process that is older than the store: it reads, and stores nothing, from the moment a newer program upgrades it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hermes_state import SessionDB
from tests.faults import Refused, Remote
from tests.support import postgres

VERSIONS = [name.removeprefix("postgres") for name in postgres.ENGINES if name != "sqlite"]
NEWER = b"INSERT INTO hermes_migrations VALUES(999, 'of_a_newer_program', 0)"


@pytest.fixture(params=VERSIONS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    server = postgres.server(request.param)
    made = server.store(str(tmp_path))
    with SessionDB(url=made, db_path=tmp_path / "own.db") as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "before")
    yield made
    with psycopg.connect(made) as connection:
        connection.execute(b"DELETE FROM hermes_migrations WHERE version = 999")
    server.forget(str(tmp_path))


def words(url: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute(b"SELECT content FROM messages ORDER BY id").fetchall()]


def test_a_running_process_stores_nothing_after_an_upgrade(url: str, tmp_path: Path) -> None:
    with Remote() as older:
        older.open(str(tmp_path / "older.db"), url=url)
        for number in range(5):  # its statements are prepared
            older.append_message("s", "user", f"while it may {number}")
        with psycopg.connect(url) as newer:
            newer.execute(NEWER)
        for name, *arguments in (
            ("append_message", "s", "user", "too late"),
            ("create_session", "t", "cli"),
            ("set_session_title", "s", "too late"),
            ("tag_session", "s", "late"),
            ("delete_session", "s"),
            ("rewind", "s", 1),
            ("set_meta", "k", "v"),
            ("acquire_lease", "l", "me"),
        ):
            with pytest.raises(Refused, match=r"was upgraded by a newer program \(version 999\); nothing was stored"):
                getattr(older, name)(*arguments)
        for _ in range(20):  # more than it has connections: a refused write keeps none, and holds up no other
            with pytest.raises(Refused, match="nothing was stored"):
                older.tag_session("s", "late")
        assert [row["content"] for row in older.get_messages("s")][-1] == "while it may 4"  # it reads on
    assert words(url) == ["before", *(f"while it may {number}" for number in range(5))]

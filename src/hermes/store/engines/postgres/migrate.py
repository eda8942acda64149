"""From an empty database (or schema) to today's tables: one named function a step, each committed with its record.

`hermes_migrations` says which steps a database has taken. Whoever opens a store takes the missing ones, one process at a
time; a database that has taken steps this program does not know is opened for reading only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from hermes.errors import NotADatabase, StoreError
from hermes.store.engines.postgres import schema

Run = Callable[[str], Any]


def the_tables(run: Run) -> None:
    """Sessions, messages and what belongs to them."""
    for statement in (*schema.TABLES, *schema.INDEXES, *schema.ALL_VIEWS):
        run(statement)


def the_index(run: Run) -> None:
    """Full text: the words of each message, and the distinct words with their three-letter pieces."""
    for statement in schema.FULL_TEXT:
        run(statement)


def the_queue(run: Run) -> None:
    """Messages are indexed after they are stored; names made of several words have a list of their own."""
    for statement in (*schema.WAITING, *schema.NAMES):
        run(statement)


def the_origins(run: Run) -> None:
    """What other programs and platforms call a message, and what else they say of it."""
    for table, column in (("messages", "platform_message_id"), ("messages", "meta"), ("sessions", "meta")):
        run(f'ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} text COLLATE "C"')


MIGRATIONS: tuple[Callable[[Run], None], ...] = (the_tables, the_index, the_queue, the_origins)
WITH_NAMES = 3  # steps after which there is a list of names, and one of what is not indexed yet


@dataclass(frozen=True, slots=True)
class State:
    """What a database says it is."""

    schema: str
    version: int  # steps taken; 0: none of ours
    strangers: bool  # another program's `sessions` lie there
    replica: bool
    encoding: str


def inspect(connection: psycopg.Connection[Any]) -> State:
    """What is there; changes nothing."""
    row = connection.execute(
        "SELECT current_schema(), to_regclass(quote_ident(current_schema()) || '.hermes_migrations') IS NOT NULL,"
        " to_regclass(quote_ident(current_schema()) || '.sessions') IS NOT NULL,"
        " pg_is_in_recovery(), current_setting('server_encoding')"
    ).fetchone()
    assert row is not None
    version = 0
    if row[1]:
        taken = connection.execute("SELECT coalesce(max(version), 0) FROM hermes_migrations").fetchone()
        version = 0 if taken is None else int(taken[0])
    return State(row[0] or "", version, bool(row[2] and not row[1]), row[3], row[4])


def upgrade(connection: psycopg.Connection[Any], key: int, where: str) -> None:
    """Take the steps that are missing."""
    run = connection.execute
    if inspect(connection).strangers:
        raise NotADatabase(
            f"{where} holds tables of another program; give the record a database or a schema of its own"
        )
    _extension(connection, where)
    while True:
        with connection.transaction():
            run("SET TRANSACTION READ WRITE")
            run("SELECT pg_advisory_xact_lock(%s)", (key,))
            run(
                "CREATE TABLE IF NOT EXISTS hermes_migrations (version integer PRIMARY KEY, name text NOT NULL,"
                " at double precision NOT NULL)"
            )
            taken = run("SELECT coalesce(max(version), 0) FROM hermes_migrations").fetchone()
            version = 0 if taken is None else int(taken[0])
            if version >= len(MIGRATIONS):
                return
            step = MIGRATIONS[version]
            step(lambda statement: run(statement.encode()))
            run(
                "INSERT INTO hermes_migrations(version, name, at) VALUES(%s, %s, extract(epoch FROM clock_timestamp()))",
                (version + 1, step.__name__),
            )


def _extension(connection: psycopg.Connection[Any], where: str) -> None:
    """pg_trgm finds words by a part of them. It is in PostgreSQL's own contrib, but has to be switched on once."""
    there = "SELECT 1 FROM pg_extension WHERE extname = 'pg_trgm'"
    if connection.execute(there).fetchone() is not None:
        return
    try:
        with connection.transaction():
            connection.execute("SET TRANSACTION READ WRITE")
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except psycopg.Error as error:
        if not connection.closed and connection.execute(there).fetchone() is not None:
            return  # another process was quicker
        told = (str(error).strip().splitlines() or ["?"])[0]
        raise StoreError(
            f"{where} needs the extension pg_trgm, which could not be made ({told}); install the package"
            " postgresql-contrib if it is missing, and let the database's owner say: CREATE EXTENSION pg_trgm"
        ) from error

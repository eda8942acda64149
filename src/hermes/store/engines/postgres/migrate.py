"""Migrates an empty database (or schema) to the current tables: one named function per step, each committed with its record.

`hermes_migrations` records the steps of a database. A process that opens a store takes the missing ones, one process at a
time; a database that has taken steps this program does not know is opened for reading only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from hermes.errors import NotADatabase, StoreError
from hermes.store.engines.postgres import schema
from hermes.store.engines.sqlite.schema import MESSAGE_COLUMNS

Run = Callable[..., Any]


def the_tables(run: Run) -> None:
    """Sessions, messages and their related tables."""
    for statement in (*schema.TABLES, *schema.INDEXES, *schema.ALL_VIEWS):
        run(statement)


def the_index(run: Run) -> None:
    """Full text: the words of each message, and the distinct words with their three-letter pieces."""
    for statement in schema.FULL_TEXT:
        run(statement)


def the_queue(run: Run) -> None:
    """Messages are indexed after they are stored; names made of several words have their own list."""
    for statement in (*schema.WAITING, *schema.NAMES):
        run(statement)


def the_origins(run: Run) -> None:
    """The ids of messages in other programs and on platforms, and their further data."""
    for table, column in (("messages", "platform_message_id"), ("messages", "meta"), ("sessions", "meta")):
        run(f'ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} text COLLATE "C"')


def the_waiting(run: Run) -> None:
    """How long a message has waited to be indexed: any indexer takes messages that wait long."""
    for statement in schema.WAITING_SINCE:
        run(statement)


def the_activity(run: Run) -> None:
    """An append changes no column of `sessions` that an index has, but once a minute."""
    for statement in schema.ACTIVITY:
        run(statement)


def the_redactions(run: Run) -> None:
    """The view of messages leaves redacted ones out."""
    shape = run("SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('visible_messages') AND attnum > 0")
    if shape.fetchone()[0] != len(MESSAGE_COLUMNS) + 1:  # made before messages had the columns of `the_origins`
        run("DROP VIEW IF EXISTS visible_messages")
    for statement in schema.ALL_VIEWS:
        if "visible_messages" in statement:
            run(statement)
    for statement in schema.INDEXES:
        if "idx_messages_platform" in statement:
            run(statement)


def the_groups(run: Run) -> None:
    """The trigrams of words and names are indexed by groups of them."""
    for statement in schema.GROUPS:
        run(statement)


def the_fence(run: Run) -> None:
    """Marks are finite times; programs from before this step, which don't check the version when they write, can't write.

    Their application name is `hermes`, and they use an advisory lock, which any role that can log in could hold. Current ones
    have another name, lock this table of steps (ALONE), and read the version with each writing transaction.
    """
    marks = ("pinned_at", "archived_at", "trashed_at")
    for name in marks:
        run(
            f"UPDATE sessions SET {name} = extract(epoch FROM clock_timestamp())::float8"
            f" WHERE {name} IN ('NaN', 'Infinity', '-Infinity')"
        )
    finite = " AND ".join(f"({name} IS NULL OR {name} NOT IN ('NaN', 'Infinity', '-Infinity'))" for name in marks)
    run("ALTER TABLE sessions DROP CONSTRAINT IF EXISTS hermes_finite_marks")
    run(f"ALTER TABLE sessions ADD CONSTRAINT hermes_finite_marks CHECK ({finite})")
    run(
        "CREATE OR REPLACE FUNCTION hermes_refuse_older() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION"
        " 'a newer program has upgraded this store; upgrade this program and start it again'"
        " USING ERRCODE = 'read_only_sql_transaction'; END $$"
    )
    for table, events in _FENCED.items():
        run(
            f"CREATE OR REPLACE TRIGGER hermes_refuse_older BEFORE {events} ON {table} FOR EACH STATEMENT"
            f" WHEN (current_setting('application_name') = '{OLDER_APPLICATION}') EXECUTE FUNCTION hermes_refuse_older()"
        )


# Storing a message changes its session in the same transaction: an append pays for one of these triggers, not three.
_FENCED = {
    "sessions": "INSERT OR UPDATE OR DELETE",
    "messages": "UPDATE OR DELETE",
    "message_words": "INSERT OR UPDATE OR DELETE",
    "session_refs": "INSERT OR UPDATE OR DELETE",
    "session_rewinds": "INSERT OR UPDATE OR DELETE",
    "leases": "INSERT OR UPDATE OR DELETE",
}
MIGRATIONS: tuple[Callable[[Run], None], ...] = (
    the_tables, the_index, the_queue, the_origins, the_fence, the_redactions, the_waiting, the_activity,
    the_groups,
)  # fmt: skip
OLDER_APPLICATION = "hermes"  # the application name of programs without the fence
APPLICATION = "hermes-sessions"
# Held by an exclusive writer until its transaction ends. Only the store's owner can take it.
ALONE = "LOCK TABLE hermes_migrations IN SHARE ROW EXCLUSIVE MODE"
# Waits for every transaction that has read the version, and keeps others from reading it.
_UPGRADING = "LOCK TABLE hermes_migrations IN ACCESS EXCLUSIVE MODE"
WITH_GROUPS = 9  # steps after which the trigrams of words and names are in tables of their own
WITH_MINUTES = 8  # steps after which sessions have active_minute
WITH_NAMES = 3  # steps after which there is a list of names, and one of unindexed messages


@dataclass(frozen=True, slots=True)
class State:
    """The state of a database."""

    schema: str
    version: int  # steps taken; 0: none of ours
    strangers: bool  # it has another program's table `sessions`
    replica: bool
    encoding: str
    tenant: bool  # it is read through a tenant's views


def inspect(connection: psycopg.Connection[Any]) -> State:
    """Inspect a database; for a tenant, through the views. Changes nothing."""
    row = connection.execute(
        "SELECT current_schema(), (SELECT relkind FROM pg_class WHERE oid = t.steps), t.sessions IS NOT NULL,"
        " pg_is_in_recovery(), current_setting('server_encoding'), has_table_privilege(t.steps, 'SELECT'),"
        " (SELECT nspname FROM pg_namespace WHERE nspname = current_schema() || '_tenants'"
        " AND has_schema_privilege(oid, 'USAGE'))"
        " FROM (SELECT to_regclass(quote_ident(current_schema()) || '.hermes_migrations') AS steps,"
        " to_regclass(quote_ident(current_schema()) || '.sessions') AS sessions) t"
    ).fetchone()
    assert row is not None
    place, steps, sessions, replica, encoding, open_to_us, door = row
    if steps and not open_to_us and door:
        with connection.transaction():
            connection.execute(SQL("SET LOCAL search_path = {}").format(Identifier(door)))
            return inspect(connection)
    version = 0
    if steps:
        taken = connection.execute("SELECT coalesce(max(version), 0) FROM hermes_migrations").fetchone()
        version = 0 if taken is None else int(taken[0])
    return State(place or "", version, bool(sessions and not steps), replica, encoding, steps == b"v" or steps == "v")


def upgrade(connection: psycopg.Connection[Any], where: str) -> None:
    """Take the steps that are missing."""
    if inspect(connection).strangers:
        raise NotADatabase(
            f"{where} holds tables of another program; use a database or a schema of its own for the store"
        )
    _extension(connection, where)
    _list_of_steps(connection)
    while _took_a_step(connection):
        pass


def _list_of_steps(connection: psycopg.Connection[Any]) -> None:
    # The errors: another process created it first. Which one comes depends on where that process was: its row of the
    # table (DuplicateTable), the row type that belongs to it (DuplicateObject), or an index of the catalogue.
    first = (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject)
    with suppress(*first), connection.transaction():
        connection.execute("SET TRANSACTION READ WRITE")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS hermes_migrations (version integer PRIMARY KEY, name text NOT NULL,"
            " at double precision NOT NULL)"
        )


def _took_a_step(connection: psycopg.Connection[Any]) -> bool:
    """The next step, its record, and the views of tenants after it, in one transaction; False when there is none."""
    from hermes.store.engines.postgres import security

    run = connection.execute
    with connection.transaction():
        run("SET TRANSACTION READ WRITE")
        run(_UPGRADING)
        taken = run("SELECT coalesce(max(version), 0) FROM hermes_migrations").fetchone()
        version = 0 if taken is None else int(taken[0])
        if version >= len(MIGRATIONS):
            return False
        step = MIGRATIONS[version]
        step(lambda statement: run(statement.encode()))
        run(
            "INSERT INTO hermes_migrations(version, name, at) VALUES(%s, %s, extract(epoch FROM clock_timestamp()))",
            (version + 1, step.__name__),
        )
        security.renew(run)
    return True


def _extension(connection: psycopg.Connection[Any], where: str) -> None:
    """pg_trgm finds words by a part of them. It is in PostgreSQL's own contrib, but has to be enabled once."""
    there = "SELECT 1 FROM pg_extension WHERE extname = 'pg_trgm'"
    if connection.execute(there).fetchone() is not None:
        return
    try:
        with connection.transaction():
            connection.execute("SET TRANSACTION READ WRITE")
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except psycopg.Error as error:
        if not connection.closed and connection.execute(there).fetchone() is not None:
            return  # another process created it first
        reason = (str(error).strip().splitlines() or ["?"])[0]
        raise StoreError(
            f"{where} needs the extension pg_trgm, which could not be created ({reason}); install the package"
            " postgresql-contrib if it is missing, and let the database's owner run: CREATE EXTENSION pg_trgm"
        ) from error

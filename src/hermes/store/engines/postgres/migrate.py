"""Makes the tables of a store in an empty database (or schema), and tells what a database holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from hermes.errors import NotADatabase, StoreError
from hermes.store.engines.postgres import error_mapping, schema
from hermes.store.engines.postgres.connection import conninfo

VERSION = 1  # of the tables; a store of a higher one was written by a newer program
# Held by an exclusive writer until its transaction ends. Only the store's owner can take it.
ALONE = "LOCK TABLE hermes_migrations IN SHARE ROW EXCLUSIVE MODE"
ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(7305808869229538)"


@dataclass(frozen=True, slots=True)
class State:
    """The state of a database."""

    schema: str
    version: int  # 0: there is no store
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


def rehearse(url: str) -> None:
    """Raise what would prevent making a store in an empty database; changes nothing."""
    where = error_mapping.shown(url)
    try:
        with psycopg.connect(conninfo(url, read_only=False), autocommit=True) as connection:
            make_store(connection, where, keep=False)
    except psycopg.Error as error:
        raise error_mapping.translate(error, where) from error


def make_store(connection: psycopg.Connection[Any], where: str, *, keep: bool = True) -> None:
    """Make all tables in one transaction, unless another process does so at this moment."""
    run = connection.execute
    with connection.transaction(force_rollback=not keep):
        run("SET TRANSACTION READ WRITE")
        run(ONE_AT_A_TIME)
        state = inspect(connection)
        if state.version:
            return
        if state.strangers:
            raise NotADatabase(
                f"{where} holds tables of another program; use a database or a schema of its own for the store"
            )
        _make_extension(connection, where)
        for statement in schema.EVERYTHING:
            run(statement.encode())
        run(
            f"CREATE TABLE hermes_migrations AS SELECT {VERSION} AS version, 'the_tables' AS name,"
            " extract(epoch FROM clock_timestamp())::float8 AS at"
        )


def _make_extension(connection: psycopg.Connection[Any], where: str) -> None:
    """Enable pg_trgm, which finds words by a part of them; it is in PostgreSQL's own contrib."""
    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    except psycopg.Error as error:
        raise StoreError(
            f"{where} needs the extension pg_trgm, which could not be created ({error.diag.message_primary}); install the package"
            " postgresql-contrib if it is missing, and let the database's owner run: CREATE EXTENSION pg_trgm"
        ) from error

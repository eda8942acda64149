"""Makes the tables of a store in an empty database (or schema), and tells what a database holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from hermes.errors import NotADatabase, StoreError
from hermes.store.engines.postgres import errors
from hermes.store.engines.postgres.connection import conninfo
from hermes.store.engines.sqlite.migrate import META_NOTED
from hermes.store.engines.sqlite.schema import INDEXES as SQLITE_INDEXES
from hermes.store.engines.sqlite.schema import SCHEMA_VERSION, VIEWS
from hermes.store.engines.sqlite.schema import TABLES as SQLITE_TABLES

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
    is_complete: bool  # it has every table of this version


def inspect(connection: psycopg.Connection[Any]) -> State:
    """Inspect a database; for a tenant, through the views. Changes nothing."""
    row = connection.execute(
        "SELECT current_schema(), (SELECT relkind FROM pg_class WHERE oid = t.steps), t.sessions IS NOT NULL,"
        " pg_is_in_recovery(), current_setting('server_encoding'), has_table_privilege(t.steps, 'SELECT'),"
        " (SELECT nspname FROM pg_namespace WHERE nspname = current_schema() || '_tenants'"
        " AND has_schema_privilege(oid, 'USAGE')),"
        " to_regclass(quote_ident(current_schema()) || '.file_changes') IS NOT NULL"
        " FROM (SELECT to_regclass(quote_ident(current_schema()) || '.hermes_migrations') AS steps,"
        " to_regclass(quote_ident(current_schema()) || '.sessions') AS sessions) t"
    ).fetchone()
    assert row is not None
    place, steps, sessions, replica, encoding, open_to_us, door, is_complete = row
    if steps and not open_to_us and door:
        with connection.transaction():
            connection.execute(SQL("SET LOCAL search_path = {}").format(Identifier(door)))
            return inspect(connection)
    version = 0
    if steps:
        taken = connection.execute("SELECT coalesce(max(version), 0) FROM hermes_migrations").fetchone()
        version = 0 if taken is None else int(taken[0])
    is_tenant = steps == b"v" or steps == "v"
    return State(place or "", version, bool(sessions and not steps), replica, encoding, is_tenant, is_complete)


def complete(run: Callable[..., Any]) -> None:
    """Add the tables that a store of an earlier program lacks, within a transaction."""
    run(ONE_AT_A_TIME)
    for statement in (*TABLES, *INDEXES):
        if " file_changes" in statement:
            run(statement.encode())
    older = "SELECT %s, max(id) + 1 FROM messages HAVING count(*) > 0 AND NOT EXISTS (SELECT 1 FROM file_changes)"
    run(f"INSERT INTO state_meta(key, value) {older} ON CONFLICT DO NOTHING", (META_NOTED,))


def rehearse(url: str) -> None:
    """Raise what would prevent making a store in an empty database; changes nothing."""
    where = errors.shown(url)
    try:
        with psycopg.connect(conninfo(url, read_only=False), autocommit=True) as connection:
            make_store(connection, where, keep=False)
    except psycopg.Error as error:
        raise errors.translate(error, where) from error


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
        for statement in EVERYTHING:
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


# ---------------------------------------------------------------------------------------------- tables
#
# The tables on PostgreSQL: those of a state.db with the same names and columns, and their own full-text index.
#
# The declarations are the ones of the SQLite engine, with PostgreSQL's type names. Texts sort by code point (COLLATE "C"), as
# they do there. There are no foreign keys: an import stores rows in any order.

_KEY = "bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"
_TYPES = (
    (re.compile(r"\bINTEGER PRIMARY KEY(?: AUTOINCREMENT)?"), _KEY),
    (re.compile(r"\bbase_chars INTEGER\b"), "base_chars integer"),  # as substr() takes it
    (re.compile(r"\bINTEGER\b"), "bigint"),
    (re.compile(r"\bREAL\b"), "double precision"),
    (re.compile(r"\bBLOB\b"), "bytea"),
    (re.compile(r"\bTEXT\b"), 'text COLLATE "C"'),
    (re.compile(r" REFERENCES \w+\(\w+\)"), ""),
    (re.compile(r" WITHOUT ROWID\b"), ""),
    (re.compile(r"\btitle IS NOT title_seen\b"), "title IS DISTINCT FROM title_seen"),
    (re.compile(r"^CREATE VIEW IF NOT EXISTS"), "CREATE OR REPLACE VIEW"),
)


def translated(statement: str) -> str:
    """Translate a table or index declared for SQLite to PostgreSQL."""
    for pattern, ours in _TYPES:
        statement = pattern.sub(ours, statement)
    return statement


def _wanted(statement: str) -> bool:
    # The list of words has another layout here; the other tables serve a file's own index and transcripts.
    return not any(f" {name} " in statement for name in ("words", "indexed_texts", "changed_messages"))


# Under SQLite's name.
INSTR = (
    "CREATE OR REPLACE FUNCTION instr(text, text) RETURNS integer LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE"
    " RETURN strpos($1, $2)"
)
TABLES: tuple[str, ...] = (
    *(translated(statement) for statement in SQLITE_TABLES if _wanted(statement)),
    f"INSERT INTO schema_version(version) VALUES({SCHEMA_VERSION})",
    "ALTER TABLE sessions ADD CONSTRAINT hermes_finite_marks CHECK ("
    + " AND ".join(
        f"({name} IS NULL OR {name} NOT IN ('NaN', 'Infinity', '-Infinity'))"
        for name in ("pinned_at", "archived_at", "trashed_at")
    )
    + ")",
    # Queries for continuations use this expression; without statistics the planner assumes it is nearly never true.
    "CREATE STATISTICS stat_sessions_kind ON (coalesce(kind, 'compression')) FROM sessions",
    # The keys of recent writing transactions (transaction.py).
    "CREATE TABLE write_keys (key bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())",
    'CREATE TABLE attachment_data (hash text COLLATE "C" PRIMARY KEY, data bytea NOT NULL)',
    "ALTER TABLE attachment_data ALTER COLUMN data SET STORAGE EXTERNAL",  # pictures and sounds don't compress
    INSTR,
)
INDEXES: tuple[str, ...] = tuple(translated(statement) for statement in SQLITE_INDEXES)

FULL_TEXT: tuple[str, ...] = (
    # A row a message, and of a long one several parts; `size` is how many words it has. See lexemes.py.
    "CREATE TABLE message_words (message_id bigint NOT NULL, part integer NOT NULL, whole boolean NOT NULL,"
    " size integer NOT NULL, words tsvector NOT NULL, PRIMARY KEY (message_id, part))",
    # Every search reads the pending list; indexer.py empties it long before an append has to.
    "CREATE INDEX idx_words ON message_words USING gin (words) WITH (gin_pending_list_limit = 4096) WHERE whole",
    "CREATE INDEX idx_words_parts ON message_words USING gin (words) WITH (gin_pending_list_limit = 4096) WHERE NOT whole",
    # Only show whether there are long or enormous messages: an index of all their parts would make the planner
    # read them.
    "CREATE INDEX idx_parts ON message_words (message_id) WHERE NOT whole AND part = 1",
    "CREATE INDEX idx_enormous ON message_words (message_id) WHERE NOT whole AND part = 0",
    # Messages that were stored and are not in message_words yet. There are few, so it needs no index.
    "CREATE TABLE unindexed (message_id bigint NOT NULL, since timestamptz NOT NULL DEFAULT now())",
    # Not unique: a transaction with a new word would have to wait for all others that add it at the same moment.
    'CREATE TABLE words (word text COLLATE "C" NOT NULL)',
    "CREATE INDEX idx_word ON words (word)",
    "CREATE INDEX idx_words_pieces ON words USING gin (word gin_trgm_ops) WITH (gin_pending_list_limit = 4096)",
)
ALL_VIEWS: tuple[str, ...] = tuple(translated(statement) for statement in VIEWS)
EVERYTHING: tuple[str, ...] = (*TABLES, *INDEXES, *ALL_VIEWS, *FULL_TEXT)

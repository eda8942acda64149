"""Tenants: a tenant's database role sees in SQL what `visible_to` lets its user see, and nothing else.

A tenant is one or more pairs (source, user_id), given to a role in the table `hermes_tenants`; a setting could be changed by
any logged-in role, a row there only by the store's owner. The owner sees everything, as do superusers and roles with
BYPASSRLS; a role that is not in that table sees nothing. A tenant reads its own sessions, those shared with it and the
messages they carry, and writes nothing: a unique title that is taken would reveal another tenant's, and a lock would hold up
others, so only the program writes, which connects as the owner.

A tenant's views are in a schema next to the store's own, without rights on any of its tables.

Policies on the tables would not hold. PostgreSQL runs a cheap leakproof comparison (`content >= 'P'`) before a policy's
condition, and EXPLAIN ANALYZE then reveals whether a row of another tenant matched: a few hundred queries read a whole message.
So each table has a view that runs with the owner's rights, and its condition is behind a fence (OFFSET 0, or a materialized
WITH) that no condition of a tenant's query is moved across: such a query only compares the tenant's own rows. The
tables themselves have row-level security switched on and no policy at all: a right granted by mistake shows nothing.

Functions that run as the owner select a tenant's sessions and messages. They take no argument: their result
depends only on the logged-in role, and EXPLAIN does not show their plans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from hermes.errors import InvalidInput, StoreError
from hermes.store.engines.base import CARRIABLE
from hermes.store.engines.postgres import migrate
from hermes.store.engines.postgres.connection import ALONE, APPLICATION, VERSION, shown, translate

Run = Callable[..., Any]


# The current role: the one that was switched to, else the one that logged in. Neither can be forged, and a function that
# runs as its owner does not change them.
_ME = "CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END"
_OWN = f"(s.source, s.user_id) IN (SELECT t.source, t.user_id FROM hermes_tenants t WHERE t.role = {_ME}) AND s.purged IS NULL"
_SHARED = (
    "s.trashed_at IS NULL AND s.purged IS NULL AND s.id IN (SELECT v.session_id FROM session_members v JOIN hermes_tenants t"
    f" ON t.source = v.source AND t.user_id = v.user_id WHERE t.role = {_ME})"
)
_FUNCTIONS: dict[str, tuple[str, str]] = {
    "hermes_own_sessions": ("SETOF text", f"SELECT s.id FROM sessions s WHERE {_OWN}"),
    "hermes_shared_sessions": ("SETOF text", f"SELECT s.id FROM sessions s WHERE {_SHARED}"),
    "hermes_sessions": ("SETOF text", "SELECT hermes_own_sessions() UNION SELECT hermes_shared_sessions()"),
    # Own ones (rewound ones too), those a shared session shows, and those that either carry from another session.
    "hermes_messages": (
        "SETOF bigint",
        "SELECT m.id FROM messages m WHERE m.session_id = ANY (ARRAY(SELECT hermes_own_sessions()))"
        " AND m.hidden IS DISTINCT FROM -1"
        " UNION SELECT m.id FROM messages m WHERE m.session_id = ANY (ARRAY(SELECT hermes_shared_sessions()))"
        " AND m.hidden IS NULL"
        " UNION SELECT m.id FROM session_refs r JOIN messages m ON m.session_id = r.from_session AND m.id BETWEEN r.first_id"
        f" AND r.last_id WHERE r.rewound IS NULL AND {CARRIABLE} AND r.session_id = ANY (ARRAY(SELECT hermes_sessions()))",
    ),
    "hermes_attachments": (
        "SETOF text",
        "SELECT a.hash FROM attachments a WHERE a.message_id = ANY (ARRAY(SELECT hermes_messages()))",
    ),
    "hermes_prompts": (
        "SETOF text",
        "SELECT s.system_prompt_hash FROM sessions s WHERE s.id = ANY (ARRAY(SELECT hermes_sessions()))",
    ),
}
_SESSIONS = "session_id = ANY (ARRAY(SELECT hermes_sessions()))"
_MESSAGES = "message_id = ANY (ARRAY(SELECT hermes_messages()))"
_ROWS: dict[str, str] = {
    "sessions": "id = ANY (ARRAY(SELECT hermes_sessions()))",
    "messages": "id = ANY (ARRAY(SELECT hermes_messages()))",
    **dict.fromkeys(("message_words", "unindexed", "attachments", "file_changes"), _MESSAGES),
    "attachment_data": "hash = ANY (ARRAY(SELECT hermes_attachments()))",
    **dict.fromkeys(
        ("session_refs", "session_rewinds", "session_tags", "session_members", "session_events"), _SESSIONS
    ),
    "schema_version": "true",
    "hermes_tenants": f"role = {_ME}",
    # The program reads these; their rows belong to no tenant.
    **dict.fromkeys(("words", "state_meta"), "false"),
}  # all other tables, among them the gateway's, have no view
# A prompt may be stored as the end of another one, which must not be seen: the view shows each whole.
_PROMPTS = (
    "SELECT p.hash, CASE WHEN p.base_hash IS NULL THEN p.text ELSE substr(b.text, 1, p.base_chars) || p.text END"
    " AS text, NULL::text AS base_hash, NULL::integer AS base_chars FROM system_prompts p LEFT JOIN system_prompts b"
    " ON b.hash = p.base_hash WHERE p.hash = ANY (ARRAY(SELECT hermes_prompts())) OFFSET 0"
)
_VIEWS = {
    "system_prompts": _PROMPTS,
    # A number, not the table: a reader of the table would block the next upgrade.
    "hermes_migrations": f"SELECT {VERSION} AS version",
    **{table: f"SELECT t.* FROM {table} t WHERE {condition} OFFSET 0" for table, condition in _ROWS.items()},
}


def schema_of(place: str) -> str:
    """The schema that a tenant of the store in the schema `place` uses."""
    name = f"{place}_tenants"
    if len(name.encode()) > 63:
        raise StoreError(f"the store's schema {place!r} has too long a name for a schema of its tenants beside it")
    return name


def quoted(name: str) -> str:
    """A name for SQL, quoted if necessary."""
    return name if re.fullmatch("[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"'


def make_schema(run: Run, place: str, owner: str) -> None:
    """Create the empty schema, if it does not exist. It requires the right CREATE on the database, which its owner has."""
    if run("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema_of(place),)).fetchone() is None:
        run(SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(Identifier(schema_of(place)), Identifier(owner)))


def build(run: Run, place: str) -> None:
    """Create or replace the functions and views. Within a transaction, so that no role sees a part of it."""
    door = schema_of(place)
    for (view,) in run("SELECT viewname::text FROM pg_views WHERE schemaname = %s", (door,)).fetchall():
        run(SQL("DROP VIEW IF EXISTS {}.{} CASCADE").format(Identifier(door), Identifier(view)))
    for name, (kind, body) in _FUNCTIONS.items():
        _function(run, place, f"{name}()", f"{kind} LANGUAGE sql STABLE", body)
    for name, text in _VIEWS.items():
        run(SQL("CREATE VIEW {}.{} WITH (security_barrier) AS ").format(Identifier(door), Identifier(name)) + SQL(text))
    (before,) = run(b"SELECT current_setting('search_path')").fetchone()
    run(SQL("SET LOCAL search_path = {}").format(Identifier(door)))
    for statement in (migrate.INSTR, *migrate.ALL_VIEWS):
        run(statement.encode())
    run("SELECT set_config('search_path', %s, true)", (before,))


def _function(run: Run, place: str, head: str, kind: str, body: str) -> None:
    """A function that runs as the store's owner, uses the store's schema only, and is not callable by all."""
    run(
        SQL(
            "CREATE OR REPLACE FUNCTION {head} RETURNS {kind} SECURITY DEFINER"
            " SET search_path = pg_catalog, {place}, pg_temp AS {body}"
        ).format(head=SQL(head), kind=SQL(kind), place=Identifier(place), body=Literal(body))
    )
    run(f"REVOKE ALL ON FUNCTION {head} FROM PUBLIC".encode())


def remove(run: Run, place: str) -> None:
    """Drop the schema, its views and the functions."""
    run(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema_of(place))))
    for name in reversed(_FUNCTIONS):
        run(f"DROP FUNCTION IF EXISTS {name}()".encode())


def grant(run: Run, place: str, role: str) -> None:
    """Grant a role the use of the views."""
    door, whom = Identifier(schema_of(place)), Identifier(role)
    run(SQL("GRANT USAGE ON SCHEMA {}, {} TO {}").format(Identifier(place), door, whom))
    run(SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(door, whom))
    run(SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(SQL(", ").join(SQL(f"{name}()") for name in _FUNCTIONS), whom))


def revoke(run: Run, place: str, role: str) -> None:
    """Revoke every right on the store from a role."""
    where, whom = SQL(", ").join(map(Identifier, (place, schema_of(place)))), Identifier(role)
    run(SQL("REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}").format(where, whom))
    run(SQL("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {} FROM {}").format(where, whom))
    run(SQL("REVOKE USAGE ON SCHEMA {} FROM {}").format(where, whom))


Tenant = tuple[str, str, str]  # role, source, user id


@contextmanager
def _connected(url: str) -> Iterator[Run]:
    """One transaction as the store's owner. A superuser switches to the owner, so that the owner owns all objects."""
    where = shown(url)
    try:
        with psycopg.connect(url, application_name=APPLICATION) as connection:
            state = migrate.inspect(connection)
            if state.version == 0:
                raise StoreError(f"{where} holds no session store yet")
            if state.tenant:
                raise StoreError(f"{where}: only the owner of the store may change its tenants")
            if state.version > VERSION:
                raise StoreError(f"{where} was written by a newer program (version {state.version}); use that one")
            yield connection.execute
    except psycopg.Error as error:
        raise translate(error, where, None) from error


@dataclass(frozen=True, slots=True)
class Separation:
    """The state of row separation."""

    tenants: list[Tenant]
    schema: str  # the schema of the tenants' views
    remarks: list[str]  # further remarks, a line each


def switch_on(url: str, more: Sequence[Tenant] = (), without: Sequence[str] = ()) -> Separation:
    """Separate rows for every role but the store's owner, in one transaction: add the tenants `more`, remove the roles `without`.

    May be called again, after an upgrade for example. Roles that no longer exist on the server are removed.
    """
    with _connected(url) as run:
        place = _begin(run)
        run(
            b'CREATE TABLE IF NOT EXISTS hermes_tenants (role text COLLATE "C" NOT NULL, source text COLLATE "C" NOT NULL,'
            b' user_id text COLLATE "C" NOT NULL, PRIMARY KEY (role, source, user_id))'
        )
        gone = run(
            b"DELETE FROM hermes_tenants WHERE role NOT IN (SELECT rolname FROM pg_roles) RETURNING role"
        ).fetchall()
        for role in without:
            if not run("DELETE FROM hermes_tenants WHERE role = %s", (role,)).rowcount:
                raise InvalidInput(f"the role {role} is not a tenant of this store")
        for one in more:
            _add(run, *one)
        cover(run)
        build(run, place)
        roles = _roles(run)
        for role in {*roles, *without}:
            revoke(run, place, role)
        for role in roles:
            grant(run, place, role)
        remarks = [f"the role {role} is not on the server any more; removed as a tenant" for (role,) in sorted({*gone})]
        return Separation(_tenants(run), schema_of(place), remarks)


def switch_off(url: str) -> None:
    """Undo the separation: tenants lose their grants, and the tables are as before."""
    with _connected(url) as run:
        place = _begin(run)
        if not is_on(run):
            return
        for role in _roles(run):
            revoke(run, place, role)
        for (table,) in run(_TABLES, (True,)).fetchall():
            run(SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(Identifier(table)))
        remove(run, place)
        run(b"DROP TABLE hermes_tenants")


def _add(run: Run, role: str, source: str, user_id: str) -> None:
    """Make a role a tenant, unless it sees everything anyway."""
    if not (role and source and user_id):
        raise InvalidInput("a tenant is a database role, a source and a user id")
    row = run(
        "SELECT r.rolsuper OR r.rolbypassrls OR pg_has_role(r.oid, c.relowner, 'MEMBER') FROM pg_roles r, pg_class c"
        " WHERE r.rolname = %s AND c.oid = 'sessions'::regclass",
        (role,),
    ).fetchone()
    if row is None:
        raise InvalidInput(f"there is no database role {role!r}; create it first: CREATE ROLE … LOGIN")
    if row[0]:
        raise InvalidInput(
            f"the database role {role!r} sees everything (the owner, or a superuser); a tenant needs another"
        )
    run(
        "INSERT INTO hermes_tenants(role, source, user_id) VALUES(%s, %s, %s) ON CONFLICT DO NOTHING",
        (role, source, user_id),
    )


def tenants(url: str) -> list[Tenant]:
    """The tenants: role, source and user id."""
    with _connected(url) as run:
        return _tenants(run) if is_on(run) else []


def _tenants(run: Run) -> list[Tenant]:
    return [tuple(row) for row in run("SELECT role, source, user_id FROM hermes_tenants ORDER BY 1, 2, 3").fetchall()]


def is_on(run: Run) -> bool:
    """Whether rows are separated."""
    return bool(run(b"SELECT to_regclass('hermes_tenants') IS NOT NULL").fetchone()[0])


_TABLES = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() AND rowsecurity = %s ORDER BY 1"


def cover(run: Run) -> None:
    """Close tables that were created since tenants were enabled to roles that are granted a right on them by mistake."""
    for (table,) in run(_TABLES, (False,)).fetchall():
        run(SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(Identifier(table)))


def _begin(run: Run) -> str:
    """The store's schema, locked: no other process writes exclusively or changes tenants meanwhile."""
    place, mine, owner = run(
        b"SELECT current_schema(), current_user::text, pg_get_userbyid(relowner)::text FROM pg_class"
        b" WHERE oid = 'sessions'::regclass"
    ).fetchone()
    make_schema(run, place, owner)
    if owner != mine:
        run(SQL("SET LOCAL ROLE {}").format(Identifier(owner)))
    run(ALONE.encode())
    return str(place)


def _roles(run: Run) -> list[str]:
    """The tenants' roles that exist: a backup may have been restored on a server without them."""
    sql = b"SELECT rolname::text FROM pg_roles WHERE rolname IN (SELECT role FROM hermes_tenants) ORDER BY 1"
    return [row[0] for row in run(sql).fetchall()]

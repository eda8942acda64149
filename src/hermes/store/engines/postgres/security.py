"""Tenants: a tenant's database role sees in SQL what `visible_to` lets its user see, and nothing else.

A tenant is one or more pairs (source, user_id), given to a role in the table `hermes_tenants`; a setting could be changed by
any logged-in role, a row there only by the store's owner. The owner sees everything, as do superusers and roles with
BYPASSRLS; a role that is not in that table sees nothing. A tenant reads its own sessions, those shared with it and the
messages they carry, and may pin, archive or trash its own. It can't insert, delete or name: a unique title that is taken
would reveal another tenant's, so only the program does this, which connects as the owner.

A tenant's views are in a separate schema; `tenant_views` explains them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier

from hermes.errors import InvalidInput, StoreError
from hermes.store.engines.postgres import error_mapping, migrate, tenant_views
from hermes.store.engines.postgres.connection import APPLICATION

Run = Callable[..., Any]
Tenant = tuple[str, str, str]  # role, source, user id

# Any role can create a large object that the store's owner can't read, and pg_dump then fails.
_LARGE_OBJECTS = ("lo_create(oid)", "lo_creat(integer)", "lo_from_bytea(oid, bytea)")


@contextmanager
def _connected(url: str) -> Iterator[Run]:
    """One transaction as the store's owner. A superuser switches to the owner, so that the owner owns all objects."""
    where = error_mapping.shown(url)
    try:
        with psycopg.connect(url, application_name=APPLICATION) as connection:
            state = migrate.inspect(connection)
            if state.version == 0:
                raise StoreError(f"{where} holds no session store yet")
            if state.tenant:
                raise StoreError(f"{where}: only the owner of the store may change its tenants")
            if state.version > migrate.VERSION:
                raise StoreError(f"{where} was written by a newer program (version {state.version}); use that one")
            yield connection.execute
    except psycopg.Error as error:
        raise error_mapping.translate(error, where, None) from error


@dataclass(frozen=True, slots=True)
class Apart:
    """The state of row separation."""

    tenants: list[Tenant]
    schema: str  # the schema of the tenants' views
    said: list[str]  # further remarks, a line each


def switch_on(url: str, more: Sequence[Tenant] = (), without: Sequence[str] = ()) -> Apart:
    """Separate rows for every role but the store's owner, in one transaction: add the tenants `more`, remove the roles `without`.

    May be called again, after an upgrade for example. Roles that no longer exist on the server are removed.
    """
    with _connected(url) as run:
        place = _begin(run)
        migrate.complete(run)
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
        tenant_views.build(run, place)
        roles = _roles(run)
        for role in {*roles, *without}:
            tenant_views.revoke(run, place, role)
        for role in roles:
            tenant_views.grant(run, place, role)
        said = [f"the role {role} is not on the server any more; removed as a tenant" for (role,) in sorted({*gone})]
        return Apart(_tenants(run), tenant_views.schema_of(place), [*said, *_close_large_objects(run)])


def switch_off(url: str) -> None:
    """Undo it: tenants lose their grants, and the tables are as before."""
    with _connected(url) as run:
        place = _begin(run)
        if not is_on(run):
            return
        for role in _roles(run):
            tenant_views.revoke(run, place, role)
        for (table,) in run(_TABLES, (True,)).fetchall():
            run(SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(Identifier(table)))
        tenant_views.remove(run, place)
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
    tenant_views.make_schema(run, place, owner)
    if owner != mine:
        run(SQL("SET LOCAL ROLE {}").format(Identifier(owner)))
    run(migrate.ALONE.encode())
    return str(place)


def _roles(run: Run) -> list[str]:
    """The tenants' roles that exist: a backup may have been restored on a server without them."""
    sql = b"SELECT rolname::text FROM pg_roles WHERE rolname IN (SELECT role FROM hermes_tenants) ORDER BY 1"
    return [row[0] for row in run(sql).fetchall()]


def _close_large_objects(run: Run) -> list[str]:
    """Revoke the creation of large objects from all roles, which only a superuser can; returns a remark about it."""
    open_ones = "SELECT f FROM unnest(%s::text[]) f WHERE has_function_privilege('public', f, 'EXECUTE')"
    functions = ", ".join(row[0] for row in run(open_ones, (list(_LARGE_OBJECTS),)).fetchall())
    if not functions:
        return []
    (is_superuser,) = run(b"SELECT rolsuper FROM pg_roles WHERE rolname = session_user").fetchone()
    if is_superuser:
        run(b"RESET ROLE")
        run(migrate.ONE_AT_A_TIME)
        run(f"REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC".encode())
        return []
    return [
        "a tenant can make large objects, at which pg_dump stops; let a superuser say in this database: REVOKE EXECUTE ON"
        f" FUNCTION {functions} FROM PUBLIC, or use pg_dump -B"
    ]

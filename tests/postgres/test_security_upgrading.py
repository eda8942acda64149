"""Tenants of a store that was restored elsewhere, or that a plain user owns; roles that are gone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from hermes.store.engines.postgres import tenants
from hermes_state import SessionDB
from tests.support import postgres
from tests.support.program import run

from .houses import SECRET, VERSIONS, House


def test_a_role_that_is_gone_holds_up_nothing_and_is_no_tenant_any_more(fresh: House, tmp_path: Path) -> None:
    fresh.server.sql(f'DROP OWNED BY "{fresh.alice}"', f'DROP ROLE "{fresh.alice}"')
    try:
        SessionDB(url=fresh.url).close()
        done = run("sessions", "migrate", "--rls", home=tmp_path / "home", env={"HERMES_STORE_URL": fresh.url})
        assert done.status == 0
        assert f"the role {fresh.alice} is not on the server any more" in done.err
        assert "1 tenant" in done.out
        assert [row[0] for row in tenants.tenants(fresh.url)] == [fresh.bob]
        assert fresh.ask(fresh.bob, "SELECT count(*) FROM sessions") == [(3,)]
    finally:
        fresh.server.sql(f'CREATE ROLE "{fresh.alice}" LOGIN')
    with pytest.raises(psycopg.Error):  # a namesake
        fresh.ask(fresh.alice, "SELECT id FROM sessions")


# --------------------------------------------------------------------------------------------- a database as in the guide


@dataclass
class Guide:
    """A database that a plain role owns, and the role of a tenant; the store is in `public`."""

    server: postgres.Shared
    name: str
    owner: str
    tenant: str

    def of(self, role: str) -> str:
        return self.server.url(self.name).replace("postgres@", f"{role}@", 1)

    def sql(self, role: str, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.of(role), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []


@contextmanager
def _guide(version: str, name: str) -> Iterator[Guide]:
    server = postgres.server(version)
    mark = hashlib.sha256(name.encode()).hexdigest()[:12]
    made = Guide(server, f"db_{mark}", f"owner_{mark}", f"tenant_{mark}")
    server.sql(f"CREATE ROLE {made.owner} LOGIN", f"CREATE ROLE {made.tenant} LOGIN")
    server.sql(f"CREATE DATABASE {made.name} OWNER {made.owner} ENCODING 'UTF8' TEMPLATE template0")
    try:
        server.sql("CREATE EXTENSION pg_trgm", database=made.name)
        with SessionDB(url=made.of(made.owner)) as db:
            db.create_session("mine", "telegram", user_id="1")
            db.append_message("mine", "user", "teapot")
            db.create_session("other", "telegram", user_id="2")
            db.append_message("other", "user", SECRET)
        yield made
    finally:
        server.sql(f"DROP DATABASE {made.name} WITH (FORCE)", f"DROP ROLE {made.tenant}", f"DROP ROLE {made.owner}")


@pytest.fixture(params=VERSIONS)
def guide(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guide]:
    with _guide(request.param, str(tmp_path)) as made:
        yield made


def test_a_plain_owner_keeps_rows_apart(guide: Guide, tmp_path: Path) -> None:
    at = {"HERMES_STORE_URL": guide.of(guide.owner)}
    words = ("sessions", "migrate", "--rls", "--tenant", f"{guide.tenant}=telegram:1")
    done = run(*words, home=tmp_path / "home", env=at)
    assert (done.status, done.err) == (0, "")
    assert "SET search_path = public_tenants" in done.out
    assert f"{guide.tenant} sees what telegram:1 may see" in done.out
    with SessionDB(url=guide.of(guide.tenant), read_only=True) as db:
        assert [row["id"] for row in db.list_sessions_rich()] == ["mine"]
        assert [hit["session_id"] for hit in db.search_messages("teapot")] == ["mine"]
        assert db.search_messages(SECRET) == []
    assert guide.sql(guide.tenant, "SELECT id FROM public_tenants.sessions") == [("mine",)]
    guide.sql(guide.tenant, "SELECT lo_create(0)")
    dump = ("pg_dump", "-d", guide.of(guide.owner), "-f", "/dev/null")
    assert guide.server.run(*dump, check=False).returncode != 0
    assert guide.server.run(*dump, "-B", check=False).returncode == 0  # as the guide says
    functions = "lo_create(oid), lo_creat(integer), lo_from_bytea(oid, bytea)"
    guide.server.sql(f"REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC", database=guide.name)
    for sql in ("lo_create(0)", "lo_creat(-1)", "lo_from_bytea(0, '')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            guide.sql(guide.tenant, f"SELECT {sql}")
    # A superuser can do it, too: all that is made is the owner's nevertheless.
    done = run(*words, home=tmp_path / "home", env={"HERMES_STORE_URL": guide.server.url(guide.name)})
    assert (done.status, done.err) == (0, "")
    owners = guide.sql("postgres", "SELECT DISTINCT viewowner::text FROM pg_views WHERE schemaname = 'public_tenants'")
    assert owners == [(guide.owner,)]
    done = run(*words, home=tmp_path / "home", env=at)  # and so he can say it again
    assert (done.status, done.err) == (0, "")
    done = run("sessions", "migrate", "--no-rls", home=tmp_path / "home", env=at)
    assert (done.status, done.out) == (0, "row-level security is off\n")
    with pytest.raises(psycopg.Error):
        guide.sql(guide.tenant, "SELECT id FROM public_tenants.sessions")

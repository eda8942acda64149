"""Tenants of a store that was set up before, restored elsewhere, or that a plain user owns; roles that are gone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from hermes.errors import InvalidInput
from hermes.store.engines.postgres import migrate, security
from hermes_state import SessionDB
from tests.support import postgres
from tests.support.program import run

from .houses import SECRET, VERSIONS, House

# What `--rls` made before there were views for tenants, in short: rights on the tables, policies, views that ask as the reader.
OLD = (
    "DROP SCHEMA {0}_tenants CASCADE",
    "DROP FUNCTION IF EXISTS hermes_mark(), hermes_prompts(), hermes_attachments(), hermes_shared_sessions()",
    "CREATE OR REPLACE FUNCTION hermes_messages() RETURNS SETOF bigint LANGUAGE sql STABLE SECURITY DEFINER SET search_path ="
    " {0}, pg_catalog, pg_temp AS 'SELECT m.id FROM messages m WHERE m.session_id = ANY (ARRAY(SELECT hermes_own_sessions()))'",
    "CREATE FUNCTION hermes_prompt(text) RETURNS text LANGUAGE sql AS 'SELECT $1'",
    "CREATE POLICY hermes_tenant ON sessions FOR SELECT USING (id = ANY (ARRAY(SELECT hermes_own_sessions())))",
    "CREATE POLICY hermes_marks ON sessions FOR UPDATE USING (id = ANY (ARRAY(SELECT hermes_own_sessions())))",
    "CREATE POLICY hermes_tenant ON messages FOR SELECT USING (id = ANY (ARRAY(SELECT hermes_messages())))",
    "CREATE POLICY hermes_tenant ON hermes_migrations FOR SELECT USING (true)",
    "CREATE OR REPLACE VIEW visible_sessions WITH (security_invoker = true) AS {1}",
    'GRANT USAGE ON SCHEMA {0} TO "{2}"',
    'GRANT SELECT ON sessions, messages, message_words, hermes_migrations, visible_sessions TO "{2}"',
    'GRANT UPDATE (pinned_at, archived_at, trashed_at) ON sessions TO "{2}"',
    'GRANT EXECUTE ON FUNCTION hermes_own_sessions(), hermes_messages() TO "{2}"',
    # and the step that came with the views is undone
    "DROP FUNCTION hermes_refuse_older() CASCADE",
    "ALTER TABLE sessions DROP CONSTRAINT hermes_finite_marks",
    "DELETE FROM hermes_migrations WHERE version >= 5",
)


def made_old(house: House) -> None:
    """Set the house up as it would have been before."""
    with psycopg.connect(house.url) as connection:
        row = connection.execute(b"SELECT pg_get_viewdef('visible_sessions'::regclass)").fetchone()
        assert row is not None
        for statement in OLD:
            connection.execute(statement.format(house.place, row[0], house.alice).encode())


def rights(house: House) -> list[str]:
    """What Alice may do with the tables of the store."""
    return [
        row[0]
        for row in house.server.sql(
            "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname ="
            f" '{house.place}' AND c.relkind IN ('r', 'v', 'S') AND (has_table_privilege('{house.alice}', c.oid, 'SELECT')"
            f" OR has_any_column_privilege('{house.alice}', c.oid, 'SELECT, INSERT, UPDATE')) ORDER BY 1"
        )
    ]


@pytest.mark.parametrize("way", ["the owner opens it", "the command"])
def test_a_store_with_the_older_policies_is_brought_to_views(fresh: House, way: str, tmp_path: Path) -> None:
    made_old(fresh)
    assert "messages" in rights(fresh)  # as it was
    fresh.server.sql(f"UPDATE {fresh.place}.sessions SET pinned_at = 'NaN', trashed_at = NULL WHERE id = 'alices'")
    if way == "the owner opens it":
        SessionDB(url=fresh.url).close()
    else:
        done = run("sessions", "migrate", "--rls", home=tmp_path / "home", env={"HERMES_STORE_URL": fresh.url})
        assert (done.status, done.err) == (0, "")
    assert rights(fresh) == []
    assert fresh.server.sql(f"SELECT count(*) FROM pg_policies WHERE schemaname = '{fresh.place}'") == [(0,)]
    assert fresh.ask(fresh.alice, "SELECT id FROM sessions ORDER BY id") == [("alices",), ("shared",)]
    assert fresh.ask(fresh.alice, "SELECT count(*) FROM messages") == [(2,)]
    with SessionDB(url=fresh.of(fresh.alice, tables=True), read_only=True) as db:
        assert [hit["session_id"] for hit in db.search_messages("teapot")] == ["alices"]
    with SessionDB(url=fresh.url) as db:
        assert len(db.search_messages(SECRET)) >= 2
        pinned = db.sql("SELECT pinned_at FROM sessions WHERE id = 'alices'")[0]["pinned_at"]
        assert 1e9 < pinned < 1e11  # it is pinned still
        db.backup(tmp_path / "copy.db")
    with SessionDB(tmp_path / "copy.db", read_only=True) as copy:
        assert copy.session_count() == 5


def test_a_role_that_is_gone_holds_up_nothing_and_is_no_tenant_any_more(fresh: House, tmp_path: Path) -> None:
    fresh.server.sql(f'DROP OWNED BY "{fresh.alice}"', f'DROP ROLE "{fresh.alice}"')
    try:
        with psycopg.connect(fresh.url) as connection:  # an upgrade leaves it alone
            connection.execute(b"DELETE FROM hermes_migrations WHERE version >= 5")
            connection.execute(b"DROP FUNCTION hermes_refuse_older() CASCADE")
            connection.execute(b"ALTER TABLE sessions DROP CONSTRAINT hermes_finite_marks")
        SessionDB(url=fresh.url).close()
        done = run("sessions", "migrate", "--rls", home=tmp_path / "home", env={"HERMES_STORE_URL": fresh.url})
        assert done.status == 0
        assert f"the role {fresh.alice} is not on the server any more" in done.err
        assert "1 tenant" in done.out
        assert [row[0] for row in security.tenants(fresh.url)] == [fresh.bob]
        assert fresh.ask(fresh.bob, "SELECT count(*) FROM sessions") == [(3,)]
    finally:
        fresh.server.sql(f'CREATE ROLE "{fresh.alice}" LOGIN')
    with pytest.raises(psycopg.Error):  # a namesake
        fresh.ask(fresh.alice, "SELECT id FROM sessions")


def test_one_role_too_many_lets_in_nobody_else_either(fresh: House) -> None:
    security.switch_on(fresh.url, without=[fresh.alice])
    with pytest.raises(InvalidInput, match="no database role"):
        security.switch_on(fresh.url, [(fresh.alice, "telegram", "1"), ("no_such_role", "telegram", "2")])
    assert [row[0] for row in security.tenants(fresh.url)] == [fresh.bob]


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


def test_a_plain_owner_keeps_rows_apart_and_is_told_of_large_objects(guide: Guide, tmp_path: Path) -> None:
    at = {"HERMES_STORE_URL": guide.of(guide.owner)}
    words = ("sessions", "migrate", "--rls", "--tenant", f"{guide.tenant}=telegram:1")
    done = run(*words, home=tmp_path / "home", env=at)
    assert done.status == 0
    assert "use pg_dump -B" in done.err
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
    # A superuser closes it, and all that is made is the owner's nevertheless.
    done = run(*words, home=tmp_path / "home", env={"HERMES_STORE_URL": guide.server.url(guide.name)})
    assert (done.status, done.err) == (0, "")
    for sql in ("lo_create(0)", "lo_creat(-1)", "lo_from_bytea(0, '')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            guide.sql(guide.tenant, f"SELECT {sql}")
    owners = guide.sql("postgres", "SELECT DISTINCT viewowner::text FROM pg_views WHERE schemaname = 'public_tenants'")
    assert owners == [(guide.owner,)]
    done = run(*words, home=tmp_path / "home", env=at)  # and so he can say it again
    assert (done.status, done.err) == (0, "")
    done = run("sessions", "migrate", "--no-rls", home=tmp_path / "home", env=at)
    assert (done.status, done.out) == (0, "row-level security is off\n")
    with pytest.raises(psycopg.Error):
        guide.sql(guide.tenant, "SELECT id FROM public_tenants.sessions")


def test_an_owner_that_may_make_no_schema_opens_an_older_store_and_closes_it_to_tenants(guide: Guide) -> None:
    security.switch_on(guide.of(guide.owner), [(guide.tenant, "telegram", "1")])
    guide.sql("postgres", f"ALTER DATABASE {guide.name} OWNER TO postgres")
    made_old(House(guide.server, guide.server.url(guide.name, schema="public"), guide.tenant, ""))
    guide.sql("postgres", f"GRANT CREATE ON SCHEMA public TO {guide.owner}")
    guide.sql("postgres", f"ALTER FUNCTION hermes_prompt(text) OWNER TO {guide.owner}")
    assert guide.sql(guide.tenant, "SELECT count(*) FROM messages") == [(1,)]
    with SessionDB(url=guide.of(guide.owner)) as db:
        assert db.message_count() == 2
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        guide.sql(guide.tenant, "SELECT count(*) FROM messages")
    security.switch_on(guide.server.url(guide.name))
    assert guide.sql(guide.tenant, "SELECT count(*) FROM public_tenants.messages") == [(1,)]


def test_a_restored_dump_keeps_its_tenants(guide: Guide, tmp_path: Path) -> None:
    security.switch_on(guide.of(guide.owner), [(guide.tenant, "telegram", "1")])
    file = guide.server.folder / f"{guide.name}.sql"
    try:
        guide.server.run("pg_dump", "-B", "-d", guide.of(guide.owner), "-f", str(file))
        guide.server.sql(f"CREATE DATABASE {guide.name}_2 OWNER {guide.owner} ENCODING 'UTF8' TEMPLATE template0")
        try:
            guide.server.sql("CREATE EXTENSION pg_trgm", database=f"{guide.name}_2")
            there = Guide(guide.server, f"{guide.name}_2", guide.owner, guide.tenant)
            guide.server.run("psql", "-q", "-d", guide.server.url(there.name), "-f", str(file))
            assert there.sql(there.tenant, "SELECT id FROM public_tenants.sessions") == [("mine",)]
            with SessionDB(url=there.of(there.owner)) as db:
                assert db.message_count() == 2
                db.append_message("mine", "user", "goes on")
            assert there.sql(there.tenant, "SELECT count(*) FROM public_tenants.messages") == [(2,)]
        finally:
            guide.server.sql(f"DROP DATABASE {there.name} WITH (FORCE)")
    finally:
        file.unlink(missing_ok=True)


def test_the_version_a_tenant_is_shown_is_the_stores(fresh: House) -> None:
    assert fresh.ask(fresh.alice, "SELECT max(version) FROM hermes_migrations") == [(len(migrate.MIGRATIONS),)]

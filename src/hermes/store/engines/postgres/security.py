"""Row-level security: a tenant's own database role sees in SQL what `visible_to` lets it see, and nothing else.

A tenant is one or more pairs (source, user_id), given to a role in the table `hermes_tenants`; a setting could be changed by
whoever is logged in, a row there only by the store's owner. The owner sees everything, as do superusers and roles with
BYPASSRLS; whoever else is not in that table sees nothing. A tenant reads its own sessions, those shared with it and the
messages they carry, and may pin, archive or trash its own. It can't insert, delete or name: a unique title that is taken
would tell of another's, so these stay with the program, which connects as the owner.

Policies can't ask tables that have policies themselves without going round in circles, so functions that run as the owner
answer "which sessions, which messages?". They take no argument: what they say depends on who is logged in only. A policy
compares ids with their answer by `=`, which PostgreSQL knows to be leakproof, so an index leads to a tenant's rows; only then
is anything looked at that could tell of a row by an error (`@@`, LIKE).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from hermes.errors import InvalidInput, StoreError
from hermes.store.engines.postgres import faults, migrate, schema
from hermes.store.engines.sqlite.schema import PROMPT_TEXT

MAY_READ = (
    "sessions", "messages", "system_prompts", "session_refs", "session_rewinds", "session_tags", "session_members",
    "attachments", "attachment_data", "message_words", "unindexed", "words", "names", "state_meta", "schema_version",
    "hermes_migrations", "hermes_tenants", "visible_sessions", "visible_messages",
)  # fmt: skip
MAY_CHANGE = ("pinned_at", "archived_at", "trashed_at")  # of its own sessions

# Who is asking: the role that was switched to, else the one that logged in. Neither can be feigned, and a function that
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
        " AND r.last_id WHERE r.rewound IS NULL AND r.session_id = ANY (ARRAY(SELECT hermes_sessions()))",
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
# A prompt may begin like another's; the whole of that other one must not be seen for it.
_PROMPT = (
    "SELECT CASE WHEN p.base_hash IS NULL THEN p.text ELSE substr((SELECT b.text FROM system_prompts b WHERE b.hash ="
    " p.base_hash), 1, p.base_chars) || p.text END FROM system_prompts p WHERE p.hash = $1"
    " AND p.hash = ANY (ARRAY(SELECT hermes_prompts()))"
)
_SESSIONS = "= ANY (ARRAY(SELECT hermes_sessions()))"
_POLICIES: dict[str, str] = {
    "sessions": f"id {_SESSIONS}",
    "messages": "id = ANY (ARRAY(SELECT hermes_messages()))",
    "message_words": "message_id = ANY (ARRAY(SELECT hermes_messages()))",
    "unindexed": "message_id = ANY (ARRAY(SELECT hermes_messages()))",
    "attachments": "message_id = ANY (ARRAY(SELECT hermes_messages()))",
    "attachment_data": "hash = ANY (ARRAY(SELECT hermes_attachments()))",
    "system_prompts": "base_hash IS NULL AND hash = ANY (ARRAY(SELECT hermes_prompts()))",
    "session_refs": f"session_id {_SESSIONS}",
    "session_rewinds": f"session_id {_SESSIONS}",
    "session_tags": f"session_id {_SESSIONS}",
    "session_members": f"session_id {_SESSIONS}",
    "schema_version": "true",
    "hermes_migrations": "true",
    "hermes_tenants": f"role = {_ME}",
}  # all other tables, among them the list of words and the gateway's, show a tenant nothing

Run = Callable[..., Any]


@contextmanager
def _connected(url: str) -> Iterator[Run]:
    """The store's owner at work, in one transaction."""
    where = faults.shown(url)
    try:
        with psycopg.connect(url) as connection:
            state = migrate.inspect(connection)
            if state.version == 0:
                raise StoreError(f"{where} holds no record of sessions yet")
            yield connection.execute
    except psycopg.Error as error:
        raise faults.translate(error, where, None) from error


def switch_on(url: str) -> None:
    """Enforce ownership of rows for every role but the store's owner. May be called again, after an upgrade for example."""
    with _connected(url) as run:
        _alone(run)
        _enforce(run)


def switch_off(url: str) -> None:
    """Take all of it back: tenants lose what they were granted, and the tables are as they were."""
    with _connected(url) as run:
        _alone(run)
        if not is_on(run):
            return
        for (role,) in run("SELECT DISTINCT role FROM hermes_tenants").fetchall():
            _take_back(run, role)
        for (table,) in run(_TABLES, (True,)).fetchall():
            run(SQL("ALTER TABLE {} DISABLE ROW LEVEL SECURITY").format(Identifier(table)))
            run(SQL("DROP POLICY IF EXISTS hermes_tenant ON {}").format(Identifier(table)))
        run(SQL("DROP POLICY IF EXISTS hermes_marks ON sessions"))
        for statement in schema.ALL_VIEWS:
            run(statement.encode())
        run(b"DROP FUNCTION hermes_prompt(text)")
        for name in reversed(_FUNCTIONS):
            run(f"DROP FUNCTION {name}()".encode())
        run(b"DROP TABLE hermes_tenants")


def let_in(url: str, role: str, source: str, user_id: str) -> None:
    """From now on the database role `role` (which must exist) sees what the user (source, user_id) may see."""
    if not (role and source and user_id):
        raise InvalidInput("a tenant is a database role, a source and a user id")
    with _connected(url) as run:
        _alone(run)
        if not is_on(run):
            _enforce(run)
        _refuse_the_mighty(run, role)
        run(
            "INSERT INTO hermes_tenants(role, source, user_id) VALUES(%s, %s, %s) ON CONFLICT DO NOTHING",
            (role, source, user_id),
        )
        _grant(run, role)


def shut_out(url: str, role: str) -> bool:
    """The role sees nothing any more; False when it was no tenant."""
    with _connected(url) as run:
        _alone(run)
        if not is_on(run) or not run("DELETE FROM hermes_tenants WHERE role = %s", (role,)).rowcount:
            return False
        _take_back(run, role)
        return True


def tenants(url: str) -> list[tuple[str, str, str]]:
    """Who is let in: role, source and user id."""
    with _connected(url) as run:
        if not is_on(run):
            return []
        return [
            tuple(row) for row in run("SELECT role, source, user_id FROM hermes_tenants ORDER BY 1, 2, 3").fetchall()
        ]


def is_on(run: Run) -> bool:
    """Whether the policies are in force."""
    return bool(run(b"SELECT to_regclass('hermes_tenants') IS NOT NULL").fetchone()[0])


_TABLES = (
    "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p') AND c.relrowsecurity = %s ORDER BY 1"
)


def cover(run: Run) -> None:
    """Tables made since it was switched on are closed to tenants, too, whatever they may have been granted.

    That they may be asked, and answer with nothing, is what a tenant's search relies on.
    """
    for (table,) in run(_TABLES, (False,)).fetchall():
        run(SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(Identifier(table)))
    for (role,) in run(b"SELECT DISTINCT role FROM hermes_tenants").fetchall():
        _grant(run, role)


def _alone(run: Run) -> None:
    (place,) = run(b"SELECT current_schema()").fetchone()
    key = int.from_bytes(hashlib.sha256(f"hermes {place}".encode()).digest()[:8], "big", signed=True)
    run("SELECT pg_advisory_xact_lock(%s)", (key,))


def _enforce(run: Run) -> None:
    (place,) = run(b"SELECT current_schema()").fetchone()
    run(
        b'CREATE TABLE IF NOT EXISTS hermes_tenants (role text COLLATE "C" NOT NULL, source text COLLATE "C" NOT NULL,'
        b' user_id text COLLATE "C" NOT NULL, PRIMARY KEY (role, source, user_id))'
    )
    for name, (kind, body) in _FUNCTIONS.items():
        _function(run, place, f"{name}()", kind, body)
    _function(run, place, "hermes_prompt(text)", "text", _PROMPT)
    cover(run)
    for table, condition in _POLICIES.items():
        run(f"DROP POLICY IF EXISTS hermes_tenant ON {table}".encode())
        run(f"CREATE POLICY hermes_tenant ON {table} FOR SELECT USING ({condition})".encode())
    run(b"DROP POLICY IF EXISTS hermes_marks ON sessions")
    run(b"CREATE POLICY hermes_marks ON sessions FOR UPDATE USING (id = ANY (ARRAY(SELECT hermes_own_sessions())))")
    for statement in schema.ALL_VIEWS:
        run(_as_asked(statement).encode())


def _function(run: Run, place: str, head: str, kind: str, body: str) -> None:
    """A function that runs as the store's owner, looks in the store's schema only, and is not everyone's to call."""
    run(
        SQL(
            "CREATE OR REPLACE FUNCTION {head} RETURNS {kind} LANGUAGE sql STABLE SECURITY DEFINER"
            " SET search_path = {place}, pg_catalog, pg_temp AS {body}"
        ).format(head=SQL(head), kind=SQL(kind), place=Identifier(place), body=Literal(body))
    )
    run(f"REVOKE ALL ON FUNCTION {head} FROM PUBLIC".encode())


def _as_asked(view: str) -> str:
    """A view that shows each role what it may see itself, and whole prompts."""
    name, _, body = view.partition(" AS SELECT ")
    body = body.replace(PROMPT_TEXT, _VIEWED_PROMPT)
    return f"{name} WITH (security_invoker = true) AS SELECT {body}"


# The owner, who is no tenant, reads prompts as before.
_VIEWED_PROMPT = (
    f"CASE WHEN row_security_active('system_prompts') THEN coalesce(s.system_prompt, hermes_prompt(s.system_prompt_hash))"
    f" ELSE {PROMPT_TEXT} END"
)


def _refuse_the_mighty(run: Run, role: str) -> None:
    row = run(
        "SELECT r.rolsuper OR r.rolbypassrls OR pg_has_role(r.oid, c.relowner, 'MEMBER') FROM pg_roles r, pg_class c"
        " WHERE r.rolname = %s AND c.oid = 'sessions'::regclass",
        (role,),
    ).fetchone()
    if row is None:
        raise InvalidInput(f"there is no database role {role!r}; make it first: CREATE ROLE … LOGIN")
    if row[0]:
        raise InvalidInput(
            f"the database role {role!r} sees everything (the owner, or a superuser); a tenant needs another"
        )


def _grant(run: Run, role: str) -> None:
    (place,) = run(b"SELECT current_schema()").fetchone()
    whom = Identifier(role)
    run(SQL("GRANT USAGE ON SCHEMA {} TO {}").format(Identifier(place), whom))
    run(SQL("GRANT SELECT ON {} TO {}").format(SQL(", ").join(map(Identifier, MAY_READ)), whom))
    run(SQL("GRANT UPDATE ({}) ON sessions TO {}").format(SQL(", ").join(map(Identifier, MAY_CHANGE)), whom))
    run(SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(SQL(", ").join(map(SQL, _signatures())), whom))


def _take_back(run: Run, role: str) -> None:
    (place,) = run(b"SELECT current_schema()").fetchone()
    if run("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
        return
    whom = Identifier(role)
    run(SQL("REVOKE ALL ON ALL TABLES IN SCHEMA {} FROM {}").format(Identifier(place), whom))
    run(SQL("REVOKE UPDATE ({}) ON sessions FROM {}").format(SQL(", ").join(map(Identifier, MAY_CHANGE)), whom))
    run(SQL("REVOKE EXECUTE ON FUNCTION {} FROM {}").format(SQL(", ").join(map(SQL, _signatures())), whom))
    run(SQL("REVOKE USAGE ON SCHEMA {} FROM {}").format(Identifier(place), whom))


def _signatures() -> list[str]:
    return [*(f"{name}()" for name in _FUNCTIONS), "hermes_prompt(text)"]

"""Tenants: a tenant's database role sees its own and what is shared with it, whatever SQL it says."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from hermes.errors import InvalidInput, StoreError, StoreReadOnly
from hermes.store.engines.postgres import tenants
from hermes.store.gateway.gateway_db import GatewayDB
from hermes_state import SessionDB
from tests.support.gateway import received
from tests.support.program import run

from . import patient
from .houses import BEGINNING, SECRET, House

CLOSED = ("leases", "audit", "words", "state_meta")
HOLDS_TEXT = (
    "sessions", "messages", "system_prompts", "session_refs", "session_rewinds", "session_tags", "session_members",
    "attachments", "attachment_data", "message_words", "words", "audit", "leases", "state_meta", "gateway_inbox",
    "gateway_outbox", "gateway_routes", "gateway_people", "gateway_pairings", "visible_sessions", "visible_messages",
)  # fmt: skip


def test_a_tenant_reads_its_own_and_what_is_shared_with_it(house: House) -> None:
    assert house.ask(house.alice, "SELECT id FROM sessions ORDER BY id") == [("alices",), ("shared",)]
    assert house.ask(house.alice, "SELECT count(*) FROM messages") == [(2,)]
    assert house.ask(house.alice, "SELECT content FROM visible_messages ORDER BY id") == [
        ("teapot of mine, said Alice",),
        ("a trumpet for both",),
    ]
    assert house.ask(house.alice, "SELECT tag FROM session_tags") == [("kitchen",)]
    assert {row[0] for row in house.ask(house.bob, "SELECT id FROM sessions")} == {
        "bobs", "bobs-branch", "shared",
    }  # fmt: skip


def test_nothing_of_another_tenant_is_in_any_table_or_view_by_select_or_by_copy(house: House) -> None:
    with psycopg.connect(house.of(house.alice), autocommit=True) as connection:
        for name in HOLDS_TEXT:
            for sql in (f"SELECT * FROM {name}", f"COPY (SELECT * FROM {name}) TO STDOUT", f"COPY {name} TO STDOUT"):
                try:
                    if sql.startswith("COPY"):
                        with connection.cursor().copy(sql.encode()) as copy:
                            told = b"".join(bytes(part) for part in copy).decode()
                    else:
                        told = repr(connection.execute(sql.encode()).fetchall())
                except (
                    psycopg.errors.InsufficientPrivilege,
                    psycopg.errors.UndefinedTable,
                    psycopg.errors.WrongObjectType,
                ):
                    continue
                assert SECRET not in told, sql
                assert "bobs" not in told, sql
                assert SECRET.encode().hex() not in told, sql


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM messages WHERE content LIKE '%xylophone%'",
        "SELECT count(*) FROM message_words WHERE words @@ 'xylophone'::tsquery",
        "SELECT count(*) FROM words WHERE word LIKE '%xyloph%'",
        "SELECT count(*) FROM sessions WHERE title LIKE 'xylo%'",
        "SELECT count(*) FROM visible_sessions WHERE system_prompt LIKE '%xylo%'",
        "SELECT count(*) FROM session_tags WHERE tag = 'xylophone'",
        "SELECT count(*) FROM attachments",
        "SELECT count(*) FROM attachment_data",
        "SELECT count(*) FROM session_refs",
        "SELECT count(*) FROM messages WHERE session_id = 'bobs'",
        "SELECT count(*) FROM hermes_tenants WHERE user_id = '2'",
    ],
)
def test_no_question_counts_or_finds_what_is_anothers(house: House, sql: str) -> None:
    assert house.ask(house.alice, sql) == [(0,)]


def test_the_functions_answer_for_who_asks(house: House) -> None:
    for name in ("hermes_own_sessions", "hermes_sessions"):
        found = {row[0] for row in house.ask(house.alice, f"SELECT {house.place}.{name}()")}
        assert found == {"hermes_own_sessions": {"alices"}, "hermes_sessions": {"alices", "shared"}}[name]


def test_an_error_does_not_tell_what_is_in_anothers_rows(house: House) -> None:
    """Dividing by zero wherever a text matches is how one reads through a filter that looks too late."""
    for table, column in (("messages", "content"), ("sessions", "title"), ("sessions", "system_prompt")):
        sql = f"SELECT count(*) FROM {table} WHERE CASE WHEN {column} LIKE '%xylo%' THEN 1 / (length({column}) * 0) = 1 ELSE false END"
        assert house.ask(house.alice, sql) == [(0,)]
    sql = "SELECT count(*) FROM message_words WHERE CASE WHEN words @@ 'xylophone'::tsquery THEN 1 / (size * 0) = 1 ELSE false END"
    assert house.ask(house.alice, sql) == [(0,)]


def test_a_function_of_the_tenants_own_is_not_shown_anothers_rows(house: House) -> None:
    with psycopg.connect(house.of(house.alice), autocommit=True) as connection:
        connection.execute(
            b"CREATE FUNCTION pg_temp.peek(text) RETURNS boolean COST 0.0001 LANGUAGE plpgsql AS"
            b" $$ BEGIN RAISE NOTICE 'seen %', $1; RETURN true; END $$"
        )
        told: list[str] = []
        connection.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        connection.execute(b"SELECT count(*) FROM messages WHERE pg_temp.peek(content)")
        connection.execute(b"SELECT count(*) FROM message_words WHERE pg_temp.peek(words::text)")
        connection.execute(b"SELECT count(*) FROM visible_sessions WHERE pg_temp.peek(title)")
        connection.execute(b"SELECT count(*) FROM visible_messages WHERE pg_temp.peek(content)")
    assert any("teapot" in line for line in told)
    assert not any(SECRET in line for line in told)


def test_statistics_do_not_tell_either(house: House) -> None:
    house.server.sql("ANALYZE")
    assert house.ask(house.alice, "SELECT count(*) FROM pg_stats WHERE schemaname = current_schema()") == [(0,)]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE sessions SET title = 'xylophone plan' WHERE id = 'alices'",
        "UPDATE sessions SET id = 'bobs' WHERE id = 'alices'",
        "UPDATE sessions SET user_id = '2' WHERE id = 'alices'",
        "INSERT INTO sessions(id, source, user_id, started_at, title) VALUES('new', 'telegram', '1', 1, 'xylophone plan')",
        "INSERT INTO sessions(id, source, user_id, started_at) VALUES('bobs', 'telegram', '1', 1)",
        "INSERT INTO session_members(session_id, source, user_id) VALUES('bobs', 'telegram', '1')",
        "INSERT INTO session_refs(session_id, ord, from_session, first_id, last_id) VALUES('alices', 1, 'bobs', 0, 99)",
        "INSERT INTO words(word) VALUES('xylophone')",
        "INSERT INTO attachments(hash, message_id) VALUES('0', 1)",
        "INSERT INTO hermes_tenants VALUES(session_user, 'telegram', '2')",
        "UPDATE hermes_tenants SET user_id = '2'",
        "DELETE FROM messages",
        "DELETE FROM sessions WHERE id = 'bobs'",
        "UPDATE messages SET content = ''",
        "TRUNCATE messages",
        "COPY sessions (id, source, started_at) FROM STDIN",
        "ALTER TABLE sessions DISABLE ROW LEVEL SECURITY",
        "CREATE POLICY mine ON sessions USING (true)",
        "CREATE VIEW peek AS SELECT 1",
        "SELECT nextval('messages_id_seq')",
    ],
)
def test_what_could_collide_with_anothers_rows_is_refused_whether_it_would_or_not(house: House, sql: str) -> None:
    """A unique title that is taken, an id that exists: the answer is the same as for one that is free."""
    free = sql.replace("xylophone", "free").replace("bobs", "free")
    for tables, kind in ((True, psycopg.errors.InsufficientPrivilege), (False, psycopg.Error)):
        with pytest.raises(kind) as told:
            house.do(house.alice, sql, tables=tables)
        assert SECRET not in str(told.value)
        with pytest.raises(type(told.value)) as same:
            house.do(house.alice, free, tables=tables)
        assert told.value.diag.message_primary == same.value.diag.message_primary
        assert told.value.diag.message_detail == same.value.diag.message_detail


def test_a_tenant_marks_and_trashes_its_own_sessions_only(fresh: House) -> None:
    assert fresh.do(fresh.alice, "UPDATE sessions SET pinned_at = 1 WHERE pinned_at IS NULL") == 1  # not the shared one
    assert fresh.do(fresh.alice, "UPDATE sessions SET trashed_at = 1 WHERE id IN ('bobs', 'shared', 'nobodys')") == 0
    assert fresh.do(fresh.bob, "UPDATE sessions SET trashed_at = 1 WHERE id = 'shared'") == 1
    assert fresh.ask(fresh.alice, "SELECT id FROM sessions") == [("alices",)]  # what is in the trash is shared no more
    assert fresh.ask(fresh.alice, "SELECT count(*) FROM message_words") == [(1,)]
    assert fresh.do(fresh.bob, "UPDATE sessions SET trashed_at = NULL WHERE id = 'shared'") == 1
    assert fresh.ask(fresh.alice, "SELECT count(*) FROM sessions") == [(2,)]


def test_a_setting_or_another_role_does_not_make_one_somebody_else(house: House) -> None:
    with psycopg.connect(house.of(house.alice), autocommit=True) as connection:
        for sql in (f'SET ROLE "{house.bob.replace(chr(34), chr(34) * 2)}"', "SET SESSION AUTHORIZATION postgres"):
            with pytest.raises(psycopg.Error):
                connection.execute(sql.encode())
        connection.execute(b"SET row_security = off")
        row = connection.execute(b"SELECT count(*) FROM sessions").fetchone()
        assert row == (2,)
    with psycopg.connect(
        house.of("postgres"), autocommit=True
    ) as connection:  # somebody who may be both, one at a time
        connection.execute(f'SET ROLE "{house.alice}"'.encode())
        row = connection.execute(b"SELECT count(*) FROM sessions").fetchone()
    assert row == (2,)


def test_a_temporary_table_of_the_tenants_does_not_stand_in_for_one_of_the_store(house: House) -> None:
    with psycopg.connect(house.of(house.alice), autocommit=True) as connection:
        connection.execute(b"CREATE TEMP TABLE hermes_tenants (role text, source text, user_id text)")
        connection.execute(b"INSERT INTO hermes_tenants VALUES(session_user, 'telegram', '2')")
        row = connection.execute(b"SELECT count(*) FROM messages").fetchone()
    assert row == (2,)


def test_a_prompt_is_whole_for_its_tenant_though_it_is_stored_as_the_end_of_anothers(house: House) -> None:
    for role, end in ((house.alice, "Alice likes tea."), (house.bob, f"Bob has a {SECRET}.")):
        row = house.ask(role, "SELECT system_prompt FROM visible_sessions WHERE id IN ('alices', 'bobs')")[0]
        assert row == (BEGINNING + end,)
    for role, theirs in ((house.alice, "Bob"), (house.bob, "Alice")):
        assert theirs not in repr(house.ask(role, "SELECT text FROM system_prompts"))


def test_carried_messages_are_seen_through_the_session_that_carries_them(fresh: House) -> None:
    with SessionDB(url=fresh.url) as db:
        db.share_session("bobs-branch", "telegram", "1")
    found = fresh.ask(fresh.alice, "SELECT content FROM visible_messages WHERE session_id = 'bobs-branch'")
    assert any(SECRET in content for (content,) in found)
    assert fresh.ask(fresh.alice, "SELECT count(*) FROM sessions WHERE id = 'bobs'") == [(0,)]
    with SessionDB(url=fresh.url) as db:
        db.delete_session("bobs-branch")
    assert fresh.ask(fresh.alice, "SELECT count(*) FROM messages WHERE session_id = 'bobs'") == [(0,)]


@pytest.mark.parametrize("tables", [True, False])
def test_the_program_itself_reads_lists_and_searches_as_a_tenant(house: House, tables: bool) -> None:
    """By the URL that the owner uses, with another user's name, as well as with the tenants' schema in it."""
    with SessionDB(url=house.of(house.alice, tables=tables), read_only=True) as db:
        assert {row["id"] for row in db.list_sessions_rich()} == {"alices", "shared"}
        assert [hit["session_id"] for hit in db.search_messages("teapot")] == ["alices"]
        assert [hit["session_id"] for hit in db.search_messages("trumpet")] == ["shared"]
        assert db.search_messages(SECRET) == []
        assert db.search_messages("xylo") == []
        assert db.get_session("bobs") is None
        session = db.get_session("alices")
        assert session is not None
        assert session["system_prompt"] == BEGINNING + "Alice likes tea."
        assert [row["content"] for row in db.get_messages("shared")] == ["a trumpet for both"]
        assert db.sql("SELECT count(*) AS number FROM messages") == [{"number": 2}]


def test_the_program_marks_a_tenants_own_sessions_and_writes_nothing_else(fresh: House, tmp_path: Path) -> None:
    with SessionDB(url=fresh.of(fresh.alice, tables=True)) as db:
        for write in (
            lambda: db.append_message("alices", "user", "by Alice herself"),
            lambda: db.create_session("new", "telegram", user_id="1"),
            lambda: db.set_session_title("alices", f"{SECRET} plan"),
            lambda: db.set_session_title("alices", "free"),
            lambda: db.delete_session("alices"),
        ):
            with pytest.raises(StoreReadOnly, match="only the owner can do more"):
                write()
        assert len(db.get_messages("alices")) == 1
    home, at = tmp_path / "home", {"HERMES_STORE_URL": fresh.of(fresh.alice, tables=True)}
    for words, status in (
        (["sessions", "pin", "alices"], 0),
        (["sessions", "pin", "shared"], 1),
        (["sessions", "archive", "alices"], 0),
        (["sessions", "show", "alices"], 0),
        (["sessions", "show", "bobs"], 1),
        (["sessions", "search", "teapot"], 0),
        (["sessions", "stats"], 0),
        (["sessions", "backup", str(tmp_path / "x.db")], 1),
    ):
        done = run(*words, home=home, env=at)
        assert done.status == status and done.err.count("\n") <= 1 and SECRET not in done.out + done.err, done
    assert list(tmp_path.glob("x.db*")) == [], "a backup that was refused leaves nothing"
    marks = "SELECT pinned_at IS NOT NULL, archived_at IS NOT NULL FROM sessions WHERE id = "
    assert fresh.ask(fresh.alice, f"{marks}'alices'") == [(True, True)]
    assert fresh.ask(fresh.bob, f"{marks}'shared'") == [(False, False)]


def test_a_tenant_finds_its_own_message_that_is_not_indexed_yet(fresh: House) -> None:
    with patient(fresh.url, at_the_end=0.0) as db:
        db.append_message("alices", "user", "a saucer, not indexed")
        db.append_message("bobs", "user", "a saucer of Bob's, not indexed")
    with SessionDB(url=fresh.of(fresh.alice), read_only=True) as db:
        assert [hit["session_id"] for hit in db.search_messages("saucer")] == ["alices"]
        assert [hit["session_id"] for hit in db.search_messages("auce")] == ["alices"]


def test_the_owner_sees_and_writes_everything_as_before(fresh: House) -> None:
    with SessionDB(url=fresh.url) as db:
        assert db.session_count() == 5
        assert len(db.search_messages(SECRET)) >= 2
        db.append_message("alices", "user", "written by the program")
        assert db.check() == []
    assert fresh.ask(fresh.alice, "SELECT count(*) FROM messages WHERE content = 'written by the program'") == [(1,)]


def test_tables_made_later_are_closed_even_to_who_is_granted_everything(fresh: House) -> None:
    with SessionDB(url=fresh.url) as db:
        received(GatewayDB(db), "telegram", "1", "key", SECRET)
    place = fresh.place
    fresh.server.sql(f'GRANT SELECT ON ALL TABLES IN SCHEMA {place} TO "{fresh.alice}"')
    for table in (
        "gateway_people",
        "gateway_inbox",
        "gateway_outbox",
        "gateway_routes",
        "sessions",
        "messages",
        *CLOSED,
    ):
        assert fresh.ask(fresh.alice, f"SELECT count(*) FROM {place}.{table}") == [(0,)], table


def test_who_is_shut_out_sees_nothing_and_off_is_as_before(fresh: House) -> None:
    assert tenants.tenants(fresh.url) == sorted([(fresh.alice, "telegram", "1"), (fresh.bob, "telegram", "2")])
    assert len(tenants.switch_on(fresh.url, without=[fresh.alice]).tenants) == 1
    with pytest.raises(InvalidInput, match="not a tenant"):
        tenants.switch_on(fresh.url, without=[fresh.alice])
    with pytest.raises(psycopg.Error):
        fresh.ask(fresh.alice, "SELECT id FROM sessions")
    tenants.switch_on(fresh.url)  # again, as after an upgrade
    assert fresh.ask(fresh.bob, "SELECT count(*) FROM sessions WHERE id = 'alices'") == [(0,)]
    tenants.switch_off(fresh.url)
    assert tenants.tenants(fresh.url) == []
    with pytest.raises(psycopg.Error):
        fresh.ask(fresh.bob, "SELECT id FROM sessions")
    with SessionDB(url=fresh.url) as db:
        assert db.session_count() == 5


def test_only_a_role_that_exists_and_is_not_the_owner_can_be_a_tenant(house: House) -> None:
    with pytest.raises(InvalidInput, match="no database role"):
        tenants.switch_on(house.url, [("nobody_of_that_name", "telegram", "1")])
    with pytest.raises(InvalidInput, match="sees everything"):
        tenants.switch_on(house.url, [("postgres", "telegram", "1")])
    with pytest.raises(StoreError):  # a tenant can't let anybody in
        tenants.switch_on(house.of(house.alice), [(house.alice, "telegram", "2")])


def test_a_role_that_is_gone_holds_up_nothing_and_is_no_tenant_any_more(fresh: House) -> None:
    fresh.server.sql(f'DROP OWNED BY "{fresh.alice}"', f'DROP ROLE "{fresh.alice}"')
    try:
        SessionDB(url=fresh.url).close()
        apart = tenants.switch_on(fresh.url)
        assert fresh.alice in apart.remarks[0] and len(apart.tenants) == 1
        assert [row[0] for row in tenants.tenants(fresh.url)] == [fresh.bob]
        assert fresh.ask(fresh.bob, "SELECT count(*) FROM sessions") == [(3,)]
    finally:
        fresh.server.sql(f'CREATE ROLE "{fresh.alice}" LOGIN')
    with pytest.raises(psycopg.Error):  # a namesake
        fresh.ask(fresh.alice, "SELECT id FROM sessions")

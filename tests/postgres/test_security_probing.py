"""A tenant that asks cleverly learns nothing of another's rows: plans, counters, estimates, errors, locks."""

from __future__ import annotations

import hashlib
import re

import psycopg
import pytest

from hermes.store.engines.postgres import migrate
from hermes_state import SessionDB
from tests.support.sizes import some

from .houses import BEGINNING, SECRET, House

PLANS = (
    "",
    "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off",
    "SET enable_seqscan = off",
    "SET enable_seqscan = off; SET enable_indexscan = off; SET plan_cache_mode = force_generic_plan",
)
# A question, and two values for it: one that a row of Bob's answers, and one that none does. Alice's rows answer both alike.
QUESTIONS = {
    "the beginning of a message": (
        "SELECT 1 FROM messages WHERE id = {bob} AND content >= %s",
        "x",
        "zzzz",
    ),
    "whose a message is": ("SELECT 1 FROM messages WHERE session_id = %s", "bobs", "free"),
    "a title": ("SELECT 1 FROM sessions WHERE title = %s", f"{SECRET} plan", f"{SECRET} none"),
    "an id": ("SELECT 1 FROM sessions WHERE id = %s", "bobs", "free"),
    "a text among what is shown": ("SELECT 1 FROM visible_messages WHERE content >= %s", "xylophone", "xyz"),
    "a prompt": ("SELECT 1 FROM system_prompts WHERE text >= %s", f"{BEGINNING}B", f"{BEGINNING}C"),
    "a tag": ("SELECT 1 FROM session_tags WHERE tag = %s", SECRET, "none"),
    "a user": ("SELECT 1 FROM hermes_tenants WHERE user_id = %s", "2", "3"),
    "what is carried": ("SELECT 1 FROM session_refs WHERE from_session = %s", "bobs", "free"),
    "a word": ("SELECT 1 FROM message_words WHERE words @@ %s::tsquery", SECRET, "free"),
    "a listed word": ("SELECT 1 FROM words WHERE word >= %s", SECRET, "zzz"),
    "two tables": (
        "SELECT 1 FROM messages m JOIN sessions s ON s.id = m.session_id WHERE s.title >= %s",
        "xylophone pl",
        "xylophone pz",
    ),
}


def _told(connection: psycopg.Connection[object], sql: str, value: str) -> str:
    """All that EXPLAIN says of a question: the plan, estimates, rows, rows removed, pages, what was never executed."""
    literal = f"'{value}'"
    asked = f"EXPLAIN (ANALYZE, BUFFERS, VERBOSE, TIMING OFF, SUMMARY OFF) {sql.replace('%s', literal)}".encode()
    for _ in range(6):  # the last time everything is in memory that stays there
        rows = connection.execute(asked).fetchall()
    text = "\n".join(str(row[0]) for row in rows)  # type: ignore[index]
    return re.sub(r"Planning:\n.*", "", text, flags=re.DOTALL).replace(literal, "…").replace(f" {value})", " …)")


def _probed(house: House, name: str, settings: str) -> tuple[str, str]:
    sql, match, miss = QUESTIONS[name]
    if "{bob}" in sql:
        with psycopg.connect(house.url) as connection:
            row = connection.execute(b"SELECT min(id) FROM messages WHERE session_id = 'bobs'").fetchone()
        sql = sql.format(bob=row[0] if row else 0)
    with psycopg.connect(house.of(house.alice), autocommit=True) as connection:
        if settings:
            connection.execute(settings.encode())
        return _told(connection, sql, match), _told(connection, sql, miss)


@pytest.mark.parametrize("name", QUESTIONS)
def test_explain_says_the_same_whether_anothers_row_matches_or_not(house: House, name: str) -> None:
    for settings in PLANS:
        for _ in range(3):  # what autovacuum changes in between differs once, a leak each time
            matching, missing = _probed(house, name, settings)
            if matching == missing:
                break
        assert matching == missing, settings


def test_statistics_of_many_alike_rows_do_not_show_in_an_estimate(fresh: House) -> None:
    with SessionDB(url=fresh.url) as db:
        for number in range(60):
            db.create_session(f"b{number}", "telegram", user_id="2", model="bobs-model", parent_session_id=None)
        for _ in range(60):
            db.append_message("bobs", "user", "always the same words")
    with psycopg.connect(fresh.url, autocommit=True) as connection:
        for table in ("sessions", "messages"):
            connection.execute(f"ANALYZE {fresh.place}.{table}".encode())
    with psycopg.connect(fresh.of(fresh.alice), autocommit=True) as connection:
        for sql, match, miss in (
            ("SELECT 1 FROM sessions WHERE model = %s", "bobs-model", "no-model"),
            ("SELECT 1 FROM sessions WHERE coalesce(model, 'x') = %s", "bobs-model", "no-model"),
            ("SELECT 1 FROM messages WHERE content = %s", "always the same words", "never such words"),
            ("SELECT 1 FROM messages WHERE content > %s", "always", "b"),
            ("SELECT DISTINCT model FROM sessions WHERE model < %s", "bobs-model", "no-model"),
        ):
            assert _told(connection, sql, match) == _told(connection, sql, miss)


# ---------------------------------------------------------------------------------------------------- holding up others


@pytest.mark.parametrize(
    "sql",
    some(
        [
            "SELECT id FROM sessions FOR UPDATE",
            "SELECT id FROM sessions FOR KEY SHARE",
            "SELECT id FROM visible_sessions FOR UPDATE",
            "SELECT pg_advisory_lock(%s)",
            "SELECT pg_advisory_lock(n) FROM generate_series(0, 1000) n",
            "SELECT version FROM hermes_migrations",
            "LOCK TABLE sessions IN ACCESS SHARE MODE",
            "LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE",
            "LOCK TABLE messages IN SHARE MODE",
            "LOCK TABLE {0}.hermes_migrations IN ACCESS SHARE MODE",
            "LOCK TABLE {0}.sessions IN ROW SHARE MODE",
        ],
        5,
    ),
)
def test_a_tenant_in_the_middle_of_a_transaction_holds_up_no_writer(fresh: House, sql: str) -> None:
    key = int.from_bytes(hashlib.sha256(f"hermes {fresh.place}".encode()).digest()[:8], "big", signed=True)
    with psycopg.connect(fresh.of(fresh.alice)) as holding:
        try:
            holding.execute(sql.format(fresh.place).replace("%s", str(key)).encode())
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported):
            assert "LOCK TABLE" in sql or " FOR " in sql
            return
        with SessionDB(url=fresh.url) as db:
            db.create_session("new", "telegram", user_id="2")
            db.append_message("shared", "user", "Bob goes on")
            db.set_session_title("shared", "goes on")
            db.delete_session("bobs-branch")


def test_the_steps_of_the_store_can_be_locked_by_its_owner_only(house: House) -> None:
    for mode in ("ACCESS SHARE", "SHARE ROW EXCLUSIVE", "ACCESS EXCLUSIVE"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(house.of(house.alice)) as connection:
            connection.execute(f"LOCK TABLE {house.place}.hermes_migrations IN {mode} MODE".encode())
    assert house.ask(house.alice, "SELECT version FROM hermes_migrations") == [(migrate.VERSION,)]

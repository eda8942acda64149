"""Listing: newest first, a chain once, a short preview, and pages that neither skip nor repeat."""

from __future__ import annotations

import time

import pytest

from . import ids, talk

T0 = 1_700_000_000.0


def at(db, session_id, second, *texts, source="cli", **columns):
    """A session that starts at T0 + second and speaks at that moment."""
    db.create_session(session_id, source, started_at=T0 + second, **columns)
    for n, text in enumerate(texts):
        db.append_message(session_id, ("user", "assistant")[n % 2], text, timestamp=T0 + second)


def listed(db, **kw):
    return ids(db.list_sessions_rich(**kw))


# ------------------------------------------------------------------ order, filters, pages


def test_newest_start_first(db):
    for name, second in (("b", 2), ("a", 1), ("c", 3)):
        at(db, name, second, "hi")
    db.append_message("a", "user", "the latest word")
    assert listed(db) == ["c", "b", "a"]
    assert listed(db, order_by_last_active=True)[0] == "a"


def test_order_by_last_active_counts_the_start_of_sessions_without_messages(db):
    at(db, "silent", 50)
    at(db, "early", 1, "x")
    at(db, "late", 2, "x")
    db.append_message("early", "user", "y", timestamp=T0 + 99)
    assert listed(db, order_by_last_active=True) == ["early", "silent", "late"]


def test_source_and_excluded_sources(db):
    for n, source in enumerate(["cli", "telegram", "cron", "cli"]):
        at(db, f"{source}{n}", n, "x", source=source)
    assert listed(db, source="cli") == ["cli3", "cli0"]
    assert listed(db, exclude_sources=["cron", "telegram"]) == ["cli3", "cli0"]
    assert listed(db, source="nothing") == []
    assert listed(db, exclude_sources=[]) == ["cli3", "cron2", "telegram1", "cli0"]
    assert listed(db, source="cli", exclude_sources=["cli"]) == []


def test_twenty_at_most_unless_asked(db):
    for n in range(25):
        at(db, f"s{n:02}", n, "x")
    assert len(listed(db)) == 20
    assert len(listed(db, limit=100)) == 25
    assert listed(db, limit=0) == []
    assert listed(db, offset=100) == []


@pytest.mark.parametrize("by_activity", [False, True])
@pytest.mark.parametrize("page", [1, 3, 7])
def test_pages_have_no_gaps_and_no_doubles(db, page, by_activity):
    """Many sessions share one second: the order among them must still be the same from page to page."""
    for n in range(12):
        at(db, f"s{n}", n // 4, "x")
    db.compress_session("s3", "tip", summary="s")
    db.create_session("sub", "cli", parent_session_id="s5", kind="subagent")
    whole = listed(db, limit=100, order_by_last_active=by_activity)
    pages = [
        row
        for offset in range(0, len(whole) + page, page)
        for row in listed(db, limit=page, offset=offset, order_by_last_active=by_activity)
    ]
    assert pages == whole
    assert sorted(whole) == sorted(["tip", *(f"s{n}" for n in range(12) if n != 3)])


def test_rows_hold_the_session_and_its_preview_and_last_activity(db):
    at(db, "s", 1, "hello", "hi")
    db.append_message("s", "user", "later", timestamp=T0 + 77)
    db.set_session_title("s", "t")
    (row,) = db.list_sessions_rich()
    session = db.get_session("s")
    for name in ("source", "model", "started_at", "title", "message_count", "ended_at", "parent_session_id"):
        assert row[name] == session[name]
    assert row["last_active"] == T0 + 77 and row["preview"] == "hello"


# ------------------------------------------------------------------ preview


@pytest.mark.parametrize(
    ("text", "preview"),
    [
        ("short", "short"),
        ("  spaces \n\n and\tlines  ", "spaces and lines"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 60 + "..."),
        ("部" * 61, "部" * 60 + "..."),
        ("a\u3000b\u00a0c", "a b c"),
        ("word " * 100_000, ("word " * 12) + "..."),
    ],
)
def test_previews_are_folded_and_cut_at_sixty(db, text, preview):
    at(db, "s", 1, text)
    (row,) = db.list_sessions_rich()
    assert row["preview"].replace(" ...", "...") == preview.replace(" ...", "...")


def test_the_preview_is_the_first_user_message(db):
    db.create_session("s", "cli")
    db.append_message("s", "system", "be kind")
    db.append_message("s", "assistant", "welcome")
    assert db.list_sessions_rich()[0]["preview"] == ""
    db.append_message("s", "user", "first question")
    db.append_message("s", "user", "second question")
    assert db.list_sessions_rich()[0]["preview"] == "first question"


# ------------------------------------------------------------------ chains


def chain(db):
    """old (1) · root (2) → middle → tip · new (3): the chain has its root's place."""
    at(db, "old", 1, "x")
    at(db, "root", 2, "how it began", "ok")
    at(db, "new", 3, "x")
    db.compress_session("root", "middle", summary="first summary")
    db.append_message("middle", "user", "in the middle")
    db.compress_session("middle", "tip", summary="second summary", summary_role="system")
    db.append_message("tip", "user", "at the end")
    db.update_token_counts("tip", input_tokens=77)


def test_a_chain_is_shown_once_as_its_tip_in_the_roots_place(db):
    chain(db)
    rows = db.list_sessions_rich()
    assert ids(rows) == ["new", "tip", "old"]
    row, tip = rows[1], db.get_session("tip")
    assert row["_lineage_root_id"] == "root"
    assert row["input_tokens"] == 77 and row["message_count"] == tip["message_count"]
    assert row["preview"] == "at the end"
    assert row["ended_at"] is None and row["end_reason"] is None
    assert row["last_active"] >= T0 + 1000


def test_a_chain_made_by_hand_is_shown_as_its_tip_too(db):
    at(db, "root", 1, "how it began")
    db.end_session("root", "compression")
    db.create_session("tip", "cli", parent_session_id="root", started_at=time.time() + 1)
    db.append_message("tip", "user", "how it went on")
    (row,) = db.list_sessions_rich()
    assert (row["id"], row["_lineage_root_id"], row["preview"]) == ("tip", "root", "how it went on")


def test_by_last_activity_a_chain_counts_with_its_tip(db):
    chain(db)
    assert listed(db, order_by_last_active=True)[0] == "tip"


def test_without_projection_the_root_is_shown(db):
    chain(db)
    assert listed(db, project_compression_tips=False) == ["new", "root", "old"]
    row = db.list_sessions_rich(project_compression_tips=False)[1]
    assert row["preview"] == "how it began" and row["end_reason"] == "compression"


def test_a_chain_without_a_tip_shows_its_root(db):
    at(db, "root", 1, "x")
    db.end_session("root", "compression")
    assert listed(db) == ["root"]


@pytest.mark.parametrize("kind", [None, "subagent", "compression"])
def test_children_are_hidden(db, kind):
    at(db, "a", 1, "x")
    at(db, "b", 2, "x", parent_session_id="a", kind=kind)
    assert listed(db) == ["a"]
    assert set(listed(db, include_children=True)) == {"a", "b"}


def test_what_began_after_a_reset_is_a_conversation_of_its_own(db):
    at(db, "a", 1, "x")
    db.end_session("a", "idle")
    at(db, "b", 2, "x", parent_session_id="a", kind="reset")
    at(db, "c", 3, "x", parent_session_id="b", kind="reset")
    for more in ({}, {"order_by_last_active": True}, {"include_children": True}):
        assert set(listed(db, **more)) == {"a", "b", "c"}


def test_branches_are_listed(db):
    talk(db, "a", "x", "y")
    db.branch_session("a", "b")
    assert set(listed(db)) == {"a", "b"}


def test_a_child_of_a_parent_that_ended_as_branched_is_listed(db):
    at(db, "a", 1, "x")
    db.end_session("a", "branched")
    db.create_session("b", "cli", parent_session_id="a", started_at=time.time() + 1)
    assert set(listed(db)) == {"a", "b"}


# ------------------------------------------------------------------ recent sessions and counts


def test_counts(db):
    assert db.session_count() == 0 and db.message_count() == 0
    at(db, "a", 1, "x", "y")
    at(db, "b", 2, "x", source="telegram")
    assert db.session_count() == 2
    assert db.session_count(source="cli") == db.session_count("telegram") == 1
    assert db.session_count("nothing") == 0
    assert db.message_count() == 3 and db.message_count("a") == 2
    assert db.message_count(session_id="nobody") == 0


# ------------------------------------------------------------------ system prompts


def test_a_list_has_each_session_s_system_prompt_however_often_it_is_asked(db):
    beginning = "You are careful and say only what you know. " * 60
    prompts = {
        "a": beginning,
        "b": beginning + "Today is Monday.",
        "c": beginning + "Today is Monday.",
        "d": None,
        "e": "short",
        "f": "a lone \ud800 surrogate",
        "g": beginning + "Grüße, 日本, \U0001f600",
    }
    for second, (name, prompt) in enumerate(prompts.items()):
        at(db, name, second, "hi", system_prompt=prompt)

    def seen():
        return {row["id"]: row["system_prompt"] for row in db.list_sessions_rich()}

    assert seen() == prompts
    prompts["a"], prompts["d"] = "another one", beginning + "Today is Monday."
    for name in ("a", "d"):
        db.update_system_prompt(name, prompts[name])
    assert seen() == prompts
    assert all(db.get_session(name)["system_prompt"] == prompt for name, prompt in prompts.items())

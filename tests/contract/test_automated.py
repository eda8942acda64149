"""Sessions that no person held: of jobs, batches and sub-agents, and single questions that were not continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.chat.resume import latest

from . import ids

T0 = 1_700_000_000.0
AUTOMATED = {"job", "many", "helper", "once"}


@pytest.fixture
def mixed(db):
    """Conversations and automated sessions, each with one message about herons; the automated ones are the newest."""
    for n, (name, source, columns) in enumerate([
        ("talk", "cli", {}),
        ("branch", "telegram", {"parent_session_id": "talk", "kind": "branch"}),
        ("over", "cli", {}),
        ("job", "cron", {}),
        ("many", "batch", {}),
        ("helper", "cli", {"parent_session_id": "talk", "kind": "subagent"}),
        ("once", "cli", {}),
    ]):  # fmt: skip
        db.create_session(name, source, started_at=T0 + n, **columns)
        db.append_message(name, "user", "how do herons sleep at night", timestamp=T0 + n)
    db.end_session("over", "closed")
    db.end_session("once", "oneshot")
    return db


@pytest.mark.parametrize(
    "query", ["herons", "how do herons sleep?", "where do herons go on holiday?", "eron", '"herons sleep"']
)
def test_search_leaves_them_out_where_that_is_asked(mixed, query):
    def sessions(**kw):
        return {hit["session_id"] for hit in mixed.search_messages(query, limit=50, **kw)}

    assert sessions(automated=False) == {"talk", "branch", "over"}
    assert sessions() == sessions(automated=True) == {"talk", "branch", "over"} | AUTOMATED
    assert sessions(automated=False, source_filter=["cron"]) == set()


def test_a_single_question_that_is_continued_is_a_conversation(mixed):
    mixed.reopen_session("once")
    assert "once" in {hit["session_id"] for hit in mixed.search_messages("herons", automated=False)}


def test_lists_leave_them_out_or_show_all_of_them(mixed):
    def listed(**kw):
        return set(ids(mixed.list_sessions_rich(**kw)))

    for by_activity in (False, True):
        assert listed(automated=False, order_by_last_active=by_activity) == {"talk", "branch", "over"}
        assert listed(automated=True, order_by_last_active=by_activity) == {"talk", "branch", "over"} | AUTOMATED
        assert listed(order_by_last_active=by_activity) == {"talk", "branch", "over"} | AUTOMATED - {"helper"}
    assert ids(mixed.list_sessions_rich(limit=1, offset=1, automated=False)) == ["branch"]
    assert listed(automated=False, source="cron") == listed(automated=False, visible_to=("cron", "u")) == set()


def test_how_many_a_list_leaves_out(mixed):
    assert mixed.automated_count() == len(AUTOMATED)
    mixed.archive_session("many")
    mixed.end_session("job", "compression")
    mixed.create_session("job2", "cron", parent_session_id="job", kind="compression", cwd="/work/birds")
    assert mixed.automated_count() == len(AUTOMATED) - 1  # what was compressed is one run
    assert (mixed.automated_count(cwd="/work"), mixed.automated_count(cwd="/wor")) == (1, 0)
    assert mixed.automated_count(visible_to=("cli", "nobody")) == 0


@pytest.mark.parametrize("query", ["herons", "how do herons sleep?", "where do herons go on holiday?", "eron", "::"])
def test_search_ranks_them_below_conversations(mixed, query):
    for name in ("once", "talk", "job"):
        mixed.append_message(name, "assistant", "std::herons sleep standing on one leg, herons::night")

    def sessions(**kw):
        return [hit["session_id"] for hit in mixed.search_messages(query, limit=kw.pop("limit", 50), **kw)]

    order = [name in AUTOMATED for name in sessions()]
    assert order == sorted(order) and set(order) == {False, True}
    assert [sessions(limit=1, offset=n)[0] for n in range(len(order))] == sessions()
    assert set(sessions(source_filter=["cron"])) == {"job"}


def test_a_conversation_is_continued_before_a_single_question(mixed):
    mixed.create_session("alone", "cli", started_at=T0, cwd="/work/alone")
    mixed.append_message("alone", "user", "what is a lens?", timestamp=T0)
    mixed.end_session("alone", "oneshot")
    assert (latest(mixed, None, once=False), latest(mixed, None, once=True)) == ("over", "once")
    assert latest(mixed, Path("/work/alone"), once=False) == "alone"  # there is nothing else

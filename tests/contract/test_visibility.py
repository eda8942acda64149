"""Visibility: a caller sees its own user's sessions and those shared with it.

The user is (source, user id); None is the owner, who sees all.
"""

from __future__ import annotations

import pytest

from . import ids, talk

ME = ("telegram", "111")
OTHERS = {
    "2025_other_user": ("telegram", "222"),
    "2025_other_source": ("discord", "111"),
    "2025_terminal": ("cli", None),
    "2025_no_user": ("telegram", None),
}


@pytest.fixture
def house(db):
    """One session of mine, one for each kind of stranger; all say the same word."""
    talk(db, "2025_mine", "the okapi of mine 秘密", "reply", source="telegram", user_id="111")
    db.set_session_title("2025_mine", "title of 2025_mine")
    for name, (source, user_id) in OTHERS.items():
        talk(db, name, f"the okapi of {name} 秘密", "reply", source=source, user_id=user_id)
        db.set_session_title(name, f"title of {name}")
    return db


BY_ID = {
    "get_session": lambda db, s, v: db.get_session(s, visible_to=v),
    "get_messages": lambda db, s, v: db.get_messages(s, visible_to=v),
    "conversation": lambda db, s, v: db.get_messages_as_conversation(s, visible_to=v),
    "conversation with ancestors": lambda db, s, v: db.get_messages_as_conversation(
        s, include_ancestors=True, visible_to=v
    ),
    "get_session_by_title": lambda db, s, v: db.get_session_by_title(f"title of {s}", visible_to=v),
    "resolve_session_by_title": lambda db, s, v: db.resolve_session_by_title(f"title of {s}", visible_to=v),
    "resolve_session_id": lambda db, s, v: db.resolve_session_id(s, visible_to=v),
    "resolve a prefix": lambda db, s, v: db.resolve_session_id(s[:-1], visible_to=v),
    "message_count": lambda db, s, v: db.message_count(s, visible_to=v),
    "export_session": lambda db, s, v: db.export_session(s, visible_to=v),
    "search, ids given": lambda db, s, v: db.search_messages("okapi", session_ids=[s], visible_to=v),
    "search, source given": lambda db, s, v: [
        hit
        for hit in db.search_messages("okapi", source_filter=[OTHERS.get(s, ME)[0]], visible_to=v)
        if hit["session_id"] == s
    ],
}

ALL = {
    "list_sessions_rich": lambda db, v: ids(db.list_sessions_rich(limit=100, visible_to=v)),
    "list by activity": lambda db, v: ids(db.list_sessions_rich(limit=100, order_by_last_active=True, visible_to=v)),
    "list with children": lambda db, v: ids(db.list_sessions_rich(limit=100, include_children=True, visible_to=v)),
    "list unprojected": lambda db, v: ids(
        db.list_sessions_rich(limit=100, project_compression_tips=False, visible_to=v)
    ),
    "search_sessions": lambda db, v: ids(db.search_sessions(limit=100, visible_to=v)),
    "export_all": lambda db, v: ids(db.export_all(visible_to=v)),
    "iter_export": lambda db, v: ids(db.iter_export(visible_to=v)),
    "search word": lambda db, v: [hit["session_id"] for hit in db.search_messages("okapi", limit=100, visible_to=v)],
    "search prefix": lambda db, v: [hit["session_id"] for hit in db.search_messages("oka*", limit=100, visible_to=v)],
    "search cjk": lambda db, v: [hit["session_id"] for hit in db.search_messages("秘", limit=100, visible_to=v)],
    "search substring": lambda db, v: [hit["session_id"] for hit in db.search_messages("kap", limit=100, visible_to=v)],
    "search or": lambda db, v: [
        hit["session_id"] for hit in db.search_messages("okapi OR 密", limit=100, visible_to=v)
    ],
    "search question": lambda db, v: list(  # a message beside the answer is a hit as well
        {hit["session_id"] for hit in db.search_messages("where did the okapi wander off", limit=100, visible_to=v)}
    ),
}


@pytest.mark.parametrize("call", BY_ID)
def test_ones_own_session_is_seen_and_another_users_is_not(house, call):
    assert BY_ID[call](house, "2025_mine", ME) == BY_ID[call](house, "2025_mine", None)
    assert BY_ID[call](house, "2025_mine", ME)
    for stranger in OTHERS:
        assert BY_ID[call](house, stranger, None), "the owner sees it"
        assert not BY_ID[call](house, stranger, ME), stranger


@pytest.mark.parametrize("call", ALL)
def test_a_reading_of_everything_shows_only_ones_own(house, call):
    assert sorted(ALL[call](house, None)) == sorted(["2025_mine", *OTHERS])
    assert ALL[call](house, ME) == ["2025_mine"]
    assert ALL[call](house, ("telegram", "999")) == []


@pytest.mark.parametrize("call", BY_ID)
def test_a_shared_session_is_seen_by_those_it_is_shared_with(house, call):
    house.share_session("2025_other_user", "telegram", "111")
    assert BY_ID[call](house, "2025_other_user", ME)
    assert BY_ID[call](house, "2025_other_user", ("telegram", "222")), "its own user still sees it"
    assert not BY_ID[call](house, "2025_other_user", ("discord", "111"))
    assert not BY_ID[call](house, "2025_other_user", ("telegram", "333"))


@pytest.mark.parametrize("call", ALL)
def test_shared_sessions_are_among_ones_own(house, call):
    house.share_session("2025_terminal", *ME)
    house.share_session("2025_terminal", *ME)
    assert sorted(ALL[call](house, ME)) == ["2025_mine", "2025_terminal"]


def test_counts_are_of_what_one_sees(house):
    assert house.session_count() == 5 and house.message_count() == 10
    assert house.session_count(visible_to=ME) == 1 and house.message_count(visible_to=ME) == 2
    assert house.session_count("telegram", visible_to=ME) == 1
    assert house.session_count("discord", visible_to=ME) == 0


def test_a_source_argument_does_not_widen_what_one_sees(house):
    assert ids(house.list_sessions_rich(source="discord", visible_to=ME)) == []
    assert ids(house.export_all(source="cli", visible_to=ME)) == []
    assert ids(house.search_sessions(source="discord", visible_to=ME)) == []
    assert house.search_messages("okapi", user_id="222", visible_to=ME) == []


def test_a_prefix_that_only_strangers_share_is_not_ambiguous(house):
    """None would tell that other sessions exist."""
    assert house.resolve_session_id("2025", visible_to=ME) == "2025_mine"
    assert house.resolve_session_id("2025") is None


def test_the_newest_of_a_family_is_the_newest_one_sees(db):
    db.create_session("a", "telegram", user_id="111")
    db.create_session("b", "telegram", user_id="222")
    db.set_session_title("a", "x")
    db.set_session_title("b", "x #2")
    assert db.resolve_session_by_title("x") == "b"
    assert db.resolve_session_by_title("x", visible_to=ME) == "a"


def test_hidden_rows_do_not_eat_up_the_limit(db):
    talk(db, "mine", "an okapi", source="telegram", user_id="111", started_at=1000.0)
    for n in range(40):
        talk(db, f"theirs{n}", "okapi okapi okapi", source="telegram", user_id="222")
    assert [hit["session_id"] for hit in db.search_messages("okapi", limit=1, visible_to=ME)] == ["mine"]
    assert ids(db.list_sessions_rich(limit=1, visible_to=ME)) == ["mine"]
    assert ids(db.search_sessions(limit=1, visible_to=ME)) == ["mine"]


def test_a_compressed_chain_stays_its_users(db):
    talk(db, "a", "an okapi", source="telegram", user_id="111")
    db.compress_session("a", "b", summary="an animal")
    assert ids(db.list_sessions_rich(visible_to=ME)) == ["b"]
    assert db.get_messages("b", visible_to=ME)
    assert db.list_sessions_rich(visible_to=("telegram", "222")) == []
    assert db.get_messages("b", visible_to=("telegram", "222")) == []

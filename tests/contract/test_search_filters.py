"""Filters, the shape of a hit, ranking, and what must never be found."""

from __future__ import annotations

import time

import pytest

from . import DAY, contents, found, ids, marked, say, talk

KEYS = [
    "id", "session_id", "role", "timestamp", "snippet", "context", "source", "model", "session_started", "score",
    "reason", "relaxed", "title", "tool_name",
]  # fmt: skip


# ------------------------------------------------------------------ a hit


def test_a_hit_has_every_documented_key(db):
    db.create_session("s", "telegram", model="m", started_at=1000.0)
    db.set_session_title("s", "the title")
    message_id = db.append_message("s", "tool", "an aardvark", tool_name="zoo", timestamp=2000.0)
    (hit,) = db.search_messages("aardvark")
    assert not [key for key in KEYS if key not in hit]
    assert (hit["id"], hit["session_id"], hit["role"], hit["timestamp"]) == (message_id, "s", "tool", 2000.0)
    assert (hit["source"], hit["model"], hit["session_started"]) == ("telegram", "m", 1000.0)
    assert (hit["title"], hit["tool_name"]) == ("the title", "zoo")
    assert hit["reason"] == "match" and not hit["relaxed"]
    assert isinstance(hit["score"], (int, float))
    assert "an >>>aardvark<<<" in hit["snippet"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [("aardvark", "match"), ("ardvar", "substring"), ("what about that aardvark thing", "relaxed")],
)
def test_a_hit_says_why_it_is_there(db, query, reason):
    talk(db, "s", "an aardvark")
    (hit,) = db.search_messages(query)
    assert hit["reason"] == reason


def test_snippets_mark_every_word_asked_for_as_it_is_written(db):
    talk(db, "s", "Ein Bär und ein Biber")
    (hit,) = db.search_messages("bar biber")
    assert ">>>Bär<<<" in hit["snippet"] and ">>>Biber<<<" in hit["snippet"]


def test_the_snippet_of_a_long_message_is_short_and_shows_the_match(db):
    talk(db, "s", "padding words " * 5000 + "then an aardvark came" + " more padding" * 5000)
    (hit,) = db.search_messages("aardvark")
    assert ">>>aardvark<<<" in hit["snippet"] and len(hit["snippet"]) < 2000


def test_a_match_only_in_the_tool_call_has_a_marker_too(db):
    db.create_session("s", "cli")
    db.append_message(
        "s",
        "assistant",
        "let me look",
        tool_calls=[{"function": {"name": "f", "arguments": '{"q": "aardvark"}'}}],
    )
    (hit,) = db.search_messages("aardvark")
    assert marked(hit["snippet"]) == "aardvark"


def test_context_is_one_message_before_and_one_after(db):
    one, two, three, _ = talk(db, "s", "before words", "an aardvark", "after words", "far away")
    talk(db, "t", "other session")
    (hit,) = db.search_messages("aardvark")
    assert hit["id"] == two
    assert [(c["id"], c["role"], c["content"]) for c in hit["context"]] == [
        (one, "user", "before words"),
        (three, "user", "after words"),
    ]


def test_context_stays_inside_the_session_when_sessions_interleave(db):
    db.create_session("a", "cli")
    db.create_session("b", "cli")
    for session, text in [("a", "a1"), ("b", "b1"), ("a", "an aardvark"), ("b", "b2"), ("a", "a3")]:
        db.append_message(session, "user", text)
    (hit,) = db.search_messages("aardvark")
    assert contents(hit["context"]) == ["a1", "a3"]


def test_context_is_cut_at_two_hundred_characters(db):
    talk(db, "s", "b" * 5000, "an aardvark", [{"type": "text", "text": "list of parts"}])
    before, after = db.search_messages("aardvark")[0]["context"]
    assert before["content"][:200] == "b" * 200 and len(before["content"]) <= 203
    assert after["content"] == "list of parts"


# ------------------------------------------------------------------ filters


@pytest.fixture
def zoo(db):
    """ "aardvark" in many sessions that differ in one thing each."""
    now = time.time()
    message_ids = {}

    def keep(name, source="cli", role="user", when=now, **columns):
        db.create_session(name, source, **columns)
        message_ids[name] = db.append_message(name, role, "an aardvark walks", timestamp=when)

    keep("plain")
    keep("tg1", "telegram", user_id="1")
    keep("tg2", "telegram", user_id="2", role="assistant")
    keep("dc1", "discord", user_id="1", model="gpt-x")
    keep("old", when=now - 100 * DAY, started_at=now - 100 * DAY)
    keep("titled")
    db.set_session_title("titled", "zoo trip")
    keep("tagged")
    db.tag_session("tagged", "animals", "work")
    db.create_session("tool", "cli")
    message_ids["tool"] = db.append_message(
        "tool", "tool", "an aardvark walks", tool_name="zoo_camera", tool_call_id="1"
    )
    return db, message_ids, now


@pytest.mark.parametrize(
    ("kw", "expected"),
    [
        ({}, {"plain", "tg1", "tg2", "dc1", "old", "titled", "tagged", "tool"}),
        ({"source_filter": ["telegram"]}, {"tg1", "tg2"}),
        ({"source_filter": ["telegram", "discord"]}, {"tg1", "tg2", "dc1"}),
        ({"exclude_sources": ["cli"]}, {"tg1", "tg2", "dc1"}),
        ({"exclude_sources": []}, {"plain", "tg1", "tg2", "dc1", "old", "titled", "tagged", "tool"}),
        ({"role_filter": ["assistant", "tool"]}, {"tg2", "tool"}),
        ({"session_ids": ["plain", "old", "nobody"]}, {"plain", "old"}),
        ({"session_ids": []}, set()),
        ({"user_id": "1"}, {"tg1", "dc1"}),
        ({"model": "gpt-x"}, {"dc1"}),
        ({"title": "zoo trip"}, {"titled"}),
        ({"tag": "animals"}, {"tagged"}),
        ({"tool": "zoo_camera"}, {"tool"}),
        ({"user_id": "1", "exclude_sources": ["telegram"], "model": "gpt-x"}, {"dc1"}),
    ],
)
def test_each_filter_alone_and_together(zoo, kw, expected):
    db, message_ids, _ = zoo
    for query in ("aardvark", "ardvar", "aardvark OR 象"):
        assert found(db, query, **kw) == {message_ids[name] for name in expected}, query


def test_time_range(zoo):
    db, message_ids, now = zoo
    everyone = set(message_ids.values())
    assert found(db, "aardvark", since=now - 50 * DAY) == everyone - {message_ids["old"]}
    assert found(db, "aardvark", until=now - 50 * DAY) == {message_ids["old"]}
    assert found(db, "aardvark", since=now - 150 * DAY, until=now - 50 * DAY) == {message_ids["old"]}
    assert found(db, "aardvark", since=now - 80 * DAY, until=now - 50 * DAY) == set()


def test_filters_hold_for_relaxed_hits_too(db):
    talk(db, "c", "the nginx proxy is configured")
    (wanted,) = talk(db, "t", "the nginx proxy is configured", source="telegram")
    assert found(db, "how did we configure the nginx proxy", source_filter=["telegram"]) == {wanted}


def test_a_filter_is_applied_before_the_limit(db):
    (wanted,) = talk(db, "needle", "an aardvark", source="telegram", started_at=1000.0)
    for n in range(60):
        talk(db, f"hay{n}", "aardvark aardvark aardvark")
    assert found(db, "aardvark", source_filter=["telegram"], limit=1) == {wanted}


def test_filters_may_be_given_by_position_in_the_documented_order(zoo):
    db, message_ids, _ = zoo
    assert ids(db.search_messages("aardvark", ["telegram"], None, ["user"], 5, 0)) == [message_ids["tg1"]]
    assert db.search_messages("aardvark", None, ["cli"], None, 20, 50) == []


# ------------------------------------------------------------------ limit, offset, order


def test_twenty_hits_unless_asked(db):
    for n in range(45):
        say(db, f"s{n % 7}", f"aardvark number {n}")
    assert len(db.search_messages("aardvark")) == 20
    assert db.search_messages("aardvark", limit=0) == []
    assert len({hit["id"] for hit in db.search_messages("aardvark", limit=None)}) == 45


def test_a_session_that_matches_in_several_places_comes_first(db):
    for name in ("x", "y"):
        talk(db, name, "one aardvark walked by", "nothing to see", "and so the day went")
    talk(db, "many", "one aardvark walked by", "another aardvark walked by", "a third aardvark walked by")
    for name in ("z", "w"):
        talk(db, name, "one aardvark walked by", "nothing to see", "and so the day went")
    assert db.search_messages("aardvark")[0]["session_id"] == "many"


# ------------------------------------------------------------------ never found, found again


def test_deleted_text_is_never_found(db):
    talk(db, "s", "secret aardvark 秘密 getAardvarkById")
    db.catch_up()
    db.delete_session("s")
    for query in ("aardvark", "秘密", "密", "AardvarkBy", "aard*", "where is the secret aardvark now"):
        assert db.search_messages(query) == [], query


def test_rewound_text_is_not_found_until_brought_back(db):
    first, second, _ = talk(db, "s", "keep this badger", "an aardvark 秘密", "more aardvark")
    db.catch_up()
    db.rewind("s", first)
    for query in ("aardvark", "秘密", "ardvar", "aardvark OR 秘"):
        assert db.search_messages(query) == [], query
    (hit,) = db.search_messages("badger")
    assert hit["context"] == [], "nor shown beside another hit"
    db.unrewind("s")
    assert second in found(db, "aardvark") and len(found(db, "aardvark")) == 2
    assert found(db, "秘密") == {second}


def test_trashed_text_is_not_found_until_restored(db):
    (message_id,) = talk(db, "s", "an aardvark 秘密")
    db.trash_session("s")
    assert db.search_messages("aardvark") == [] and db.search_messages("秘") == []
    db.restore_session("s")
    assert found(db, "aardvark") == found(db, "秘") == {message_id}


def test_cleared_and_replaced_text_is_not_found(db):
    talk(db, "a", "an aardvark")
    talk(db, "b", "an aardvark")
    db.catch_up()
    db.clear_messages("a")
    db.replace_messages("b", [{"role": "user", "content": "a badger"}])
    assert db.search_messages("aardvark") == []
    assert len(db.search_messages("badger")) == 1


def test_ancestors_stay_searchable(db):
    (message_id, _) = talk(db, "a", "an aardvark", "yes")
    db.compress_session("a", "b", summary="animals")
    assert found(db, "aardvark") == {message_id}


def test_nothing_is_found_twice_across_branches(db):
    message_ids = talk(db, "a", "an aardvark 秘密", "getAardvarkById", "aardvark again")
    for n in range(4):
        db.branch_session("a", f"b{n}", at_message=message_ids[n % 3])
        say(db, f"b{n}", f"own words {n}")
    db.branch_session("b0", "bb")
    for query, expected in [("aardvark", 3), ("秘密", 1), ("AardvarkBy", 1), ('"aardvark again"', 1)]:
        hits = db.search_messages(query, limit=100)
        assert len(hits) == len({hit["id"] for hit in hits})
        if query != "aardvark":
            assert len(hits) == expected, query
    assert {message_ids[0], message_ids[2]} <= found(db, "aardvark")


def around(hit):
    return contents(hit["context"])


def test_the_context_is_of_the_session_that_is_shown(db):
    db.create_session("talk", "cli")
    numbers = [db.append_message("talk", "user", f"line {n}{' needle' if n == 2 else ''}") for n in range(4)]
    db.create_session("between", "cli")
    db.branch_session("talk", "branch", at_message=numbers[2])
    db.append_message("branch", "user", "the branch goes on with a heron")
    db.append_message("between", "user", "of another session")
    db.append_message("branch", "user", "to its end")
    (hit,) = db.search_messages("needle")
    assert (hit["session_id"], around(hit)) == ("talk", ["line 1", "line 3"])
    (hit,) = db.search_messages("heron")
    assert (hit["session_id"], around(hit)) == ("branch", ["line 2 needle", "to its end"])
    db.share_session("branch", "telegram", "7")  # who sees the branch alone reads no further in the other one
    (hit,) = db.search_messages("needle", visible_to=("telegram", "7"))
    assert (hit["session_id"], around(hit)) == ("branch", ["line 1", "the branch goes on with a heron"])


def test_the_context_is_in_the_order_of_the_session_whatever_the_times_are(db):
    db.create_session("talk", "cli")
    for at, text in ((50.0, "first"), (30.0, "a heron"), (40.0, "third")):
        db.append_message("talk", "user", text, timestamp=at)
    assert around(db.search_messages("heron")[0]) == ["first", "third"]
    assert around(db.search_messages("third")[0]) == ["a heron"]


def test_the_context_is_found_among_many_other_messages(db):
    say(db, "talk", "before it")
    say(db, "other", *(f"noise {n}" for n in range(250)))
    say(db, "talk", "a heron")
    say(db, "other", *(f"noise {n}" for n in range(250)))
    say(db, "talk", "after it")
    assert around(db.search_messages("heron")[0]) == ["before it", "after it"]

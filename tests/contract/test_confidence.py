"""How far a hit can be trusted: matches are sure, a question's partial matches likely or weak, on every engine."""

from __future__ import annotations

import pytest

from . import talk

FILLER = "The weather was fine again and the train came late as usual."


@pytest.fixture
def group(db):
    """Two people who sign what they write, over several sessions."""
    for number in range(6):
        talk(db, f"other{number}", f"Nora: {FILLER}", f"Felix: I baked bread number {number} for the market.")
    talk(
        db,
        "marathon",
        "Nora: I ran the marathon on Sunday and raised money for the shelter.",
        "Felix: You are amazing! How did it feel?",
    )
    talk(db, "cello", "Felix: I play the cello in an orchestra now.", "Nora: Since when? You never told me.")
    return db


def levels(db, question):
    return {hit["confidence"] for hit in db.search_messages(question, by="words")}


def test_a_match_is_sure(group):
    assert levels(group, "marathon") == {"sure"}
    assert levels(group, '"raised money"') == {"sure"}


@pytest.mark.parametrize(
    ("question", "level"),
    [
        ("Which race, a marathon, did Nora run for the animal shelter?", "likely"),
        ("WHICH MARATHON DID NORA RUN FOR THE ANIMAL SHELTER AND THE MONEY", "likely"),  # no names
        ("Which marathon did Veronica run for the shelter?", "weak"),  # nobody knows her
        ("When did Felix run the marathon and raise money for the shelter?", "weak"),  # another one said it
        ("What did Nora tell about the marathon in March 1999?", "weak"),  # nothing is known of that year
    ],
)
def test_a_partial_answer_is_likely_where_its_names_and_times_fit(group, question, level):
    assert levels(group, question) == {level}


def test_a_topic_nobody_mentioned_is_weak(group):
    found = levels(group, "What did Nora say about her parachute jump over the volcano?")
    assert found <= {"weak"}


def test_a_hit_in_a_session_without_the_person_is_weak(group):
    talk(group, "harp", "I play the harp in an orchestra now, and in the second orchestra of the school.")
    hits = group.search_messages("Which instrument does Felix play in the orchestra?", by="words")
    found = {hit["session_id"]: hit["confidence"] for hit in hits}
    assert found["cello"] == "likely" and found["harp"] == "weak"

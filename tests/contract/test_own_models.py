"""Text of the program's own assistants (the embedded model, and the one that only quotes) ranks below all other and is marked."""

from __future__ import annotations

import pytest

from hermes.agent.models.offline import EmbeddedModel, ExtractiveModel
from hermes.store.engines.base import OWN_MODELS

SAID = "the walrus sleeps on the ice floe"


def say(db, session_id, role, content, **more):
    db.create_session(session_id, "cli")
    return db.append_message(session_id, role, content, **more)


def test_the_store_knows_their_names():
    assert {EmbeddedModel.name, ExtractiveModel.name} == set(OWN_MODELS)


@pytest.mark.parametrize("query", ["walrus", "walrus floe", '"ice floe"', "alru", "where does the walrus sleep now?"])
def test_it_comes_after_what_people_tools_and_larger_models_said(db, query):
    say(db, "person", "user", SAID, timestamp=1000.0)
    say(db, "tool", "tool", f"{SAID}, and much more stands in this long file", tool_name="read_file", timestamp=1001.0)
    say(db, "larger", "assistant", SAID, model="gpt-5", timestamp=1002.0)
    for number, name in enumerate(OWN_MODELS):
        for again in range(3):
            say(db, name, "assistant", f"{SAID} {again}", model=name, timestamp=2000.0 + number)
    hits = db.search_messages(query)
    by = [(hit["session_id"], hit["own_model"]) for hit in hits]
    assert sorted(by[:3]) == [("larger", False), ("person", False), ("tool", False)]
    assert len(by) == 9 and set(by[3:]) == {(name, True) for name in OWN_MODELS}
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    pages = [hit for offset in range(0, 9, 2) for hit in db.search_messages(query, limit=2, offset=offset)]
    assert [hit["id"] for hit in pages] == [hit["id"] for hit in hits]


def test_a_reply_beside_the_words_of_a_question_is_found_only_if_it_holds_one(db):
    say(db, "a", "user", "Where does the walrus sleep?")
    invented = say(db, "a", "assistant", "On the moon, I am sure.", model="smollm2")
    say(db, "b", "user", "Where does the walrus live?")
    known = say(db, "b", "assistant", "In the Arctic.", model="gpt-5")
    found = [hit["id"] for hit in db.search_messages("so where does the walrus sleep again?")]
    assert known in found and invented not in found


def test_a_word_that_only_they_said_is_still_found(db):
    say(db, "a", "user", "tell me something")
    say(db, "a", "assistant", SAID, model="smollm2")
    assert [hit["own_model"] for hit in db.search_messages("walrus")] == [True]

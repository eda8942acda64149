"""Which of two models decides how near a session is, with vectors that were chosen by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hermes.store.api.session_db import SessionDB
from hermes.store.engines.base import Scope
from hermes.store.records.codec import Blob
from hermes.store.search.meaning import vectors
from hermes.store.search.reranking import Reranking, _Pages

pytestmark = pytest.mark.mechanism


class Model:
    """A model of four numbers, whose vectors a test stores itself."""

    numbers = 4
    unrelated = (0.0, 1.0)

    def __init__(self, name):
        self.name = name

    def suits(self, text):
        return True

    def passages(self, texts):
        raise NotImplementedError

    def questions(self, texts):
        return np.array([[1.0, 0, 0, 0]] * len(texts), dtype=np.float32)


NEAR, FAR = bytes([127, 0, 0, 0]), bytes([0, 127, 0, 0])


@pytest.fixture
def db(tmp_path):
    with SessionDB(db_path=tmp_path / "state.db") as db:
        yield db


def looked(db, sessions):
    """What two models find; `sessions`: name → for each message the vectors of the first and the second model."""
    vectors.prepare(db._engine)
    sequences = {}
    for name, messages in sessions.items():
        db.create_session(name, "cli")
        sequences[name] = [db.append_message(name, "user", "text") for _ in messages]
        with db._engine.write() as tx:
            for message_id, pair in zip(sequences[name], messages, strict=True):
                for model, vector in zip(("first", "second"), pair, strict=True):
                    if vector is not None:
                        tx.run(
                            "INSERT INTO message_vectors(message_id, model, size, vector) VALUES(?, ?, 1, ?)",
                            (message_id, model, Blob(vector)),
                        )
    with db._engine.read() as tx:
        asked = [(one, one.questions([""])[0], _Pages(), None) for one in (Model("first"), Model("second"))]
        return Reranking(tx, Scope("1 = 1"), asked).look(sequences), sequences


def test_a_line_that_a_model_might_know_does_not_decide_for_a_session_in_another_language(db):
    foreign = [(None, NEAR), (None, NEAR), (FAR, FAR), (None, FAR), (None, FAR)]
    english = [(FAR, NEAR), (NEAR, FAR)]
    found, sequences = looked(db, {"foreign": foreign, "english": english})
    alone = {one: near[0] for one, near in found.messages.items()}
    assert alone[sequences["foreign"][0]] > 0 > alone[sequences["foreign"][2]]
    assert alone[sequences["english"][1]] > 0 > alone[sequences["english"][0]]


def test_without_another_model_the_one_line_that_is_known_counts(db):
    found, sequences = looked(db, {"tools": [(NEAR, None), (None, None), (None, None)], "other": [(FAR, FAR)]})
    assert found.messages[sequences["tools"][0]][0] > 0 and set(found.sessions) == {"tools", "other"}
    assert found.sessions["tools"] > found.sessions["other"]


def test_no_vectors_at_all(db):
    found, _ = looked(db, {"none": [(None, None)]})
    assert (found.sessions, found.messages) == ({}, {})

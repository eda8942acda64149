"""Which of two models answers a question, and how near sessions are, with vectors that were chosen by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hermes.errors import StoreError
from hermes.store.api.session_db import SessionDB
from hermes.store.engines.base import Scope
from hermes.store.records.codec import Blob
from hermes.store.search import encoders, vectors
from hermes.store.search.reranking import Reranking

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


def looked(db, monkeypatch, sessions):
    """The nearest messages; `sessions`: name → for each message the vectors of the first and the second model."""
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
    monkeypatch.setattr(encoders, "installed", lambda: [Model("first"), Model("second")])
    with db._engine.read() as tx:
        look = Reranking.at(db._engine, tx, Scope("1 = 1"), "a question")
        return (None if look is None else look.look(sequences)), sequences


@pytest.mark.parametrize("foreign, decides", [(2, "first"), (3, "second")])
def test_the_first_model_answers_unless_another_knows_more_than_twice_as_much(db, monkeypatch, foreign, decides):
    told = {"english": [(NEAR, FAR), (FAR, NEAR)], "foreign": [(None, FAR)] * foreign}
    found, sequences = looked(db, monkeypatch, told)
    nearest = max(found.messages, key=lambda one: found.messages[one][0])
    assert nearest == sequences["english"][0 if decides == "first" else 1]


def test_what_the_model_does_not_know_is_left_out(db, monkeypatch):
    found, sequences = looked(db, monkeypatch, {"tools": [(NEAR, None), (None, None)], "other": [(FAR, FAR)]})
    assert found.messages[sequences["tools"][0]][0] > 0 and set(found.sessions) == {"tools", "other"}
    assert found.sessions["tools"] > found.sessions["other"]


def test_no_vectors_at_all(db, monkeypatch):
    assert looked(db, monkeypatch, {"none": [(None, None)]})[0] is None


def test_a_damaged_package_is_an_error_of_the_store_which_no_search_fails_by():
    model = encoders.Multilingual()
    model._model = SimpleNamespace(encode=lambda texts: 1 // 0)
    with pytest.raises(StoreError, match="--force-reinstall"):
        model.questions(["a question"])

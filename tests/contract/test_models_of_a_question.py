"""Which models a question is given to, where two are installed: stand-ins for the models, and a real store."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.store.search import encoders

from . import talk

np = pytest.importorskip("numpy")


class Model:
    """A stand-in for a model: a vector for each text, and the questions it was given."""

    numbers = 8
    unrelated = (0.1, 0.06)

    def __init__(self, name: str, *, english: bool) -> None:
        self.name, self._english = name, english
        self.asked: list[str] = []

    def suits(self, text: str) -> bool:
        return encoders.looks_english(text) if self._english else True

    def passages(self, texts: Any) -> tuple[Any, list[int]]:
        return self._vectors(texts), [len(text) for text in texts]

    def questions(self, texts: Any) -> Any:
        self.asked += texts
        return self._vectors(texts)

    @staticmethod
    def _vectors(texts: Any) -> Any:
        found = np.array([[float(text.count(letter)) + 0.1 for letter in "aeinorst"] for text in texts])
        return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    both = [Model(encoders.Arctic.name, english=True), Model(encoders.Multilingual.name, english=False)]
    monkeypatch.setattr(encoders, "installed", lambda home=None: both)
    return both


ENGLISH = ("The puppy is from the shelter.", "It was the plane to Lisbon.", "The boiler is in the basement.")
GERMAN = ("Der Hund ist aus dem Tierheim.", "Das war das Flugzeug nach Lissabon.", "Der Kessel ist im Keller.")


@pytest.mark.parametrize(
    ("said", "question", "asked"),
    [
        (ENGLISH, "which pet have they got in there", [1, 0]),
        (ENGLISH, "welches Haustier haben die denn nun", [0, 1]),
        (GERMAN * 3, "which pet have they got in there", [0, 1]),
        ((*ENGLISH, *GERMAN * 3), "which pet have they got in there", [0, 1]),
    ],
)
def test_an_english_question_is_left_to_the_english_model_where_that_knows_enough(
    db: Any, models: list[Model], said: tuple[str, ...], question: str, asked: list[int]
) -> None:
    talk(db, "talk", *said)
    db.index_meaning()
    db.search_messages(question)
    assert [len(model.asked) for model in models] == asked

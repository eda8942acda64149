"""The labelled set is what it claims to be: large and mixed enough, labels that exist, questions that are fair."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from .labelled import Question, conversations, questions

CLASSES = {
    *("keyword", "natural", "typo-syntax", "identifier", "path", "cjk1", "cjk2", "cjk"),
    *("substring", "boolean", "phrase", "prefix", "other-language"),
}
CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
Sessions = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return {session["id"]: session for session in conversations()}


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return questions()


def test_the_conversations_are_many_and_in_many_languages(sessions: Sessions) -> None:
    languages = Counter(session["lang"] for session in sessions.values())
    assert len(sessions) >= 80
    assert sum(len(session["messages"]) for session in sessions.values()) >= 320
    assert languages.keys() >= {"en", "zh", "ja", "ko", "vi", "de", "es", "th"}
    assert languages["en"] > len(sessions) / 2


def test_the_conversations_hold_what_is_hard_to_index(sessions: Sessions) -> None:
    messages = [message for session in sessions.values() for message in session["messages"]]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    arguments = [call["function"]["arguments"] for m in messages for call in m.get("tool_calls", [])]
    assert sum("\\u" in text and not CJK.search(text) for text in results) >= 5
    assert sum("\\u" in text for text in arguments) >= 5
    assert any("\\n" in text for text in results)
    assert any(len(text) > 2048 for text in results)
    assert any(isinstance(message["content"], list) for message in messages)
    assert any(letter >= "\U0001f300" for m in messages for letter in str(m["content"]))


def test_every_question_is_asked_once_and_its_answers_exist(asked: list[Question], sessions: Sessions) -> None:
    assert len(asked) >= 75
    assert len({question.text for question in asked}) == len(asked)
    for question in asked:
        assert question.answers and set(question.answers) <= sessions.keys(), question.text


def test_a_third_is_held_out_in_every_class(asked: list[Question]) -> None:
    assert {question.kind for question in asked} == CLASSES
    for name in CLASSES:
        of_class = [question.held_out for question in asked if question.kind == name]
        assert len(of_class) >= 5
        assert 0.3 <= sum(of_class) / len(of_class) <= 0.5, name
    assert 1 / 3 <= sum(question.held_out for question in asked) / len(asked) <= 0.4

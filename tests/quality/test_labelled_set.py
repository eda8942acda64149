"""The labelled set is what it claims to be: large and mixed enough, labels that exist, questions that are fair."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from .labelled import Question, conversations, questions

CLASSES = {
    *("keyword", "natural", "typo-syntax", "identifier", "path", "cjk1", "cjk2", "cjk"),
    *("substring", "boolean", "phrase", "prefix", "other-language"),
}
FIELDS = {"id", "lang", "source", "user_id", "title", "messages"}
CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
Sessions = dict[str, dict[str, Any]]
FILLER = """
about after also again although anything because been before being could does doing done down each every from
have into just like many more much only over really some something still such than that them then there they
this those what when where which while will with would your
"""


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    return {session["id"]: session for session in conversations()}


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return questions()


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for key, part in value.items() for text in (key, *_strings(part))]
    if isinstance(value, list):
        return [text for part in value for text in _strings(part)]
    return [str(value)]


def _decoded(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return " ".join(_strings(value))


def _text(session: dict[str, Any]) -> str:
    """All that a session says, JSON read as the text it stands for."""
    parts: list[str] = []
    for message in session["messages"]:
        content = message["content"] or ""
        parts.append(_decoded(content) if isinstance(content, str) else " ".join(_strings(content)))
        parts += [_decoded(call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    return " ".join(parts)


def _stems(text: str) -> set[str]:
    """Content words cut to their first letters: rough, and enough to see whether two texts share a word."""
    words = re.findall(r"\w{4,}", text.casefold())
    return {word[: max(4, len(word) - 3)] for word in words if word not in FILLER.split()}


def _shared(question: Question, session: dict[str, Any]) -> set[str]:
    text = _text(session).casefold()
    return {stem for stem in _stems(question.text) if re.search(rf"\b{re.escape(stem)}", text)}


def test_every_session_has_its_fields_and_an_id_and_title_of_its_own(sessions: Sessions) -> None:
    assert len(sessions) == len(conversations())
    assert all(set(session) == FIELDS for session in sessions.values())
    titles = Counter(session["title"] for session in sessions.values() if session["title"] is not None)
    assert [title for title, times in titles.items() if times > 1 or not 0 < len(title) <= 100] == []


def test_every_tool_result_answers_a_call_and_every_call_has_its_result(sessions: Sessions) -> None:
    for session in sessions.values():
        waiting: dict[str, str] = {}
        for message in session["messages"]:
            assert message["role"] in {"user", "assistant", "tool"}
            assert message["content"] or message.get("tool_calls"), session["id"]
            for call in message.get("tool_calls", []):
                json.loads(call["function"]["arguments"])
                waiting[call["id"]] = call["function"]["name"]
            if message["role"] == "tool":
                assert waiting.pop(message["tool_call_id"]) == message["tool_name"], session["id"]
        assert waiting == {}, session["id"]


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


def test_questions_of_the_cjk_classes_have_the_length_they_say(asked: list[Question]) -> None:
    for question in asked:
        if question.kind in {"cjk1", "cjk2"}:
            assert len(question.text) == int(question.kind[-1]), question.text
            assert CJK.match(question.text)
        elif question.kind == "cjk":
            assert len(CJK.findall(question.text)) > 2, question.text


def test_a_natural_question_shares_words_with_its_answer_but_is_not_copied_from_it(
    asked: list[Question], sessions: Sessions
) -> None:
    for question in asked:
        if question.kind == "natural":
            right = [sessions[answer] for answer in question.answers]
            assert any(_shared(question, session) for session in right), question.text
            assert not any(question.text.casefold() in _text(session).casefold() for session in right)


def test_most_natural_questions_have_words_that_other_sessions_use_too(
    asked: list[Question], sessions: Sessions
) -> None:
    natural = [question for question in asked if question.kind == "natural"]
    contested = 0
    for question in natural:
        right = set().union(*(_shared(question, sessions[answer]) for answer in question.answers))
        others = Counter(
            stem for name, session in sessions.items() if name not in question.answers
            for stem in _shared(question, session) & right
        )  # fmt: skip
        contested += any(count >= 2 for count in others.values())
    assert contested >= len(natural) / 2

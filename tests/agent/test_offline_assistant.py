"""The assistant without a model: it quotes the history, says what it is, and never makes anything up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.agent.loop import Agent
from hermes.agent.models.model import Model, Piece, Reply
from hermes.agent.models.offline import ExtractiveModel
from hermes.agent.turn import Done, Text
from hermes.config import Config

from .saying import talk


@pytest.fixture
def history(db: Any) -> Any:
    talk(db, "parser", "Which parser for the config language?", "Take lark in LALR mode.", title="Parser choice")
    talk(db, "bread", "My sourdough does not rise", "Feed the starter twice a day.")
    return db


def reply(model: ExtractiveModel, text: str) -> str:
    items = list(
        model.stream([{"role": "system", "content": "x"}, {"role": "user", "content": text}], cancelled=lambda: False)
    )
    whole = items[-1]
    assert isinstance(whole, Reply) and isinstance(whole.content, str)
    assert "".join(item.text for item in items[:-1] if isinstance(item, Piece)) == whole.content
    return whole.content


def test_it_is_a_model_that_says_what_it_is(history) -> None:
    model: Model = ExtractiveModel(history)
    assert (model.kind, model.calls_tools) == ("extractive", False)
    assert "no language model" in model.describe()


def test_it_answers_with_quoted_passages_and_where_they_are_from(history) -> None:
    answer = reply(ExtractiveModel(history), "What did we decide about the parser?")
    assert "> → Take lark in LALR mode." in answer.splitlines()
    assert "**Parser choice**" in answer and "`parser`" in answer
    assert "sourdough" not in answer
    assert "not a language model" in answer
    assert "hermes model install smollm2" in answer and "model.base_url" in answer


def test_nothing_found_says_what_was_searched(history) -> None:
    answer = reply(ExtractiveModel(history), "When does the zeppelin land?")
    assert "found nothing" in answer and "zeppelin" in answer and "2 other conversations" in answer
    assert ">" not in answer


def test_what_stands_beside_the_question_alone_is_no_answer(db) -> None:
    talk(db, "billing", "We decided to use PostgreSQL for the billing service", "Noted.")
    db.append_message("billing", "user", "what did we say about the parser?")  # stored before it is answered
    answer = reply(ExtractiveModel(db, "billing"), "what did we say about the parser?")
    assert "found nothing" in answer and "PostgreSQL" not in answer


@pytest.mark.parametrize("text", ["hi", "Hello!", "¡Hola!", "Guten Tag", "你好", "こんにちは。", "Привет!"])
def test_a_greeting_is_greeted(history, text) -> None:
    assert reply(ExtractiveModel(history), text).startswith("Hello!")


@pytest.mark.parametrize("text", ["help", "?", "What can you do?", "", "   "])
def test_help_says_what_can_be_done(history, text) -> None:
    answer = reply(ExtractiveModel(history), text)
    assert "hermes sessions search" in answer and "hermes model install smollm2" in answer


def talk_to(db: Any, home: Path, session_id: str, text: str) -> str:
    agent = Agent(db, Config(), ExtractiveModel(db), session_id=session_id, home=home, cwd=home)
    events = list(agent.turn(text))
    agent.close()
    assert isinstance(events[-1], Done)
    assert "".join(event.text for event in events if isinstance(event, Text)) == events[-1].text
    return events[-1].text


def test_in_a_conversation_it_does_not_quote_the_question_itself(history, tmp_path) -> None:
    for session_id in ("one", "two"):
        answer = talk_to(history, tmp_path, session_id, "What did we say about the sourdough starter?")
        assert "Feed the starter twice a day." in answer
        assert "> What did we say" not in answer, "neither the question nor its own earlier answers are a source"
        assert answer.count("Feed the starter twice a day.") == 1


def test_what_was_said_earlier_in_the_same_conversation_is_found(history, tmp_path) -> None:
    agent = Agent(history, Config(), ExtractiveModel(history), session_id="now", home=tmp_path, cwd=tmp_path)
    list(agent.turn("My walrus is called Ivory, please remember that."))
    answer = list(agent.turn("What is my walrus called?"))[-1].text
    agent.close()
    assert "> My walrus is called Ivory, please remember that." in answer
    assert "> What is my walrus called?" not in answer


def test_where_others_read_the_answers_it_quotes_that_conversation_alone(history, tmp_path) -> None:
    agent = Agent(history, Config(), ExtractiveModel(history), session_id="group", home=tmp_path, cwd=tmp_path)
    agent.private = False
    list(agent.turn("My walrus is called Ivory, please remember that."))
    assert "Ivory" in list(agent.turn("What is my walrus called?"))[-1].text
    answer = list(agent.turn("What did we say about the sourdough starter?"))[-1].text
    agent.close()
    assert "Feed the starter" not in answer and "found nothing" in answer


def test_in_a_conversation_it_quotes_what_its_user_may_see(history, tmp_path) -> None:
    talk(history, "mine", "the sourdough of user seven", source="telegram", user_id="7")
    agent = Agent(
        history,
        Config(),
        ExtractiveModel(history),
        session_id="t",
        source="telegram",
        user=("telegram", "7"),
        home=tmp_path,
        cwd=tmp_path,
    )
    answer = list(agent.turn("what about the sourdough?"))[-1].text
    agent.close()
    assert "user seven" in answer and "does not rise" not in answer

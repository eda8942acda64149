"""Notices: every language has every text, and a conversation gets the ones in its own."""

from __future__ import annotations

import string
import tomllib
from pathlib import Path

import pytest

from hermes.gateway import notices
from hermes.gateway.chats.access import welcome
from hermes.gateway.flow.turns import read_answer
from hermes.gateway.notices import LANGUAGES, guess, language_of, say
from hermes.store.gateway.gateway_db import GatewayDB
from tests.support.echo import Echo
from tests.support.gateway import running
from tests.support.labs.base import until
from tests.support.labs.plain import PlainLab

FOLDER = Path(str(notices.__file__)).parent


def texts(language: str) -> dict[str, str]:
    return tomllib.loads((FOLDER / f"{language}.toml").read_text())


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_language_is_known() -> None:
    assert sorted(LANGUAGES) == sorted(path.stem for path in FOLDER.glob("*.toml"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_every_notice_with_its_values_and_commands(language: str) -> None:
    here, english = texts(language), texts("en")
    assert list(here) == sorted(english)
    for key, text in english.items():
        if key != "span_minute":
            assert placeholders(here[key]) == placeholders(text), key
        assert commands(here[key]) == commands(text), key
        assert here[key].strip() == here[key], key


def commands(text: str) -> set[str]:
    return {one for one in text.split("`")[1::2] if one.startswith(("/", "hermes"))}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_words_that_a_question_asks_for_are_understood(language: str) -> None:
    asked = say("question", language, question="?", minutes=5).split("**")
    assert (read_answer(asked[1]), read_answer(asked[3])) == (True, False)
    assert (read_answer(say("yes", language)), read_answer(say("no", language))) == (True, False)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the weather like in Oslo?", "en"),
        ("hello", "en"),
        ("Wie wird das Wetter morgen in Bremen?", "de"),
        ("Quel temps fait-il dans les Alpes et sur la côte ?", "fr"),
        ("¿Qué tiempo hace en Sevilla y en los pueblos de la costa?", "es"),
        ("明天北京天气怎么样？", "zh"),
        ("明日の東京の天気はどうですか", "ja"),
        ("o que você pode fazer para mim com isso?", "pt"),
        ("what does 猫 mean in the text?", "en"),
        ("/status", None),
        ("42", None),
        ("", None),
        ("echo ping", None),
    ],
)
def test_the_language_of_a_text_is_guessed_or_left_open(text: str, language: str | None) -> None:
    assert guess(text) == language


def test_words_count_more_than_what_the_platform_tells() -> None:
    assert language_of(["Wie geht das mit dem Garten?"], "en-US") == "de"
    assert language_of([None, "", "/stop", "Merci, je vous écoute"], "en") == "fr"
    assert language_of(["/stop"], "es-MX") == "es-MX"
    assert language_of(["東京天気"], "ja") == "ja"
    assert say("yes", "es-MX") == "Sí"
    assert say("yes", "tlh") == say("yes", None) == "Yes"


def test_a_stranger_is_greeted_and_welcomed_in_their_own_language(lab: PlainLab, model: Echo) -> None:
    with running(lab, model) as gateway:
        lab.say("Hallo, kannst du mir mit dem Garten helfen?", who="mallory")
        (greeting,) = until(lambda: lab.shown(who="mallory"))
        assert "Ich kenne dich noch nicht" in greeting
        code = greeting.split("approve ")[1].split("`")[0].strip()[:9]
        assert GatewayDB(gateway.db).approve_pairing(code, welcome) is not None
        until(lambda: any("Du bist dabei" in one for one in lab.shown(who="mallory")))


def test_a_stopped_answer_says_so_in_the_language_of_the_question(lab: PlainLab, model: Echo) -> None:
    with running(lab, model):
        lab.say("请写一篇很长的文章，谢谢 long=2000 slow=30")
        until(lambda: lab.shown())
        lab.say("/stop")
        until(lambda: any(say("stopped", "zh") in one for one in lab.shown()))

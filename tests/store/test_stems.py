"""Forms of words: Snowball's where it is installed, the simple rules where it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hermes.store.text.stems import language_of, stemmer
from hermes_state import SessionDB

pytestmark = pytest.mark.mechanism

QUESTIONS = {
    "english": "What did we decide about the parser last week?",
    "german": "Was haben wir über den Parser entschieden?",
    "spanish": "¿Qué hemos decidido sobre el analizador?",
    "french": "Qu'est-ce que nous avons décidé pour le parseur ?",
    "russian": "что мы решили о парсере",
}


@pytest.mark.parametrize("language", QUESTIONS)
def test_the_language_of_a_question(language: str) -> None:
    assert language_of(QUESTIONS[language].split()) == language


def test_without_a_telling_word_it_is_english() -> None:
    assert language_of(["parser", "部署"]) == "english" and language_of([]) == "english"


def test_snowball_tells_words_apart_that_the_rules_do_not(tmp_path: Path) -> None:
    pytest.importorskip("Stemmer")
    stem = stemmer("english")
    assert stem("planning") == stem("plans") != stem("plane")
    german = stemmer("german")
    assert german("entscheidungen") == german("entscheidung")
    with SessionDB(tmp_path / "state.db") as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "Die Entscheidungen zum Lager fielen gestern.")
        assert db.search_messages("Welche Entscheidung gab es zu dem Lager und dem Hafen?")[0]["session_id"] == "s"


def test_without_it_the_rules_stand() -> None:
    code = (
        "import sys; sys.modules['Stemmer'] = None\n"
        "from hermes.store.text.stems import stem, stemmer\n"
        "assert stemmer('english') is stem and stem('deployed') == stem('deployment')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

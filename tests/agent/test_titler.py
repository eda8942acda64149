"""Titles in the background: once, never over one that a person gave, and never in anybody's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.agent.history import CLOSE, OPEN
from hermes.agent.models.endpoint import EndpointModel
from hermes.agent.titler import AT_ONCE, clean_title, start_titling, word_count
from hermes.errors import ModelUnreachable
from tests.support.aimock import fixtures_of

from .saying import Canned, talk

ASKED = "Hi! Can you help me fix the login page of our shop?"
EXTRACTED = "Fix the login page of our shop"


def titled(db: Any, session_id: str, model: Any) -> str | None:
    thread = start_titling(db, session_id, model)
    if thread is not None:
        thread.join(120)
        assert not thread.is_alive()
    return db.get_session_title(session_id)


def test_the_model_gives_the_title_over_a_real_socket(db, aimock) -> None:
    talk(db, "s", ASKED, "Sure.")
    server = aimock(fixtures_of('"Repairing the Shop Login"'))
    assert titled(db, "s", EndpointModel("fake", server.base_url, "key", 32_000)) == "Repairing the Shop Login"
    (request,) = server.requests()
    asked = str(request["messages"][1]["content"])
    assert ASKED in asked.partition(OPEN)[2].partition(CLOSE)[0]
    assert "untrusted" in str(request["messages"][0]["content"])


@pytest.mark.parametrize(
    "model",
    [
        None,
        Canned(ModelUnreachable("down")),
        Canned(RuntimeError("a bug")),
        Canned(""),
        Canned("<think>what could it be"),
        Canned("I'm sorry, I can't help with that."),
        Canned(AssertionError("was asked"), kind="extractive"),
        Canned(AssertionError("was asked"), kind="embedded"),
    ],
)
def test_without_a_usable_answer_the_title_is_taken_from_the_first_exchange(db, model) -> None:
    talk(db, "s", ASKED, "Sure.")
    assert titled(db, "s", model) == EXTRACTED


def test_a_session_with_a_title_is_left_alone(db) -> None:
    talk(db, "s", ASKED, "Sure.", title="my own")
    model = Canned("Another title for it")
    assert start_titling(db, "s", model) is None
    assert model.asked == [] and db.get_session_title("s") == "my own"


def test_a_title_set_by_hand_while_the_model_thinks_stays(db) -> None:
    talk(db, "s", ASKED, "Sure.")

    def meanwhile(messages: Any) -> str:
        db.set_session_title("s", "by hand")
        return "By the clever model"

    assert titled(db, "s", Canned(meanwhile)) == "by hand"


def test_titling_happens_once_even_if_the_title_is_taken_away(db) -> None:
    talk(db, "s", ASKED, "Sure.")
    model = Canned("By the clever model")
    assert titled(db, "s", model) == "By the clever model"
    db.set_session_title("s", "")
    assert titled(db, "s", model) is None
    assert len(model.asked) == 1


def test_a_title_that_is_taken_is_told_apart_by_the_date_and_a_number_comes_last(db) -> None:
    for n in range(5):
        talk(db, f"s{n}", ASKED, "Sure.")
    when = datetime.fromtimestamp(db.get_session("s1")["started_at"])
    titles = [titled(db, f"s{n}", Canned("Shop login repair")) for n in range(5)]
    dated = f"Shop login repair, {when.day} {when:%B %Y}"
    assert titles[:3] == ["Shop login repair", dated, f"{dated} {when:%H:%M}"]
    assert titles[3:] == ["Shop login repair #2", "Shop login repair #3"]


def test_many_sessions_titled_alike_at_once_get_different_titles(db) -> None:
    for n in range(8):
        talk(db, f"s{n}", ASKED, "Sure.")
    threads = [start_titling(db, f"s{n}", None) for n in range(8)]
    for thread in threads:
        assert thread is not None
        thread.join(120)
    titles = {str(db.get_session_title(f"s{n}")) for n in range(8)}
    assert len(titles) == 8 and EXTRACTED in titles and all(title.startswith("Fix the login page") for title in titles)


def test_many_new_conversations_at_once_ask_for_a_few_titles_at_a_time(db) -> None:
    go_on = threading.Event()
    asked = threading.Semaphore(0)

    def slow(messages: Any) -> str:
        asked.release()
        assert go_on.wait(60)
        return "By the clever model"

    for n in range(20):
        talk(db, f"s{n}", ASKED, "Sure.")
    titlings = [start_titling(db, f"s{n}", Canned(slow)) for n in range(20)]
    for _ in range(AT_ONCE):
        assert asked.acquire(timeout=30)
    assert not asked.acquire(blocking=False)
    go_on.set()
    for titling in titlings:
        assert titling is not None
        titling.join(60)
        assert not titling.is_alive()
    assert all(db.get_session_title(f"s{n}") for n in range(20))


def test_what_the_extractive_assistant_quotes_is_no_subject(db) -> None:
    talk(db, "s", "hello")
    db.append_message("s", "assistant", "These passages about whales fit best.", model="extractive")
    title = titled(db, "s", Canned("", kind="extractive"))
    assert title is not None and title.startswith("Conversation of")


def test_what_can_not_be_titled_is_passed_over(db, make_db) -> None:
    assert start_titling(db, "nowhere", None) is None
    db.create_session("empty", "cli")
    assert start_titling(db, "empty", None) is None
    db.create_session("silent", "cli")
    db.append_message("silent", "system", "only a system message")
    assert titled(db, "silent", None) is None
    closed = make_db()
    talk(closed, "s", ASKED)
    closed.close()
    assert start_titling(closed, "s", None) is None


def test_a_store_closed_under_its_hands_disturbs_nobody(make_db) -> None:
    db = make_db()
    talk(db, "s", ASKED, "Sure.")

    def close(messages: Any) -> str:
        db.close()
        return "By the clever model"

    thread = start_titling(db, "s", Canned(close))
    assert thread is not None
    thread.join(120)  # an error in a thread would fail this test: see pyproject.toml
    assert not thread.is_alive()


def test_a_program_that_ends_does_not_wait_for_a_model_that_hangs(tmp_path) -> None:
    code = """
import sys, threading
sys.path.insert(0, sys.argv[2])
from saying import Canned, talk
from hermes.agent.titler import start_titling
from hermes_state import SessionDB
db = SessionDB(db_path=sys.argv[1])
talk(db, "s", "What is the weather in Bergen?", "Rain.")
start_titling(db, "s", Canned(lambda messages: threading.Event().wait(600)))
print("done")
"""
    words = [sys.executable, "-c", code, str(tmp_path / "state.db"), os.path.dirname(__file__)]
    assert subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout == "done\n"


# ------------------------------------------------------------------ cleaning


@pytest.mark.parametrize(
    "answer, title",
    [
        ("Fixing the shop login", "Fixing the shop login"),
        ('"Fixing the shop login."', "Fixing the shop login"),
        ("Title: Fixing the shop login", "Fixing the shop login"),
        ("**Title:** Fixing the shop login", "Fixing the shop login"),
        ("<think>Let me see.\nA title.</think>\nFixing the shop login", "Fixing the shop login"),
        ("reasoning without a beginning</think>Fixing the shop login", "Fixing the shop login"),
        ("Sure! Here is a title:\n\n**Fixing the shop login**", "Fixing the shop login"),
        ("标题：修复商店登录页面", "修复商店登录页面"),
        ("「ログイン画面の修正について」", "ログイン画面の修正について"),
        ("Fixing the login page of our shop and then of the others too", "Fixing the login page of our shop"),
        ("Using C++ templates (part two)", "Using C++ templates (part two)"),
        ("Why is `foo_bar` empty?", "Why is foo_bar empty?"),
        ("", None),
        ("Shop login", None),
        ("I cannot give this a title.", None),
        ("1 2 3 4", None),
        ("...", None),
    ],
)
def test_a_models_answer_is_freed_of_what_is_no_title(answer: str, title: str | None) -> None:
    assert clean_title(answer) == title


@given(st.text(max_size=300) | st.text(alphabet='"*#`:.<>/think \n「」title', max_size=80))
def test_any_answer_gives_a_fit_title_or_none(answer: str) -> None:
    from hermes_state import SessionDB

    title = clean_title(answer)
    if title is not None:
        assert 3 <= word_count(title) <= 7
        assert "\n" not in title and json.dumps(title)
        assert SessionDB.sanitize_title(title) is not None

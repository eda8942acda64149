"""`hermes insights`: the picture in any width, as JSON, without anything to show, and with wrong words.

The screens are under golden/; HERMES_UPDATE_GOLDEN=1 writes them anew (look at them before you keep them).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from hermes.cli.output import cells
from tests.cli.insights_store import NOW, TALKS, store_in
from tests.support.program import run

GOLDEN = Path(__file__).parent / "golden"
STILL = {"HERMES_NOW": str(NOW)}


def screen(home: Path, *words: object, width: int = 80, **env: str) -> str:
    done = run("insights", *words, home=home, width=width, env=STILL | env)
    assert (done.status, done.err) == (0, "")
    return done.out


def assert_golden(name: str, text: str) -> None:
    path = GOLDEN / f"insights-{name}.txt"
    if os.environ.get("HERMES_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_picture_lines_up_in_any_width(hermes_home, width):
    text = screen(store_in(hermes_home), width=width)
    assert max(cells(one) for one in text.splitlines()) <= width
    assert "\x1b" not in text
    if width == 80:
        assert_golden("full", text)


@pytest.mark.parametrize("width", [1, 8, 20, 33])
def test_it_draws_in_a_terminal_of_any_width(hermes_home, width):
    assert "Sessions" in screen(store_in(hermes_home), width=width)


def test_without_titles_the_first_words_stand_in(hermes_home):
    untitled = [(*talk[:-1], None) for talk in TALKS]
    text = screen(store_in(hermes_home, untitled))
    assert "Question 0 of conversation 0" in text and "Parser" not in text
    assert_golden("untitled", text)


def test_an_empty_store_is_greeted_kindly(hermes_home):
    assert "No conversations in this time" in screen(hermes_home)


def test_one_source_alone(hermes_home):
    text = screen(store_in(hermes_home), "--source", "telegram")
    assert "Insights · last 30 days · telegram" in text and "claude" not in text
    assert "No conversations in this time in the source nowhere" in screen(hermes_home, "--source", "nowhere")


def test_fewer_days_show_less(hermes_home):
    home = store_in(hermes_home)
    assert json.loads(screen(home, "--days", 2, "--json"))["sessions"] == 2  # today and yesterday, not 48 hours
    assert json.loads(screen(home, "--days", 365, "--json"))["sessions"] == len(TALKS)


def test_json_holds_the_same_numbers_as_the_store(hermes_home):
    from hermes_state import SessionDB

    home = store_in(hermes_home)
    found = json.loads(screen(home, "--json"))
    with SessionDB(home / "state.db") as db:
        whole = db.insights(29 + 20 / 24, now=NOW, timezone="UTC")  # from the first midnight on
        assert found == {**json.loads(json.dumps(whole)), "days": 30}
        assert found["messages"] == db.message_count()
        assert found["tokens"]["input"] == sum(row["input_tokens"] for row in db.list_sessions_rich(limit=100))


def test_the_time_zone_of_the_config_counts(hermes_home):
    home = store_in(hermes_home)
    at_home = json.loads(screen(home, "--json"))["by_hour"]
    (home / "config.yaml").write_text("timezone: Asia/Tokyo\n")
    there = json.loads(screen(home, "--json"))
    assert there["timezone"] == "Asia/Tokyo" and there["by_hour"] == at_home[-9:] + at_home[:-9]


def test_names_from_elsewhere_can_do_nothing_to_the_terminal(hermes_home):
    talks = [("cli\x1b[31m", "evil\x1b]0;title\x07model", 0, 9, 1, ["to\nol"], 10, 10, None, None)]
    text = screen(store_in(hermes_home, talks))
    assert "\x1b" not in text and "\x07" not in text and "evilmodel" in text and "to ol" in text


def test_text_no_encoding_can_hold_is_escaped_in_json(hermes_home):
    talks = [("cli", "m\ud800", 0, 9, 1, [], 10, 10, None, None)]
    assert json.loads(screen(store_in(hermes_home, talks), "--json"))["by_model"][0]["model"] == "m\ud800"


def test_colour_only_on_a_terminal_that_wants_it(hermes_home):
    from hermes.cli.insights import draw
    from hermes_state import SessionDB

    with SessionDB(store_in(hermes_home) / "state.db") as db:
        found = db.insights(30, now=NOW, timezone="UTC")
    plain, painted = (draw(found, width=80, colour=colour) for colour in (False, True))
    assert "\x1b[" in painted and re.sub(r"\x1b\[\d+m", "", painted).split() == plain.split()
